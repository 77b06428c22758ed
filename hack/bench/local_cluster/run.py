"""How soon the local cluster is ready, and until ten thousand pods run on a thousand nodes, beside watchers.

As a person has it: `turnout local up` with its extender, over HTTP from other processes.
"""

from __future__ import annotations

import statistics

from hack.bench.local_cluster.load import WATCHERS, fill_and_measure, time_start
from hack.bench.support.measure import load_note
from hack.bench.support.outcome import Outcome, Scale, Table, Target

NODES, PODS, STARTS = 1_000, 10_000, 5


def run(scale: Scale) -> Outcome:
    """Time several starts, then fill a cluster once. The first start does not count: it may compile modules."""
    nodes, pods, starts = scale.pick((NODES, PODS, STARTS), (200, 1_500, 3), (4, 8, 1))
    ready = [time_start() for _ in range(starts + 1)][1:]
    one = fill_and_measure(nodes, pods)
    starts_table = Table(
        "seconds until ready", {"": "", "median": ".2f", "least": ".2f", "most": ".2f", "times": "d"},
        [("turnout local up", statistics.median(ready), min(ready), max(ready), len(ready))],
    )  # fmt: skip
    rows = (
        ("seconds until all are created", one.created_s),
        ("seconds until all run", one.run_s),
        ("pods a second", pods / one.run_s),
        ("MiB that each watcher read", one.seen_mib),
        ("watchers cut off", one.cut_off),
        ("slowest watcher behind the fastest, ms", one.behind_s * 1e3),
        ("peak MiB of the local cluster's process", one.mib),
        ("peak MiB of its extender's", one.extender_mib),
    )
    return Outcome(
        "local_cluster: a cluster in one process",
        [starts_table, Table(f"{nodes:,} nodes, {pods:,} pods, {WATCHERS} watchers", {"what": "", "": ",.1f"}, rows)],
        [
            Target("seconds from start to ready", statistics.median(ready), "<=", 2),
            Target("seconds until all pods run", one.run_s, "<=", 60),
            Target("watchers that were cut off", one.cut_off, "<=", 0),
            Target("MiB of the local cluster's process", one.mib, "<=", 400),
        ],
        _notes(scale is not Scale.FULL),
    )


def _notes(quick: bool) -> tuple[str, ...]:
    """Return the notes about the load. quick: say that it is smaller than the load of the targets."""
    size = f"Smaller than the issue's {NODES:,} nodes and {PODS:,} pods. " if quick else ""
    return (
        f"{size}{load_note()}",
        "Pods of one GPU each, created one by one over 32 connections, placed by asking the extender (filter and "
        "prioritize), then pulled for half a second and run by the kubelet's table. MiB is the kernel's peak.",
    )
