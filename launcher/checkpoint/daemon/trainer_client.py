"""Connects a training process to the checkpoint daemon: the agent's, or one started here if there is no agent.

Calls block for a few hundred microseconds. Later messages of the daemon arrive on a thread. When the agent's daemon
dies, the thread connects to the next one, and tells it again of every save that was not finished. Calls wait meanwhile.
"""

from __future__ import annotations

import logging
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from turnout.launcher.checkpoint.arena.socket_dir import PrivateDir, private_folder, socket_in
from turnout.launcher.checkpoint.format.daemon_messages import (
    MOST_BYTES,
    Arena,
    Ask,
    Bye,
    Done,
    DropOldestSave,
    End,
    Failed,
    FetchShard,
    Hashed,
    Hello,
    Holdings,
    Need,
    Persisted,
    Pinned,
    Refused,
    Save,
    SaveDropped,
    Settle,
    ShardFetched,
    Stats,
    ToClient,
    ToDaemon,
    Wait,
    encode,
    read_at_client,
)
from turnout.launcher.env import DAEMON
from turnout.launcher.errors import BadCheckpoint, BadFrame, LauncherError, NoMemory
from turnout.launcher.framing import read_frame
from turnout.launcher.rendezvous.messages import HeldStep

ANSWER_S = 120.0  # seconds to reserve memory, at about 1 GB/s
RECONNECT_S = 60.0  # seconds for the agent to start its next daemon, and for that to take over the memory
PAUSE_S, TELL_S = 0.1, 10.0  # seconds between two tries, and between two log lines about them
MOST_LOSSES = 5  # daemons lost in a row without a finished save: the next one would probably die as well
FETCH_S = 600.0  # seconds to fetch a shard from another worker's memory, after those of other ranks


log = logging.getLogger("turnout.checkpoint")


class DaemonLost(LauncherError):
    """The daemon does not answer. Sealed saves stay in memory; connect again."""


def brought(daemon: str, wanted: FetchShard) -> ShardFetched:
    """Fetch a shard that other ranks saved, through the daemon at this socket path; wait until it is in local memory.

    Raises BadCheckpoint if no worker can give it, and DaemonLost.
    """
    for left in reversed(range(MOST_LOSSES)):  # a daemon that dies meanwhile is replaced, and the next one is asked
        try:
            answer = _brought(daemon, wanted)
            break
        except (OSError, BadFrame) as error:
            if not left or isinstance(error, TimeoutError):
                raise DaemonLost(f"{daemon}: {error}") from error
            log.warning("daemon_lost", extra={"why": str(error), "at": daemon})
    if isinstance(answer, ShardFetched):
        return answer
    raise BadCheckpoint(answer.detail if isinstance(answer, Failed) else "the daemon has said something else")


