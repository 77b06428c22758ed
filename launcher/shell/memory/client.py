"""A training process's side of its keeper: the agent's, or one of its own where there is no agent.

Calls block, and cost a few hundred microseconds; what the keeper tells later comes on a thread.
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

from turnout.launcher.checkpoint.wire import (
    MOST_BYTES,
    Arena,
    Ask,
    Bring,
    Brought,
    Bye,
    Done,
    End,
    Failed,
    Hashed,
    Hello,
    Holdings,
    MadeRoom,
    Need,
    Overtake,
    Persisted,
    Pinned,
    Refused,
    Sealed,
    Settle,
    Stats,
    ToClient,
    ToKeeper,
    Wait,
    encode,
    read_at_client,
)
from turnout.launcher.errors import BadCheckpoint, BadFrame, LauncherError, NoMemory
from turnout.launcher.framing import read_frame
from turnout.launcher.process.environment import KEEPER
from turnout.launcher.shell.memory.private import Private, private_folder, socket_in
from turnout.launcher.wire import Held

ANSWER_S = 120.0  # to reserve memory: a gigabyte or so a second
FETCH_S = 600.0  # for a shard to come from another worker's memory, after those that others wait for


class KeeperLost(LauncherError):
    """The keeper does not answer. What is sealed stays where it is; begin anew."""


def brought(keeper: str, wanted: Bring) -> Brought:
    """Have a shard that others have saved in this worker's memory. keeper: its socket. Waits for it.

    Raises BadCheckpoint where it is not to be had, and KeeperLost.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(FETCH_S)
            sock.connect(keeper)
            sock.sendall(encode(wanted))
            with sock.makefile("rb") as file:
                body = read_frame(file.read, MOST_BYTES)
        if body is None:
            raise BadFrame("the keeper has closed the connection")
        answer = read_at_client(body)
    except (OSError, BadFrame) as error:
        raise KeeperLost(f"{keeper}: {error}") from error
    if isinstance(answer, Brought):
        return answer
    raise BadCheckpoint(answer.detail if isinstance(answer, Failed) else "the keeper has said something else")


class Client:
    """One connection. environ: of this process. told: what comes without being asked, on a thread of its own."""

    def __init__(self, hello: Hello, environ: dict[str, str], folder: Path, told: Callable[[ToClient], None]) -> None:
        self._told = told
        self._own: subprocess.Popen[bytes] | None = None
        self._socket_folder: Private | None = None
        self._answers: list[ToClient] = []
        self._news = threading.Condition()
        self._lost = ""
        self._unheard = 0  # Sealed that the keeper has not taken yet
        path = environ.get(KEEPER, "") or self._begin_own(hello, folder, environ)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError as error:
            self.close()
            raise KeeperLost(f"{path}: {error.strerror}") from error
        self._reader = threading.Thread(target=self._read, name="turnout-keeper", daemon=True)
        self._reader.start()
        self.arena = self._ask(hello)

    def _begin_own(self, hello: Hello, folder: Path, environ: dict[str, str]) -> str:
        """Without an agent: a keeper that ends with this process, once all is in storage."""
        self._socket_folder = private_folder(tempfile.gettempdir())
        path = str(socket_in(self._socket_folder.name))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listens:
            listens.bind(path)
            listens.listen()
            command = [
                sys.executable, "-m", "turnout.launcher.shell.memory.keeper", "--listen", str(listens.fileno()),
                "--folder", str(folder), "--run", hello.run, "--worker", hello.worker,
            ]  # fmt: skip
            self._own = subprocess.Popen(
                command, stdin=subprocess.PIPE, pass_fds=[listens.fileno()], start_new_session=True, env=environ
            )
        return path

    def need(self, size: int, generations: int) -> str:
        """Have so much memory. Gives the path of the arena. Raises NoMemory with what to add."""
        self.arena = self._ask(Need(size, generations))
        return self.arena

    def sealed(self, told: Sealed) -> None:
        """Tell it; `unheard` waits until it was heard."""
        with self._news:
            self._unheard += 1
        self._send(told)

    def unheard(self) -> None:
        """Wait until the keeper has pinned all that it was told of, so that none of it is overwritten."""
        with self._news:
            if not self._news.wait_for(lambda: not self._unheard or self._lost, ANSWER_S) or self._lost:
                raise KeeperLost(self._lost or f"no answer within {ANSWER_S:g} s")

    def overtake(self) -> int:
        """Have the oldest save that waits to be written to storage let go. Its step, -1 where there is none."""
        answer = self._answer(Overtake(), ANSWER_S, MadeRoom)
        return answer.step if isinstance(answer, MadeRoom) else -1

    def wait(self, timeout_s: float | None = None) -> None:
        """Until nothing that was told is in flight. Raises TimeoutError."""
        self._answer(Wait(), timeout_s, Done)

    def settle(self, ranks: int) -> tuple[Held, ...]:
        """What all of so many local ranks hold, hashed, newest first."""
        answer = self._answer(Settle(ranks), ANSWER_S, Holdings)
        return answer.held if isinstance(answer, Holdings) else ()

    def stats(self) -> Stats:
        """What it has done for this process."""
        answer = self._answer(Ask(), ANSWER_S, Stats)
        assert isinstance(answer, Stats)
        return answer

    def _ask(self, message: Hello | Need) -> str:
        answer = self._answer(message, ANSWER_S, (Arena, Refused))
        if isinstance(answer, Refused):
            raise NoMemory(answer.detail) if answer.reason == "no_memory" else KeeperLost(answer.detail)
        assert isinstance(answer, Arena)
        return answer.path

    def _answer(
        self, message: ToKeeper, timeout_s: float | None, kinds: type[object] | tuple[type[object], ...]
    ) -> ToClient:
        self._send(message)

        def there() -> bool:
            return bool(self._lost) or any(isinstance(each, kinds) for each in self._answers)

        with self._news:
            if not self._news.wait_for(there, timeout_s):
                raise TimeoutError(f"the keeper has not answered within {timeout_s:g} s")
            for at, each in enumerate(self._answers):
                if isinstance(each, kinds):
                    return self._answers.pop(at)
        raise KeeperLost(self._lost)

    def _send(self, message: ToKeeper) -> None:
        try:
            self._socket.sendall(encode(message))
        except OSError as error:
            raise KeeperLost(self._lost or str(error)) from error

    def _read(self) -> None:
        try:
            with self._socket.makefile("rb") as file:
                while (body := read_frame(file.read, MOST_BYTES)) is not None:
                    self._take(read_at_client(body))
            why = "the keeper has closed the connection"
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
                self._lost = self._lost or message.detail  # whatever was asked: nothing more comes
            elif not isinstance(message, Hashed | Persisted | Failed):
                self._answers.append(message)
            self._news.notify_all()
        if isinstance(message, Hashed | Persisted | Failed):
            self._told(message)

    def close(self) -> None:
        """This process has no more to save. A keeper of its own finishes what is in flight first."""
        with suppress(OSError):
            self._socket.sendall(encode(Bye()))
            self._socket.shutdown(socket.SHUT_RDWR)  # the thread that reads keeps it open else
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
