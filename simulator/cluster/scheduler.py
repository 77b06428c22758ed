"""One pod's way through a scheduling cycle, in the order in which kube-scheduler asks its filters and its extender.

The cycle is a generator: it yields what it wants to ask the extender and is sent the answer, so that it knows
nothing of HTTP. The judgement of nodes is in default_plugins.py, the loop around it in runtime/scheduler_loop.py.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from turnout.simulator.cluster.cluster import Cluster, Stand, Want
from turnout.simulator.cluster.default_plugins import Cursor, choose, feasible, scores


class Verb(Enum):
    """The questions to an extender."""

    FILTER = "filter"
    PRIORITIZE = "prioritize"


@dataclass(frozen=True, slots=True)
class Question:
    """Ask the extender about these nodes."""

    verb: Verb
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """What the extender said. kept: of a filter, in its order; points: of a prioritize. failed: it gave no answer."""

    kept: tuple[str, ...] = ()
    points: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)  # node -> why
    failed: str = ""


class Why(Enum):
    """Why a pod got no node."""

    UNSCHEDULABLE = "Unschedulable"
    SCHEDULER_ERROR = "SchedulerError"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The pod goes to this node. feasible: how many nodes there were to choose among; 1 means no scores were asked."""

    node: str
    feasible: int


@dataclass(frozen=True, slots=True)
class Waits:
    """The pod has to wait for a change."""

    why: Why
    message: str


Outcome = Chosen | Waits
Cycle = Generator[Question, Reply, Outcome]


@dataclass(frozen=True, slots=True)
class Extender:
    """The extender as the scheduler's configuration names it."""

    weight: int = 1
    ignorable: bool = True
    prioritizes: bool = True


class NoAnswer(Exception):
    """The extender failed and may not be ignored: the attempt ends, the pod is tried again after its back-off."""


def cycle(
    cluster: Cluster,
    want: Want,
    cursor: Cursor,
    dice: random.Random,
    extender: Extender | None = None,
    percentage: int = 0,
) -> Cycle:
    """Find a node for one pod. Yields a Question for every call of the extender; without one it yields nothing.

    Source: docs/facts/extender.md 1.4 and 1.5
    """
    try:
        stands = yield from _nominated(cluster, want, extender)
        if not stands:
            stands = feasible(cluster, want, cursor, dice, percentage)
            before = len(stands)
            stands = yield from _filtered(stands, extender)
            if not stands:
                return Waits(Why.UNSCHEDULABLE, _lament(len(cluster.stands), before))
    except NoAnswer as error:
        return Waits(Why.SCHEDULER_ERROR, str(error))
    if len(stands) == 1:
        return Chosen(stands[0].name, 1)
    points: Mapping[str, int] = {}
    if extender is not None and extender.prioritizes:
        # A prioritize that fails is passed over without a word, whatever `ignorable` says.
        points = (yield Question(Verb.PRIORITIZE, _names(stands))).points
    plain = scores(cluster, want, stands)
    weight = extender.weight if extender else 0
    return Chosen(choose(stands, plain, points, weight, dice), len(stands))


def _nominated(cluster: Cluster, want: Want, extender: Extender | None) -> Generator[Question, Reply, Sequence[Stand]]:
    stand = cluster.stands.get(want.nominated)
    if stand is None or not stand.holds(want, cluster.beside(stand.name, want)):
        return ()
    try:
        return (yield from _filtered([stand], extender))
    except NoAnswer:
        return ()  # the nominated node is only a first try: all nodes are looked at next


def _filtered(stands: Sequence[Stand], extender: Extender | None) -> Generator[Question, Reply, Sequence[Stand]]:
    if extender is None or not stands:
        return stands
    reply = yield Question(Verb.FILTER, _names(stands))
    by_name = {stand.name: stand for stand in stands}
    strangers = [name for name in reply.kept if name not in by_name]
    failed = reply.failed or (
        f"extender claims a filtered node which is not found: {strangers[0]}" if strangers else ""
    )
    if failed:
        if extender.ignorable:
            return stands
        raise NoAnswer(failed)
    return [by_name[name] for name in reply.kept]


def _names(stands: Iterable[Stand]) -> tuple[str, ...]:
    return tuple(stand.name for stand in stands)


def _lament(nodes: int, before: int) -> str:
    if before:
        return f"0/{nodes} nodes are available: the extender refused the {before} that the filters let in."
    return f"0/{nodes} nodes are available: none holds the pod."


def alone(cluster: Cluster, want: Want, cursor: Cursor, dice: random.Random) -> Outcome:
    """A cycle of a scheduler without an extender, to its end: what kube-scheduler does by default."""
    questions = cycle(cluster, want, cursor, dice)
    try:
        next(questions)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome
    raise AssertionError("a cycle without an extender asked one")
