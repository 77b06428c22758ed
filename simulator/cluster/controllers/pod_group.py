"""Control Volcano's PodGroups: queued once the cluster has room for their min, running once that many pods run.

Source: docs/facts/schedulers.md 3.3. Volcano's scheduler writes these phases; shares of queues are not considered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnout.simulator.cluster.controllers.model import Look, Object, Tell, amounts_of, is_leaving, phase

GROUPS = "podgroups.scheduling.volcano.sh"


def look(group: Object, pods: Sequence[Object], free: Mapping[str, int]) -> Look:
    """Return the status that a PodGroup needs.

    pods: its members. free: what the whole cluster has free, in thousandths.
    """
    before: Object = group.get("status") or {}
    counts = {word: sum(phase(pod) == word.capitalize() for pod in pods) for word in ("running", "succeeded", "failed")}
    status: Object = {"phase": _phase(group, pods, free), **counts}
    changed = {key: value for key, value in status.items() if before.get(key, 0) != value}
    return Look([Tell(GROUPS, group, {"status": changed})] if changed else [])


def _phase(group: Object, pods: Sequence[Object], free: Mapping[str, int]) -> str:
    least = group["spec"].get("minMember", 0)
    now = (group.get("status") or {}).get("phase") or "Pending"
    living = [pod for pod in pods if not is_leaving(pod)]
    done = sum(phase(pod) in ("Running", "Succeeded") for pod in living)
    if living and all(phase(pod) in ("Succeeded", "Failed") for pod in living):
        return "Completed"
    if living and done >= least:
        return "Running"
    if now != "Pending":
        return "Inqueue"
    pod_infos = amounts_of(group["spec"].get("minResources") or {})
    return "Inqueue" if all(amount <= free.get(resource, 0) for resource, amount in pod_infos.items()) else "Pending"
