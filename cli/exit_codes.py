"""The exit codes of the `turnout` command: every verb ends with one of these."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class ExitCode(IntEnum):
    """How a verb ended: its exit code."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NEGATIVE_RESULT = 3
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANS: Mapping[ExitCode, str] = {
    ExitCode.DONE: "done, and no fault was found",
    ExitCode.FAILED: "failed: the API server cannot be reached or refuses, or what was named is not there",
    ExitCode.USAGE: "usage: an option or a name that makes no sense, or an extra of pip that is missing",
    ExitCode.NEGATIVE_RESULT: "looked, and the answer is no: a fault was found, a gang finds no place",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C or SIGINT",
    ExitCode.BROKEN_PIPE: "the reader of the output has closed it, as a shell reports SIGPIPE",
}

# Under the help of every verb.
CODES = "exit codes: 0 done, 1 failed, 2 usage, 3 the answer is no, 130 interrupted; `turnout --help` tells more"
