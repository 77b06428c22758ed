"""A process that can open no more files waits for strangers to leave: it neither ends nor burns the CPU meanwhile."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.kit.wait import until
from tests.launcher.agent.crew import ENV
from turnout.launcher.addresses import free_port
from turnout.launcher.checkpoint.arena.arena_files import private_folder, socket_in
from turnout.launcher.checkpoint.format.daemon_messages import MAX_BYTES, Hello, Trust, encode, read_at_client
from turnout.launcher.checkpoint.format.daemon_messages import ArenaPath as ArenaAt
from turnout.launcher.checkpoint.replication.peer_connection import PeerIdentity, connect_peer
from turnout.launcher.coordinator_messages import DaemonEndpoint
from turnout.launcher.framing import read_frame

pytestmark = pytest.mark.slow

FILES = 64  # that one process may have open
STRANGERS = 3 * FILES
RESOURCE_PAUSE_S = (
    3.0  # how long strangers stay once no file is left; shorter than the time they have to prove the token
)
MAX_CPU_S = 0.5  # in that time
MAX_LINES = 20  # in a log, of running out of files
TOKEN = b"correct horse battery staple"
WITHIN_S = 20.0


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def cpu_s(pid):
    """Seconds of CPU that this process has used, all threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def strangers(stack, port, number=STRANGERS):
    """Connections that say nothing. They end with the stack."""
    for _ in range(number):
        stack.enter_context(socket.create_connection(("127.0.0.1", port), WITHIN_S))


def cpu_s_while_full(pid, last):
    """Seconds of CPU in RESOURCE_PAUSE_S seconds without a free file. last: a connection that nobody can accept."""
    until(lambda: open_files(pid) >= FILES, "every file is taken", WITHIN_S)
    before_s = cpu_s(pid)
    last.settimeout(RESOURCE_PAUSE_S)
    with pytest.raises(TimeoutError):
        last.recv(1)
    assert open_files(pid) >= FILES, "strangers left too early for this test to say anything"
    return cpu_s(pid) - before_s


def lines_of(log):
    """How often a log repeats one line, numbers aside."""
    lines = Counter("".join(" " if c.isdigit() else c for c in line) for line in log.read_text().splitlines())
    return max(lines.values(), default=0)


def test_an_agent_out_of_files_serves_again_once_strangers_leave(crew, tmp_path):
    token, port = tmp_path / "token", free_port("127.0.0.1")
    token.write_bytes(TOKEN)
    job = crew("2", "--token-file", str(token), "--last-call-s", "0.3")
    limited = ("prlimit", f"--nofile={FILES}:{FILES}")
    first = job.start("w0", "--metrics-port", str(port), prefix=limited)
    first.until("coordinator_begun")
    with ExitStack() as stack:
        strangers(stack, job.port)
        until(lambda: open_files(first.pid) >= FILES, "every file is taken", WITHIN_S)
        scrape = stack.enter_context(socket.create_connection(("127.0.0.1", port), WITHIN_S))
        scrape.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert cpu_s_while_full(first.pid, scrape) < MAX_CPU_S
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WITHIN_S) as page:
        assert b"turnout_launcher_is_coordinator" in page.read()
    second = job.start("w1")
    job.world(2)
    job.finish()
    assert job.codes(first, second) == [0, 0]
    assert lines_of(first.log) < MAX_LINES, first.log.read_text()[:4_000]


@pytest.fixture
def daemon(tmp_path):
    """A checkpoint daemon with few files: its process, its log, the path of its socket and its endpoint for peers."""
    with ExitStack() as stack:
        folder = private_folder(tmp_path)
        stack.callback(folder.cleanup)
        path, log = socket_in(folder.name), tmp_path / "w0.log"
        own = stack.enter_context(socket.socket(socket.AF_UNIX))
        own.bind(str(path))
        own.listen(STRANGERS)
        peers = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=STRANGERS))
        process = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", "prlimit", f"--nofile={FILES}:{FILES}"),
                *(sys.executable, "-m", "turnout.launcher.checkpoint.daemon"),
                *("--listen", str(own.fileno()), "--peer-listen", str(peers.fileno())),
                *("--folder", str(tmp_path), "--run", "job", "--worker", "w0"),
            ],
            stdin=subprocess.PIPE, stderr=stack.enter_context(log.open("wb")),
            pass_fds=[own.fileno(), peers.fileno()], start_new_session=True, env=ENV,
        )  # fmt: skip
        stack.callback(process.stdin.close)
        stack.callback(process.wait, WITHIN_S)
        stack.callback(process.kill)
        process.stdin.write(encode(Trust(TOKEN)))
        process.stdin.flush()
        yield process, log, path, DaemonEndpoint("w0", "h0", "127.0.0.1", peers.getsockname()[1])


def waiting_rank(stack, path):
    """A connection of the worker's own that says nothing."""
    sock = stack.enter_context(socket.socket(socket.AF_UNIX))
    sock.settimeout(WITHIN_S)
    sock.connect(str(path))
    return sock


def greeted_by_rank(path):
    """The daemon's answer to a training process of its own worker."""
    with socket.socket(socket.AF_UNIX) as sock, sock.makefile("rb") as file:
        sock.settimeout(WITHIN_S)
        sock.connect(str(path))
        sock.sendall(encode(Hello("job", "w0", 0, 0, 1, 1)))
        return read_at_client(read_frame(file.read, MAX_BYTES))


@pytest.mark.asyncio
@pytest.mark.parametrize("fills", [
    pytest.param("peers", id="strangers at the port for other daemons"),
    pytest.param("ranks", id="training processes of its own worker"),
])  # fmt: skip
async def test_a_daemon_out_of_files_serves_again_once_they_leave(daemon, fills):
    process, log, path, endpoint = daemon
    assert isinstance(greeted_by_rank(path), ArenaAt), "it is up"
    with ExitStack() as stack:
        if fills == "peers":
            strangers(stack, endpoint.port)
            last = stack.enter_context(socket.create_connection((endpoint.address, endpoint.port), WITHIN_S))
        else:
            last = [waiting_rank(stack, path) for _ in range(FILES)][-1]
        assert cpu_s_while_full(process.pid, last) < MAX_CPU_S
    peer = await connect_peer(endpoint, PeerIdentity("job", "w7", TOKEN), 1)
    peer.close()
    assert isinstance(greeted_by_rank(path), ArenaAt)
    assert process.poll() is None
    assert lines_of(log) < MAX_LINES, log.read_text()[:4_000]
