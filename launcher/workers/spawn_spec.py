"""Describes what a training process runs, and how it ended.

worker_processes.py starts the processes, and environment.py builds their environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from string import Template
from typing import Any

from turnout.launcher.errors import LauncherError

MOST_ERROR_LINES = 12
MOST_ERROR_CHARS = 2_000

# torchrun's meaning of --run-path: the file runs as __main__, and an exception goes to the error file.
RUN_PATH_PROGRAM = """\
import runpy, sys
from torch.distributed.elastic.multiprocessing.errors import record
sys.argv = sys.argv[1:]
def run_script_path():
    runpy.run_path(sys.argv[0], run_name="__main__")
record(run_script_path)()
"""


class StillRunning(LauncherError):
    """A round was ordered while processes of the last one are alive. Stop them first."""


class CommandKind(StrEnum):
    """Says how the first word of a command is meant."""

    SCRIPT = "script"
    MODULE = "module"  # -m
    BARE = "no-python"  # a program of its own
    RUN_PATH = "run-path"


@dataclass(frozen=True, slots=True)
class Stream:
    """The destination of one output of a process."""

    file: str = ""  # "" for the agent's own output
    prefix: str | None = None  # repeat every line on the agent's output after this text; None: do not repeat
    filtered: str = ""  # a file for repeated lines that contain one of the needles, "" for none
    needles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SpawnSpec:
    """Describes one training process to start: its command, environment, outputs and CPUs."""

    local_rank: int
    argv: tuple[str, ...]  # a script, module or program, and its arguments
    env: Mapping[str, str]  # its whole environment
    how: CommandKind = CommandKind.SCRIPT
    python: str = ""  # interpreter, "" for the agent's
    cwd: str = ""  # "" for the agent's
    stdout: Stream = field(default_factory=Stream)
    stderr: Stream = field(default_factory=Stream)
    error_file: str = ""  # for an exception as JSON, "" for none
    cpus: tuple[int, ...] = ()  # CPUs it may use, () for all


@dataclass(frozen=True, slots=True)
class Exited:
    """A training process that has ended, with its exit code or signal and its error."""

    local_rank: int
    pid: int
    code: int  # exit code 0 to 255, or minus the signal's number
    signal: str = ""  # the signal's name, or ""
    error: str = ""  # the first lines of its error file
    error_file: str = ""
    stuck: bool = False  # it was killed, but the kernel does not let it end

    @property
    def failed(self) -> bool:
        """True if it ended with anything but exit code 0."""
        return self.code != 0

    def __str__(self) -> str:
        how = "does not go" if self.stuck else f"ended by {self.signal}" if self.signal else f"exit code {self.code}"
        text = f"process {self.local_rank} (pid {self.pid}): {how}"
        return f"{text}: {self.error}" if self.error else text


def command(order: SpawnSpec, python: str) -> tuple[str, ...]:
    """Return the command to execute when nothing is imported ahead. python: the agent's interpreter."""
    unbuffered = (order.python or python, "-u")
    match order.how:
        case CommandKind.BARE:
            return order.argv
        case CommandKind.MODULE:
            return (*unbuffered, "-m", *order.argv)
        case CommandKind.RUN_PATH:
            return (python, "-u", "-c", RUN_PATH_PROGRAM, *order.argv)
        case CommandKind.SCRIPT:
            return (*unbuffered, *order.argv)


def of_rank(argv: Sequence[str], local_rank: int) -> tuple[str, ...]:
    """Return the arguments of one process: `${local_rank}` is replaced, like in torchelastic; every other $ stays."""
    return tuple(Template(word).safe_substitute(local_rank=local_rank) for word in argv)


def error_text(raw: bytes) -> str:
    """Return the first lines of an error file of torch's `@record`, "" if it is empty.

    raw: the file's bytes. Text that is not such JSON is returned as it is.
    """
    try:
        content = json.loads(raw)
    except ValueError:
        return _short(raw.decode(errors="replace"))
    message: Any = content.get("message", content) if isinstance(content, dict) else content
    if not isinstance(message, dict):
        return _short(str(message))
    extra = message.get("extraInfo")
    stack = str(extra.get("py_callstack", "")) if isinstance(extra, dict) else ""
    return _short("\n".join(part for part in (str(message.get("message", "")), _tail(stack)) if part))


def _tail(stack: str) -> str:
    """Return the innermost frames of a call stack, without its last line, which the message repeats."""
    frames = [line for line in stack.rstrip().splitlines() if line.startswith("  ")]
    return "\n".join(frames[1 - MOST_ERROR_LINES :])


def _short(text: str) -> str:
    lines = text.strip().splitlines()
    return "\n".join(lines[:MOST_ERROR_LINES])[:MOST_ERROR_CHARS]
