"""A plain namespace with a ResourceQuota, as the queue of jobs that name none."""

from __future__ import annotations

from jobs.queues.model import NAMESPACE, Dialect, Object, QueueSpec, amounts

_ASKED = "requests."


def read(raw: Object) -> QueueSpec:
    """A ResourceQuota: its `requests.X`, else `X`, is the limit."""
    hard, faults = (raw.get("spec") or {}).get("hard") or {}, list[str]()
    asked = {name.removeprefix(_ASKED): value for name, value in hard.items() if not name.startswith("limits.")}
    name = NAMESPACE + raw["metadata"]["namespace"]
    return QueueSpec(name, Dialect.NAMESPACE, amounts(asked, "spec.hard", faults), faults=tuple(faults))
