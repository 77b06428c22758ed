"""Decides where the output of training processes goes, and writes it: folders, prefixes and repeated lines."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import BinaryIO, TextIO

from turnout.launcher.event_log import EventLog
from turnout.launcher.settings import Std, Streams
from turnout.launcher.workers.worker_spec import SpawnSpec, Stream

NULL_FILE = "/dev/null"


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
    """Return (stdout, stderr) of one process: where each goes, and how its lines are repeated.

    attempt: folder of this attempt's logs, "" if no files are kept (`--log-dir=/dev/null`).
    """
    prefix = _prefix(outputs, local_rank, rank, hostname)
    out = _output_stream(outputs, attempt, local_rank, Std.OUT, prefix)
    return out, _output_stream(outputs, attempt, local_rank, Std.ERR, prefix)


def _output_stream(outputs: Outputs, attempt: str, local_rank: int, std: Std, prefix: str) -> Stream:
    """Return where one output of a process goes: terminal, file, both, or nowhere.

    attempt: folder of this attempt's logs, "" for none. prefix: of each repeated line.
    """
    shown = not outputs.only or local_rank in outputs.only
    if not attempt:
        return Stream()
    name = "stdout" if std is Std.OUT else "stderr"
    tee = bool(outputs.tee.of(local_rank) & std)
    if not tee and not outputs.redirects.of(local_rank) & std:
        return Stream() if shown else Stream(NULL_FILE)
    file = f"{rank_folder(attempt, local_rank)}/{name}.log"
    if not tee or not shown:
        return Stream(file)
    needles = outputs.out_needles if std is Std.OUT else outputs.err_needles
    return Stream(file, prefix, f"{attempt}/filtered_{name}.log" if needles else "", needles)


def _prefix(outputs: Outputs, local_rank: int, rank: int, hostname: str) -> str:
    """Return the prefix of each repeated line: from the template if there is one, else role and local rank."""
    if not outputs.template:
        return f"[{outputs.role}{local_rank}]:"
    values = {"role_name": outputs.role, "rank": rank, "local_rank": local_rank, "hostname": hostname}
    return Template(outputs.template).safe_substitute(values)


def prefix_and_select(stream: Stream, lines: Sequence[str]) -> tuple[str, str]:
    """Return (all new lines with the prefix, those of them that contain one of the stream's needles), each as one text.

    lines: with their line ends.
    """
    shown = [f"{stream.prefix}{line}" for line in lines]
    selected = [
        text for text, line in zip(shown, lines, strict=True) if any(needle in line for needle in stream.needles)
    ]
    return "".join(shown), "".join(selected)


POLL_S = 0.1  # seconds between two reads of the files
CHUNK_BYTES = 1 << 20  # read at once
MAX_LINE_CHARS = 1 << 16  # a longer line without an end is shown in parts


def make_run_folder(log_dir: str, run: str) -> str:
    """Create the folder of one agent's run, `<log_dir>/<run>_xxx`, and return it; "" if no files are kept.

    log_dir: "" for a new temporary folder, /dev/null for no files. Raises OSError if it cannot be made.
    """
    if log_dir == os.devnull:
        return ""
    base = log_dir or tempfile.mkdtemp(prefix="turnout_")
    os.makedirs(base, exist_ok=True)
    return tempfile.mkdtemp(prefix=f"{run.replace('/', '_')}_", dir=base)


def make_attempt(run_folder: str, restarts: int, processes: int) -> str:
    """Create the empty folders of one attempt, one per process, in place of older ones; return the attempt's folder.

    "" if `run_folder` is "", since no files are kept. restarts: number of the attempt. Raises OSError if a folder
    cannot be made.
    """
    if not run_folder:
        return ""
    attempt = attempt_folder(run_folder, restarts)
    shutil.rmtree(attempt, ignore_errors=True)
    for local_rank in range(processes):
        os.makedirs(rank_folder(attempt, local_rank))
    return attempt


class _Tail:
    """Reads one file of one process as it grows. to: where its lines are repeated; None if the agent has no such
    output.
    """

    def __init__(self, stream: Stream, to: TextIO | None) -> None:
        self._stream, self._to = stream, to
        self._file: BinaryIO | None = None
        self._filtered: TextIO | None = None
        self._text = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        self._partial_line = ""
        self.fault = ""  # why lines were not repeated, "" if all were

    def read(self, last: bool) -> None:
        """Repeat the lines that were added. last: the file is complete, so a line without an end is repeated too.

        Raises nothing: lines that cannot be read or written are lost, and `fault` says why.
        """
        try:
            if self._file is None:
                self._file = open(self._stream.file, "rb")  # noqa: SIM115  closed by close()
            while chunk := self._file.read(CHUNK_BYTES):
                self._repeat(self._text.decode(chunk), False)
            if last:
                self._repeat(self._text.decode(b"", final=True), True)
        except FileNotFoundError:
            pass  # the process has not been started
        except OSError as error:
            self.fault = self.fault or f"{self._stream.file}: {error.strerror or error}"

    def _repeat(self, text: str, last: bool) -> None:
        """Write complete lines to the agent's output, and those with a needle also to the filter's file.

        An incomplete line waits for the next call, unless the file is complete (`last`) or the line is too long.
        """
        *lines, self._partial_line = (self._partial_line + text).split("\n")
        if self._partial_line and (last or len(self._partial_line) > MAX_LINE_CHARS):
            lines, self._partial_line = [*lines, self._partial_line], ""
        if not lines:
            return
        shown, selected = prefix_and_select(self._stream, [f"{line}\n" for line in lines])
        if self._to is not None:
            self._write(self._to, shown)
        if selected and (filtered := self._open_filtered()) is not None:
            self._write(filtered, selected)

    def _open_filtered(self) -> TextIO | None:
        """Return the filter's file, opened at the first call. None if it cannot be opened; then `fault` says why."""
        try:
            if self._filtered is None:
                self._filtered = open(self._stream.filtered, "a", errors="replace")  # noqa: SIM115
        except OSError as error:
            self.fault = self.fault or f"{self._stream.filtered}: {error.strerror or error}"
        return self._filtered

    def _write(self, to: TextIO, text: str) -> None:
        """Write lines and flush. Lines that cannot be written are lost, and `fault` says why.

        Characters that the encoding of `to` does not have are replaced.
        """
        encoding = to.encoding or "utf-8"
        try:
            to.write(text.encode(encoding, "replace").decode(encoding))
            to.flush()
        except (OSError, ValueError) as error:  # ValueError: the file was closed
            self.fault = self.fault or f"{getattr(to, 'name', 'output')}: {getattr(error, 'strerror', None) or error}"

    def close(self) -> None:
        """Close the files. Raises nothing: what a full disk does not take is lost."""
        for file in (self._file, self._filtered):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()


class Tails:
    """Repeats the output of one round's processes, until it is closed.

    out, err: of the agent, None for none. Lines that cannot be written, as on a full disk or to a closed pipe, are
    lost. This is logged once for each file (`output_lost`) and never raised, since training does not depend on it.
    """

    def __init__(
        self, orders: Iterable[SpawnSpec], out: TextIO | None, err: TextIO | None, log_event: EventLog
    ) -> None:
        streams = [(stream, to) for each in orders for stream, to in ((each.stdout, out), (each.stderr, err))]
        self._tails = [_Tail(stream, to) for stream, to in streams if stream.prefix is not None]
        self._log_event = log_event
        self._reported: set[_Tail] = set()  # whose fault was logged
        self._lock = asyncio.Lock()
        self._follow_task = asyncio.create_task(self._follow()) if self._tails else None

    async def _follow(self) -> None:
        """Repeat new output every POLL_S seconds, without end."""
        while True:
            await asyncio.sleep(POLL_S)
            await self.catch_up()

    async def catch_up(self, last: bool = False) -> None:
        """Repeat everything that was written so far. last: the files are complete, so repeat incomplete lines too."""
        async with self._lock:
            if self._tails:
                await asyncio.to_thread(self._read, last)
            for tail in self._tails:
                if tail.fault and tail not in self._reported:
                    self._reported.add(tail)
                    self._log_event("output_lost", {"why": tail.fault})

    def _read(self, last: bool) -> None:
        """Read all files once, and repeat what is new. Blocks. last: the files are complete."""
        for tail in self._tails:
            tail.read(last)

    async def close(self) -> None:
        """Repeat the rest after the processes have ended, and close the files."""
        if self._follow_task is not None:
            self._follow_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._follow_task
        await self.catch_up(last=True)
        for tail in self._tails:
            tail.close()
        self._tails, self._follow_task = [], None


def read_error(file: str) -> bytes:
    """Return the bytes of an error file, b"" if there is none or it cannot be read. file: "" for none."""
    try:
        return Path(file).read_bytes() if file else b""
    except OSError:
        return b""
