"""Follows the files that training processes write, and repeats their lines on the agent's own output.

Files and prefixes are chosen in log_redirects.py. A process writes to its file itself, so it never waits for the agent,
which reads what was added. A slow disk or terminal blocks a thread, not the agent.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, TextIO

from turnout.launcher.workers.log_redirects import attempt_folder, rank_folder, repeated
from turnout.launcher.workers.spawn_spec import SpawnSpec, Stream

EVERY_S = 0.1
CHUNK_BYTES = 1 << 20
LONGEST = 1 << 16  # characters of an unfinished line


def make_run_folder(log_dir: str, run: str) -> str:
    """Make the folder of one agent's run, `<log_dir>/<run>_xxx`; "" if no files are kept.

    log_dir: "" for a new folder. Raises OSError if it cannot be made.
    """
    if log_dir == os.devnull:
        return ""
    base = log_dir or tempfile.mkdtemp(prefix="turnout_")
    os.makedirs(base, exist_ok=True)
    return tempfile.mkdtemp(prefix=f"{run.replace('/', '_')}_", dir=base)


def make_attempt(run_folder: str, restarts: int, processes: int) -> str:
    """Make the empty folders of one attempt, one per process; "" if no files are kept. Raises OSError."""
    if not run_folder:
        return ""
    attempt = attempt_folder(run_folder, restarts)
    shutil.rmtree(attempt, ignore_errors=True)
    for local_rank in range(processes):
        os.makedirs(rank_folder(attempt, local_rank))
    return attempt


class _Tail:
    """Reads one file of one process as it grows."""

    def __init__(self, stream: Stream, to: TextIO) -> None:
        self._stream, self._to = stream, to
        self._file: BinaryIO | None = None
        self._filtered: TextIO | None = None
        self._text = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        self._rest = ""

    def read(self, last: bool) -> None:
        """Repeat the lines that were added. last: the file is complete, so a line without an end is repeated too."""
        if self._file is None:
            with contextlib.suppress(FileNotFoundError):
                self._file = open(self._stream.file, "rb")  # noqa: SIM115  closed by close()
        if self._file is None:
            return
        while chunk := self._file.read(CHUNK_BYTES):
            self._repeat(self._text.decode(chunk), False)
        if last:
            self._repeat(self._text.decode(b"", final=True), True)

    def _repeat(self, text: str, last: bool) -> None:
        *lines, self._rest = (self._rest + text).split("\n")
        if self._rest and (last or len(self._rest) > LONGEST):
            lines, self._rest = [*lines, self._rest], ""
        if not lines:
            return
        shown, selected = repeated(self._stream, [f"{line}\n" for line in lines])
        self._to.write(shown)
        self._to.flush()
        if selected:
            if self._filtered is None:
                self._filtered = open(self._stream.filtered, "a", errors="replace")  # noqa: SIM115
            self._filtered.write(selected)
            self._filtered.flush()

    def close(self) -> None:
        for file in (self._file, self._filtered):
            if file is not None:
                file.close()


class Tails:
    """Repeats the output of one round's processes, until it is closed."""

    def __init__(self, orders: Iterable[SpawnSpec], out: TextIO, err: TextIO) -> None:
        streams = [(stream, to) for each in orders for stream, to in ((each.stdout, out), (each.stderr, err))]
        self._tails = [_Tail(stream, to) for stream, to in streams if stream.prefix is not None]
        self._one_at_a_time = asyncio.Lock()
        self._following = asyncio.create_task(self._follow()) if self._tails else None

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.catch_up()

    async def catch_up(self, last: bool = False) -> None:
        """Repeat everything that was written so far."""
        async with self._one_at_a_time:
            if self._tails:
                await asyncio.to_thread(self._read, last)

    def _read(self, last: bool) -> None:
        for tail in self._tails:
            tail.read(last)

    async def close(self) -> None:
        """Repeat the rest after the processes have ended, and close the files."""
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._following
        await self.catch_up(last=True)
        for tail in self._tails:
            tail.close()
        self._tails, self._following = [], None


def read_error(file: str) -> bytes:
    """Return the bytes of an error file, b"" if there is none."""
    try:
        return Path(file).read_bytes() if file else b""
    except OSError:
        return b""
