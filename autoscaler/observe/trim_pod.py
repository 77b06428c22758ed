"""Pods without what an autoscaler never asks about: tens of thousands of them are held at once."""

from __future__ import annotations

from turnout.kube.objects import Pod

_ASKED = ("PET_NNODES", "PET_NPROC_PER_NODE", "WORLD_SIZE")  # where a gang's size may stand


def slim(pod: Pod) -> Pod:
    """Drop from a pod, in place, what no decision reads. Nobody else may hold the pod yet."""
    pod.spec.volumes = None
    for container in (*pod.spec.containers, *(pod.spec.init_containers or ())):
        if container.env:
            container.env = [each for each in container.env if each.name in _ASKED] or None
    return pod
