"""Prepares a training process that is not a fork at its start: for stack traces, and to count its optimizer steps.

It restores PYTHONPATH and runs the user's `sitecustomize` that it hides, so processes that the user's program starts
later are not affected.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_PID = "TURNOUT_PROCESS"  # copied from launcher/health/hang_monitor/prepare_process.py, whose import takes time


def _begin() -> None:
    """Prepare this process for stack capture, remove this hook from the paths, and run the user's own sitecustomize.

    Only the process with the pid in the environment is prepared, none of its children.
    """
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != folder]
    rest = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.abspath(each) != folder]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)
    if os.environ.pop(_PID, "") == str(os.getpid()):
        with contextlib.suppress(ImportError, OSError, ValueError):  # training works without it
            from turnout.launcher.health.hang_monitor.prepare_process import make_traceable

            make_traceable()
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        theirs = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(theirs)


_begin()
