"""Run one pod through a scheduling cycle, in the order in which kube-scheduler asks its filters and its extender.

The cycle is a generator: it yields questions for the extender and receives the answers, so it knows nothing of HTTP.
default_plugins.py judges the nodes; runtime/scheduler_loop.py has the loop.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from turnout.simulator.cluster.cluster import Cluster, NodeInfo, PodInfo
from turnout.simulator.cluster.default_plugins import Cursor, choose, feasible, scores


class ExtenderVerb(Enum):
    """A kind of question to an extender."""

    FILTER = "filter"
    PRIORITIZE = "prioritize"


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the extender about these nodes."""

    verb: ExtenderVerb
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExtenderReply:
    """The extender's answer."""

    feasible_nodes: tuple[str, ...] = ()  # of a filter, in its order
    points: Mapping[str, int] = field(default_factory=dict)  # of a prioritize
    refused: Mapping[str, str] = field(default_factory=dict)  # node -> why
    failed: str = ""  # why there is no answer; "" when there is one


class Why(Enum):
    """A reason why a pod got no node."""

    UNSCHEDULABLE = "Unschedulable"
    SCHEDULER_ERROR = "SchedulerError"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The node chosen for a pod."""

    node: str
    feasible: int  # how many nodes there were to choose among; with 1 no scores were asked for


@dataclass(frozen=True, slots=True)
class Waits:
    """The result for a pod that must wait for a change."""

    why: Why
    message: str


Outcome = Chosen | Waits
Cycle = Generator[Question, ExtenderReply, Outcome]


@dataclass(frozen=True, slots=True)
class ExtenderSettings:
    """The extender in the scheduler's configuration."""

    weight: int = 1
    ignorable: bool = True
    prioritizes: bool = True


class ExtenderSilence(Exception):
    """A failure of an extender that may not be ignored.

    The attempt ends, and the pod is tried again after its back-off.
    """


def cycle(
    cluster: Cluster,
    pod_info: PodInfo,
    cursor: Cursor,
    dice: random.Random,
    extender: ExtenderSettings | None = None,
    percentage: int = 0,
) -> Cycle:
    """Find a node for one pod. Yields a Question for every call of the extender, and none without an extender.

    Source: docs/facts/extender.md 1.4 and 1.5
    """
    try:
        node_infos = yield from _nominated(cluster, pod_info, extender)
        if not node_infos:
            node_infos = feasible(cluster, pod_info, cursor, dice, percentage)
            before = len(node_infos)
            node_infos = yield from _filtered(node_infos, extender)
            if not node_infos:
                return Waits(Why.UNSCHEDULABLE, _lament(len(cluster.node_infos), before))
    except ExtenderSilence as error:
        return Waits(Why.SCHEDULER_ERROR, str(error))
    if len(node_infos) == 1:
        return Chosen(node_infos[0].name, 1)
    points: Mapping[str, int] = {}
    if extender is not None and extender.prioritizes:
        # A prioritize that fails is passed over without a word, whatever `ignorable` says.
        points = (yield Question(ExtenderVerb.PRIORITIZE, _names(node_infos))).points
    plain = scores(cluster, pod_info, node_infos)
    weight = extender.weight if extender else 0
    return Chosen(choose(node_infos, plain, points, weight, dice), len(node_infos))


def _nominated(
    cluster: Cluster, pod_info: PodInfo, extender: ExtenderSettings | None
) -> Generator[Question, ExtenderReply, Sequence[NodeInfo]]:
    node_info = cluster.node_infos.get(pod_info.nominated)
    if node_info is None or not node_info.has_room(pod_info, cluster.nominated_pods(node_info.name, pod_info)):
        return ()
    try:
        return (yield from _filtered([node_info], extender))
    except ExtenderSilence:
        return ()  # the nominated node is only a first try: all nodes are looked at next


def _filtered(
    node_infos: Sequence[NodeInfo], extender: ExtenderSettings | None
) -> Generator[Question, ExtenderReply, Sequence[NodeInfo]]:
    if extender is None or not node_infos:
        return node_infos
    reply = yield Question(ExtenderVerb.FILTER, _names(node_infos))
    by_name = {node_info.name: node_info for node_info in node_infos}
    strangers = [name for name in reply.feasible_nodes if name not in by_name]
    failed = reply.failed or (
        f"extender claims a filtered node which is not found: {strangers[0]}" if strangers else ""
    )
    if failed:
        if extender.ignorable:
            return node_infos
        raise ExtenderSilence(failed)
    return [by_name[name] for name in reply.feasible_nodes]


def _names(node_infos: Iterable[NodeInfo]) -> tuple[str, ...]:
    return tuple(node_info.name for node_info in node_infos)


def _lament(nodes: int, before: int) -> str:
    if before:
        return f"0/{nodes} nodes are available: the extender refused the {before} that the filters let in."
    return f"0/{nodes} nodes are available: none holds the pod."


def schedule_without_extender(cluster: Cluster, pod_info: PodInfo, cursor: Cursor, dice: random.Random) -> Outcome:
    """Run a whole cycle without an extender, as kube-scheduler does by default."""
    questions = cycle(cluster, pod_info, cursor, dice)
    try:
        next(questions)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome
    raise AssertionError("a cycle without an extender asked one")
