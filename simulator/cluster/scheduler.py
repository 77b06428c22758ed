"""Run one pod through a scheduling cycle, with the filters and scores of kube-scheduler's default plugins.

The plugins come in kube-scheduler's order. There is no preemption: a pod that finds no node waits. The cycle is a
generator: it yields questions for the extender and receives the answers, so it knows nothing of HTTP. The scores of the
plugins stand below it. The filter plugins (NoSchedule and NoExecute taints, affinity, resources) are in
turnout.kube.pod_shape. runtime/scheduler_loop.py has the loop.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from turnout.kube.objects import Taint
from turnout.kube.pod_shape import PodShape
from turnout.simulator.cluster.cluster import HOSTNAME, ZONE, Cluster, NodeInfo, PodInfo


class ExtenderVerb(Enum):
    """A kind of question to an extender."""

    FILTER = "filter"
    PRIORITIZE = "prioritize"


@dataclass(frozen=True, slots=True)
class ExtenderCall:
    """A call of the extender about these nodes."""

    verb: ExtenderVerb
    names: tuple[str, ...]  # of nodes


@dataclass(frozen=True, slots=True)
class ExtenderReply:
    """The extender's answer."""

    feasible_nodes: tuple[str, ...] = ()  # of a filter, in its order
    points: Mapping[str, int] = field(default_factory=dict)  # of a prioritize
    refused: Mapping[str, str] = field(default_factory=dict)  # node -> why
    failed: str = ""  # why the answer cannot be used, also by the extender's own Error; "" if it can be


class WaitReason(Enum):
    """A reason why a pod got no node."""

    UNSCHEDULABLE = "Unschedulable"
    SCHEDULER_ERROR = "SchedulerError"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The node chosen for a pod."""

    node: str  # its name
    feasible: int  # how many nodes there were to choose among; with 1 no scores were asked for


@dataclass(frozen=True, slots=True)
class Unscheduled:
    """The result for a pod that must wait for a change."""

    why: WaitReason
    message: str  # for people


Outcome = Chosen | Unscheduled  # of one scheduling cycle
Cycle = Generator[ExtenderCall, ExtenderReply, Outcome]


@dataclass(frozen=True, slots=True)
class ExtenderSettings:
    """The extender in the scheduler's configuration."""

    weight: int = 1  # of its scores
    ignorable: bool = True  # True: pods are scheduled without it if it fails
    prioritizes: bool = True  # True: it is also asked for scores


class ExtenderFailed(Exception):
    """A call failed, or had a wrong answer, of an extender that may not be ignored.

    The attempt ends, and the pod is tried again after its back-off.
    """


def scheduling_cycle(
    cluster: Cluster,
    pod_info: PodInfo,
    cursor: Cursor,
    rng: random.Random,
    extender: ExtenderSettings | None = None,
    percentage: int = 0,
) -> Cycle:
    """Run one scheduling cycle for a pod.

    A generator: yields each call of the extender, is sent the ExtenderReply, and returns Chosen, or Unscheduled with
    the reason. Yields nothing without an extender. The room is not charged: the caller calls cluster.place(). cursor:
    where the node search starts; moved on. rng: breaks ties. extender: None for none. percentage:
    percentageOfNodesToScore, 0 for the adaptive default. Source: docs/facts/extender.md 1.4 and 1.5
    """
    try:
        node_infos = yield from _try_nominated_node(cluster, pod_info, extender)
        if not node_infos:
            node_infos = feasible_nodes(cluster, pod_info, cursor, rng, percentage)
            before = len(node_infos)
            node_infos = yield from _ask_filter(node_infos, extender)
            if not node_infos:
                return Unscheduled(WaitReason.UNSCHEDULABLE, _no_node_message(len(cluster.node_infos), before))
    except ExtenderFailed as error:
        return Unscheduled(WaitReason.SCHEDULER_ERROR, str(error))
    if len(node_infos) == 1:
        return Chosen(node_infos[0].name, 1)
    points: Mapping[str, int] = {}
    if extender is not None and extender.prioritizes:
        # A prioritize that fails is passed over without a word, whatever `ignorable` says.
        points = (yield ExtenderCall(ExtenderVerb.PRIORITIZE, _names(node_infos))).points
    plugin_scores = node_scores(cluster, pod_info, node_infos)
    weight = extender.weight if extender else 0
    return Chosen(choose_node(node_infos, plugin_scores, points, weight, rng), len(node_infos))


