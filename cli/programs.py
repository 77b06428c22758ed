"""The programs by the names that pip puts on PATH. Each is imported when it is started, with only the modules that it
needs.

This module knows the extra that each program needs, and how a program ends if nobody reads its output.
"""

from __future__ import annotations

import gc
import os
import select
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec

from turnout.cli.exit_codes import ExitCode

# The modules that each extra installs. setup.cfg names the distributions instead.
_API = ("kubernetes", "aiohttp")
_SERVICE = (*_API, "prometheus_client", "yaml", "networkx", "cryptography")
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "controllers": _SERVICE,
    "cli": (*_SERVICE, "rich"),
    "preprocess": ("tokenizers", "tiktoken", "gigatoken", "ftfy", "zstandard", "fsspec"),
    "spark": ("pyspark",),
    "launcher": ("torch", "safetensors", "fsspec", "py_spy", "prometheus_client", "yaml", "networkx"),
    "kubernetes": _API,
    "completion": ("shtab",),
}

# Thresholds of the garbage collector for a short program: with its defaults it takes a fifth of the time.
FEW_COLLECTIONS = (100_000, 20, 50)
# Commands of `turnout` that start other programs, which would report a missing extra only in a log.
START_OTHERS = frozenset(["demo", "local"])


def turnout() -> int:
    """Run the command `turnout`, and return its exit code. A missing extra is reported when a verb imports it."""
    return _user_command("turnout")


def kubectl_turnout() -> int:
    """Run the command `turnout` as `kubectl turnout`, and return its exit code."""
    return _user_command("kubectl-turnout")


def extender() -> int:
    """Run the scheduler extender."""
    return start("turnout-extender", "turnout.scheduler_ext.__main__", "controllers", at_once=True)


def nominator() -> int:
    """Run the nominator."""
    return start("turnout-nominator", "turnout.scheduler_ext.nominator", "controllers", at_once=True)


def autoscaler() -> int:
    """Run the autoscaler."""
    return start("turnout-autoscaler", "turnout.autoscaler.__main__", "controllers", at_once=True)


def controller() -> int:
    """Run the job controllers."""
    return start("turnout-controller", "turnout.controllers.__main__", "controllers", at_once=True)


def run() -> int:
    """Run the launcher."""
    return start("turnout-run", "turnout.launcher.__main__", "launcher")


def dlrover_run() -> int:
    """Run the launcher under the guide's name. Source: DL-42"""
    return start("dlrover-run", "turnout.launcher.__main__", "launcher", function="dlrover_run")


def xpu_timer_launch() -> int:
    """Replace this process by a program that the hang monitor watches, under the guide's name. Source: DL-112"""
    return start("xpu_timer_launch", "turnout.launcher.health.hang_monitor.prepare_process", "launcher")


def xpu_timer_stacktrace_viewer() -> int:
    """Run `turnout stacks` under the guide's name. Source: DL-115"""
    return start("xpu_timer_stacktrace_viewer", "turnout.cli.__main__", "cli", function="stacktrace_viewer")


def start(program: str, module: str, extra: str, *, function: str = "main", at_once: bool = False) -> int:
    """Run a program and return its exit code: 2 if an extra of pip is missing, 141 if nobody reads its output.

    With --version as the first argument, only its version is printed. program: its name, for messages. module,
    function: what is called. extra: the one that the program needs, a key of EXTRAS. at_once: the program needs the
    whole extra, which is checked first; otherwise a missing module is reported when a command imports it.
    """
    wants_version = sys.argv[1:2] == ["--version"]
    if at_once and not wants_version and missing_modules(EXTRAS[extra]):
        return _report_missing(program, extra)
    try:
        try:
            if wants_version:
                from turnout.kube.version import installed_build

                print(f"{program} {installed_build()}")
                return 0
            code: int = getattr(import_module(module), function)()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # else the interpreter does, and tells a traceback
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end
        return ExitCode.BROKEN_PIPE
    except ModuleNotFoundError as error:
        if (missing_extra := extra_of((error.name or "").partition(".")[0], extra)) is None:
            raise
        return _report_missing(program, missing_extra)
    return code


def missing_modules(modules: Sequence[str]) -> list[str]:
    """Return the names of the modules that are not installed, in their order, without importing any."""
    return [name for name in modules if find_spec(name) is None]


def extra_of(module: str, preferred: str) -> str | None:
    """Return the pip extra that installs a module, `preferred` if several do; None if none does."""
    return next((name for name in (preferred, *EXTRAS) if module in EXTRAS[name]), None)


def _user_command(program: str) -> int:
    """Run a program that a user starts, with few garbage collections, and return its exit code."""
    gc.set_threshold(*FEW_COLLECTIONS)
    try:
        return start(program, "turnout.cli.__main__", "cli", at_once=_starts_others(sys.argv[1:]))
    finally:
        gc.freeze()  # the interpreter's last collections look at nothing: a sixth of a listing's time


def _starts_others(argv: Sequence[str]) -> bool:
    return bool(START_OTHERS & {*argv[:1]}) and not {"-h", "--help"} & {*argv}


def _nobody_reads() -> bool:
    """Return True if the reader of stdout has closed it, which distinguishes this error from a broken connection."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _report_missing(program: str, extra: str) -> int:
    print(f"{program} needs pip install 'turnout[{extra}]'", file=sys.stderr)
    return ExitCode.USAGE
