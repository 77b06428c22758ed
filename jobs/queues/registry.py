"""The shares of all queues of all dialects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from turnout.jobs.queues import koordinator, kueue, namespace, volcano
from turnout.jobs.queues.model import Amounts, Demand, Queue, QueueDialect, QueueSpec
from turnout.jobs.queues.quota_accounting import room

NO_NEEDS: Mapping[str, Amounts] = {}


def shares(queues: Iterable[QueueSpec], demand: Demand) -> dict[str, Queue]:
    """Return the share of each queue by name, and of limits on several queues. Duplicate names are a fault of both."""
    by_dialect: dict[QueueDialect, list[QueueSpec]] = {dialect: [] for dialect in QueueDialect}
    for queue in queues:
        by_dialect[queue.dialect].append(queue)
    found: dict[str, Queue] = {}
    for dialect, dialect_queues in (
        (volcano, by_dialect[QueueDialect.VOLCANO]),
        (koordinator, by_dialect[QueueDialect.KOORDINATOR]),
        (kueue, by_dialect[QueueDialect.KUEUE]),
        (namespace, by_dialect[QueueDialect.NAMESPACE]),
    ):
        dialect_shares = _drop_foreign_parents(dialect.shares(dialect_queues, demand))
        duplicates = found.keys() & dialect_shares.keys()
        found |= dialect_shares
        for name in duplicates:
            found[name] = replace(found[name], faults=(*found[name].faults, f"two queues are called {name}"))
    return _with_faults_above(found) if any(share.faults for share in found.values()) else found


def _drop_foreign_parents(found: dict[str, Queue]) -> dict[str, Queue]:
    """Return the shares without parents of another dialect: a name refers to its own dialect."""
    return {
        name: replace(share, parent="") if share.parent and share.parent not in found else share
        for name, share in found.items()
    }


def _with_faults_above(found: dict[str, Queue]) -> dict[str, Queue]:
    """Return the shares with the faults of all ancestors, because an unreadable limit affects the whole subtree."""
    complete: dict[str, Queue] = {}
    for name, share in found.items():
        faults, at, visited = list(share.faults), share.parent, {name}
        while at in found and at not in visited:
            visited.add(at)
            faults += [f"{at}: {why}" for why in found[at].faults]
            at = found[at].parent
        complete[name] = replace(share, faults=tuple(faults))
    return complete


def limits(
    queues: Iterable[QueueSpec],
    used: Mapping[str, Amounts],
    total: Amounts,
    needed: Mapping[str, Amounts] = NO_NEEDS,
) -> dict[str, dict[str, int]]:
    """Return what each queue's pods may use together, by resource: their use and the remaining room."""
    queues = list(queues)
    found = shares(queues, Demand(used, needed, total))
    return {
        name: {what: found[name].used.get(what, 0) + (room(found, name, what) or 0) for what in found[name].limit}
        for name in (queue.name for queue in queues)
    }
