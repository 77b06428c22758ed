"""The exit codes of the `turnout` command: every verb ends with one of these."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class ExitCode(IntEnum):
    """How a verb ended: its exit code."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    FOUND_WRONG = 3
    INTERRUPTED = 130
    NOBODY_READS = 141


MEANS: Mapping[ExitCode, str] = {
    ExitCode.DONE: "done, and what was looked at is well",
    ExitCode.FAILED: "failed: the API server cannot be reached or refuses, or what was named is not there",
    ExitCode.USAGE: "usage: an option or a name that makes no sense, or an extra of pip that is missing",
    ExitCode.FOUND_WRONG: "looked, and the answer is no: a fault was found, a gang finds no place",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C or SIGINT",
    ExitCode.NOBODY_READS: "nobody reads the output any more, as a shell tells SIGPIPE",
}

# Under the help of every verb.
CODES = "exit codes: 0 done, 1 failed, 2 usage, 3 the answer is no, 130 interrupted; `turnout --help` tells more"
