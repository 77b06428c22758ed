"""Connects a training process to the checkpoint daemon: the agent's, or one started here if there is no agent.

Calls block for a few hundred microseconds. Later messages of the daemon arrive on a thread.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
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
FETCH_S = 600.0  # seconds to fetch a shard from another worker's memory, after those of other ranks


class DaemonLost(LauncherError):
    """The daemon does not answer. Sealed saves stay in memory; connect again."""


def brought(daemon: str, wanted: FetchShard) -> ShardFetched:
    """Fetch a shard that other ranks saved, through the daemon at this socket path; wait until it is in local memory.

    Raises BadCheckpoint if no worker can give it, and DaemonLost.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(FETCH_S)
            sock.connect(daemon)
            sock.sendall(encode(wanted))
            with sock.makefile("rb") as file:
                body = read_frame(file.read, MOST_BYTES)
        if body is None:
            raise BadFrame("the daemon has closed the connection")
        answer = read_at_client(body)
    except (OSError, BadFrame) as error:
        raise DaemonLost(f"{daemon}: {error}") from error
    if isinstance(answer, ShardFetched):
        return answer
    raise BadCheckpoint(answer.detail if isinstance(answer, Failed) else "the daemon has said something else")


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
        self._unheard = 0  # Sealed messages that the daemon has not taken yet
        path = environ.get(DAEMON, "") or self._begin_own(hello, folder, environ)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError as error:
            self.close()
            raise DaemonLost(f"{path}: {error.strerror}") from error
        self._reader = threading.Thread(target=self._read, name="turnout-checkpoint-client", daemon=True)
        self._reader.start()
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
            self._unheard += 1
        self._send(told)

    def unheard(self) -> None:
        """Wait until the daemon has pinned every save that it was notified of, so that none is overwritten. Raises
        DaemonLost.
        """
        with self._news:
            if not self._news.wait_for(lambda: not self._unheard or self._lost, ANSWER_S) or self._lost:
                raise DaemonLost(self._lost or f"no answer within {ANSWER_S:g} s")

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
        self._send(message)

        def there() -> bool:
            return bool(self._lost) or any(isinstance(each, kinds) for each in self._answers)

        with self._news:
            if not self._news.wait_for(there, timeout_s):
                raise TimeoutError(f"the daemon has not answered within {timeout_s:g} s")
            for at, each in enumerate(self._answers):
                if isinstance(each, kinds):
                    return self._answers.pop(at)
        raise DaemonLost(self._lost)

    def _send(self, message: ToDaemon) -> None:
        try:
            self._socket.sendall(encode(message))
        except OSError as error:
            raise DaemonLost(self._lost or str(error)) from error

    def _read(self) -> None:
        try:
            with self._socket.makefile("rb") as file:
                while (body := read_frame(file.read, MOST_BYTES)) is not None:
                    self._take(read_at_client(body))
            why = "the daemon has closed the connection"
        except (OSError, BadFrame, ValueError) as error:
            why = str(error)
        with self._news:
            self._lost = self._lost or why
            self._news.notify_all()

    def _take(self, message: ToClient) -> None:
        with self._news:
            if isinstance(message, Pinned):
                self._unheard -= 1
            elif isinstance(message, Refused) and message.reason == "failed":
                self._lost = self._lost or message.detail  # no request gets an answer any more
            elif not isinstance(message, Hashed | Persisted | Failed):
                self._answers.append(message)
            self._news.notify_all()
        if isinstance(message, Hashed | Persisted | Failed):
            self._told(message)

    def close(self) -> None:
        """Disconnect. A daemon started by this process first finishes what is in flight."""
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
