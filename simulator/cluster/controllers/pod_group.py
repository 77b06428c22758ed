"""Control Volcano's PodGroups: queued once the cluster has room for their min, running once that many pods run.

Source: docs/facts/schedulers.md 3.3. Volcano's scheduler writes these phases; shares of queues are not considered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnout.simulator.cluster.controllers.model import (
    ControllerResult,
    Object,
    PatchWrite,
    amounts_of,
    is_terminating,
    phase,
)

GROUPS = "podgroups.scheduling.volcano.sh"


def reconcile_group(group: Object, pods: Sequence[Object], free: Mapping[str, int]) -> ControllerResult:
    """Return the status write that a PodGroup of Volcano needs; no write if nothing changed.

    pods: its members. free: what all nodes together have free, in thousandths, by resource. Raises BadQuantity if its
    minResources cannot be read.
    """
    before: Object = group.get("status") or {}
    counts = {word: sum(phase(pod) == word.capitalize() for pod in pods) for word in ("running", "succeeded", "failed")}
    status: Object = {"phase": _phase(group, pods, free), **counts}
    changed = {key: value for key, value in status.items() if before.get(key, 0) != value}
    return ControllerResult([PatchWrite(GROUPS, group, {"status": changed})] if changed else [])


def _phase(group: Object, pods: Sequence[Object], free: Mapping[str, int]) -> str:
    """Return the phase of a PodGroup: Completed, Running, Inqueue or Pending.

    Members that are being deleted do not count. Completed: all have ended. Running: at least minMember run or have
    succeeded. Else it stays Pending until its minResources fit into `free`; from then on it is Inqueue, whatever is
    free. pods: its members. free: as for reconcile_group().
    """
    phases = [phase(pod) for pod in pods if not is_terminating(pod)]
    if phases and {*phases} <= {"Succeeded", "Failed"}:
        return "Completed"
    if phases and phases.count("Running") + phases.count("Succeeded") >= group["spec"].get("minMember", 0):
        return "Running"
    requested = amounts_of(group["spec"].get("minResources") or {})
    fits = all(amount <= free.get(resource, 0) for resource, amount in requested.items())
    is_pending = ((group.get("status") or {}).get("phase") or "Pending") == "Pending"
    return "Pending" if is_pending and not fits else "Inqueue"