def _try_nominated_node(
    cluster: Cluster, pod_info: PodInfo, extender: ExtenderSettings | None
) -> Generator[ExtenderCall, ExtenderReply, Sequence[NodeInfo]]:
    """Return [the nominated node] if it still has room and passes the extender; else no node.

    A generator like scheduling_cycle(): yields calls of the extender. A failed call counts as no node, unless the
    extender is ignorable.
    """
    node_info = cluster.node_infos.get(pod_info.nominated)
    if node_info is None or not node_info.has_room(pod_info, cluster.nominated_pods(node_info.name, pod_info)):
        return ()
    try:
        return (yield from _ask_filter([node_info], extender))
    except ExtenderFailed:
        return ()  # the nominated node is only a first try: all nodes are looked at next


def _ask_filter(
    node_infos: Sequence[NodeInfo], extender: ExtenderSettings | None
) -> Generator[ExtenderCall, ExtenderReply, Sequence[NodeInfo]]:
    """Return the nodes that the extender lets pass; all nodes without an extender, or if it fails and is ignorable.

    A generator like scheduling_cycle(): yields calls of the extender. Raises ExtenderFailed if it fails and is not
    ignorable.
    """
    if extender is None or not node_infos:
        return node_infos
    reply = yield ExtenderCall(ExtenderVerb.FILTER, _names(node_infos))
    by_name = {node_info.name: node_info for node_info in node_infos}
    unknown_names = [name for name in reply.feasible_nodes if name not in by_name]
    failed = reply.failed or (
        f"extender claims a filtered node which is not found: {unknown_names[0]}" if unknown_names else ""
    )
    if failed:
        if extender.ignorable:
            return node_infos
        raise ExtenderFailed(failed)
    return [by_name[name] for name in reply.feasible_nodes]


def _names(node_infos: Iterable[NodeInfo]) -> tuple[str, ...]:
    """Return the names of nodes, in order."""
    return tuple(node_info.name for node_info in node_infos)


def _no_node_message(nodes: int, before: int) -> str:
    """Return a sentence why no node was found. nodes: number of all nodes. before: nodes that the filters let pass."""
    if before:
        return f"0/{nodes} nodes are available: the extender refused the {before} that the filters let in."
    return f"0/{nodes} nodes are available: none holds the pod."


def schedule_without_extender(cluster: Cluster, pod_info: PodInfo, cursor: Cursor, rng: random.Random) -> Outcome:
    """Run a whole cycle without an extender, as kube-scheduler does by default, and return its outcome.

    cursor: where the node search starts; moved on. rng: breaks ties.
    """
    questions = scheduling_cycle(cluster, pod_info, cursor, rng)
    try:
        next(questions)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome
    raise AssertionError("a cycle without an extender asked one")


MAX_SCORE = 100
_EXTENDER_SCALE = 10  # a point of an extender is worth ten of the scheduler's
_MIN_TO_FIND = 100
_MIN_PERCENT = 5
_WORKERS = 16
_WEIGHTS = {"taints": 3, "spread": 2, "fit": 1, "balance": 1}
_SPREAD = ((HOSTNAME, 3), (ZONE, 5))  # the system's default constraints: key and maxSkew


@dataclass(slots=True)
class Cursor:
    """The position at which the search for feasible nodes starts.

    It moves with every pod, so all nodes get their turn.
    """

    start: int = 0  # index in Cluster.order()


