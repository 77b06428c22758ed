"""The figures of a simulation for a terminal: a line each, without lending beside with it."""

from __future__ import annotations

from turnout.cli.simulate.model import Figures
from turnout.cli.why import count, lasting


def lines(found: Figures) -> list[str]:
    """Return the table, heads first."""
    rows = [
        ("", "without", "with lending"),
        ("GPU time with progress", f"{found.busy_without:.1%}", f"{found.busy:.1%}"),
        ("mean wait", lasting(found.mean_wait_without_s), lasting(found.mean_wait_s)),
        ("p99 wait", lasting(found.p99_wait_without_s), lasting(found.p99_wait_s)),
        ("mean completion", lasting(found.mean_completion_without_s), lasting(found.mean_completion_s)),
        ("jobs that won, lost", "", f"{found.gained:,}, {found.lost:,}"),
        ("more than 60 s worse", "", f"{found.worse:.2%}"),
        ("latest start", "", f"{max(0.0, found.worst_delay_s):.0f} s later"),
        ("changes of size a job", "", f"{found.restarts:.2f}"),
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    return [f"{a.ljust(widths[0])}  {b.rjust(widths[1])}  {c.rjust(widths[2])}".rstrip() for a, b, c in rows]


def verdict(found: Figures) -> str:
    """Return a sentence on what lending gave, and on the jobs that lost."""
    gain = f"Jobs end {found.faster:.2f} times as fast on average" if found.faster >= 1.005 else "Jobs end no faster"
    used = f"the cluster is busy to {found.busy:.0%} rather than {found.busy_without:.0%}"
    paid = "no job ends later by more than a minute"
    if found.worse:
        number = round(found.worse * found.jobs)
        paid = f"{count(number, 'job')} of {found.jobs:,} ({found.worse:.1%}) end more than a minute later"
    return f"{gain}, and {used}; {paid}."
