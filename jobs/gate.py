"""Which pods get our scheduling gate, from a job controller or from the webhook of the chart."""

from __future__ import annotations

from collections.abc import Collection

from turnout.jobs.gang import Dialect, membership
from turnout.kube.errors import BadQuantity, TooComplex
from turnout.kube.labels import GPU_RESOURCES, PLACEMENT_GATE
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import shape_of


def wants_gate(pod: Pod, gpu_resources: Collection[str] = GPU_RESOURCES) -> bool:
    """True if a pod lacks our gate, requests an accelerator and belongs to a gang.

    False for a pod that cannot be read: the API server rejects it with its own message.
    """
    if any(each.get("name") == PLACEMENT_GATE for each in pod.spec.scheduling_gates or ()):
        return False
    try:
        return membership(pod).key.dialect != Dialect.ALONE.value and shape_of(pod).gpus(tuple(gpu_resources)) > 0
    except (BadQuantity, TooComplex):
        return False
