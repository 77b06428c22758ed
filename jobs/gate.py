"""Which pods get our scheduling gate, whoever puts it there: a job controller, or the webhook of the chart."""

from __future__ import annotations

from collections.abc import Collection

from turnout.jobs.gang import Dialect, membership
from turnout.kube.errors import BadQuantity, TooComplex
from turnout.kube.labels import GPU_RESOURCES, PLACEMENT_GATE
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import shape_of


def wants_gate(pod: Pod, gpu_resources: Collection[str] = GPU_RESOURCES) -> bool:
    """True for a pod without our gate that asks for an accelerator and is read as a gang's member.

    An amount of 0 asks for none. A pod that cannot be read wants none: the API server tells what is wrong with it.
    """
    if any(each.get("name") == PLACEMENT_GATE for each in pod.spec.scheduling_gates or ()):
        return False
    try:
        return membership(pod).key.dialect != Dialect.ALONE.value and shape_of(pod).gpus(tuple(gpu_resources)) > 0
    except (BadQuantity, TooComplex):
        return False
