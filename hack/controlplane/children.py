"""The client of the supervisor: sends it orders on stdin and reads its answers.

The supervisor ends by itself when this process ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from hack.controlplane import supervisor
from hack.controlplane.errors import ControlPlaneError

PREFIX = "turnout-plane-"


class Children:
    """The programs of one control plane and the folder they share. Thread-safe: one order at a time.

    fork: programs of ours run in forks of the supervisor, which imports them once (forked.py).
    """

    def __init__(self, parent: Path | None = None, fork: bool = False) -> None:
        self._fork = fork
        parent = parent or _memory_or_temp()
        supervisor.sweep(parent, PREFIX)
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._turn = threading.Lock()
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__, str(self.folder), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal must not reach it: this process ends its programs in order
        )

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._supervisor.pid

    def start(self, name: str, argv: list[str], env: dict[str, str] | None = None) -> int:
        """Start a program, after ending a running one of the same name. Return its pid. env: added to this
        environment.
        """
        return int(self._order(do="start", name=name, argv=argv, env=env or {}, fork=self._fork)["pid"])

    def state(self, name: str) -> tuple[int | None, int | None]:
        """Return (pid, exit status) of a program: (None, None) if it was never started, status None while it runs."""
        answer = self._order(do="state", name=name)
        return answer["pid"], answer["exit"]

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a program. Raises ControlPlaneError if it was never started or was stopped."""
        self._order(do="signal", name=name, signal=number)

    def stop(self, name: str) -> None:
        """End a program by SIGTERM, and by SIGKILL after a few seconds. Does nothing if it was never started."""
        self._order(do="stop", name=name)

    def stop_all_but(self, *names: str) -> None:
        """End all other programs, the youngest first, and delete their logs."""
        self._order(do="stop", keep=names)
        for log in self.folder.glob("*.log"):
            if log.stem not in names:
                log.unlink()

    def close(self) -> None:
        """End every program and remove the folder. Does nothing the second time."""
        with self._turn:
            assert self._supervisor.stdin is not None
            assert self._supervisor.stdout is not None
            with contextlib.suppress(OSError):  # the supervisor was killed before it read the last order
                self._supervisor.stdin.close()
            self._supervisor.stdout.close()
            self._supervisor.wait()

    def log(self, name: str) -> str:
        """Return what a program has written so far, "" for nothing."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _order(self, **order: Any) -> dict[str, Any]:
        """Send one order to the supervisor and return its answer. Raises ControlPlaneError if it has ended or
        reports an error.
        """
        with self._turn:
            assert self._supervisor.stdin is not None
            assert self._supervisor.stdout is not None
            try:
                self._supervisor.stdin.write(json.dumps(order).encode() + b"\n")
                self._supervisor.stdin.flush()
                line = self._supervisor.stdout.readline()
            except (OSError, ValueError) as error:
                raise ControlPlaneError(f"the supervisor is gone: {error}") from error
        if not line:
            raise ControlPlaneError("the supervisor is gone")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ControlPlaneError(f"{order['do']} {order.get('name')}: {answer['error']}")
        return answer


def _memory_or_temp() -> Path:
    """Return /dev/shm if it is writable and has 256 MiB free, since etcd needs a fast disk; else the temporary
    folder.
    """
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        return Path(tempfile.gettempdir())
    free = os.statvfs(memory)
    return memory if free.f_bavail * free.f_frsize > 256 << 20 else Path(tempfile.gettempdir())
