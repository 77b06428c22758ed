"""Connects a training process to the checkpoint daemon: the agent's, or one started here if there is no agent.

Calls block for a few hundred microseconds. Later messages of the daemon arrive on a thread. If the agent's daemon dies,
that thread connects to the next one, and announces every unfinished save again. Calls wait meanwhile.
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
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from turnout.launcher.checkpoint.arena.arena_files import PrivateDir, private_folder, socket_in
from turnout.launcher.checkpoint.format.daemon_messages import (
    MAX_BYTES,
    ArenaPath,
    Bye,
    Done,
    DropOldestSave,
    End,
    FetchShard,
    GetHeldSteps,
    GetStats,
    Hashed,
    HeldSteps,
    Hello,
    Persisted,
    Pinned,
    RequestRefused,
    ReserveMemory,
    Save,
    SaveDropped,
    SaveFailed,
    ShardFetched,
    Stats,
    ToClient,
    ToDaemon,
    Wait,
    encode,
    read_at_client,
)
from turnout.launcher.coordinator_messages import HeldStep
from turnout.launcher.env import DAEMON
from turnout.launcher.errors import BadCheckpoint, BadFrame, LauncherError, NoMemory
from turnout.launcher.framing import read_frame

ANSWER_S = 120.0  # seconds to reserve memory, at about 1 GB/s
RECONNECT_S = 60.0  # seconds for the agent to start its next daemon, and for that to adopt the arenas
PAUSE_S, LOG_PERIOD_S = 0.1, 10.0  # seconds between two tries, and between two log lines about them
MAX_LOSSES = 5  # consecutive daemons lost without any result of a save: the next one would probably die as well
FETCH_S = 600.0  # seconds to fetch a shard from another worker's memory, including the wait for those of other ranks


log = logging.getLogger("turnout.checkpoint")


class DaemonLost(LauncherError):
    """The daemon does not answer. Sealed saves stay in memory; connect again."""


def fetch_shard(daemon: str, request: FetchShard) -> ShardFetched:
    """Let the daemon at a socket path fetch a shard that another rank saved; return its position in local memory.

    A lost connection is tried again. Raises BadCheckpoint if no worker can give the shard, or for an unexpected answer.
    Raises DaemonLost after MAX_LOSSES lost connections, or FETCH_S seconds without an answer.
    """
    # The agent replaces a daemon that dies meanwhile; then the new one is asked.
    for tries_left in reversed(range(MAX_LOSSES)):
        try:
            answer = _request_shard(daemon, request)
            break
        except (OSError, BadFrame) as error:
            if not tries_left or isinstance(error, TimeoutError):
                raise DaemonLost(f"{daemon}: {error}") from error
            log.warning("daemon_lost", extra={"why": str(error), "at": daemon})
    if isinstance(answer, ShardFetched):
        return answer
    raise BadCheckpoint(answer.detail if isinstance(answer, SaveFailed) else "the daemon sent an unexpected answer")


def _request_shard(daemon: str, request: FetchShard) -> ToClient:
    """Request a shard and return the answer; log every LOG_PERIOD_S seconds that it is awaited.

    Raises TimeoutError after FETCH_S without an answer, another OSError if the connection fails, and BadFrame for an
    invalid answer or none. daemon: path of its socket.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(FETCH_S)
        sock.connect(daemon)
        sock.sendall(encode(request))
        until_s = time.monotonic() + FETCH_S
        arrivals = select.poll()  # unlike select(), for any number of open files
        arrivals.register(sock, select.POLLIN)
        while not arrivals.poll(LOG_PERIOD_S * 1_000):
            if time.monotonic() >= until_s:
                raise TimeoutError(f"no answer within {FETCH_S:g} s")
            log.warning("daemon_awaited", extra={"answer_to": "FetchShard", "step": request.step, "at": daemon})
        return _read_answer(sock)


