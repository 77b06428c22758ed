"""How soon the local cluster is ready, and until ten thousand pods run on a thousand nodes, beside watchers.

As a person has it: `turnout local up` with its extender, over HTTP from other processes.
"""

from __future__ import annotations

import os
import statistics

from hack.bench.local_cluster.load import WATCHERS, Load, filled, start_s
from hack.bench.support.outcome import Outcome, Scale, Table, Target

NODES, PODS, STARTS = 1_000, 10_000, 5


def run(scale: Scale) -> Outcome:
    """Start it some times, then fill it once. The first start, which may compile modules, does not count."""
    nodes, pods, starts = scale.pick((NODES, PODS, STARTS), (200, 1_500, 3), (4, 8, 1))
    ready = [start_s() for _ in range(starts + 1)][1:]
    one = filled(nodes, pods)
    figures = {
        "ready_s": statistics.median(ready),
        "created_s": one.created_s,
        "running_s": one.run_s,
        "pods_per_s": pods / one.run_s,
        "watchers_cut_off": one.cut_off,
        "slowest_watcher_behind_s": one.behind_s,
        "mib": one.mib,
        "extender_mib": one.extender_mib,
    }
    tables = (_starts(ready), _fill(nodes, pods, one))
    return Outcome(
        "local_cluster: a cluster in one process", tables, figures, _targets(figures), _notes(scale is not Scale.FULL)
    )


def _starts(ready: list[float]) -> Table:
    rows = [(f"{statistics.median(ready):.2f}", f"{min(ready):.2f}..{max(ready):.2f}", str(len(ready)))]
    return Table("turnout local up: seconds until ready", ("median", "range", "times"), rows)


def _fill(nodes: int, pods: int, one: Load) -> Table:
    rows = (
        ("nodes, pods", f"{nodes:,}, {pods:,}"),
        ("all created", f"{one.created_s:.1f} s"),
        ("all running", f"{one.run_s:.1f} s, {pods / one.run_s:.0f} pods/s"),
        ("watchers", f"{WATCHERS}, {one.seen_mib:.0f} MiB each"),
        ("cut off", str(one.cut_off)),
        ("slowest behind the fastest", f"{one.behind_s * 1e3:.1f} ms"),
        ("peak of the local cluster's process", f"{one.mib:.0f} MiB"),
        ("peak of its extender's", f"{one.extender_mib:.0f} MiB"),
    )
    return Table("filled with pods", ("what", "seen"), rows)


def _targets(figures: dict[str, float]) -> tuple[Target, ...]:
    """Give what docs/local-cluster.md promises."""
    return (
        Target("seconds from start to ready", figures["ready_s"], "<=", 2),
        Target("seconds until all pods run", figures["running_s"], "<=", 60),
        Target("watchers that were cut off", figures["watchers_cut_off"], "<=", 0),
        Target("MiB of the local cluster's process", figures["mib"], "<=", 400),
    )


def _notes(quick: bool) -> tuple[str, ...]:
    load = ", ".join(f"{n:.1f}" for n in os.getloadavg())
    size = f"Smaller than the issue's {NODES:,} nodes and {PODS:,} pods. " if quick else ""
    return (
        f"{size}Load of the machine over the last 1, 5 and 15 minutes: {load} on {os.cpu_count()} cores.",
        "Pods of one GPU each, created one by one over 32 connections, placed by asking the extender (filter and "
        "prioritize), then pulled for half a second and run by the kubelet's table. MiB is the kernel's peak.",
    )
