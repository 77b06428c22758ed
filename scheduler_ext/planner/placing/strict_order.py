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
from turnout.scheduler_ext.cache.cache import ClusterView
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.planner.placing.model import is_planned
from turnout.topology.switch_paths import path_text


@dataclass(frozen=True, slots=True)
class KeptDomain:
    """A domain that is kept: for whom, its host ids [first, end), and its switch."""

    key: GangKey
    first: int
    end: int
    description: str  # at root/.../switch, as the map names it


class StrictOrder:
    """The domains kept, by queue. Clear them when rows change their meaning."""

    def __init__(self, named: frozenset[str]) -> None:
        self.queues = StrictQueues(named)
        self._domains: dict[str, KeptDomain] = {}

    def queue_of(self, gang: Gang) -> str:
        """Return the queue of strict order that the gang is in; "" for none."""
        return self.queues.of(gang.key.namespace, gang.queue)

    def keep_for(self, view: ClusterView, gang: Gang) -> bool:
        """Keep a domain for a gang that found no room, unless its queue keeps one already. True if one is kept now."""
        queue = self.queue_of(gang)
        if not queue or queue in self._domains or (domain := _choose_domain(view, gang)) is None:
            return False
        self._domains[queue] = domain
        return True

    def release(self, key: GangKey) -> bool:
        """Keep nothing for a gang any more. True if something was kept."""
        queues = [queue for queue, domain in self._domains.items() if domain.key == key]
        for queue in queues:
            del self._domains[queue]
        return bool(queues)

    def domain_against(self, gang: Gang) -> KeptDomain | None:
        """Return the domain that is kept in the gang's queue for another one; None when there is none."""
        domain = self._domains.get(self.queue_of(gang))
        return None if domain is None or domain.key == gang.key else domain

    def clear(self) -> None:
        """Keep nothing."""
        self._domains.clear()


def rows_of_domain(domain: KeptDomain | None, rows: int) -> NDArray[np.bool_] | None:
    """Mark the rows of a domain that is kept."""
    if domain is None:
        return None
    marks = np.zeros(rows, np.bool_)
    marks[domain.first : domain.end] = True
    return marks


def add_kept_domain(domain: KeptDomain | None, detail: str) -> str:
    """Add to the words of a refusal which domain is kept, and for whom."""
    if domain is None:
        return detail
    return f"{detail}; room {domain.description} is kept for {domain.key}, the oldest that waits in this queue"


def _choose_domain(view: ClusterView, gang: Gang) -> KeptDomain | None:
    """Return the domain to keep; None where the gang fits none, or members of it run already."""
    members = [member for member in gang.living() if not member.no_opinion_reason or is_planned(member, gang)]
    if not members or not view.fabric.mapped_count or any(view.host_of(member) is not None for member in members):
        return None
    shape = max(members, key=lambda member: (member.gpus, member.shape.requests)).shape
    fabric, need = view.fabric, max(1, gang.min_pods)
    could, now = view.snapshot.capacity(shape), view.snapshot.room(shape)
    could = np.where(fabric.mapped, could, 0)
    if (outside := view.levels.rows_outside(gang.levels)) is not None:
        could, now = np.where(outside, 0, could), np.where(outside, 0, now)
    widest = fabric.tiers if gang.tier is None else min(gang.tier, fabric.tiers)
    for tier in range(1, widest + 1):
        fits = np.flatnonzero(np.add.reduceat(could, fabric.starts[tier], dtype=np.int64) >= need)
        if len(fits):
            free = np.add.reduceat(now, fabric.starts[tier], dtype=np.int64)[fits]
            switch = int(fits[free.argmax()])
            path = fabric.names[tier][switch]
            where = f"at {path_text(path if path[-1] else path[:-1])}" if any(path) else "on the whole map"
            return KeptDomain(gang.key, *fabric.span(tier, switch), where)
    return None
