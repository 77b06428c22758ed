"""The parent process of all programs of a control plane. It ends them when its own parent ends, for whatever reason.

It is a separate process with one thread (python supervisor.py FOLDER PARENT_PID). It imports only the standard
library, and the imports of the programs that it forks (forked.py). It reads one JSON order per line from stdin and
answers each with one JSON line on stdout.

It detects the end of its parent in two ways, since each one can fail: stdin is closed, or the parent id has changed
(if a forked child still holds stdin open). If the supervisor itself is killed, the kernel kills each program
(PR_SET_PDEATHSIG). The kernel also sends that signal when the *thread* that forked ends. Therefore the supervisor has
one thread, and the test's own process never forks.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import importlib.util
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOOK_FOR_PARENT_S = 0.5
GRACE_S = 2.0  # seconds from SIGTERM to SIGKILL
PR_SET_PDEATHSIG = 1


class Supervisor:
    """The programs of one control plane, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs: dict[str, Any] = {}  # a Popen, or a ForkedProcess (forked.py)
        self.prepared: set[str] = set()
        self.tie = _die_with_parent_hook()

    def execute(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out one order (start, state, signal or stop), and return the answer.

        The answer to stop is "ok", to an unknown order "error", and to the others "pid" and "exit". A stop without a
        name ends all programs but those in "keep". Raises KeyError for a signal to an unknown program.
        """
        name = order.get("name", "")
        match order["do"]:
            case "start":
                return self._start(name, order["argv"], order.get("env", {}), order.get("fork", False))
            case "state":
                return self._state(name)
            case "signal":
                self.programs[name].send_signal(order["signal"])
                return self._state(name)
            case "stop":
                self.stop([name] if name else [each for each in self.programs if each not in order.get("keep", ())])
                return {"ok": True}
        return {"error": f"unknown order {order['do']}"}

    def _start(self, name: str, argv: list[str], env: dict[str, str], fork: bool) -> dict[str, Any]:
        """Start a program after ending a running one of the same name; return its state. Output is appended to
        NAME.log.

        env: added to this environment. fork: if the program is a module of ours, run it in a fork that has imported it.
        """
        self.stop([name])
        forked = _load_sibling("forked")
        module = forked.module_of(argv) if fork else None
        if module and module not in self.prepared:
            forked.prepare(module)
            self.prepared.add(module)
        with (self.folder / f"{name}.log").open("ab") as log:
            if module:
                self.programs[name] = forked.ForkedProcess(argv, log, self.folder, env, self.tie)
                return self._state(name)
            self.programs[name] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **env},
                preexec_fn=self.tie,
            )
        return self._state(name)

    def _state(self, name: str) -> dict[str, Any]:
        """Return pid and exit status of a program; both None if it was never started, status None while it runs."""
        program = self.programs.get(name)
        if program is None:
            return {"pid": None, "exit": None}
        return {"pid": program.pid, "exit": program.poll()}

    def stop(self, names: list[str]) -> None:
        """End programs by SIGTERM, one after the other, the youngest first, and by SIGKILL after GRACE_S.

        In this order the clients of the API server end before it, and etcd ends last. Unknown names are ignored.
        """
        for name in reversed([name for name in self.programs if name in names]):
            program = self.programs.pop(name)
            if program.poll() is None:
                program.terminate()
                try:
                    program.wait(GRACE_S)
                except subprocess.TimeoutExpired:
                    program.kill()
                    program.wait()

    def kill(self) -> None:
        """Kill all programs at the same time, and wait for their end. No client needs a clean shutdown any more."""
        for program in self.programs.values():
            program.kill()
        for program in self.programs.values():
            program.wait()


@functools.cache
def _load_sibling(name: str) -> Any:
    """Load a module of this folder by its path, since this isolated process has no sys.path for it."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _die_with_parent_hook() -> Callable[[], None] | None:
    """Return a function that a child calls before exec, so that the kernel kills it when this process dies.

    None on other systems than Linux.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    ours = os.getpid()

    def tie() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != ours:  # the supervisor died between fork and prctl
            os._exit(1)

    return tie


def main(folder: Path, parent: int) -> None:
    """Carry out orders from stdin until it is closed or the parent is gone. Then kill all programs and remove the
    folder.

    parent: pid.
    """
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            ignored, signal.SIG_IGN
        )  # Ctrl-C reaches the whole group; the parent chooses the order of the ends
    lock = (folder / "alive").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    supervisor = Supervisor(folder)
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    unread = b""
    try:
        while os.getppid() == parent:
            if not selector.select(LOOK_FOR_PARENT_S):
                continue
            chunk = os.read(0, 1 << 16)
            if not chunk:
                break
            *lines, unread = (unread + chunk).split(b"\n")
            for line in lines:
                _answer(supervisor, line)
    finally:
        supervisor.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _answer(supervisor: Supervisor, line: bytes) -> None:
    """Carry out the order in one line, and write the answer, or the error, as a line to stdout."""
    try:
        answer = supervisor.execute(json.loads(line))
    except (OSError, LookupError, ValueError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    os.write(1, json.dumps(answer).encode() + b"\n")


def sweep(parent: Path, prefix: str, older_s: float = 60.0) -> None:
    """Remove folders of killed supervisors: older than `older_s` seconds, and locked by no process.

    parent: of the folders. prefix: of their names. Errors are ignored.
    """
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > older_s and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Return True if no process holds the lock of this supervisor's folder."""
    try:
        with (folder / "alive").open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
