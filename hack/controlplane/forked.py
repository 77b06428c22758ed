"""Runs programs of Turnout in forks of a process that has imported their modules.

The result is that of `python -m MODULE`, but the imports, which take about half of a test's processor time, are done
once. This module imports only the standard library, because the supervisor loads it by its path.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, NoReturn

PACKAGE = "turnout."
_LOOK_S = 0.01


def module_of(argv: list[str]) -> str | None:
    """Return the module of Turnout that a command line runs with this Python; None if it runs anything else."""
    ours = len(argv) > 2 and argv[:2] == [sys.executable, "-m"] and argv[2].startswith(PACKAGE)
    return argv[2] if ours else None


def prepare(module: str) -> None:
    """Import what the module imports, so that later forks start fast. Raises nothing: a fork reports import errors.

    The module itself is removed from sys.modules, so that each fork runs it from its beginning.
    """
    if sys.flags.no_site and "site" not in sys.modules:
        import site  # makes the packages of the environment importable; the supervisor itself needs none

        site.main()
    threads = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy starts threads as it is imported; a fork has one
    try:
        with contextlib.suppress(Exception):  # the fork reports the import error
            spec = find_spec(module)
            entry = f"{module}.__main__" if spec is not None and spec.submodule_search_locations else module
            importlib.import_module(entry)
            sys.modules.pop(entry)
    finally:
        os.environ.pop("OPENBLAS_NUM_THREADS")
        if threads is not None:
            os.environ["OPENBLAS_NUM_THREADS"] = threads
    gc.collect()
    gc.freeze()  # a collection in a fork would copy all of it


class ForkedProcess:
    """A fork that runs a module. It has the methods of `subprocess.Popen` that the supervisor uses."""

    def __init__(
        self, argv: list[str], log: BinaryIO, folder: Path, env: dict[str, str], tie: Callable[[], None] | None
    ) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            _run(argv, log.fileno(), folder, env, tie)

    def poll(self) -> int | None:
        """Return the exit status, the negative number of a signal; None while the process runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return its exit status.

        Raises subprocess.TimeoutExpired after `timeout` seconds; None waits without an end.
        """
        until_s = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > until_s:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(_LOOK_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send the signal `number` if the process still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _run(argv: list[str], log: int, folder: Path, env: dict[str, str], tie: Callable[[], None] | None) -> NoReturn:
    """Run the module in this forked child, with its output in the log, and end the process with its status.

    argv: Python, -m, the module and its arguments. log: file descriptor. tie: lets the kernel kill the child with its
    parent; None for nothing. env: added to this environment.
    """
    code = 1
    try:
        if tie:
            tie()
        os.chdir(folder)
        null = os.open(os.devnull, os.O_RDONLY)
        for theirs, ours in ((null, 0), (log, 1), (log, 2)):
            os.dup2(theirs, ours)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.environ.update(env)
        sys.argv = argv[2:]
        runpy.run_module(argv[2], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as wanted:
        code = _status(wanted)
    except BaseException:  # the parent's handlers must not run in a fork
        traceback.print_exc()
    finally:
        _end(code)


def _status(requested: SystemExit) -> int:
    """Return the exit status with which Python itself would end. A text is printed to stderr, and gives 1."""
    if requested.code is None or isinstance(requested.code, int):
        return requested.code or 0
    print(requested.code, file=sys.stderr)
    return 1


def _end(code: int) -> NoReturn:
    """End this process as Python does: wait for threads, call exit functions, flush the output, exit with `code`.

    Objects of the parent are not finalized. Only the lowest 8 bits of `code` count.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # os._exit waits for no thread; multiprocessing does it so
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)
