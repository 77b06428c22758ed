"""Explains each reason to the owner of a job: what it means, and what can be done about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from turnout.autoscaler.model import Reason


class Meaning(NamedTuple):
    """means: the reason as a sentence. next: what changes it, and by whom."""

    means: str
    next: str


MEANINGS: Mapping[Reason, Meaning] = {
    Reason.IDLE_ROOM: Meaning(
        "It grows: its queue has room that nobody waits for.",
        "Nothing is to be done. turnout.dev/paused: grow keeps it at its size.",
    ),
    Reason.RETURNED: Meaning(
        "It grows: it gave workers to a job that left their room unused, and has them back.",
        "Nothing is to be done.",
    ),
    Reason.MAKES_ROOM: Meaning(
        "It shrinks: a waiting job gets its min from these workers.",
        "It grows again once there is room. With a higher turnout.dev/priority others give first.",
    ),
    Reason.ROOM_TAKEN: Meaning(
        "It shrinks: workers above its min found no node, since somebody else took the room.",
        "Nothing is to be done: it grows again once there is room.",
    ),
    Reason.AT_MAX: Meaning(
        "It has all the workers that are wanted.",
        "Raise turnout.dev/max-workers, or take away turnout.dev/wish-workers where somebody has set a size by hand.",
    ),
    Reason.COOLDOWN: Meaning(
        "Its size was changed a short while ago.",
        "Wait until the cooldown is over, or set a shorter turnout.dev/cooldown.",
    ),
    Reason.NO_FREE_ROOM: Meaning(
        "There is no room for one more step of it, on the nodes or in its queue.",
        "Wait until somebody leaves, make its workers smaller, or ask the queue's admin for more.",
    ),
    Reason.HEADROOM_KEPT: Meaning(
        "The room that is left is kept free.",
        "Nothing is to be done. The admin sets it: --headroom-gpus, or turnout.dev/headroom-gpus of the queue.",
    ),
    Reason.ROOM_SETTLES: Meaning(
        "There is room for it, which has not been idle for as long as a restart takes.",
        "Nothing is to be done: it grows if nobody takes the room meanwhile.",
    ),
    Reason.OTHERS_WAIT: Meaning(
        "The room is promised to a job that waits for its min, and every min comes first.",
        "Nothing is to be done: it grows when nobody waits any more.",
    ),
    Reason.MARGINAL_GAIN: Meaning(
        "Its next worker would make it hardly faster, or not pay for the restart.",
        "Make it scale better, or correct turnout.dev/scaling-curve and turnout.dev/restart-cost.",
    ),
    Reason.BUDGET_SPENT: Meaning(
        "Restarts have cost it more time than lending has won it.",
        "It grows again once that is made up for. Cheaper restarts (turnout.dev/restart-cost) make it sooner.",
    ),
    Reason.NOT_READY: Meaning(
        "Its last change is not done yet: not every worker has a node.",
        "Wait until its workers run; if they do not, look at their Events.",
    ),
    Reason.PAUSED: Meaning(
        "Its owner has forbidden it.",
        "Take away turnout.dev/paused or turnout.dev/paused-until.",
    ),
    Reason.RIGID: Meaning(
        "Its min equals its max, so it has one size only.",
        "Give it room between turnout.dev/min-workers and turnout.dev/max-workers.",
    ),
    Reason.REFUSED: Meaning(
        "It cannot be resized as it is: that would do harm.",
        "Change what is named here; until then it keeps its size and counts in its queue.",
    ),
    Reason.QUEUE_CLOSED: Meaning(
        "Its queue takes nothing new.",
        "Ask the queue's admin to open it, or submit the job to another queue.",
    ),
    Reason.SUSPENDED: Meaning(
        "It is suspended.",
        "Resume it: take away spec.suspend, or let Kueue admit it.",
    ),
    Reason.SCHEDULERS_TURN: Meaning(
        "It waits, and there is room for its min: its scheduler has to place it.",
        "Wait a few seconds; if it lasts, look at the Events of its pods, and at its PodGroup.",
    ),
    Reason.WAITS_FOR_ROOM: Meaning(
        "It waits, and elastic workers leave for it.",
        "Nothing is to be done: it starts once they are gone.",
    ),
    Reason.NEEDS_MORE: Meaning(
        "It waits: it would not fit even if every elastic worker left.",
        "Wait until running jobs end, lower its min, or make its workers smaller.",
    ),
    Reason.OVER_QUOTA: Meaning(
        "It waits in vain: its min is more than its queue may ever have.",
        "Lower its min, or ask the queue's admin for a higher limit.",
    ),
    Reason.UNSCHEDULABLE: Meaning(
        "It waits, and no scheduler binds it now: no room is made or kept for it.",
        "Look at its pods: their gates, schedulerName, volumes and affinity. It is tried again after a while.",
    ),
    Reason.STALE: Meaning(
        "What is known is too old or only a part, so nothing is changed.",
        "Look at the autoscaler's log and at the API server: a watch has been silent, or a list fails.",
    ),
    Reason.NODES_UNREADY: Meaning(
        "So many nodes are not ready that what is seen is not to be trusted: nothing is changed.",
        "The admin has to look after the nodes; it goes on by itself.",
    ),
    Reason.CLOCK_JUMPED: Meaning(
        "A clock has jumped: nothing is changed until two looks have passed.",
        "Nothing is to be done; the admin sees to the clocks of the nodes.",
    ),
    Reason.ALL_PAUSED: Meaning(
        "An admin has stopped all changes.",
        "The admin ends it: turnout resume --all.",
    ),
    Reason.RELEASED: Meaning(
        "An admin takes back everything that is lent: each job goes to its min.",
        "The admin ends it: turnout resume --all.",
    ),
}
