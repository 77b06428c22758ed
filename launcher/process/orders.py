"""What an agent tells one training process to be, and what it hears when that process has ended.

Only nouns and their texts. How a process is started is settled in shell/processes, its environment in environment.py.
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

# What `--run-path` means to torchrun: the file is run as __main__, and an exception lands in the error file.
RUN_PATH_PROGRAM = """\
import runpy, sys
from torch.distributed.elastic.multiprocessing.errors import record
sys.argv = sys.argv[1:]
def run_script_path():
    runpy.run_path(sys.argv[0], run_name="__main__")
record(run_script_path)()
"""


class StillRunning(LauncherError):
    """A round was ordered while processes of the one before are alive. Stop them first."""


class How(StrEnum):
    """How the first word of a command is meant."""

    SCRIPT = "script"
    MODULE = "module"  # -m
    BARE = "no-python"  # a program of its own
    RUN_PATH = "run-path"


@dataclass(frozen=True, slots=True)
class Stream:
    """Where one output of a process goes: "" is the agent's own, else a file.

    prefix: with it every line of the file is repeated on the agent's own output, behind it; None = not repeated.
    filtered: a file that gets the repeated lines in which one of the `needles` occurs; "" = none.
    """

    file: str = ""
    prefix: str | None = None
    filtered: str = ""
    needles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """One training process: what it runs, and with what.

    argv: a script, module or program, and its arguments. env: all of its environment. python: the interpreter, ""
    is the agent's own. cwd: "" is the agent's own. error_file: where an exception is written as JSON, "" for nowhere.
    cpus: those it may run on, () for all.
    """

    local_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    how: How = How.SCRIPT
    python: str = ""
    cwd: str = ""
    stdout: Stream = field(default_factory=Stream)
    stderr: Stream = field(default_factory=Stream)
    error_file: str = ""
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Exited:
    """One training process that has ended.

    code: as its parent sees it, 0 to 255, or minus the number of the signal that ended it. signal: that signal's
    name, else "". error: the first lines of what it left in its error file. stuck: it does not go, killed or not: the
    kernel holds it.
    """

    local_rank: int
    pid: int
    code: int
    signal: str = ""
    error: str = ""
    error_file: str = ""
    stuck: bool = False

    @property
    def failed(self) -> bool:
        """Did it end in any way but well?"""
        return self.code != 0

    def __str__(self) -> str:
        how = "does not go" if self.stuck else f"ended by {self.signal}" if self.signal else f"exit code {self.code}"
        text = f"process {self.local_rank} (pid {self.pid}): {how}"
        return f"{text}: {self.error}" if self.error else text


def command(order: Order, python: str) -> tuple[str, ...]:
    """What is executed for an order where nothing is imported ahead. python: the agent's interpreter."""
    unbuffered = (order.python or python, "-u")
    match order.how:
        case How.BARE:
            return order.argv
        case How.MODULE:
            return (*unbuffered, "-m", *order.argv)
        case How.RUN_PATH:
            return (python, "-u", "-c", RUN_PATH_PROGRAM, *order.argv)
        case How.SCRIPT:
            return (*unbuffered, *order.argv)


def of_rank(argv: Sequence[str], local_rank: int) -> tuple[str, ...]:
    """The arguments of one process: `${local_rank}` is its own, as torchelastic has it; every other $ stays."""
    return tuple(Template(word).safe_substitute(local_rank=local_rank) for word in argv)


def error_text(raw: bytes) -> str:
    """The first lines of an error file, as `@record` of torch writes it; "" when there is nothing in it.

    raw: the file's bytes. What is no such JSON is told as it stands.
    """
    try:
        said = json.loads(raw)
    except ValueError:
        return _short(raw.decode(errors="replace"))
    message: Any = said.get("message", said) if isinstance(said, dict) else said
    if not isinstance(message, dict):
        return _short(str(message))
    extra = message.get("extraInfo")
    stack = str(extra.get("py_callstack", "")) if isinstance(extra, dict) else ""
    return _short("\n".join(part for part in (str(message.get("message", "")), _tail(stack)) if part))


def _tail(stack: str) -> str:
    """Where it was raised: the innermost frames of a call stack, without its last line, which the message repeats."""
    frames = [line for line in stack.rstrip().splitlines() if line.startswith("  ")]
    return "\n".join(frames[1 - MOST_ERROR_LINES :])


def _short(text: str) -> str:
    lines = text.strip().splitlines()
    return "\n".join(lines[:MOST_ERROR_LINES])[:MOST_ERROR_CHARS]