def _brought(daemon: str, wanted: FetchShard) -> ToClient:
    """Ask for a shard, and log every TELL_S seconds that it is awaited. Raises OSError and BadFrame."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(FETCH_S)
        sock.connect(daemon)
        sock.sendall(encode(wanted))
        until_s = time.monotonic() + FETCH_S
        while not select.select([sock], [], [], TELL_S)[0]:
            if time.monotonic() >= until_s:
                raise TimeoutError(f"no answer within {FETCH_S:g} s")
            log.warning("daemon_awaited", extra={"answer_to": "FetchShard", "step": wanted.step, "at": daemon})
        with sock.makefile("rb") as file:
            body = read_frame(file.read, MOST_BYTES)
    if body is None:
        raise BadFrame("the daemon has closed the connection")
    return read_at_client(body)


class TrainerClient:
    """One training process's connection to its daemon.

    environ: this process's environment. told: called on a thread with each message that is no answer.
    """

    def __init__(self, hello: Hello, environ: dict[str, str], folder: Path, told: Callable[[ToClient], None]) -> None:
        self._told = told
        self._own: subprocess.Popen[bytes] | None = None
        self._socket_folder: PrivateDir | None = None
        self._answers: list[ToClient] = []
        self._news = threading.Condition()
        self._lost = ""
        self._unheard = 0  # Save messages that the daemon has not taken yet
        self._saves: dict[int, Save] = {}  # by epoch: those that are not finished, as far as known
        self._losses, self._connected, self._closed = 0, 1, False  # _connected: number of the connection, 0 for none
        self._sending = threading.Lock()
        self._hello, self._path = hello, environ.get(DAEMON, "") or self._begin_own(hello, folder, environ)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(self._path)
        except OSError as error:
            self.close()
            raise DaemonLost(f"{self._path}: {error.strerror}") from error
        self.reader = threading.Thread(target=self._read_on, name="turnout-checkpoint-client", daemon=True)
        self.reader.start()
        self.arena = self._ask(hello)

    def _begin_own(self, hello: Hello, folder: Path, environ: dict[str, str]) -> str:
        """Start a daemon for this process alone; return its socket path. It ends with this process once all saves are
        stored.
        """
        self._socket_folder = private_folder(tempfile.gettempdir())
        path = str(socket_in(self._socket_folder.name))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listens:
            listens.bind(path)
            listens.listen()
            command = [
                sys.executable,
                "-m",
                "turnout.launcher.checkpoint.daemon",
                "--listen",
                str(listens.fileno()),
                "--folder",
                str(folder),
                "--run",
                hello.run,
                "--worker",
                hello.worker,
            ]
            self._own = subprocess.Popen(
                command, stdin=subprocess.PIPE, pass_fds=[listens.fileno()], start_new_session=True, env=environ
            )
        return path

    def need(self, size: int, generations: int) -> str:
        """Allocate memory for saves of `size` bytes; return the arena's path.

        Raises NoMemory, which names what to add.
        """
        self.arena = self._ask(Need(size, generations))
        return self.arena

    def sealed(self, told: Save) -> None:
        """Notify the daemon of a sealed save, without waiting; `unheard` waits."""
        with self._news:
            if self._lost:
                raise DaemonLost(self._lost)
            older = [epoch for epoch, each in self._saves.items() if not each.target or each.later]
            for epoch in older:  # of saves that stay in memory the newest counts
                del self._saves[epoch]
            self._saves[told.epoch] = told
            self._unheard += 1
            connection = self._connected
        self._send(told, connection)

    def unheard(self) -> None:
        """Wait until the daemon has pinned every save that it was notified of, so that none is overwritten. Raises
        DaemonLost.
        """
        with self._news:
            until_s = time.monotonic() + ANSWER_S
            while not self._news.wait_for(lambda: (self._connected and not self._unheard) or self._lost, TELL_S):
                if time.monotonic() >= until_s:
                    raise DaemonLost(f"no answer within {ANSWER_S:g} s")
                log.warning("daemon_awaited", extra={"answer_to": "Save", "at": self._path})
            if self._lost:
                raise DaemonLost(self._lost)

    def overtake(self) -> int:
        """Drop the oldest save that waits for storage. Return its step, or -1 if there is none."""
        answer = self._answer(DropOldestSave(), ANSWER_S, SaveDropped)
        return answer.step if isinstance(answer, SaveDropped) else -1

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until no save is in flight. Raises TimeoutError."""
        self._answer(Wait(), timeout_s, Done)

    def settle(self, ranks: int) -> tuple[HeldStep, ...]:
        """List the steps that all local ranks below `ranks` hold, hashed, newest first."""
        answer = self._answer(Settle(ranks), ANSWER_S, Holdings)
        return answer.held if isinstance(answer, Holdings) else ()

    def stats(self) -> Stats:
        """Return the daemon's statistics for this process."""
        answer = self._answer(Ask(), ANSWER_S, Stats)
        assert isinstance(answer, Stats)
        return answer

    def _ask(self, message: Hello | Need) -> str:
        answer = self._answer(message, ANSWER_S, (Arena, Refused))
        if isinstance(answer, Refused):
            raise NoMemory(answer.detail) if answer.reason == "no_memory" else DaemonLost(answer.detail)
        assert isinstance(answer, Arena)
        return answer.path

    def _answer(
        self, message: ToDaemon, timeout_s: float | None, kinds: type[object] | tuple[type[object], ...]
    ) -> ToClient:
        until_s = time.monotonic() + (timeout_s if timeout_s is not None else threading.TIMEOUT_MAX)
        asked = 0  # the connection on which it was asked

        def there() -> bool:
            return bool(self._lost or (self._connected and self._connected != asked)) or self._has(kinds)

        while True:
            with self._news:
                while not self._news.wait_for(there, min(TELL_S, max(until_s - time.monotonic(), 0.0))):
                    if time.monotonic() >= until_s:
                        raise TimeoutError(f"the daemon has not answered within {timeout_s:g} s")
                    log.warning("daemon_awaited", extra={"answer_to": type(message).__name__, "at": self._path})
                for at, each in enumerate(self._answers):
                    if isinstance(each, kinds):
                        return self._answers.pop(at)
                if self._lost:
                    raise DaemonLost(self._lost)
                asked = self._connected
            self._send(message, asked)  # to the next daemon again, if the one that was asked has died

    def _has(self, kinds: type[object] | tuple[type[object], ...]) -> bool:
        return any(isinstance(each, kinds) for each in self._answers)

    def _send(self, message: ToDaemon, connection: int) -> None:
        """Send a message on this connection. It is dropped if that one is lost: the thread notices the loss."""
        with self._sending, suppress(OSError):
            if connection and connection == self._connected:
                self._socket.sendall(encode(message))

    def _read_on(self) -> None:
        """Read from one daemon after the other."""
        while True:
            why = self._read()
            with self._news:
                number, self._connected = self._connected, 0
                self._unheard = len(self._saves)
                self._losses += 1
                if self._closed or self._lost or self._own is not None or self._losses > MOST_LOSSES:
                    self._lost = self._lost or why
                    self._news.notify_all()
                    return
            log.warning("daemon_lost", extra={"why": why, "at": self._path})
            if not self._reconnected(number + 1):
                with self._news:
                    self._lost = why
                    self._news.notify_all()
                return

    def _reconnected(self, number: int) -> bool:
        """Connect to the next daemon; tell it of this process and of its unfinished saves. False if none answers."""
        began_s, told_s = time.monotonic(), 0.0
        while not self._closed and (waited_s := time.monotonic() - began_s) < RECONNECT_S:
            if waited_s > told_s + TELL_S:
                told_s = waited_s
                log.warning("daemon_awaited", extra={"at": self._path, "waited_s": round(waited_s)})
            again = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            again.settimeout(TELL_S)
            try:
                again.connect(self._path)
                again.sendall(encode(self._hello))
                with again.makefile("rb") as file:
                    body = read_frame(file.read, MOST_BYTES)
                answer = read_at_client(body) if body is not None else None
                if isinstance(answer, Arena) and (answer.path or not self._saves):
                    again.settimeout(None)
                    return self._resume(again, number)
                if isinstance(answer, Arena | Refused):
                    again.close()
                    return False  # it has not taken over the memory, so that nothing can be continued
            except (OSError, BadFrame):
                pass
            again.close()
            time.sleep(PAUSE_S)
        return False

    def _resume(self, again: socket.socket, number: int) -> bool:
        """Continue on the new connection. False if this client was closed meanwhile."""
        with self._sending, self._news:
            if self._closed:
                again.close()
                return False
            self._socket.close()
            self._socket = again
            for save in self._saves.values():
                again.sendall(encode(save))
            self._unheard = len(self._saves)
            self._connected = number
            self._news.notify_all()
        log.warning("daemon_found", extra={"at": self._path, "saves": len(self._saves)})
        return True

    def _read(self) -> str:
        """Read from the daemon until the connection ends; return why."""
        try:
            with self._socket.makefile("rb") as file:
                while (body := read_frame(file.read, MOST_BYTES)) is not None:
                    self._take(read_at_client(body))
        except (OSError, BadFrame, ValueError) as error:
            return str(error)
        return "the daemon has closed the connection"

    def _take(self, message: ToClient) -> None:
        with self._news:
            if isinstance(message, Hashed | Persisted | Failed):
                self._finished(message)
            if isinstance(message, Pinned):
                self._unheard -= 1
            elif isinstance(message, Refused) and message.reason == "failed":
                self._lost = self._lost or message.detail  # no request gets an answer any more
            elif not isinstance(message, Hashed | Persisted | Failed):
                self._answers.append(message)
            self._news.notify_all()
        if isinstance(message, Hashed | Persisted | Failed):
            self._told(message)

    def _finished(self, message: Hashed | Persisted | Failed) -> None:
        """Forget the saves that need no other daemon any more."""
        self._losses = 0
        for epoch, save in list(self._saves.items()):
            stays = not save.target or save.later
            if save.step == message.step and (stays or not isinstance(message, Hashed)):
                del self._saves[epoch]

    def close(self) -> None:
        """Disconnect. A daemon started by this process first finishes what is in flight."""
        with self._sending:
            self._closed = True  # a connection that is being made is closed by the reading thread
            with suppress(OSError):
                self._socket.sendall(encode(Bye()))
                self._socket.shutdown(socket.SHUT_RDWR)  # else the reading thread keeps the connection open
            self._socket.close()
        if self._own is not None:
            assert self._own.stdin is not None
            with suppress(OSError):
                self._own.stdin.write(encode(End(True)))
            with suppress(OSError):
                self._own.stdin.close()
            self._own.wait()
        if self._socket_folder is not None:
            self._socket_folder.cleanup()
