"""Turns a forked child into a training process: resets it to the state of a fresh `python`, then runs the user's
program.

This runs only in the child. A fork inherits the settings that modules read at import in the parent; the agent has
checked that the child would read the same ones.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import runpy
import signal
import sys
import time
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from turnout.launcher.health.hang_monitor.prepare_process import make_traceable, traceable_environment
from turnout.launcher.linux import be_traced_by, die_with, set_process_name
from turnout.launcher.workers.forkserver.messages import Task

CANNOT_RUN, NOT_FOUND = 126, 127  # exit codes, as in shells
TORCH_SEED = 67_280_421_310_721  # torch's seed of a generator that was never seeded

Handlers = Mapping[signal.Signals, Any]


def current_handlers() -> dict[signal.Signals, Any]:
    """Return the current handler of every signal. Call it when the parent starts, before it sets its own handlers."""
    return {sig: signal.getsignal(sig) for sig in signal.valid_signals() if isinstance(sig, signal.Signals)}


def leave_parent(task: Task, parent: int, agent: int, handlers: Handlers) -> None:
    """Make this forked child independent of the parent: own session, outputs, folder, CPUs and signal handlers.

    The child is killed if the parent ends. parent, agent: their pids. handlers: the signal handlers to restore. Signals
    stay blocked until this is done. A failure ends the child with CANNOT_RUN.
    """
    try:
        os.setsid()
        if not die_with(parent, signal.SIGKILL):  # the parent died before the death signal was set
            os.kill(os.getpid(), signal.SIGKILL)
        be_traced_by(agent)
        for file, fd in ((task.stdout, 1), (task.stderr, 2)):
            if file:
                fd_of_file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
                os.dup2(fd_of_file, fd)
                os.close(fd_of_file)
        if task.cwd:
            os.chdir(task.cwd)
        if task.cpus:
            os.sched_setaffinity(0, task.cpus)
    except OSError as error:
        _exit_with_error(CANNOT_RUN, f"cannot start process {task.local_rank}: {error}")
    signal.set_wakeup_fd(-1)
    for sig, handler in handlers.items():
        if handler is not None and signal.getsignal(sig) != handler:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(sig, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def execute(task: Task) -> NoReturn:
    """Replace this process by the task's command line, with signals as Popen would leave them.

    If that fails, the reason goes to stderr and the process exits with NOT_FOUND or CANNOT_RUN.
    """
    for sig in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(sig, signal.SIG_DFL)
    try:
        os.execvpe(task.spawn[0], task.spawn, traceable_environment(task.env, task.argv[0]))
    except OSError as error:
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        _exit_with_error(NOT_FOUND if missing else CANNOT_RUN, f"cannot run {task.spawn[0]!r}: {error}")


def _exit_with_error(code: int, why: str) -> NoReturn:
    """Write the reason `why` to stderr, and end this process at once with this exit code."""
    with contextlib.suppress(OSError):
        os.write(2, f"turnout-run: {why}\n".encode())
    os._exit(code)


def why_no_script(path: str) -> str:
    """Return the reason why a file cannot be run here as Python source, "" if it can.

    Syntax errors are left to Python.
    """
    try:
        with open(path, "rb") as file:
            return f"{path} is no plain script" if b"\0" in file.read(4096) else ""
    except OSError as error:
        return str(error)


def run(task: Task, path: list[str]) -> None:
    """Run the user's program as `python` would. path: sys.path without the program's own folder.

    Returns when the program has ended. Its exceptions are passed on, with a traceback that does not show the launcher.
    """
    _reset_process(task, path)
    try:
        if task.module:
            runpy._run_module_as_main(task.argv[0])  # type: ignore[attr-defined]  # what `python -m` itself calls
        else:
            _run_script(os.path.abspath(task.argv[0]))
    except BaseException as error:
        _hide_launcher_frames(error)
        raise


def _reset_process(task: Task, path: list[str]) -> None:
    """Reset environment, arguments, path, modules and random state to those of a fresh interpreter."""
    os.environ.clear()
    os.environ.update(task.env)
    time.tzset()
    flag = ["-m"] if task.module else []
    sys.argv = ["-m", *task.argv[1:]] if task.module else list(task.argv)
    sys.orig_argv = [sys.executable, "-u", *flag, *task.argv]
    set_process_name(sys.orig_argv)
    home = os.getcwd() if task.module else os.path.dirname(os.path.realpath(task.argv[0]))
    sys.path[:] = path if sys.flags.safe_path else [home, *path]
    importlib.invalidate_caches()
    _reset_modules()
    main = ModuleType("__main__")
    vars(main).update(__builtins__=sys.modules["builtins"], __annotations__={})
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:  # multiprocessing's own name for it
        sys.modules["__mp_main__"] = main
    with contextlib.suppress(OSError, ValueError):  # training works without it
        make_traceable()


def _reset_modules() -> None:
    """Reset random states, keys and folders that imported modules remember. Every fork resets `random` by itself."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(TORCH_SEED)
    processes: Any = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)
        processes.ORIGINAL_DIR = os.getcwd()
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # type: ignore[attr-defined]


def _run_script(path: str) -> None:
    """Run a script as __main__ in this process, as the interpreter would."""
    main = sys.modules["__main__"].__dict__
    main |= {"__file__": path, "__cached__": None, "__loader__": SourceFileLoader("__main__", path)}
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), main)


def _hide_launcher_frames(error: BaseException) -> None:
    """Make the interpreter print a traceback that begins with the user's program."""
    hook = sys.excepthook

    def print_error(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        """Print an exception without the frames of this file."""
        frame, first_user_frame = trace, trace
        while frame is not None:
            if frame.tb_frame.f_code.co_filename == __file__:
                first_user_frame = frame.tb_next
            frame = frame.tb_next
        hook(kind, value.with_traceback(first_user_frame), first_user_frame)

    if not isinstance(error, SystemExit):
        sys.excepthook = print_error
