"""Where the output of training processes goes: the folders and prefixes that torchrun has, option by option.

Only names of files. Who makes the folders, opens the files and repeats lines is shell/processes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from string import Template

from launcher.errors import BadTerms
from launcher.process.orders import Stream

NOWHERE = "/dev/null"
_ONE = re.compile(r"[0-3]")
_EACH = re.compile(r"\d+:[0-3](,\d+:[0-3])*")


class Std(IntFlag):
    """Which outputs an option is about."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """An option of torchrun's that is one for all processes, or named for some: `3`, `0:1,1:2`."""

    every: Std = Std.NONE
    some: Mapping[int, Std] = field(default_factory=dict)

    def of(self, local_rank: int) -> Std:
        """What is chosen for one process."""
        return self.some.get(local_rank, self.every)


def choice(text: str) -> Choice:
    """Read such an option. Raises BadTerms when it is none."""
    if _ONE.fullmatch(text):
        return Choice(Std(int(text)))
    if not _EACH.fullmatch(text):
        raise BadTerms(f"{text!r} names no outputs: 0, 1, 2, 3 or a list like 0:1,1:2 is needed")
    return Choice(some={int(rank): Std(int(std)) for rank, std in (each.split(":") for each in text.split(","))})


@dataclass(frozen=True, slots=True)
class Streams:
    """How an agent treats the outputs of its processes.

    redirects: to files. tee: to files and to the agent's own output. only: the local ranks that are shown on it,
    () for all. template: of a prefix, "" for torchrun's `[role rank]:`. out_needles, err_needles: lines with one of
    them are gathered in filtered_stdout.log and filtered_stderr.log.
    """

    redirects: Choice = field(default_factory=Choice)
    tee: Choice = field(default_factory=Choice)
    only: tuple[int, ...] = ()
    role: str = "default"
    template: str = ""
    out_needles: tuple[str, ...] = ()
    err_needles: tuple[str, ...] = ()


def attempt_folder(run_folder: str, restarts: int) -> str:
    """Where the files of one attempt are: torchrun counts them by restarts."""
    return f"{run_folder}/attempt_{restarts}"


def rank_folder(attempt: str, local_rank: int) -> str:
    """Where the files of one process are. attempt: of `attempt_folder`."""
    return f"{attempt}/{local_rank}"


def error_file(attempt: str, local_rank: int) -> str:
    """Where a process leaves its exception; "" where nothing is kept."""
    return f"{rank_folder(attempt, local_rank)}/error.json" if attempt else ""


def streams_of(streams: Streams, attempt: str, local_rank: int, *, rank: int, hostname: str) -> tuple[Stream, Stream]:
    """stdout and stderr of one process. attempt: its folder, "" when no files are kept (`--log-dir=/dev/null`)."""
    prefix = _prefix(streams, local_rank, rank, hostname)
    out = _stream(streams, attempt, local_rank, Std.OUT, prefix)
    return out, _stream(streams, attempt, local_rank, Std.ERR, prefix)


def _stream(streams: Streams, attempt: str, local_rank: int, std: Std, prefix: str) -> Stream:
    shown = not streams.only or local_rank in streams.only
    if not attempt:
        return Stream()
    name = "stdout" if std is Std.OUT else "stderr"
    tee = bool(streams.tee.of(local_rank) & std)
    if not tee and not streams.redirects.of(local_rank) & std:
        return Stream() if shown else Stream(NOWHERE)
    file = f"{rank_folder(attempt, local_rank)}/{name}.log"
    if not tee or not shown:
        return Stream(file)
    needles = streams.out_needles if std is Std.OUT else streams.err_needles
    return Stream(file, prefix, f"{attempt}/filtered_{name}.log" if needles else "", needles)


def _prefix(streams: Streams, local_rank: int, rank: int, hostname: str) -> str:
    if not streams.template:
        return f"[{streams.role}{local_rank}]:"
    known = {"role_name": streams.role, "rank": rank, "local_rank": local_rank, "hostname": hostname}
    return Template(streams.template).safe_substitute(known)


def repeated(stream: Stream, lines: Sequence[str]) -> tuple[str, str]:
    """What of new lines is shown, and what of it is gathered as filtered. lines: with their ends."""
    shown = [f"{stream.prefix}{line}" for line in lines]
    kept = [text for text, line in zip(shown, lines, strict=True) if any(needle in line for needle in stream.needles)]
    return "".join(shown), "".join(kept)
