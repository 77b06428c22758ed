"""Keep one domain for the oldest gang that waits in a queue of strict order, so that small gangs do not starve it.

The domain is that of the lowest tier whose nodes could hold the gang if they were empty, with the most room now. It is
kept against gangs of the same queue that go behind, for one gang a queue, until that gang has a place or is gone. So
nobody loses by it but the queue that an admin has chosen, and nobody waits for a gang that no domain can hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.jobs.queues.strict_order import StrictQueues
from turnout.scheduler_ext.cache.cache import GangView
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.planner.placing.model import judged
from turnout.topology.switch_paths import path_text


@dataclass(frozen=True, slots=True)
class Kept:
    """A domain that is kept: for whom, its host ids [first, end), and its switch."""

    key: GangKey
    first: int
    end: int
    where: str  # at root/.../switch, as the map names it


class StrictOrder:
    """The domains kept, by queue. Clear them when rows change their meaning."""

    def __init__(self, named: frozenset[str]) -> None:
        self.queues = StrictQueues(named)
        self._kept: dict[str, Kept] = {}

    def queue_of(self, gang: Gang) -> str:
        """Return the queue of strict order that the gang is in; "" for none."""
        return self.queues.of(gang.key.namespace, gang.queue)

    def keep_for(self, view: GangView, gang: Gang) -> bool:
        """Keep a domain for a gang that found no room, unless its queue keeps one already. True if one is kept now."""
        queue = self.queue_of(gang)
        if not queue or queue in self._kept or (kept := _domain(view, gang)) is None:
            return False
        self._kept[queue] = kept
        return True

    def release(self, key: GangKey) -> bool:
        """Keep nothing for a gang any more. True if something was kept."""
        queues = [queue for queue, kept in self._kept.items() if kept.key == key]
        for queue in queues:
            del self._kept[queue]
        return bool(queues)

    def against(self, gang: Gang) -> Kept | None:
        """Return the domain that is kept in the gang's queue for another one; None when there is none."""
        kept = self._kept.get(self.queue_of(gang))
        return None if kept is None or kept.key == gang.key else kept

    def clear(self) -> None:
        """Keep nothing."""
        self._kept.clear()


def barred_by(kept: Kept | None, rows: int) -> NDArray[np.bool_] | None:
    """Mark the rows of a domain that is kept."""
    if kept is None:
        return None
    marks = np.zeros(rows, np.bool_)
    marks[kept.first : kept.end] = True
    return marks


def told_of(kept: Kept | None, detail: str) -> str:
    """Add to the words of a refusal which domain is kept, and for whom."""
    if kept is None:
        return detail
    return f"{detail}; room {kept.where} is kept for {kept.key}, the oldest that waits in this queue"


def _domain(view: GangView, gang: Gang) -> Kept | None:
    """Return the domain to keep; None where the gang fits none, or members of it run already."""
    members = [member for member in gang.living() if not member.silence or judged(member, gang)]
    if not members or not view.fabric.mapped_count or any(view.host_of(member) is not None for member in members):
        return None
    shape = max(members, key=lambda member: (member.gpus, member.shape.requests)).shape
    fabric, need = view.fabric, max(1, gang.least)
    could, now = view.snapshot.capacity(shape), view.snapshot.room(shape)
    could = np.where(fabric.mapped, could, 0)
    if (outside := view.levels.outside(gang.levels)) is not None:
        could, now = np.where(outside, 0, could), np.where(outside, 0, now)
    widest = fabric.tiers if gang.tier is None else min(gang.tier, fabric.tiers)
    for tier in range(1, widest + 1):
        fits = np.flatnonzero(np.add.reduceat(could, fabric.starts[tier], dtype=np.int64) >= need)
        if len(fits):
            free = np.add.reduceat(now, fabric.starts[tier], dtype=np.int64)[fits]
            switch = int(fits[free.argmax()])
            path = fabric.names[tier][switch]
            where = f"at {path_text(path if path[-1] else path[:-1])}" if any(path) else "on the whole map"
            return Kept(gang.key, *fabric.span(tier, switch), where)
    return None
