"""Whether a scheduler can bind a pod now, as far as the pod itself shows it.

A tenant writes a pod's spec; its conditions are written by schedulers alone. What neither shows, a volume that is
missing or an affinity to nobody, comes out by the room that stays unused: autoscaler/scaling/unused_room.py.
"""

from __future__ import annotations

from collections.abc import Collection

from turnout.kube.labels import PLACEMENT_GATE
from turnout.kube.objects import Pod

USUAL_SCHEDULER = "default-scheduler"  # where a pod names none, as the API server has it
SCHEDULERS = (USUAL_SCHEDULER, "volcano", "koord-scheduler")


def unbindable(pod: Pod, schedulers: Collection[str]) -> str:
    """Why no scheduler binds this pod now, "" when one may. schedulers: those that are known to run here.

    Our own gate is no reason: it is lifted as soon as the gang has room.
    """
    if any(gate != {"name": PLACEMENT_GATE} for gate in pod.spec.scheduling_gates or ()):
        return f"pod {pod.metadata.name} waits behind a scheduling gate"
    name = pod.spec.scheduler_name or USUAL_SCHEDULER
    if name not in schedulers and not _looked_at(pod):
        return f"pod {pod.metadata.name} waits for scheduler {name[:63]!r}, which has never looked at it"
    return ""


def _looked_at(pod: Pod) -> bool:
    """True if a scheduler has said that it found no node for the pod. Nobody else may write conditions."""
    told = (each for each in pod.status.conditions or () if each.type == "PodScheduled")
    return any(each.status == "False" and each.reason == "Unschedulable" for each in told)
