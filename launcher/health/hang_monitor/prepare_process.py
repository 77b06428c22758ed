"""Prepares a training process at its start, so that its stack traces can be taken later if it hangs.

Most pods must not trace processes. A signal that makes Python write the stacks of all its threads needs no right.
"""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import turnout
from turnout.launcher.health.hang_monitor.progress import PROGRESS, ProgressReporter, progress_reporter

SIGNAL = signal.SIGRTMIN + 9  # used neither by Python nor by torch nor by schedulers
# Pid of the instrumented process: its children inherit the environment, but are not instrumented.
PROCESS = "TURNOUT_PROCESS"

_OPTIMIZER = "torch.optim.optimizer"

_HERE = Path(__file__).absolute().parent

_PACKAGE = Path(turnout.__file__).absolute().parent

_HIGH_FD = 200  # above the descriptors that programs tend to close


def stacks_file(progress: str | os.PathLike[str]) -> str:
    """Return the file for a process's stack traces, beside its progress file."""
    return f"{os.fspath(progress)}.stacks"


def make_traceable() -> None:
    """Prepare this training process for stack traces, as early as possible. Further calls and calls without an agent do
    nothing.

    A fork of the warm parent calls it first. A fresh Python calls it from startup_hook/sitecustomize.py if it reads
    PYTHONPATH, else with its first `Steps`. From then on its optimizers are heard. Raises OSError.
    """
    path = os.environ.get(PROGRESS, "")
    if path:
        _register_handler(path, os.getpid())


@lru_cache(1)
def _register_handler(progress: str, pid: int) -> None:
    """Install the signal handler that writes this process's stacks to a file.

    If progress is reported, optimizer steps are counted too. progress: path of the progress file. pid: of this process.
    """
    low = os.open(stacks_file(progress), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)  # stays open as long as the process
    os.close(low)
    faulthandler.register(SIGNAL, high, all_threads=True)
    if (heartbeat := progress_reporter()) is not None:
        _call_on_import(lambda optimizer: optimizer.register_optimizer_step_post_hook(heartbeat.count_optimizer_step))
        atexit.register(_end, heartbeat, pid)


def _end(heartbeat: ProgressReporter, pid: int) -> None:
    """Enter the phase "ending" when Python exits, unless this is a fork of the process."""
    if os.getpid() == pid:
        heartbeat.enter("ending")


def _call_on_import(on_import: Callable[[Any], None]) -> None:
    """Call `on_import` when torch's optimizers are imported: now, or later."""
    optimizer = sys.modules.get(_OPTIMIZER)
    if optimizer is not None:
        on_import(optimizer)
    else:
        sys.meta_path.insert(0, _OptimizerImport(on_import))


class _OptimizerImport(MetaPathFinder):
    """Finds torch's optimizer module once as Python would, and reports when it has been imported."""

    def __init__(self, on_import: Callable[[Any], None]) -> None:
        self._on_import = on_import

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Wrap the import of torch's optimizer, so that the callback runs right after it.

        Return None for every other module. This finder removes itself then.
        """
        if fullname != _OPTIMIZER:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and (loader := spec.loader) is not None:
            execute = loader.exec_module

            def executed(module: ModuleType) -> None:
                execute(module)
                self._on_import(module)

            loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def traceable_environment(env: Mapping[str, str], script: str = "") -> dict[str, str]:
    """Return the environment for a program that replaces this process, so that it is prepared if it is a Python.

    script: the script that it runs, if known. If the user has a module named like ours beside it, nothing is changed.
    """
    if not env.get(PROGRESS) or any(_shadows(folder) for folder in (os.path.dirname(script), os.getcwd())):
        return dict(env)
    path = os.pathsep.join(each for each in (str(_HERE / "startup_hook"), env.get("PYTHONPATH", "")) if each)
    return {**env, "PYTHONPATH": path, PROCESS: str(os.getpid())}


def _shadows(folder: str) -> bool:
    package = Path(folder or ".", _PACKAGE.name)
    return package.with_suffix(".py").exists() or (package.is_dir() and package.resolve() != _PACKAGE.resolve())


USAGE, CANNOT_RUN, NOT_FOUND = 2, 126, 127  # exit codes, as in shells


def main() -> int:
    """Replace this process by the program. Returns an exit code only if it cannot be run."""
    command = sys.argv[1:]
    if not command:
        print("usage: xpu_timer_launch PROGRAM [ARG ...]", file=sys.stderr)
        return USAGE
    for sig in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the program would inherit that
        signal.signal(sig, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, traceable_environment(os.environ))
    except OSError as error:
        print(f"xpu_timer_launch: cannot run {command[0]!r}: {error}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main())