def _read_answer(sock: socket.socket) -> ToClient:
    """Read one message of the daemon.

    Raises OSError if the connection fails, and BadFrame if the message is invalid or the daemon closes the connection.
    sock: connected; its time limit holds.
    """
    with sock.makefile("rb") as file:
        body = read_frame(file.read, MAX_BYTES)
    if body is None:
        raise BadFrame("the daemon has closed the connection")
    return read_at_client(body)


def daemon_command(listener_fd: int, folder: Path, run: str, worker: str) -> list[str]:
    """Return the command that starts a daemon.

    listener_fd: file descriptor of its listening socket, which it inherits. folder: of the arenas. run, worker: the
    job's id and the worker's name.
    """
    options = {"--listen": str(listener_fd), "--folder": str(folder), "--run": run, "--worker": worker}
    return [sys.executable, "-m", "turnout.launcher.checkpoint.daemon", *chain.from_iterable(options.items())]


class OwnDaemon:
    """A daemon that one training process starts for itself alone, since no agent runs.

    It ends after the process, when all saves are written. folder: of the arenas. environ: of the daemon. hello: names
    the run and the worker. `path`: of its socket. Raises OSError if the socket or the process cannot be created.
    """

    def __init__(self, hello: Hello, folder: Path, environ: dict[str, str]) -> None:
        self._socket_folder: PrivateDir = private_folder(tempfile.gettempdir())
        self.path = str(socket_in(self._socket_folder.name))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(self.path)
            listener.listen()
            command = daemon_command(listener.fileno(), folder, hello.run, hello.worker)
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], start_new_session=True, env=environ
            )

    def end(self) -> None:
        """Wait until the daemon has finished all saves and ended."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(encode(End(True)))
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        self._socket_folder.cleanup()


@dataclass(eq=False, slots=True)
class _Request:
    """A request that was sent to the daemon, and its answer once there is one."""

    kinds: type[object] | tuple[type[object], ...]  # of its answer
    connection: int = 0  # number of the connection on which it was sent last, 0 for none
    answer: ToClient | None = None


class DaemonLink:
    """A training process's connection to its daemon, and the saves that the daemon has not finished.

    `hello`: introduces this process to the next daemon. path: of the daemon's socket. on_message: called on a thread
    with each result of a save. reconnects: if the daemon dies, another one takes its place. Raises DaemonLost if the
    daemon cannot be reached.
    """

    def __init__(self, hello: Hello, path: str, on_message: Callable[[ToClient], None], *, reconnects: bool) -> None:
        self.hello, self._path, self._on_message, self._reconnects = hello, path, on_message, reconnects
        self._requests: list[_Request] = []  # without an answer on this connection, the oldest first
        self._changed = threading.Condition()
        self._lost = ""
        self._unpinned = 0  # announced saves that the daemon has not pinned yet
        self._saves: dict[int, Save] = {}  # by epoch: those that are not finished, as far as known
        self._losses, self._connected, self._closed = 0, 1, False  # _connected: number of the connection, 0 for none
        self._sending = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(self._path)
        except OSError as error:
            self.close()
            raise DaemonLost(f"{self._path}: {error.strerror}") from error
        self.reader = threading.Thread(target=self._read_daemons, name="turnout-checkpoint-client", daemon=True)
        self.reader.start()

    def announce_save(self, save: Save) -> None:
        """Tell the daemon that a save is sealed, without waiting for its answer.

        If the daemon ends, unfinished saves are announced again to the next daemon. A save that stays in memory is not,
        if a later save was announced. Call `wait_pinned` before the next save is written into the arena. Raises
        DaemonLost if no daemon can be reached any more.
        """
        with self._changed:
            if self._lost:
                raise DaemonLost(self._lost)
            older = [epoch for epoch, each in self._saves.items() if not each.target or each.later]
            for epoch in older:  # a newer save replaces those that stay in memory
                del self._saves[epoch]
            self._saves[save.epoch] = save
            self._unpinned += 1
            connection = self._connected
        self._send(save, connection)

    def wait_pinned(self) -> None:
        """Wait until the daemon has pinned every announced save, so that no save is overwritten.

        Raises DaemonLost if there is no daemon, or no answer within ANSWER_S.
        """
        with self._changed:
            until_s = time.monotonic() + ANSWER_S
            while not self._changed.wait_for(
                lambda: (self._connected and not self._unpinned) or self._lost, LOG_PERIOD_S
            ):
                if time.monotonic() >= until_s:
                    raise DaemonLost(f"no answer within {ANSWER_S:g} s")
                log.warning("daemon_awaited", extra={"answer_to": "Save", "at": self._path})
            if self._lost:
                raise DaemonLost(self._lost)

    def ask(
        self, message: ToDaemon, timeout_s: float | None, kinds: type[object] | tuple[type[object], ...]
    ) -> ToClient:
        """Send a request and return its answer, which is of one of these kinds.

        The daemon answers requests of the same kinds in order. The request is repeated to a new daemon if the first one
        has died. timeout_s: seconds, None for no limit. Raises TimeoutError after them, and the late answer is dropped;
        raises DaemonLost if no daemon can be reached any more.
        """
        until_s = time.monotonic() + (timeout_s if timeout_s is not None else threading.TIMEOUT_MAX)
        request = _Request(kinds)

        def is_over() -> bool:
            """Return True if there is an answer, a new connection, or no daemon any more."""
            is_new = bool(self._connected) and self._connected != request.connection
            return bool(self._lost) or is_new or request.answer is not None

        while True:
            with self._changed:
                while not self._changed.wait_for(is_over, min(LOG_PERIOD_S, max(until_s - time.monotonic(), 0.0))):
                    if time.monotonic() >= until_s:
                        raise TimeoutError(f"the daemon has not answered within {timeout_s:g} s")
                    log.warning("daemon_awaited", extra={"answer_to": type(message).__name__, "at": self._path})
                if request.answer is not None:
                    return request.answer
                if self._lost:
                    raise DaemonLost(self._lost)
                request.connection = self._connected
            self._send(message, request.connection, request)  # again, if the daemon that was asked has died

    def _send(self, message: ToDaemon, connection: int, request: _Request | None = None) -> None:
        """Send a message on the connection with this number, 0 for none. Drop it if that connection is lost.

        request: gets the answer; None for a message without one, and for a Save.
        """
        with self._sending, suppress(OSError):
            with self._changed:
                if not connection or connection != self._connected:
                    return
                if request is not None:
                    self._requests.append(request)
            self._socket.sendall(encode(message))

    def _read_daemons(self) -> None:
        """Read the messages of one daemon after the other, until none can be reached or this client is closed."""
        while True:
            why = self._read()
            with self._changed:
                number, self._connected = self._connected, 0
                self._requests.clear()
                self._unpinned = len(self._saves)
                self._losses += 1
                if self._closed or self._lost or not self._reconnects or self._losses >= MAX_LOSSES:
                    self._lost = self._lost or why
                    self._changed.notify_all()
                    return
            log.warning("daemon_lost", extra={"why": why, "at": self._path})
            if not self._reconnect(number + 1):
                with self._changed:
                    self._lost = why
                    self._changed.notify_all()
                return

    def _reconnect(self, number: int) -> bool:
        """Connect to the next daemon, and announce this process and its unfinished saves to it.

        number: of the new connection. Returns False if no daemon answers within RECONNECT_S seconds, if the daemon
        refuses or has not adopted the arena of unfinished saves, or if this client is closed.
        """
        began_s, logged_s = time.monotonic(), 0.0
        while not self._closed and (waited_s := time.monotonic() - began_s) < RECONNECT_S:
            if waited_s > logged_s + LOG_PERIOD_S:
                logged_s = waited_s
                log.warning("daemon_awaited", extra={"at": self._path, "waited_s": round(waited_s)})
            new_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            new_socket.settimeout(LOG_PERIOD_S)
            try:
                new_socket.connect(self._path)
                new_socket.sendall(encode(self.hello))
                answer = _read_answer(new_socket)
                if isinstance(answer, ArenaPath) and (answer.path or not self._saves):
                    new_socket.settimeout(None)
                    return self._resume(new_socket, number)
                if isinstance(answer, ArenaPath | RequestRefused):
                    new_socket.close()
                    return False  # it has not taken over the memory, so that nothing can be continued
            except (OSError, BadFrame):
                pass
            new_socket.close()
            time.sleep(PAUSE_S)
        return False

    def _resume(self, new_socket: socket.socket, number: int) -> bool:
        """Replace the connection, and announce all unfinished saves. Return False if this client was closed.

        new_socket: connected; it is closed if this client was closed. number: of the new connection. Raises OSError if
        a save cannot be sent.
        """
        with self._sending, self._changed:
            if self._closed:
                new_socket.close()
                return False
            self._socket.close()
            self._socket = new_socket
            for save in self._saves.values():
                new_socket.sendall(encode(save))
            self._unpinned = len(self._saves)
            self._connected = number
            self._changed.notify_all()
        log.warning("daemon_found", extra={"at": self._path, "saves": len(self._saves)})
        return True

    def _read(self) -> str:
        """Read and handle messages until the connection ends; return why it ended. Runs in the receiving thread."""
        try:
            with self._socket.makefile("rb") as file:
                while (body := read_frame(file.read, MAX_BYTES)) is not None:
                    self._dispatch(read_at_client(body))
        except (OSError, BadFrame, ValueError) as error:
            return str(error)
        return "the daemon has closed the connection"

    def _dispatch(self, message: ToClient) -> None:
        """Handle one message of the daemon in the receiving thread.

        Answers wake the caller that waits for them. Results of saves go to the callback.
        """
        with self._changed:
            if isinstance(message, Hashed | Persisted | SaveFailed):
                self._forget_finished(message)
            if isinstance(message, Pinned):
                self._unpinned -= 1
            elif isinstance(message, RequestRefused) and message.reason == "failed":
                self._lost = self._lost or message.detail  # no request gets an answer any more
            elif not isinstance(message, Hashed | Persisted | SaveFailed):
                self._accept_answer(message)
            self._changed.notify_all()
        if isinstance(message, Hashed | Persisted | SaveFailed):
            self._on_message(message)

    def _accept_answer(self, message: ToClient) -> None:
        """Store the answer to the oldest request that has none and awaits its kind. If that has timed out, nobody reads
        it. Ignore an answer that no request awaits.
        """
        request = next((each for each in self._requests if isinstance(message, each.kinds)), None)
        if request is not None:
            request.answer = message
            self._requests.remove(request)

    def _forget_finished(self, message: Hashed | Persisted | SaveFailed) -> None:
        """Remove the oldest save of the step that need not be announced to another daemon, since this message is its
        last result. A step may be saved into several folders.
        """
        self._losses = 0
        for epoch, save in sorted(self._saves.items()):
            stays = not save.target or save.later
            if save.step == message.step and (stays or not isinstance(message, Hashed)):
                del self._saves[epoch]
                return

    def close(self) -> None:
        """Disconnect. Calls that still wait raise DaemonLost."""
        with self._sending:
            self._closed = True  # a connection that is being made is closed by the reading thread
            with suppress(OSError):
                self._socket.sendall(encode(Bye()))
                self._socket.shutdown(socket.SHUT_RDWR)  # else the reading thread keeps the connection open
            self._socket.close()


class TrainerClient:
    """The requests of one training process to its daemon.

    hello: the message that introduces this process to the daemon. environ: of this process; without DAEMON in it, a
    daemon of its own is started. folder: of the arenas of that daemon. on_message: called on a thread with each result
    of a save: Hashed, Persisted or SaveFailed. `arena`: path of the rank's arena, "" if it has none yet. `link`: takes
    the saves. Raises DaemonLost if the daemon cannot be reached or refuses, TimeoutError if it does not answer within
    ANSWER_S, and OSError if a daemon of its own cannot be started.
    """

    def __init__(
        self, hello: Hello, environ: dict[str, str], folder: Path, on_message: Callable[[ToClient], None]
    ) -> None:
        path = environ.get(DAEMON, "")
        self._own_daemon = None if path else OwnDaemon(hello, folder, environ)
        if self._own_daemon is not None:
            path = self._own_daemon.path
        try:
            self.link = DaemonLink(hello, path, on_message, reconnects=self._own_daemon is None)
        except DaemonLost:
            if self._own_daemon is not None:
                self._own_daemon.end()
            raise
        self.arena = self._arena_path(hello)

    def introduce(self, hello: Hello) -> None:
        """Introduce this process again, with another checkpoint folder or number of replicas.

        Raises DaemonLost if the daemon refuses or is lost, and TimeoutError if it does not answer within ANSWER_S.
        """
        self.link.hello = hello
        self.arena = self._arena_path(hello)

    def reserve(self, size: int, generations: int) -> str:
        """Let the daemon allocate memory for `generations` saves of `size` bytes; return the arena's path.

        Raises NoMemory, which says what to add, if memory is too small; DaemonLost if the daemon is lost; TimeoutError
        if it does not answer within ANSWER_S.
        """
        self.arena = self._arena_path(ReserveMemory(size, generations))
        return self.arena

    def drop_oldest(self) -> int:
        """Let the daemon drop the oldest save that waits for storage. Return its step, or -1 if none can be dropped.

        Raises TimeoutError after ANSWER_S, and DaemonLost if the daemon is lost.
        """
        answer = self.link.ask(DropOldestSave(), ANSWER_S, SaveDropped)
        return answer.step if isinstance(answer, SaveDropped) else -1

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the daemon has finished all saves that this process has announced, successfully or not.

        timeout_s: seconds, None for no limit. Raises TimeoutError after them, and DaemonLost if the daemon is lost.
        """
        self.link.ask(Wait(), timeout_s, Done)

    def held_steps(self, ranks: int) -> tuple[HeldStep, ...]:
        """List the hashed steps of which all local ranks below `ranks` hold their shard, newest first.

        Raises TimeoutError after ANSWER_S, and DaemonLost if the daemon is lost.
        """
        answer = self.link.ask(GetHeldSteps(ranks), ANSWER_S, HeldSteps)
        return answer.held_steps if isinstance(answer, HeldSteps) else ()

    def stats(self) -> Stats:
        """Request the daemon's statistics of this process.

        Raises TimeoutError after ANSWER_S, and DaemonLost if the daemon is lost.
        """
        answer = self.link.ask(GetStats(), ANSWER_S, Stats)
        assert isinstance(answer, Stats)
        return answer

    def _arena_path(self, message: Hello | ReserveMemory) -> str:
        """Send a request whose answer is the path of the arena, and return the path.

        Raises NoMemory if the daemon refuses for lack of memory, DaemonLost if it refuses otherwise or is lost, and
        TimeoutError after ANSWER_S.
        """
        answer = self.link.ask(message, ANSWER_S, (ArenaPath, RequestRefused))
        if isinstance(answer, RequestRefused):
            raise NoMemory(answer.detail) if answer.reason == "no_memory" else DaemonLost(answer.detail)
        assert isinstance(answer, ArenaPath)
        return answer.path

    def close(self) -> None:
        """Disconnect. If this process started the daemon, wait until the daemon has finished all saves and ended."""
        self.link.close()
        if self._own_daemon is not None:
            self._own_daemon.end()
