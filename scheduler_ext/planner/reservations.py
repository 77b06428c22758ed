"""Nodes that are reserved for gangs: by other programs and the writers of this one, and by strict order.

In a queue of strict order one domain is kept for the oldest waiting gang, so that small gangs do not starve it. The
domain is of the lowest tier whose nodes could hold the gang if they were empty, and has the most free room. It is kept
against later gangs of the same queue, until the gang has a place or is deleted. It is chosen again when nodes change.
So only the queue that an admin chose waits, and no gang waits for a gang that no domain can hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.jobs.queues.registry import StrictQueues
from turnout.jobs.reservation import MAX_RESERVATIONS, Reservation, ReservationReason
from turnout.kube.node_capacity import Rows
from turnout.scheduler_ext.cluster.gang import Gang
from turnout.scheduler_ext.cluster.levels import LabelDomains
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.planner.order import position_of
from turnout.scheduler_ext.planner.request import is_planned
from turnout.topology.fabric import Fabric
from turnout.topology.switch_paths import path_text


class Reservations:
    """The reservations by holder. A gang of a higher priority than the holder may use the nodes, too."""

    def __init__(self) -> None:
        self.release_count = 0  # raised whenever nodes are given back
        self._by_holder: dict[GangKey, Reservation] = {}
        self._rows: dict[GangKey, NDArray[np.intp]] = {}  # the rows of the nodes, as far as they were asked for

    def __iter__(self) -> Iterator[Reservation]:
        return iter(self._by_holder.values())

    def get(self, holder: GangKey) -> Reservation | None:
        """Return the reservation of a gang; None if it has none."""
        return self._by_holder.get(holder)

    def put(self, reservation: Reservation) -> bool:
        """Store a reservation in place of an earlier one of its holder.

        Return True if its nodes or priority are new. False if they are as before, so that at most the rest was stored.
        False also if the holder has none and MAX_RESERVATIONS others exist: then it is not stored.
        """
        holder, before = reservation.holder, self._by_holder.get(reservation.holder)
        if before == reservation or (before is None and len(self._by_holder) >= MAX_RESERVATIONS):
            return False
        if before is not None and (before.nodes, before.priority) == (reservation.nodes, reservation.priority):
            self._by_holder[holder] = reservation
            return False
        self.release(holder)
        self._by_holder[holder] = reservation
        return True

    def release(self, holder: GangKey) -> None:
        """Remove the reservation of a gang. Does nothing if it has none."""
        self._rows.pop(holder, None)
        if self._by_holder.pop(holder, None) is not None:
            self.release_count += 1

    def expire(self, wall_s: float) -> list[Reservation]:
        """Remove the reservations whose time is over, and return them. wall_s: seconds since 1970."""
        ended = [each for each in self if each.until_s <= wall_s]
        for each in ended:
            self.release(each.holder)
        return ended

    def clear_rows(self) -> None:
        """Forget which rows the nodes have: the rows have changed their meaning."""
        self._rows.clear()

    def against(self, key: GangKey, priority: int) -> Reservation | None:
        """Return the reservation of the most nodes that excludes a gang; None for none. priority: of the gang."""
        return max(
            (each for each in self if each.excludes(key, priority)), key=lambda each: len(each.nodes), default=None
        )

    def nodes_against(self, key: GangKey, priority: int) -> set[str]:
        """Return the names of all nodes that are reserved against a gang; empty for none. priority: of the gang."""
        return {node for each in self if each.excludes(key, priority) for node in each.nodes}

    def rows_against(self, gang: Gang, row_of: Mapping[str, int], rows: int) -> NDArray[np.bool_] | None:
        """Return a mask of the rows that are reserved against a gang; None if no reservation bars it.

        row_of: node -> row. rows: the number of rows.
        """
        mask: NDArray[np.bool_] | None = None
        for each in self:
            if each.excludes(gang.key, gang.priority):
                mask = np.zeros(rows, np.bool_) if mask is None else mask
                mask[self._rows_of(each, row_of)] = True
        return mask

    def _rows_of(self, reservation: Reservation, row_of: Mapping[str, int]) -> NDArray[np.intp]:
        """Return the rows of a reservation's nodes, cached until `clear_rows`. Unknown nodes are left out.

        row_of: node -> row.
        """
        rows = self._rows.get(reservation.holder)
        if rows is None:
            rows = np.array([row for node in reservation.nodes if (row := row_of.get(node)) is not None], np.intp)
            self._rows[reservation.holder] = rows
        return rows


def add_reservation(reservation: Reservation | None, gang: Gang, detail: str) -> str:
    """Return the detail of a gang's refusal, followed by "; " and for whom nodes are reserved.

    reservation: that excludes the gang; None returns `detail` unchanged.
    """
    return detail if reservation is None else f"{detail}; {reservation.text_for(gang.key.namespace)}"


@dataclass(frozen=True, slots=True)
class KeptDomain:
    """A domain that strict order keeps for a gang."""

    reservation: Reservation  # for the oldest waiting gang of the queue
    rows: slice | NDArray[np.intp] = field(compare=False)  # the rows of its nodes


def mark_domain(domain: KeptDomain | None, rows: int) -> NDArray[np.bool_] | None:
    """Return a mask of the rows of a domain that is kept; None if there is no such domain. rows: length of the mask."""
    if domain is None:
        return None
    mask = np.zeros(rows, np.bool_)
    mask[domain.rows] = True
    return mask


class StrictOrder:
    """The domains kept, by queue. Clear them when the rows stand for other hosts."""

    def __init__(self, named: frozenset[str]) -> None:
        self.queues = StrictQueues(named)
        self._domains: dict[str, KeptDomain] = {}
        self._offer_version = 0  # of the snapshot when the domains were chosen last

    def queue_of(self, gang: Gang) -> str:
        """Return the queue of strict order that the gang is in; "" for none."""
        return self.queues.of(gang.key.namespace, gang.queue)

    def keep_domain_for(self, view: ClusterView, gang: Gang) -> bool:
        """Keep a domain for a gang that found no room, unless its queue keeps a domain for a gang ahead of it.

        Return True if the domain of the queue has changed: a first one, another one, or none any more. False for a
        queue without strict order.
        """
        queue = self.queue_of(gang)
        if not queue or self._keeps_for_gang_ahead(view, queue, gang):
            return False
        before = self._domains.get(queue)
        if (domain := _choose_domain(view, gang)) is not None:
            self._domains[queue] = domain
        elif before is not None and before.reservation.holder == gang.key:
            del self._domains[queue]
        return before != self._domains.get(queue)

    def _keeps_for_gang_ahead(self, view: ClusterView, queue: str, gang: Gang) -> bool:
        """Return True if a queue keeps a domain for a gang ahead of this one."""
        domain = self._domains.get(queue)
        oldest = None if domain is None else view.gangs.get(domain.reservation.holder)
        return (
            oldest is not None and position_of(view, oldest).first_needed_key < position_of(view, gang).first_needed_key
        )

    def choose_again(self, view: ClusterView) -> bool:
        """Choose every domain again if nodes have changed.

        Return True if any domain is another one now or is not kept any more.
        """
        if self._offer_version == view.snapshot.offer_version:
            return False
        self._offer_version, before = view.snapshot.offer_version, dict(self._domains)
        for queue, domain in before.items():
            gang = view.gangs.get(domain.reservation.holder)
            chosen = None if gang is None else _choose_domain(view, gang)
            if chosen is None:
                del self._domains[queue]
            else:
                self._domains[queue] = chosen
        return self._domains != before

    def release(self, key: GangKey) -> bool:
        """Release the domains that are kept for a gang, in any queue. Return True if there was one."""
        queues = [queue for queue, domain in self._domains.items() if domain.reservation.holder == key]
        for queue in queues:
            del self._domains[queue]
        return bool(queues)

    def domain_against(self, gang: Gang) -> KeptDomain | None:
        """Return the domain that is kept in the gang's queue for another gang; None if there is none."""
        domain = self._domains.get(self.queue_of(gang))
        return None if domain is None or domain.reservation.holder == gang.key else domain

    def clear(self) -> None:
        """Release all domains."""
        self._domains.clear()


