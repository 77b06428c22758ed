"""The daemon, as the process that it is: what it is told, what it answers, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.kit.wait import until
from tests.launcher.checkpoint.daemon.saver import bytes_of, record_of
from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.arena.arena_files import boot_id, private_folder, socket_in
from turnout.launcher.checkpoint.format.arena_layout import Identity, SlotState, newest_generation
from turnout.launcher.checkpoint.format.daemon_messages import (  # fmt: skip
    MAX_BYTES,
    Done,
    End,
    GetHeldSteps,
    Hashed,
    HeldSteps,
    Hello,
    Pinned,
    RequestRefused,
    ReserveMemory,
    Restore,
    Save,
    Wait,
    encode,
    read_at_client,
)
from turnout.launcher.checkpoint.format.daemon_messages import ArenaPath as ArenaAt
from turnout.launcher.checkpoint.format.shard_file import sums_of
from turnout.launcher.coordinator_messages import HeldStep
from turnout.launcher.framing import read_frame

WITHIN_S = 30.0


class DaemonProcess:
    """One that lives as long as the test, or shorter."""

    def __init__(self, folder, run="job", worker="w0", **env) -> None:
        self._sockets = private_folder(folder)
        self._connections = []
        self.path, self.log = socket_in(self._sockets.name), folder / f"{worker}.log"
        with socket.socket(socket.AF_UNIX) as listens, self.log.open("a") as log:
            listens.bind(str(self.path))
            listens.listen()
            command = (
                *("setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "turnout.launcher.checkpoint.daemon"),
                *("--listen", str(listens.fileno()), "--folder", str(folder), "--run", run, "--worker", worker),
            )
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stderr=log,
                pass_fds=[listens.fileno()],
                start_new_session=True,
                env=os.environ | env,
            )

    def meet(self, *first):
        self._connections.append(Connection(self.path, *first))
        return self._connections[-1]

    def end(self, done) -> int:
        """Its exit code. Nobody is connected any more: it would wait for last words."""
        for connection in self._connections:
            connection.close()
        self.process.stdin.write(encode(End(done)))
        self.process.stdin.close()
        return self.process.wait(WITHIN_S)

    def close(self):
        """Kill it. Its log is shown where the test has failed."""
        print(f"daemon exit {self.process.poll()}: {self.log.read_text() if self.log.exists() else ''}")
        self.process.kill()
        self.process.wait(WITHIN_S)
        with suppress(OSError):
            self.process.stdin.close()
        for connection in self._connections:
            connection.close()
        self._sockets.cleanup()


class Connection:
    """One connection."""

    def __init__(self, path, *first) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(WITHIN_S)
        self.socket.connect(str(path))
        self._file = self.socket.makefile("rb")
        for message in first:
            self.say(message)

    def say(self, message) -> None:
        self.socket.sendall(encode(message))

    def hear(self, kind):
        """The next message of this kind."""
        while True:
            message = read_at_client(read_frame(self._file.read, MAX_BYTES))
            if isinstance(message, kind):
                return message

    def ask(self, message, kind):
        self.say(message)
        return self.hear(kind)

    def close(self):
        self._file.close()
        self.socket.close()

    def closed(self) -> bool:
        return self._file.read(1) == b""


@pytest.fixture
def daemon(tmp_path, request):
    """Starts daemons of tmp_path: daemon(), daemon(worker="w1")."""

    def start(**more):
        process = DaemonProcess(tmp_path, **more)
        request.addfinalizer(process.close)
        return process

    return start


def hello(local_rank=0, round_=1, **more):
    return Hello("job", "w0", local_rank, local_rank, 2, round_, **more)


def opened(connection, local_rank=0):
    """The arena of this local rank, which the daemon has made for it."""
    connection.ask(hello(local_rank), ArenaAt)
    return Arena.open(connection.ask(ReserveMemory(record(0).region_bytes, 3), ArenaAt).path)


def record(step, rank=0, round_=1):
    return replace(record_of(step), rank=rank, world=2, round=round_)


def save(arena, step, rank=0, round_=1):
    """Write a generation and seal it. Gives its number and its record."""
    save_record = record(step, rank, round_=round_)
    generation = arena.begin(save_record)
    view = arena.map(generation, save_record.region_bytes)
    view[: save_record.shard_bytes] = bytes_of(step).data
    return generation, arena.seal(generation, save_record)


def announce(connection, generation, record_):
    connection.ask(Save(generation, record_.epoch, record_.step), Pinned)


def test_what_is_sealed_is_hashed(daemon):
    connection = daemon().meet()
    arena = opened(connection)
    generation, save_record = save(arena, 7)
    announce(connection, generation, save_record)
    assert connection.hear(Hashed).step == 7
    assert arena.slots()[generation].state is SlotState.HASHED
    assert list(arena.sums(generation)) == sums_of(arena.map(generation, save_record.shard_bytes))
    assert connection.ask(Wait(), Done)


def test_what_all_local_ranks_hold_is_told(daemon):
    """State that was sealed but not yet told of is hashed now; the same step of another round is another state."""
    one = daemon()
    connections = [one.meet(), one.meet()]
    arenas = [opened(connection, local_rank) for local_rank, connection in enumerate(connections)]
    for local_rank, arena in enumerate(arenas):
        save(arena, 5, local_rank)
        save(arena, 6, local_rank, round_=1 + local_rank)
    found = one.meet().ask(GetHeldSteps(2), HeldSteps).held_steps
    assert found == (HeldStep(5, 0, 2, 1),)


def test_what_is_newer_than_the_agreed_step_is_thrown_away(daemon):
    """The world trains it anew, and makes another state of it."""
    one = daemon()
    arena = opened(one.meet())
    for step in (5, 6, 7):
        save(arena, step)
    assert one.meet().ask(Restore(6), Done)
    assert {slot.record.step for slot in arena.slots() if slot.record} == {5, 6}
    assert one.meet().ask(Restore(-1), Done)
    assert not any(slot.record for slot in arena.slots())


@pytest.mark.parametrize("step", [6, 7])
def test_memory_that_changed_is_told_and_thrown_away(daemon, step):
    """The newest when it is asked for, an older one when the world has agreed on it."""
    one = daemon()
    arena = opened(one.meet())
    for each in (6, 7):
        save(arena, each)
    assert [entry.step for entry in one.meet().ask(GetHeldSteps(1), HeldSteps).held_steps] == [7, 6]
    at = next(at for at, slot in enumerate(arena.slots()) if slot.record and slot.record.step == step)
    arena.map(at, record(step).shard_bytes)[50_000] ^= 1
    one.meet().ask(Restore(step), Done)
    assert step not in [entry.step for entry in one.meet().ask(GetHeldSteps(1), HeldSteps).held_steps]
    until(lambda: f"memory_corrupt step={step}" in one.log.read_text(), "it is told")


def test_the_next_daemon_of_the_worker_adopts_what_the_last_has_left(daemon):
    one = daemon()
    arena = opened(one.meet())
    generation, _ = save(arena, 7)
    arena.pin(generation)
    one.process.kill()
    arena.close()
    after = daemon().meet()
    assert after.ask(GetHeldSteps(1), HeldSteps).held_steps == (HeldStep(7, 0, 2, 1),)
    found = Arena.open(after.ask(hello(), ArenaAt).path)
    assert newest_generation(found.slots()) == generation
    assert not found.slots()[generation].pinned, "whoever has pinned it is gone"


def test_a_daemon_that_still_writes_is_waited_for(daemon):
    """Two of them would unpin one another's generations. Stopped here, it does not end by itself."""
    one = daemon()
    arena = opened(one.meet())
    save(arena, 7)
    os.kill(one.process.pid, signal.SIGSTOP)
    after = daemon().meet()
    after.say(GetHeldSteps(1))
    one.process.kill()
    assert after.hear(HeldSteps).held_steps == (HeldStep(7, 0, 2, 1),)


