"""Restate how kube-scheduler 1.35 judges nodes with its default plugins: its filters, scores and tie-breaks.

No pod here asks for these, so they are left out: preferred node affinity, inter-pod affinity, volumes, claims, image
locality, explicit spread constraints. Source: docs/facts/extender.md 1.4; kubernetes 1.35.4.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnout.kube.objects import Taint
from turnout.kube.pod_shape import PodShape
from turnout.simulator.cluster.cluster import HOSTNAME, ZONE, Cluster, Stand, Want

MAX_SCORE = 100
_EXTENDER_SCALE = 10  # a point of an extender is worth ten of the scheduler's
_LEAST_TO_FIND = 100
_LEAST_PERCENT = 5
_WORKERS = 16
_WEIGHTS = {"taints": 3, "spread": 2, "fit": 1, "balance": 1}
_SPREAD = ((HOSTNAME, 3), (ZONE, 5))  # the system's default constraints: key and maxSkew


@dataclass(slots=True)
class Cursor:
    """The position at which the search for feasible nodes starts.

    It moves with every pod, so all nodes get their turn.
    """

    start: int = 0


def to_find(nodes: int, percentage: int = 0) -> int:
    """Return how many feasible nodes are enough.

    percentage: percentageOfNodesToScore, 0 for the adaptive default.
    """
    if nodes < _LEAST_TO_FIND:
        return nodes
    percent = percentage or max(50 - nodes // 125, _LEAST_PERCENT)
    return max(nodes * percent // 100, _LEAST_TO_FIND)


def feasible(cluster: Cluster, want: Want, cursor: Cursor, dice: random.Random, percentage: int = 0) -> list[Stand]:
    """Return the first nodes that hold the pod, as many as are enough, starting at the cursor, which moves past them.

    kube-scheduler's sixteen workers take chunks of nodes and race. `dice` decides the order of the chunks, and so among
    nodes of equal score. Without that, ties fall to neighbours and the mean ring cost is 7 % too low
    (tests/e2e/test_default_restated.py).
    """
    order, fits, nominated = cluster.order(), cluster.fits(want), cluster.has_nominated
    enough = to_find(len(order), percentage)
    chunk = max(1, min(math.isqrt(len(order)), len(order) // _WORKERS + 1))
    chunks: list[list[Stand]] = []
    found = looked_at = 0
    for step in range(len(order)):
        if found == enough:
            break
        if step % chunk == 0:
            chunks.append([])
        at = (cursor.start + step) % len(order)
        looked_at += 1
        if fits[at] and (not nominated or _leaves_room(cluster, order[at], want)):
            chunks[-1].append(order[at])
            found += 1
    if order:
        cursor.start = (cursor.start + looked_at) % len(order)
    dice.shuffle(chunks)
    return [stand for each in chunks for stand in each]


def _leaves_room(cluster: Cluster, stand: Stand, want: Want) -> bool:
    """True if the node also has room for the pods that are nominated to it."""
    beside = cluster.beside(stand.name, want)
    return not beside or stand.holds(want, beside)


def scores(cluster: Cluster, want: Want, stands: Sequence[Stand]) -> list[int]:
    """Return the weighted sum of the default plugins' scores for each node, in whole numbers."""
    columns = [
        (_WEIGHTS["fit"], [_least_allocated(stand, want) for stand in stands]),
        (_WEIGHTS["balance"], [_balanced(stand, want) for stand in stands]),
        (_WEIGHTS["taints"], _taints(stands, want.shape)),
        (_WEIGHTS["spread"], _spread(cluster, stands, want)),
    ]
    return [sum(weight * column[i] for weight, column in columns) for i in range(len(stands))]


def choose(
    stands: Sequence[Stand], plain: Sequence[int], points: Mapping[str, int], weight: int, dice: random.Random
) -> str:
    """Return the name of the best node.

    points: the extender's scores by node. weight: of the extender in the configuration.

    Among equal nodes, one that the extender named wins, chosen by a random number (1.35.4 gives only these one). Other
    ties are decided by a heap, whose root is the first of the best in preorder. So without an extender no random number
    is used.
    """
    totals = [
        (plain[i] + points.get(stand.name, 0) * weight * _EXTENDER_SCALE, dice.getrandbits(62) + 1)
        if stand.name in points
        else (plain[i], 0)
        for i, stand in enumerate(stands)
    ]
    best = max(totals)
    return stands[_first_in_preorder(totals, best)].name


