"""Prepares a training process at its start, so that its stack traces can be taken later if it hangs.

Most pods may not trace processes. A signal that makes Python write the stacks of all its threads needs no privilege.
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
    """Prepare this training process for stack traces, as early as possible, and count its optimizer steps from then on.

    Further calls and calls without an agent do nothing. A fork of the forkserver's parent calls it first. A fresh
    Python calls it from startup_hook/sitecustomize.py if it reads PYTHONPATH, else with its first `Steps`. Raises
    OSError if the file for the stacks cannot be made or the agent's progress file cannot be opened, and ValueError if
    that file is too short.
    """
    path = os.environ.get(PROGRESS, "")
    if path:
        _register_handler(path, os.getpid())


@lru_cache(1)
def _register_handler(progress: str, pid: int) -> None:
    """Create the file for this process's stacks, and install the signal handler that writes them to it.

    If progress is reported, optimizer steps are counted too. progress: path of the progress file, from which the name
    of the other file is derived. pid: of this process. Raises what `make_traceable` raises.
    """
    low = os.open(stacks_file(progress), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)  # stays open as long as the process
    os.close(low)
    faulthandler.register(SIGNAL, high, all_threads=True)
    if (heartbeat := progress_reporter()) is not None:
        _call_on_import(lambda optimizer: optimizer.register_optimizer_step_post_hook(heartbeat.count_optimizer_step))
        atexit.register(_enter_ending_phase, heartbeat, pid)


def _enter_ending_phase(heartbeat: ProgressReporter, pid: int) -> None:
    """Enter the phase "ending" when Python exits, unless this is a fork of the process."""
    if os.getpid() == pid:
        heartbeat.enter("ending")


def _call_on_import(on_import: Callable[[Any], None]) -> None:
    """Call `on_import` with torch's optimizer module: now if it is imported, else right after its import."""
    optimizer = sys.modules.get(_OPTIMIZER)
    if optimizer is not None:
        on_import(optimizer)
    else:
        sys.meta_path.insert(0, _OptimizerImport(on_import))


class _OptimizerImport(MetaPathFinder):
    """Finds torch's optimizer module as Python would, and calls `on_import` right after the import, once."""

    def __init__(self, on_import: Callable[[Any], None]) -> None:
        self._on_import = on_import

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Wrap the import of torch's optimizer, so that the callback runs right after it, and remove this finder.

        Return None for every other module, and if torch has no such module. path: where the parent module is searched.
        target: not used.
        """
        if fullname != _OPTIMIZER:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and (loader := spec.loader) is not None:
            execute = loader.exec_module

            def execute_and_report(module: ModuleType) -> None:
                """Execute the module, then call `on_import` with it."""
                execute(module)
                self._on_import(module)

            loader.exec_module = execute_and_report  # type: ignore[method-assign]
        return spec


def traceable_environment(env: Mapping[str, str], script: str = "") -> dict[str, str]:
    """Return `env` with the startup hook on PYTHONPATH, for a program that replaces this process.

    If that program is Python, it is then prepared for stack traces. TURNOUT_PROCESS is set to the pid of this process,
    which the program keeps. script: the script that it runs, "" if unknown. Returns an unchanged copy of `env` if no
    agent runs, or if a module or folder of the user has our package's name, beside the script or in the current folder.
    """
    if not env.get(PROGRESS) or any(_shadows(folder) for folder in (os.path.dirname(script), os.getcwd())):
        return dict(env)
    path = os.pathsep.join(each for each in (str(_HERE / "startup_hook"), env.get("PYTHONPATH", "")) if each)
    return {**env, "PYTHONPATH": path, PROCESS: str(os.getpid())}


def _shadows(folder: str) -> bool:
    """Return True if a folder has another module with the name of our package. "" stands for the current folder."""
    package = Path(folder or ".", _PACKAGE.name)
    return package.with_suffix(".py").exists() or (package.is_dir() and package.resolve() != _PACKAGE.resolve())


USAGE, CANNOT_RUN, NOT_FOUND = 2, 126, 127  # exit codes, as in shells


def main() -> int:
    """Replace this process by the program of the command line (`xpu_timer_launch PROGRAM [ARG ...]`).

    Returns an exit code only if the program cannot be run.
    """
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
