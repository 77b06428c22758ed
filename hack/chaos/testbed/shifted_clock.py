"""Runs a program whose wall clock can be moved: `python -m hack.chaos.testbed.shifted_clock FILE MODULE ...`.

FILE holds by how many seconds its time of day is ahead of the machine's, and by how much faster it goes since when. The
monotonic clock stays as it is, as with a clock that NTP or a person sets.
"""

from __future__ import annotations

import mmap
import runpy
import struct
import sys
import time
from pathlib import Path

_SHIFT = struct.Struct("<ddd")  # seconds ahead, seconds more for each second, since when (monotonic)


class ShiftedClock:
    """The file by which the clock of programs is moved."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0.0)

    def set(self, ahead_s: float, drift: float = 0.0) -> None:
        """Move the clock: so many seconds ahead of the machine's, and going so much faster from now on."""
        fresh = not self.path.exists()
        with self.path.open("w+b" if fresh else "r+b") as file:
            file.write(_SHIFT.pack(ahead_s, drift, time.monotonic()))


def main() -> None:
    """Run the module that is named, with its arguments."""
    with open(sys.argv[1], "rb") as file:
        shift = mmap.mmap(file.fileno(), _SHIFT.size, prot=mmap.PROT_READ)
    real = time.time

    def shifted() -> float:
        ahead_s, drift, since_s = map(float, _SHIFT.unpack(shift))
        return real() + ahead_s + drift * (time.monotonic() - since_s)

    time.time = shifted
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