def _choose_domain(view: ClusterView, gang: Gang) -> KeptDomain | None:
    """Return the domain to keep for a gang: of the lowest tier that could hold its min if empty, the one with most free
    room.

    None if no domain could hold the gang, if a member holds a host, if no member is to be placed by us, or without a
    map.
    """
    members = [member for member in gang.living() if not member.no_opinion_reason or is_planned(member, gang)]
    if not members or not view.fabric.mapped_count or any(view.host_of(member) is not None for member in members):
        return None
    shape = max(members, key=lambda member: (member.gpus, member.shape.requests)).shape
    fabric = view.fabric
    could, now = np.where(fabric.mapped, view.snapshot.room_when_empty(shape), 0), view.snapshot.room(shape)
    if (outside := view.levels.rows_outside(gang.terms.levels)) is not None:
        could, now = np.where(outside, 0, could), np.where(outside, 0, now)
    need = max(1, gang.min_pods)
    widest = fabric.tiers if gang.tier is None else min(gang.tier, fabric.tiers)
    for tier in range(1, widest + 1):
        fits = np.add.reduceat(could, fabric.starts[tier], dtype=np.int64) >= need
        if fits.any():
            free = np.add.reduceat(now, fabric.starts[tier], dtype=np.int64)
            switch = int(np.where(fits, free, -1).argmax())
            return _domain_kept_for(view, gang, slice(*fabric.span(tier, switch)), _place_text(fabric, tier, switch))
    domains = view.levels.label_domains(gang.terms.required_levels)
    return None if domains is None else _choose_label_domain(view, gang, domains, could, now)


