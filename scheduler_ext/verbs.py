"""Answer filter, prioritize and preempt with plain functions of the cached state.

The planner says where a pod goes (scheduler_ext/planner/seats.py). These functions put that into the words of the
scheduler: nodes kept and refused, scores, victims. With filter comes what follows from it: the node to assume for the
pod from now on, and what to tell its owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnout.kube.times import rfc3339_micro
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.model import Answer, EventReason, Notice, Rules, Victims
from turnout.scheduler_ext.planner.plan_cache import Plans
from turnout.scheduler_ext.planner.seats import NoSeat, preemptible_nodes, scores_of, seat_of

LONG_LIST = 1024  # names; a refusal of more than these explains itself on the first FEW only
MAX_EXPLAINED_NAMES = 64
MAX_SCORES = 256  # a long answer is what an extender costs (docs/facts/extender.md 1.9)


@dataclass(frozen=True, slots=True)
class Advice:
    """An answer to the scheduler and what follows from it."""

    answer: Answer
    node: str = ""  # where the pod now goes; "" when that is open
    notice: Notice | None = None  # for the pod's owner
    retry: bool = False  # a refusal that is not the last word: to be asked again at once


NO_ADVICE = Advice(Answer(nodes=(), all_kept=True))


def answer_filter(plans: Plans, member: Member, names: Sequence[str], rules: Rules, now_s: float) -> Advice:
    """Narrow the nodes to the one that the gang's plan names, or say why there is none. Never raises.

    names: nodes that passed every earlier filter; the answer keeps only such nodes.
    """
    seat = seat_of(plans, member, names, rules, now_s)
    if seat.node:
        return Advice(Answer(nodes=(seat.node,)), seat.node)
    if seat.elsewhere:
        return Advice(Answer((), {}, {names[0]: "planned elsewhere"}))  # the scheduler asks about all nodes next
    return NO_ADVICE if seat.refused is None else _refuse_all(seat.refused, member, names)


def refuse_everywhere(plans: Plans, member: Member, rules: Rules, now_s: float) -> NoSeat | None:
    """Say why the pod can go to none of all nodes; None if it can, or if there is no opinion. Never raises."""
    plans.view.settle(now_s)
    return seat_of(plans, member, plans.view.fabric.hosts, rules, now_s).refused


def postpone(why: Notice, names: Sequence[str], wall_s: float, pause_s: float) -> Answer:
    """Refuse until the pod is asked about again: the watched state may be old, and newer state may allow the pod.

    wall_s: time of this answer. pause_s: how long the answer is kept back, since an idle scheduler asks again at once.

    kube-scheduler writes the reason into the pod's status, and tries a refused pod again when its status changes. So
    the time in the text makes every answer different. All nodes are forbidden, so that nothing is preempted on old
    state. An error would not do: an ignorable extender that fails is skipped, and a part of the gang would start.
    """
    text = f"{EventReason.OLD_VIEW.value} at {rfc3339_micro(wall_s)}: {why.reason.value}: {why.detail}"
    return Answer((), forbidden=dict.fromkeys(names[:MAX_EXPLAINED_NAMES], text), pause_s=pause_s)


def answer_prioritize(
    plans: Plans, member: Member, names: Sequence[str], rules: Rules, now_s: float
) -> list[tuple[str, int]]:
    """Return at most MOST_SCORES names, the best first, with integers 1..10; zeros are left out. Never raises."""
    return scores_of(plans, member, names, rules, now_s, MAX_SCORES)


def answer_preempt(
    plans: Plans, member: Member, victims: Mapping[str, Victims], now_s: float, wall_s: float = 0.0
) -> Mapping[str, Victims]:
    """Keep only the nodes on which the whole gang could run once less important pods have left.

    An empty answer stops a preemption that would not let the gang start. wall_s: seconds since 1970, by which the time
    that others ran is counted; without it all ran alike.
    """
    return {node: victims[node] for node in preemptible_nodes(plans, member, victims, now_s, wall_s)}


def _refuse_all(refused: NoSeat, member: Member, names: Sequence[str]) -> Advice:
    """Refuse every node: "no room" where others may leave for the pod, "forbidden" where nothing helps."""
    text = f"{refused.reason.value}: {refused.detail}"
    helping, forbidden = refused.may_help, dict[str, str]()
    if helping is None:
        no_room = dict.fromkeys(names, text)
    else:
        no_room = {name: text for name in names if name in helping}
        forbidden = {name: text for name in _explained(names) if name not in no_room}
    notice = Notice(refused.reason, member.namespace, member.name, member.uid, refused.detail[:500])
    return Advice(Answer((), no_room, forbidden), notice=notice, retry=refused.retry)


def _explained(names: Sequence[str]) -> Sequence[str]:
    """Return the names that need an explanation. A node in neither failure map counts as unresolvable, too."""
    return names if len(names) <= LONG_LIST else names[:MAX_EXPLAINED_NAMES]