def _first_in_preorder(heap: Sequence[tuple[int, int]], best: tuple[int, int]) -> int:
    """Return the original index of the root of a heap built in place: a parent wins a tie, then the left child."""
    waiting = [0]
    while waiting:
        at = waiting.pop()
        if at >= len(heap):
            continue
        if heap[at] == best:
            return at
        waiting += [2 * at + 2, 2 * at + 1]
    raise ValueError("the best is not among the totals")


def _least_allocated(stand: Stand, want: Want) -> int:
    """Score by NodeResourcesFit, LeastAllocated, CPU and memory weighing the same. Unset requests get defaults."""
    parts: list[int] = []
    for at, resource in enumerate(("cpu", "memory")):
        offered = stand.offers.get(resource, 0)
        if offered:
            asked = stand.fullest[at] + want.fullest[at]
            parts.append((offered - asked) * MAX_SCORE // offered if asked <= offered else 0)
    return sum(parts) // len(parts) if parts else 0


def _balanced(stand: Stand, want: Want) -> int:
    """Score by BalancedAllocation over the CPU and memory really requested; 0 for a pod that requests neither."""
    if not want.asks("cpu") and not want.asks("memory"):
        return 0
    parts = [
        min(1.0, (stand.asked.get(resource, 0) + want.asks(resource)) / stand.offers[resource])
        for resource in ("cpu", "memory")
        if stand.offers.get(resource)
    ]
    deviation = abs(parts[0] - parts[1]) / 2 if len(parts) == 2 else 0.0
    return int((1 - deviation) * MAX_SCORE)


def _taints(stands: Sequence[Stand], shape: PodShape) -> list[int]:
    """Score by TaintToleration: fewer PreferNoSchedule taints that the pod does not tolerate are better."""
    counts = [
        sum(t.effect == "PreferNoSchedule" and not _tolerated(t, shape) for t in stand.node.spec.taints or ())
        for stand in stands
    ]
    most = max(counts)
    return [MAX_SCORE - (MAX_SCORE * count // most if most else 0) for count in counts]


def _tolerated(taint: Taint, shape: PodShape) -> bool:
    return any(
        effect in ("", "PreferNoSchedule")
        and (key == taint.key or (not key and operator == "Exists"))
        and (operator == "Exists" or value == (taint.value or ""))
        for key, operator, value, effect in shape.tolerations
    )


def _spread(cluster: Cluster, stands: Sequence[Stand], want: Want) -> list[int]:
    """Score by PodTopologySpread with the default constraints, for pods that a Service or a set selects."""
    if want.spread is None:
        return [0] * len(stands)
    everywhere = {stand.name: _kin(stand, want) for stand in cluster.stands.values()}
    raw = [0.0] * len(stands)
    for key, max_skew in _SPREAD:
        per_value: dict[str | None, int] = {stand.label(key): 0 for stand in stands}
        for stand in cluster.stands.values():
            if stand.label(key) in per_value:
                per_value[stand.label(key)] += everywhere[stand.name]
        size = len(stands) if key == HOSTNAME else len(per_value)
        for i, stand in enumerate(stands):
            if stand.label(key) is not None:
                count = everywhere[stand.name] if key == HOSTNAME else per_value[stand.label(key)]
                raw[i] += count * math.log(size + 2) + (max_skew - 1)
    rounded = [math.floor(value + 0.5) for value in raw]  # half away from zero, and no value is below it
    least, most = min(rounded), max(rounded)
    return [MAX_SCORE * (most + least - value) // most if most else MAX_SCORE for value in rounded]


def _kin(stand: Stand, want: Want) -> int:
    """Count the node's pods that the pod's selector selects."""
    selector = set(want.spread or ())
    return sum(p.namespace == want.namespace and selector <= set(p.labels) for p in stand.pods.values())
