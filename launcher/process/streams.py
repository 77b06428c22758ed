"""Where the output of training processes goes: the folders and prefixes that torchrun has, option by option.

Only names of files. Who makes the folders, opens the files and repeats lines is shell/processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from string import Template

from turnout.launcher.process.orders import Stream
from turnout.launcher.settings import Std, Streams

NOWHERE = "/dev/null"


@dataclass(frozen=True, slots=True)
class Outputs:
    """How an agent treats the outputs of its processes.

    redirects: to files. tee: to files and to the agent's own output. only: the local ranks that are shown on it,
    () for all. template: of a prefix, "" for torchrun's `[role rank]:`. out_needles, err_needles: lines with one of
    them are gathered in filtered_stdout.log and filtered_stderr.log.
    """

    redirects: Streams = field(default_factory=Streams)
    tee: Streams = field(default_factory=Streams)
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


def streams_of(outputs: Outputs, attempt: str, local_rank: int, *, rank: int, hostname: str) -> tuple[Stream, Stream]:
    """stdout and stderr of one process. attempt: its folder, "" when no files are kept (`--log-dir=/dev/null`)."""
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
    """What of new lines is shown, and what of it is gathered as filtered. lines: with their ends."""
    shown = [f"{stream.prefix}{line}" for line in lines]
    kept = [text for text, line in zip(shown, lines, strict=True) if any(needle in line for needle in stream.needles)]
    return "".join(shown), "".join(kept)
