"""Every queue there is, and what each may have now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jobs.queues import koordinator, kueue, volcano
from jobs.queues.model import Amounts, Dialect, QueueSpec


def limits(queues: Iterable[QueueSpec], used: Mapping[str, Amounts], total: Amounts) -> dict[str, dict[str, int]]:
    """What each queue's pods may ask for together, by resource. used: by queue. total: of all nodes."""
    of: dict[Dialect, list[QueueSpec]] = {dialect: [] for dialect in Dialect}
    for queue in queues:
        of[queue.dialect].append(queue)
    return {
        **{queue.name: dict(queue.capability) for queue in of[Dialect.NAMESPACE]},
        **volcano.limits(of[Dialect.VOLCANO], total),
        **koordinator.limits(of[Dialect.KOORDINATOR], used),
        **kueue.limits(of[Dialect.KUEUE], used),
    }
