"""Reads the autoscaler's decision log for the page: the new lines of its files, at most once a minute."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from turnout.cli.page.usage_rows import MAX_DAYS, LogReading
from turnout.cli.views.usage import DailyUsage, Usage
from turnout.kube.client.clock import Clock
from turnout.kube.times import rfc3339

READ_S = 60.0  # between two readings at least
MAX_FILES = 64  # of a folder: two for each pod that has led
MAX_USAGES = 4  # numbers of days whose sums are kept
_DAY_S = 86_400.0


class UsageLog:
    """The usage of the last MAX_DAYS days.

    path: a decision log, beside which FILE.1 is read, too; or a folder with the logs of all pods.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        """Begin without any lines read. path: a log file, or a folder with the logs of all pods."""
        self._path, self._clock = path, clock
        self._turn = asyncio.Lock()
        self._read_s = float("-inf")
        self._days = DailyUsage()
        self._offsets: dict[tuple[int, int], int] = {}  # by device and inode: a file keeps them when it is renamed
        self._reading = LogReading()
        self._usages: dict[int, Usage] = {}  # of this reading, by days

    async def read(self, days: int) -> tuple[LogReading, Usage]:
        """Return the usage of `days` days, 1 to MAX_DAYS, of which today (UTC) is the last.

        New lines are read first if the last reading is older than READ_S. A log that cannot be read is reported in
        LogReading.
        """
        async with self._turn:
            if self._clock.monotonic() - self._read_s >= READ_S:
                error = ""
                try:
                    await asyncio.to_thread(self._read)
                except OSError as fault:
                    error = f"{self._path} cannot be read: {fault.strerror or fault}"
                self._read_s = self._clock.monotonic()
                self._reading = LogReading(self._clock.wall(), self._reading.number + 1, error)
                self._usages.clear()
            if days not in self._usages:
                self._usages[days] = await asyncio.to_thread(self._days.usage, self._first_day(days))
                while len(self._usages) > MAX_USAGES:
                    del self._usages[next(iter(self._usages))]
            return self._reading, self._usages[days]

    def _first_day(self, days: int) -> str:
        return rfc3339(self._clock.wall() - (days - 1) * _DAY_S)[:10]

    def _read(self) -> None:
        """Read the new lines of all files. If a file is shorter than before, all files are read again.

        Raises OSError if the log or one of its files cannot be read.
        """
        files = [(path, path.stat()) for path in self._files()]
        sizes = {(stat.st_dev, stat.st_ino): stat.st_size for _, stat in files}
        if any(sizes.get(key, offset) < offset for key, offset in self._offsets.items()):
            self._days, self._offsets = DailyUsage(), {}
        for path, _ in files:
            self._read_file(path)
        self._offsets = {key: offset for key, offset in self._offsets.items() if key in sizes}
        self._days.drop_before(self._first_day(MAX_DAYS))

    def _files(self) -> list[Path]:
        """Return the files of the log: of a folder the first MAX_FILES by name, else the rotated LOG.1, if it exists,
        and the log itself, which may be missing.

        Raises OSError if a folder cannot be listed.
        """
        if self._path.is_dir():
            return sorted(path for path in self._path.iterdir() if path.is_file())[:MAX_FILES]
        previous = self._path.with_name(self._path.name + ".1")
        return [previous, self._path] if previous.exists() else [self._path]

    def _read_file(self, path: Path) -> None:
        """Read the complete lines of a file after those that were read before; an incomplete last line is read next
        time.

        A file is known by its inode, also after it was renamed. Raises OSError if the file cannot be read. path: of the
        file.
        """
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            key = stat.st_dev, stat.st_ino
            offset = self._offsets.get(key, 0)
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._days.add(line)
                offset += len(line)
            self._offsets[key] = offset
