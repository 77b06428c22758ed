"""Tell when a scheduler has seen what no watch has shown us yet: it offers a host that is full, or unknown, for us.

A scheduler and an extender watch the same pods over two connections. A scheduler that was the first to see a pod go
asks about those that wait for its room at once, and not again before something else changes: a refusal from what we
knew before would be its last word for minutes.
"""

from __future__ import annotations

from collections.abc import Sequence

from turnout.scheduler_ext.cache.cache import ClusterView
from turnout.scheduler_ext.cache.pod_info import Member

CATCH_UP_S = 10.0  # how long a difference is taken for one of time; one that lasts is one of counting


def offers_unknown_room(view: ClusterView, member: Member, names: Sequence[str]) -> bool:
    """True if a node is named that no watch has shown, or on which this pod does not fit beside those that we know.

    The view has to be settled, as it is once a planner was asked.
    """
    row_of = view.snapshot.row_of
    rows = [row_of.get(name, -1) for name in names]
    return -1 in rows or bool((view.snapshot.room(member.shape)[rows] <= 0).any())


class LaggingView:
    """Remembers since when each refused pod is offered more than we know of."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}

    def should_retry(self, view: ClusterView, member: Member, names: Sequence[str], now_s: float) -> bool:
        """True if a refusal of this pod is to be asked for again, since a watch may be about to show what it lacks.

        A pod is doubted for CATCH_UP_S at most, until once nothing is offered that we do not know of.
        """
        if not offers_unknown_room(view, member, names):
            self._since_s.pop(member.uid, None)
            return False
        return now_s - self._since_s.setdefault(member.uid, now_s) < CATCH_UP_S

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._since_s.pop(uid, None)