@pytest.mark.parametrize(("identity", "stays"), [
    pytest.param(Identity("old", "w0", 0, boot_id(), 2), False, id="of this worker in another run"),
    pytest.param(Identity("old", "w0/00ff", 0, boot_id(), 2), False, id="of this worker in a run without a name"),
    pytest.param(Identity("old", "w1", 0, boot_id(), 2), True, id="of another worker"),
    pytest.param(Identity("old", "w1", 0, "another boot", 2), False, id="of another boot"),
    pytest.param(Identity("job", "w0", 0, boot_id(), 2), True, id="its own"),
])  # fmt: skip
def test_memory_that_nobody_will_ask_for_is_given_back(daemon, tmp_path, identity, stays):
    arena = Arena.make(tmp_path, identity)
    path = arena.path
    arena.close()
    daemon().meet().ask(GetHeldSteps(1), HeldSteps)
    assert path.exists() is stays


def test_memory_that_somebody_uses_is_not(daemon, tmp_path):
    arena = Arena.make(tmp_path, Identity("old", "w0", 0, boot_id(), 2))
    daemon().meet().ask(GetHeldSteps(1), HeldSteps)
    assert arena.path.exists()


@pytest.mark.parametrize("done", [True, False])
def test_at_the_end_memory_is_given_back_if_the_job_is_done(daemon, tmp_path, done):
    one = daemon()
    arena = opened(one.meet())
    save(arena, 7)
    arena.close()
    assert one.end(done) == 0
    assert len(list(tmp_path.glob("turnout-*.arena"))) == (not done)


def test_a_process_of_another_job_is_refused(daemon):
    assert daemon().meet().ask(Hello("other", "w0", 0, 0, 1, 1), RequestRefused).reason == "refused"


@pytest.mark.parametrize("frame", [
    pytest.param(b"\0\0\0\0", id="of no bytes"),
    pytest.param(b"\xff\xff\xff\xff", id="of four gigabytes"),
    pytest.param(b"\0\0\0\5\x80\x04\x95ab", id="a pickle"),
    pytest.param(encode(Wait()), id="before Hello"),
])  # fmt: skip
def test_a_bad_frame_ends_the_connection_and_nothing_else(daemon, frame):
    one = daemon()
    connection = one.meet()
    connection.socket.sendall(frame)
    assert connection.closed()
    assert one.meet().ask(GetHeldSteps(1), HeldSteps).held_steps == ()


def test_a_fault_is_told_to_its_process_and_the_log_and_others_are_served(tmp_path, request):
    """The connection once closed without a word, so the daemon seemed to have ended and nobody was told why."""
    folder = tmp_path / "memory"
    folder.mkdir()
    one = DaemonProcess(folder)
    request.addfinalizer(one.close)
    connection = one.meet()
    connection.ask(hello(), ArenaAt)
    folder.rename(tmp_path / "gone")
    answer = connection.ask(ReserveMemory(record(0).region_bytes, 3), RequestRefused)
    assert (answer.reason, "No such file" in answer.detail) == ("failed", True)
    assert "request_failed" in (tmp_path / "gone" / "w0.log").read_text()
    (tmp_path / "gone").rename(folder)
    assert one.meet().ask(GetHeldSteps(1), HeldSteps).held_steps == ()
