"""Decides where the output of training processes goes: torchrun's folders and prefixes, option by option.

Only file names are known here. logs.py makes the folders, opens the files and repeats lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from string import Template

from turnout.launcher.settings import Std, Streams
from turnout.launcher.workers.spawn_spec import Stream

NOWHERE = "/dev/null"


@dataclass(frozen=True, slots=True)
class Outputs:
    """The settings of an agent for the output of its processes."""

    redirects: Streams = field(default_factory=Streams)  # streams that go to files
    tee: Streams = field(default_factory=Streams)  # streams that go to files and to the agent's own output
    only: tuple[int, ...] = ()  # local ranks shown on the agent's output, () for all
    role: str = "default"
    template: str = ""  # of a prefix, "" for torchrun's [role rank]:
    out_needles: tuple[str, ...] = ()  # lines with one of them go to filtered_stdout.log
    err_needles: tuple[str, ...] = ()  # lines with one of them go to filtered_stderr.log


def attempt_folder(run_folder: str, restarts: int) -> str:
    """Return the folder of one attempt's files. Attempts are counted by restarts, like in torchrun."""
    return f"{run_folder}/attempt_{restarts}"


def rank_folder(attempt: str, local_rank: int) -> str:
    """Return the folder of one process's files. attempt: from `attempt_folder`."""
    return f"{attempt}/{local_rank}"


def error_file(attempt: str, local_rank: int) -> str:
    """Return the file in which a process writes its exception, "" if no files are kept."""
    return f"{rank_folder(attempt, local_rank)}/error.json" if attempt else ""


def streams_of(outputs: Outputs, attempt: str, local_rank: int, *, rank: int, hostname: str) -> tuple[Stream, Stream]:
    """Return stdout and stderr of one process. attempt: its folder, "" if no files are kept (`--log-dir=/dev/null`)."""
    prefix = _prefix(outputs, local_rank, rank, hostname)
    out = _stream(outputs, attempt, local_rank, Std.OUT, prefix)
    return out, _stream(outputs, attempt, local_rank, Std.ERR, prefix)


def _stream(outputs: Outputs, attempt: str, local_rank: int, std: Std, prefix: str) -> Stream:
    shown = not outputs.only or local_rank in outputs.only
    if not attempt:
        return Stream()
    name = "stdout" if std is Std.OUT else "stderr"
    tee = bool(outputs.tee.of(local_rank) & std)
    if not tee and not outputs.redirects.of(local_rank) & std:
        return Stream() if shown else Stream(NOWHERE)
    file = f"{rank_folder(attempt, local_rank)}/{name}.log"
    if not tee or not shown:
        return Stream(file)
    needles = outputs.out_needles if std is Std.OUT else outputs.err_needles
    return Stream(file, prefix, f"{attempt}/filtered_{name}.log" if needles else "", needles)


def _prefix(outputs: Outputs, local_rank: int, rank: int, hostname: str) -> str:
    if not outputs.template:
        return f"[{outputs.role}{local_rank}]:"
    known = {"role_name": outputs.role, "rank": rank, "local_rank": local_rank, "hostname": hostname}
    return Template(outputs.template).safe_substitute(known)


def repeated(stream: Stream, lines: Sequence[str]) -> tuple[str, str]:
    """Return the text to show for new lines, and the part of it that passes the filter. lines: with their line ends."""
    shown = [f"{stream.prefix}{line}" for line in lines]
    selected = [
        text for text, line in zip(shown, lines, strict=True) if any(needle in line for needle in stream.needles)
    ]
    return "".join(shown), "".join(selected)
