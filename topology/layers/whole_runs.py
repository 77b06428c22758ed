"""Place the runs of a new gang by the fewest switches of all tiers, in room that is cut to whole runs.

Where all used switches but the last are filled, their pods are whole runs. Where they are not, what is over is taken
from them and placed elsewhere, a few times. nested.py places in another way what finds no place so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from turnout.topology.fabric import Fabric, under
from turnout.topology.model import Ask, Placement, Refusal
from turnout.topology.multiples import gathered, in_multiples

Room = npt.NDArray[np.int32]
_MAX_HOSTS = 2_048  # looked at in a tier, each once a try: larger domains are left to nested.py
_MAX_MENDS = 6  # times


def by_whole_runs(fabric: Fabric, room: Room, ask: Ask) -> Placement | None:
    """Place a gang without members so far, in the lowest domain; None where no such place was found.

    room: as for plan(). ask: with a layer at least. Of domains of one tier the one with the fewest switches is chosen.
    """
    usable_room = _room_in_whole_runs(fabric, room, ask)
    widest = fabric.tiers if ask.widest_tier is None else min(ask.widest_tier, fabric.tiers)
    for tier in range(ask.layers[-1][0], widest + 1):
        found: list[tuple[int, Placement]] = []
        left = _MAX_HOSTS
        for switch in _domains(fabric, usable_room, ask.pods, tier):
            first, end = fabric.span(tier, switch)
            tries = min(_MAX_MENDS, left // (end - first))
            if not tries:
                break
            left -= tries * (end - first)
            candidate = _inside(fabric, usable_room, ask, tier, switch, tries)
            if candidate is not None:
                found.append(candidate)
        if found:
            return min(found, key=lambda each: each[0])[1]
    return None


def _domains(fabric: Fabric, usable_room: Room, pods: int, tier: int) -> Iterator[int]:
    """Yield the switches of a tier that hold all pods, the tightest first."""
    sums = np.add.reduceat(usable_room, fabric.starts[tier], dtype=np.int64)
    fits = np.flatnonzero(sums >= pods)
    yield from (switch for switch in fits[np.argsort(sums[fits], kind="stable")].tolist()
                if fabric.starts[tier][switch] < fabric.mapped_count)  # fmt: skip


def _inside(
    fabric: Fabric, usable_room: Room, ask: Ask, tier: int, switch: int, tries: int
) -> tuple[int, Placement] | None:
    """Return the switches that a domain's placement uses, and the placement."""
    first, end = fabric.span(tier, switch)
    domain = fabric if tier == fabric.tiers else _under(fabric, tier, switch)
    liking = None if ask.liking is None else ask.liking[first:end]
    inner = Ask(ask.pods, ask.pods, max(ask.most, ask.pods), ask.multiple, None, (), ask.rule, liking=liking)
    layers = [layer for layer in ask.layers if layer[0] < domain.tiers]
    left = usable_room[first:end].copy()
    for _ in range(tries):
        found = in_multiples(domain, left, inner)
        if isinstance(found, Refusal) or found.pods < ask.pods:
            return None
        counts = np.zeros(len(left), np.int32)
        for host, pods in found.slots:
            counts[host] = pods
        if not _mend(domain, left, counts, layers, ask.pods):
            slots = [(host + first, pods) for host, pods in found.slots]
            used = sum(len(np.unique(domain.switch_of[at][counts > 0])) for at in range(1, domain.tiers + 1))
            return used, gathered(fabric, slots, replace(ask, layers=()))
    return None


def _mend(domain: Fabric, left: Room, counts: Room, layers: list[tuple[int, int]], pods: int) -> bool:
    """Keep under each switch with a run cut short its whole runs alone. True if there was one too many.

    Changes `left`. The last run of a layer may be short where the gang's pods are no multiple, so one is spared.
    """
    broken = False
    for tier, size in layers:
        sums = np.add.reduceat(counts, domain.starts[tier])
        odd = np.flatnonzero(sums % size)
        odd = odd[np.argsort(sums[odd] % size, kind="stable")][: len(odd) - (pods % size > 0)]
        if len(odd) and pods % size == 0 and len(odd) > 1:
            odd = odd[:-1]  # the one that lacks least may be completed by what the others lose
        for switch in odd.tolist():
            broken = True
            first, end = domain.span(tier, switch)
            left[first:end] = _limit_room(counts[first:end], int(sums[switch]) // size * size)
    return broken


def _limit_room(room: Room, most: int) -> Room:
    """Return the room of the first places, up to `most` pods."""
    before = np.cumsum(room) - room
    limited: Room = np.clip(most - before, 0, room).astype(np.int32)
    return limited


def _room_in_whole_runs(fabric: Fabric, room: Room, ask: Ask) -> Room:
    """Return the room of hosts, cut so that each switch of a layer holds whole runs."""
    tier, size = ask.layers[-1]
    usable = room // ask.multiple * ask.multiple
    units = np.add.reduceat(usable, fabric.starts[tier]) // size
    for outer, run_size in reversed(ask.layers[:-1]):
        _cut(units, fabric.switch_of[tier][fabric.starts[outer]], run_size // size)
    if ask.pods % size:
        return usable  # the last run is short, and may be anywhere
    before_host = np.cumsum(usable, dtype=np.int64) - usable
    before = before_host - before_host[fabric.starts[tier]][fabric.switch_of[tier]]
    limited: Room = np.clip(units[fabric.switch_of[tier]].astype(np.int64) * size - before, 0, usable).astype(np.int32)
    return limited


def _cut(units: Room, starts: npt.NDArray[np.int32], multiple: int) -> None:
    """Take room away, the smallest holes first, until the switches from each start on hold a multiple of `whole`."""
    over = np.add.reduceat(units, starts) % multiple
    for at in np.flatnonzero(over).tolist():
        end = int(starts[at + 1]) if at + 1 < len(starts) else len(units)
        switch_units, left = units[int(starts[at]) : end], int(over[at])
        for hole in np.argsort(switch_units, kind="stable").tolist():
            removed = min(left, int(switch_units[hole]))
            switch_units[hole] -= removed
            left -= removed


_under = lru_cache(maxsize=512)(under)