def _choose_label_domain(
    view: ClusterView, gang: Gang, domains: LabelDomains, could: Rows, now: Rows
) -> KeptDomain | None:
    """Return the domain of node labels to keep, for a gang that no switch could hold; None if no such domain could.

    Of the domains that could hold the gang's min if they were empty, it is the one with most room now, then the first.
    could: the pods that each row could hold if it were empty. now: the pods for which each row has room now.
    """
    rows = np.flatnonzero(domains.row_domains >= 0)
    numbers = domains.row_domains[rows]
    fits = np.bincount(numbers, weights=could[rows]) >= max(1, gang.min_pods)
    if not fits.any():
        return None
    free = np.bincount(numbers, weights=now[rows])
    inside = rows[numbers == int(np.where(fits, free, -1).argmax())]
    names = ", ".join(str(level)[:80] for level in domains.levels)[:120]
    return _domain_kept_for(view, gang, inside, f"of {len(inside)} hosts with one value of {names}")


def _domain_kept_for(view: ClusterView, gang: Gang, rows: slice | NDArray[np.intp], place: str) -> KeptDomain:
    """Return a domain that is kept for a gang. place: where it is, for a sentence.

    rows: of the domain.
    """
    hosts = view.fabric.hosts
    nodes = hosts[rows] if isinstance(rows, slice) else tuple(hosts[row] for row in rows.tolist())
    return KeptDomain(
        Reservation(gang.key, nodes, ReservationReason.STRICT_ORDER, gang.priority, place_text=place), rows
    )


def _place_text(fabric: Fabric, tier: int, switch: int) -> str:
    """Return the name and tier of a switch as part of a sentence."""
    path = fabric.names[tier][switch]
    return f"at {path_text(path if path[-1] else path[:-1])}" if any(path) else "on the whole map"