def nodes_to_find(nodes: int, percentage: int = 0) -> int:
    """Return how many feasible nodes are enough, out of `nodes`.

    It is a percentage of the nodes, but at least _MIN_TO_FIND; all nodes if there are fewer. percentage:
    percentageOfNodesToScore, 0 for the adaptive default.
    """
    if nodes < _MIN_TO_FIND:
        return nodes
    percent = percentage or max(50 - nodes // 125, _MIN_PERCENT)
    return max(nodes * percent // 100, _MIN_TO_FIND)


def feasible_nodes(
    cluster: Cluster, pod_info: PodInfo, cursor: Cursor, rng: random.Random, percentage: int = 0
) -> list[NodeInfo]:
    """Return the first nodes that hold the pod, as many as are enough, starting at the cursor, which moves past them.

    percentage: percentageOfNodesToScore, 0 for the adaptive default. kube-scheduler's sixteen workers take chunks of
    nodes and race. `rng` decides the order of the chunks, and so among nodes of equal score. Without that, ties fall to
    neighbours and the mean ring cost is 7 % too low (tests/e2e/test_default_restated.py).
    """
    order, fits, nominated = cluster.order(), cluster.fits(pod_info), cluster.has_nominated
    enough = nodes_to_find(len(order), percentage)
    chunk = max(1, min(math.isqrt(len(order)), len(order) // _WORKERS + 1))
    chunks: list[list[NodeInfo]] = []
    found = checked = 0
    for step in range(len(order)):
        if found == enough:
            break
        if step % chunk == 0:
            chunks.append([])
        at = (cursor.start + step) % len(order)
        checked += 1
        if fits[at] and (not nominated or _leaves_room(cluster, order[at], pod_info)):
            chunks[-1].append(order[at])
            found += 1
    if order:
        cursor.start = (cursor.start + checked) % len(order)
    rng.shuffle(chunks)
    return [node_info for each in chunks for node_info in each]


def _leaves_room(cluster: Cluster, node_info: NodeInfo, pod_info: PodInfo) -> bool:
    """Return True if the node also has room for the pods that are nominated to it."""
    nominated = cluster.nominated_pods(node_info.name, pod_info)
    return not nominated or node_info.has_room(pod_info, nominated)


def node_scores(cluster: Cluster, pod_info: PodInfo, node_infos: Sequence[NodeInfo]) -> list[int]:
    """Return the score of each node, in the order of `node_infos`: the weighted sum of the scores of kube-scheduler's
    default plugins, a whole number.
    """
    columns = [
        (_WEIGHTS["fit"], [_fit_score(node_info, pod_info) for node_info in node_infos]),
        (_WEIGHTS["balance"], [_balance_score(node_info, pod_info) for node_info in node_infos]),
        (_WEIGHTS["taints"], _taint_scores(node_infos, pod_info.shape)),
        (_WEIGHTS["spread"], _spread_scores(cluster, node_infos, pod_info)),
    ]
    return [sum(weight * column[i] for weight, column in columns) for i in range(len(node_infos))]


def choose_node(
    node_infos: Sequence[NodeInfo],
    plugin_scores: Sequence[int],
    extender_scores: Mapping[str, int],
    weight: int,
    rng: random.Random,
) -> str:
    """Return the name of the best node.

    plugin_scores: of the nodes, in their order. extender_scores: by node; a node may be absent. weight: of the extender
    in the configuration. Ties: if the extender scored any of the best nodes, one of these is drawn at random, as in
    kube-scheduler 1.35.4. Else the node is taken that kube-scheduler's heap has at its root, which needs no random
    number. So without an extender no random number is used. node_infos: at least one.
    """
    totals = [
        (plugin_scores[i] + extender_scores.get(node_info.name, 0) * weight * _EXTENDER_SCALE, rng.getrandbits(62) + 1)
        if node_info.name in extender_scores
        else (plugin_scores[i], 0)
        for i, node_info in enumerate(node_infos)
    ]
    best = max(totals)
    return node_infos[_first_in_preorder(totals, best)].name


def _first_in_preorder(heap: Sequence[tuple[int, int]], best: tuple[int, int]) -> int:
    """Return the index of the first item in preorder that equals `best`: the root of a heap that is built in place.

    heap: the totals of the nodes, in their order. A parent wins a tie, then the left child. Raises ValueError if none
    equals `best`.
    """
    waiting = [0]
    while waiting:
        at = waiting.pop()
        if at >= len(heap):
            continue
        if heap[at] == best:
            return at
        waiting += [2 * at + 2, 2 * at + 1]
    raise ValueError("the best is not among the totals")


def _fit_score(node_info: NodeInfo, pod_info: PodInfo) -> int:
    """Return the score of NodeResourcesFit (LeastAllocated), 0 to 100: CPU and memory count the same.

    Unset requests have defaults.
    """
    parts: list[int] = []
    for at, resource in enumerate(("cpu", "memory")):
        allocatable = node_info.allocatable.get(resource, 0)
        if allocatable:
            requested = node_info.scored_requests[at] + pod_info.scored_requests[at]
            parts.append((allocatable - requested) * MAX_SCORE // allocatable if requested <= allocatable else 0)
    return sum(parts) // len(parts) if parts else 0


def _balance_score(node_info: NodeInfo, pod_info: PodInfo) -> int:
    """Return the score of BalancedAllocation, 0 to 100, over the CPU and memory really requested.

    0 if the pod requests neither.
    """
    if not pod_info.requested_amount("cpu") and not pod_info.requested_amount("memory"):
        return 0
    parts = [
        min(
            1.0,
            (node_info.requested.get(resource, 0) + pod_info.requested_amount(resource))
            / node_info.allocatable[resource],
        )
        for resource in ("cpu", "memory")
        if node_info.allocatable.get(resource)
    ]
    deviation = abs(parts[0] - parts[1]) / 2 if len(parts) == 2 else 0.0
    return int((1 - deviation) * MAX_SCORE)


def _taint_scores(node_infos: Sequence[NodeInfo], shape: PodShape) -> list[int]:
    """Return the score of TaintToleration for each node, 0 to 100, in their order. shape: of the pod.

    Fewer PreferNoSchedule taints that are not tolerated are better: the node with the most gets 0. Without any such
    taint all nodes get 100. Raises ValueError without nodes.
    """
    counts = [
        sum(
            t.effect == "PreferNoSchedule" and not _tolerates_preferred(t, shape)
            for t in node_info.node.spec.taints or ()
        )
        for node_info in node_infos
    ]
    maximum = max(counts)
    return [MAX_SCORE - (MAX_SCORE * count // maximum if maximum else 0) for count in counts]


def _tolerates_preferred(taint: Taint, shape: PodShape) -> bool:
    """Return True if the pod tolerates a taint.

    taint: of the effect PreferNoSchedule, which the caller checks. shape: of the pod.
    """
    return any(
        effect in ("", "PreferNoSchedule")
        and (key == taint.key or (not key and operator == "Exists"))
        and (operator == "Exists" or value == (taint.value or ""))
        for key, operator, value, effect in shape.tolerations
    )


def _spread_scores(cluster: Cluster, node_infos: Sequence[NodeInfo], pod_info: PodInfo) -> list[int]:
    """Return the score of PodTopologySpread for each of the nodes, 0 to 100, with the default constraints.

    Only pods that a Service or a set selects are spread; for others every score is 0.
    """
    if pod_info.spread is None:
        return [0] * len(node_infos)
    everywhere = {
        node_info.name: _count_selected_pods(node_info, pod_info) for node_info in cluster.node_infos.values()
    }
    raw = [0.0] * len(node_infos)
    for key, max_skew in _SPREAD:
        per_value = _pods_by_value(cluster, {node_info.label(key) for node_info in node_infos}, key, everywhere)
        size = len(node_infos) if key == HOSTNAME else len(per_value)
        for i, node_info in enumerate(node_infos):
            if node_info.label(key) is not None:
                count = everywhere[node_info.name] if key == HOSTNAME else per_value[node_info.label(key)]
                raw[i] += count * math.log(size + 2) + (max_skew - 1)
    rounded = [math.floor(value + 0.5) for value in raw]  # half away from zero, and no value is below it
    minimum, maximum = min(rounded), max(rounded)
    return [MAX_SCORE * (maximum + minimum - value) // maximum if maximum else MAX_SCORE for value in rounded]


def _pods_by_value(
    cluster: Cluster, values: Iterable[str | None], key: str, pods_by_node: Mapping[str, int]
) -> dict[str | None, int]:
    """Return the number of pods on all nodes with each of these values of a node label. key: of the label.

    pods_by_node: of all nodes; a value without nodes gets 0.
    """
    by_value = dict.fromkeys(values, 0)
    for node_info in cluster.node_infos.values():
        if node_info.label(key) in by_value:
            by_value[node_info.label(key)] += pods_by_node[node_info.name]
    return by_value


def _count_selected_pods(node_info: NodeInfo, pod_info: PodInfo) -> int:
    """Return the number of the node's pods that the pod's spread selector selects."""
    selector = set(pod_info.spread or ())
    return sum(p.namespace == pod_info.namespace and selector <= set(p.labels) for p in node_info.pods.values())
