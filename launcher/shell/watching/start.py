"""What a training process is given at its start so that it can be seen into later, when it may hang.

Most pods may not trace: a signal that makes Python write down where all its threads stand needs no right at all.
"""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from turnout.launcher.shell.watching.beats import Beats, beats
from turnout.launcher.shell.watching.words import PROGRESS

SIGNAL = signal.SIGRTMIN + 9  # nobody's: not of Python, not of torch, not of schedulers
PROCESS = "TURNOUT_PROCESS"  # the pid of a fresh process that is to be seen: no other one that has its environment is
_OPTIMIZER = "torch.optim.optimizer"
_HERE = Path(__file__).absolute().parent
_PACKAGE = _HERE.parents[2]  # turnout: in a checkout a folder of links, of which none is resolved here
_HIGH_FD = 200  # out of the way of programs that close what they find


def stacks_file(progress: str | os.PathLike[str]) -> str:
    """Where a process writes its stacks, beside its file of progress."""
    return f"{os.fspath(progress)}.stacks"


def be_seen() -> None:
    """In a training process, as early as can be; again it changes nothing. Without an agent nothing is done.

    A fork of the warm parent begins with it, a fresh Python with early/sitecustomize.py, where it reads PYTHONPATH and
    has us, else with its first `Steps`. From then on its optimizers are heard. Raises OSError.
    """
    path = os.environ.get(PROGRESS, "")
    if path:
        _answer(path, os.getpid())


@lru_cache(1)
def _answer(progress: str, pid: int) -> None:
    low = os.open(stacks_file(progress), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)  # open for as long as we live
    os.close(low)
    faulthandler.register(SIGNAL, high, all_threads=True)
    if (ours := beats()) is not None:
        _hear(partial(_torch_came, progress, ours.guess))
        atexit.register(_end, ours, pid)


def _end(ours: Beats, pid: int) -> None:
    """Python has begun to end, with all that torch has to give back: no step. A fork of the script ends too."""
    if os.getpid() == pid:
        ours.enter("ending")


def _torch_came(progress: str, guess: Callable[..., None], optimizer: Any) -> None:
    """Each step of any optimizer is heard from now on, and what torch has on record may be asked for."""
    from turnout.launcher.shell.watching.recorded import listen  # a process without torch needs none of it

    optimizer.register_optimizer_step_post_hook(guess)
    listen(progress)


def _hear(came: Callable[[Any], None]) -> None:
    """Tell when torch's optimizers are there: now, or once they have been imported."""
    optimizer = sys.modules.get(_OPTIMIZER)
    if optimizer is not None:
        came(optimizer)
    else:
        sys.meta_path.insert(0, _Comes(came))


class _Comes(MetaPathFinder):
    """Finds torch's optimizers as Python would, once, and tells when they have been imported."""

    def __init__(self, came: Callable[[Any], None]) -> None:
        self._came = came

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _OPTIMIZER:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and (loader := spec.loader) is not None:
            execute = loader.exec_module

            def executed(module: ModuleType) -> None:
                execute(module)
                self._came(module)

            loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def seen_early(env: Mapping[str, str], script: str = "") -> dict[str, str]:
    """The environment of a program that this process is about to become, so that it is seen if it is a Python.

    script: what it runs, as far as is known. Beside a module of the user's that has our name it is left alone.
    """
    if not env.get(PROGRESS) or any(_shadows(folder) for folder in (os.path.dirname(script), os.getcwd())):
        return dict(env)
    path = os.pathsep.join(each for each in (str(_HERE / "early"), env.get("PYTHONPATH", "")) if each)
    return {**env, "PYTHONPATH": path, PROCESS: str(os.getpid())}


def _shadows(folder: str) -> bool:
    package = Path(folder or ".", _PACKAGE.name)
    return package.with_suffix(".py").exists() or (package.is_dir() and package.resolve() != _PACKAGE.resolve())
