"""Every queue there is, and what each may have now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from turnout.jobs.queues import koordinator, kueue, namespace, volcano
from turnout.jobs.queues.model import Amounts, Demand, Dialect, QueueSpec, Share
from turnout.jobs.queues.quota_accounting import room

NOTHING_ASKED: Mapping[str, Amounts] = {}


def shares(queues: Iterable[QueueSpec], demand: Demand) -> dict[str, Share]:
    """The share of each queue, and of what bounds several together, by name. Two of one name are both at fault."""
    of: dict[Dialect, list[QueueSpec]] = {dialect: [] for dialect in Dialect}
    for queue in queues:
        of[queue.dialect].append(queue)
    found: dict[str, Share] = {}
    for dialect, told in (
        (volcano, of[Dialect.VOLCANO]),
        (koordinator, of[Dialect.KOORDINATOR]),
        (kueue, of[Dialect.KUEUE]),
        (namespace, of[Dialect.NAMESPACE]),
    ):
        more = _of_its_own(dialect.shares(told, demand))
        twice = found.keys() & more.keys()
        found |= more
        for name in twice:
            found[name] = replace(found[name], faults=(*found[name].faults, f"two queues are called {name}"))
    return _with_faults_above(found) if any(share.faults for share in found.values()) else found


def _of_its_own(found: dict[str, Share]) -> dict[str, Share]:
    """Take away what is above a share where its own system has none of that name: another's is not meant."""
    return {
        name: replace(share, within="") if share.within and share.within not in found else share
        for name, share in found.items()
    }


def _with_faults_above(found: dict[str, Share]) -> dict[str, Share]:
    """Add to each share the faults of all above it: a bound that cannot be read leaves all below without one."""
    told: dict[str, Share] = {}
    for name, share in found.items():
        faults, at, seen = list(share.faults), share.within, {name}
        while at in found and at not in seen:
            seen.add(at)
            faults += [f"{at}: {why}" for why in found[at].faults]
            at = found[at].within
        told[name] = replace(share, faults=tuple(faults))
    return told


def limits(
    queues: Iterable[QueueSpec],
    used: Mapping[str, Amounts],
    total: Amounts,
    asked: Mapping[str, Amounts] = NOTHING_ASKED,
) -> dict[str, dict[str, int]]:
    """Work out what each queue's pods may ask for together now, by resource: what they use, and what is left."""
    queues = list(queues)
    found = shares(queues, Demand(used, asked, total))
    return {
        name: {what: found[name].used.get(what, 0) + (room(found, name, what) or 0) for what in found[name].limit}
        for name in (queue.name for queue in queues)
    }
