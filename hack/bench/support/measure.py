"""Measurements of processes and of the machine, and ratios, which several benchmarks need."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median


def memory_mib(pid: int | None, field: str = "VmRSS") -> float:
    """Return the memory of the process `pid` in MiB.

    field: of /proc/PID/status; VmRSS for now, VmHWM for the most so far. Raises OSError if there is no such process,
    and StopIteration for a zombie.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def cpu_s(pid: int | None) -> float:
    """Return the user and system time of the process `pid` so far, in seconds; 0.0 if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load_note() -> str:
    """Return a line about the load of the machine, which every time depends on."""
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    return f"Load of the machine over the last 1, 5 and 15 minutes: {load} on {os.cpu_count()} cores."


def progress(line: str) -> None:
    """Print a line on the progress to stderr, with the time of day. line: such as the part that is measured now."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def middle(values: Iterable[float]) -> float:
    """Return the median; NaN for no values."""
    found = list(values)
    return float(median(found)) if found else math.nan


def ratio(ours: float, base: float) -> float:
    """Return ours / base; NaN if `base` is not a finite number above 0. `ours` may be NaN."""
    return ours / base if math.isfinite(base) and base > 0 else math.nan


def middle_ratio(ours: Sequence[float], base: Sequence[float]) -> float:
    """Return the median of the ratios ours / base within each repetition, NaN for no ratio.

    A slow minute of the machine affects both sides of a repetition. ours, base: one value for each repetition. Raises
    ValueError if their lengths differ.
    """
    return middle(ratio(one, other) for one, other in zip(ours, base, strict=True))
