"""Tells whether a scheduler can bind a pod now, as far as the pod shows it.

A tenant writes a pod's spec; only schedulers write its conditions. Other obstacles, such as an affinity that no pod
matches, show by room that stays unused: autoscaler/scaling/unused_room.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from turnout.kube.labels import PLACEMENT_GATE
from turnout.kube.objects import Pod

USUAL_SCHEDULER = "default-scheduler"  # where a pod names none, as the API server has it
SCHEDULERS = (USUAL_SCHEDULER, "volcano", "koord-scheduler")
# kube-scheduler looks for claims before it looks at any node, so it says this however few GPUs are free.
_NO_CLAIM = re.compile(r'persistentvolumeclaim "([^"]{1,253})" not found')
_LOOKS_AT_ONCE = (USUAL_SCHEDULER, "koord-scheduler")  # Volcano looks once a PodGroup may go on


def unbindable(pod: Pod, schedulers: Collection[str]) -> str:
    """Return why no scheduler binds this pod now, "" if one may. schedulers: those that run in this cluster.

    Our own gate is no reason, because it is removed as soon as the gang has room.
    """
    if any(gate != {"name": PLACEMENT_GATE} for gate in pod.spec.scheduling_gates or ()):
        return f"pod {pod.metadata.name} waits behind a scheduling gate"
    name = pod.spec.scheduler_name or USUAL_SCHEDULER
    if name not in schedulers and not _looked_at(pod):
        return f"pod {pod.metadata.name} waits for scheduler {name[:63]!r}, which has never looked at it"
    return _without_its_claim(pod, name)


def _without_its_claim(pod: Pod, scheduler: str) -> str:
    """Return why a pod waits for a volume claim, "" if it does not.

    A claim exists if the scheduler does not report it as missing.
    """
    if not any("persistentVolumeClaim" in volume for volume in pod.spec.volumes or ()):
        return ""
    message = _no_node(pod)
    if message is None:
        unseen = scheduler in _LOOKS_AT_ONCE
        return f"pod {pod.metadata.name} claims a volume, and its scheduler has not looked for it yet" if unseen else ""
    missing = _NO_CLAIM.search(message)
    return f"pod {pod.metadata.name} claims volume {missing[1]!r}, which is not there" if missing else ""


def _looked_at(pod: Pod) -> bool:
    """True if a scheduler has reported that it found no node for the pod."""
    return _no_node(pod) is not None


def _no_node(pod: Pod) -> str | None:
    """Return why a scheduler found no node for the pod; None if no scheduler has tried.

    Only schedulers write conditions.
    """
    conditions = (each for each in pod.status.conditions or () if each.type == "PodScheduled")
    return next(
        (each.message for each in conditions if each.status == "False" and each.reason == "Unschedulable"), None
    )
