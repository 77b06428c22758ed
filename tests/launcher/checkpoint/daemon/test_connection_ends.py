"""The connections of a training process to its daemon: none stays open, and any number of other files may be."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from turnout.launcher.checkpoint.daemon.trainer_client import MAX_LOSSES, DaemonLost, TrainerClient, fetch_shard
from turnout.launcher.checkpoint.format.daemon_messages import (
    MAX_BYTES,
    ArenaPath,
    Done,
    FetchShard,
    Hello,
    Persisted,
    RequestRefused,
    Save,
    ShardFetched,
    encode,
    read_at_daemon,
)
from turnout.launcher.env import DAEMON
from turnout.launcher.framing import read_frame

ANSWERS_S = 20.0


class Daemon:
    """A daemon that answers each connection as the test says."""

    def __init__(self, folder):
        self.path = str(folder / "daemon")
        self._listens = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listens.bind(self.path)
        self._listens.listen()
        self._listens.settimeout(ANSWERS_S)

    def accept(self):
        """Take the next connection, and read the greeting of the training process."""
        connection, _ = self._listens.accept()
        connection.settimeout(ANSWERS_S)
        with connection.makefile("rb") as file:
            assert read_frame(file.read, MAX_BYTES) is not None
        return connection

    def close(self):
        self._listens.close()


@pytest.fixture
def daemon(tmp_path):
    new_daemon = Daemon(tmp_path)
    yield new_daemon
    new_daemon.close()


def client_of(daemon, folder):
    """A connected client, and the daemon's end of its connection."""
    found = []
    environ = os.environ | {DAEMON: daemon.path}
    hello = Hello("job", "w0", 0, 0, 1, 1)
    thread = threading.Thread(
        target=lambda: found.append(TrainerClient(hello, environ, folder, lambda message: None)), daemon=True
    )
    thread.start()
    connection = daemon.accept()
    connection.sendall(encode(ArenaPath("/dev/shm/a.arena", 3)))
    thread.join(ANSWERS_S)
    return found[0], connection


def rest(connection):
    """Read until the client's end of the connection is closed."""
    data = b""
    while part := connection.recv(4096):
        data += part
    connection.close()
    return data


def test_a_client_that_is_closed_while_it_reconnects_leaves_no_connection(daemon, tmp_path):
    client, first = client_of(daemon, tmp_path)
    first.close()
    second = daemon.accept()
    client.close()
    second.sendall(encode(ArenaPath("/dev/shm/a.arena", 3)))
    rest(second)
    client.link.reader.join(ANSWERS_S)
    assert not client.link.reader.is_alive()


def test_a_connection_on_which_the_next_daemon_refuses_is_closed(daemon, tmp_path):
    client, first = client_of(daemon, tmp_path)
    first.close()
    second = daemon.accept()
    second.sendall(encode(RequestRefused("memory", "the arena is not taken over")))
    rest(second)
    client.link.reader.join(ANSWERS_S)
    client.close()


def test_after_the_last_of_several_lost_daemons_no_other_one_is_tried(daemon, tmp_path):
    client, connection = client_of(daemon, tmp_path)
    for _ in range(MAX_LOSSES - 1):
        connection.close()
        connection = daemon.accept()
        connection.sendall(encode(ArenaPath("", 3)))
    began_s = time.monotonic()
    connection.close()
    with pytest.raises(DaemonLost):
        client.held_steps(1)
    assert time.monotonic() < began_s + ANSWERS_S
    client.close()


def test_a_late_answer_is_not_the_answer_of_the_next_request(daemon, tmp_path):
    client, connection = client_of(daemon, tmp_path)
    with pytest.raises(TimeoutError):
        client.wait(0.05)
    connection.sendall(encode(Done()))
    with pytest.raises(TimeoutError):
        client.wait(0.5)
    client.close()
    rest(connection)


def test_no_answer_is_owed_any_more_after_a_daemon_is_lost(daemon, tmp_path):
    client, first = client_of(daemon, tmp_path)
    with pytest.raises(TimeoutError):
        client.wait(0.05)
    first.close()
    second = daemon.accept()
    second.sendall(encode(ArenaPath("/dev/shm/a.arena", 3)))
    waits = threading.Thread(target=client.wait, args=(ANSWERS_S,), daemon=True)
    waits.start()
    with second.makefile("rb") as file:
        assert read_frame(file.read, MAX_BYTES) is not None
    second.sendall(encode(Done()))
    waits.join(ANSWERS_S / 2)
    assert not waits.is_alive()
    client.close()
    rest(second)


def test_a_result_ends_one_of_two_saves_of_a_step(daemon, tmp_path):
    """A step may be saved into two folders. The next daemon learns of the one without a result."""
    client, first = client_of(daemon, tmp_path)
    saves = [Save(0, 1, 7, "/first"), Save(1, 2, 7, "/second")]
    for save in saves:
        client.link.announce_save(save)
    first.sendall(encode(Persisted(7, "/first/shard")))
    first.close()
    second = daemon.accept()
    second.sendall(encode(ArenaPath("/dev/shm/a.arena", 3)))
    with second.makefile("rb") as file:
        assert read_at_daemon(read_frame(file.read, MAX_BYTES)) == saves[1]
    client.close()
    rest(second)


@contextmanager
def open_files(number):
    """This many files are open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(number)]
    try:
        yield
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_process_with_thousands_of_open_files_gets_its_shard(daemon):
    fetched = ShardFetched("/dev/shm/a.arena", 1, 2)

    def answer():
        connection = daemon.accept()
        connection.sendall(encode(fetched))
        connection.close()

    answers = threading.Thread(target=answer, daemon=True)
    answers.start()
    with open_files(1_100):
        assert fetch_shard(daemon.path, FetchShard(7, 1, 0, 2)) == fetched
    answers.join(ANSWERS_S)
