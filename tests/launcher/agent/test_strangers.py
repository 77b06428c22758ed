"""A peer without the job's token does no harm and learns nothing, and no name server is asked."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SECRET = "correct horse battery staple"


@pytest.fixture
def guarded(crew, tmp_path):
    token = tmp_path / "token"
    token.write_text(SECRET)
    return crew("2:3", "--token-file", str(token), "--last-call-s", "0.3")


@pytest.mark.parametrize("knows", [None, "another token of 16 bytes"], ids=["no token", "another token"])
def test_a_stranger_is_refused(guarded, tmp_path, knows):
    job = guarded
    agents = [job.start("w0")]
    agents[0].until("coordinator_begun")
    agents.append(job.start("w1"))
    world = job.world(2)
    other = tmp_path / "other"
    other.write_text(knows or "")
    job.options = job.options[:-4] + (("--token-file", str(other)) if knows else ()) + ("--rdzv-conf", "join_timeout=3")
    stranger = job.start("stranger")
    assert "the job's token" in stranger.until("coordinator_sought")["detail"]  # who refuses it may be a stranger, too
    assert stranger.code() == 1
    assert stranger.until("agent_ended")["reason"] == "join_timeout"
    assert agents[0].until("stranger_refused")["peer"] == "127.0.0.1"
    job.finish()
    assert job.codes(*agents) == [0, 0]
    assert list(job.worlds()) == [world[0].round]


def test_the_token_is_given_to_nobody(guarded):
    """Only the name of its file is known to processes; no log has it."""
    job = guarded
    agents = [job.start("w0"), job.start("w1")]
    command_lines = b"".join(
        Path(f"/proc/{life.pid}/{what}").read_bytes() for life in job.world(2) for what in ("environ", "cmdline")
    )
    job.finish()
    assert job.codes(*agents) == [0, 0]
    all_bytes = command_lines + b"".join(path.read_bytes() for path in job.folder.rglob("*") if path.is_file())
    assert SECRET.encode() not in all_bytes


GARBAGE = {
    "bytes": os.urandom(4_096),
    "a web request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a frame too long": struct.pack(">I", 0xFFFFFFFF),
    "half a frame": struct.pack(">I", 4_096) + b"x" * 100,
    "an empty frame": struct.pack(">I", 0),
    "a frame of nonsense": struct.pack(">I", 64) + os.urandom(64),
    "nothing": b"",
}


def test_a_flood_of_garbage(guarded):
    """Hundreds of connections that talk nonsense, or nothing: the world trains on, and a third worker comes in."""
    job = guarded
    agents = [job.start("w0")]
    agents[0].until("coordinator_begun")
    agents.append(job.start("w1"))
    first = job.world(2)
    crowd = []
    for at in range(700):
        crowd.append(socket.create_connection(("127.0.0.1", job.port), 5))
        crowd[-1].sendall(list(GARBAGE.values())[at % len(GARBAGE)])
    try:
        agents.append(job.start("w2"))
        grown = job.world(3, after=first[0].round)
        job.finish()
        assert job.codes(*agents) == [0, 0, 0]
        assert {life.restarts for life in grown} == {0}
        assert list(job.worlds()) == [first[0].round, grown[0].round]
    finally:
        for sock in crowd:
            sock.close()


@pytest.mark.root
@pytest.mark.debian("util-linux")
def test_no_name_server_is_asked(crew, tmp_path):
    """With IPs in the command line nobody waits for a name server, since nobody asks one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.153", 53))
        server.settimeout(5)
        conf, switch = tmp_path / "resolv.conf", tmp_path / "nsswitch.conf"
        conf.write_text("nameserver 127.0.0.153\noptions timeout:1 attempts:1\n")
        switch.write_text("hosts: files dns\n")
        line = f'mount --bind {conf} /etc/resolv.conf && mount --bind {switch} /etc/nsswitch.conf && exec "$@"'
        private = ("unshare", "--mount", "bash", "-c", line, "private")
        job = crew("2")
        for at in range(2):
            job.start(f"w{at}", prefix=private)
        job.world(2)
        job.finish()
        assert job.codes() == [0, 0]
        job.start("asks", prefix=private, argv=("getent", "hosts", "name.of.nobody.test"))
        assert b"nobody" in server.recv(512), "the first question is that of this test itself"
