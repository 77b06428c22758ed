"""Which pods a scheduler could bind if there were room: claims of volumes."""

from __future__ import annotations

import pytest

from turnout.autoscaler.observe.job_pods import SCHEDULERS, drop_unused_fields, unbindable_reason
from turnout.kube.objects import ObjectMeta, Pod, PodCondition, PodSpec, PodStatus

CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
NO_CLAIM = '0/8 nodes are available: persistentvolumeclaim "data" not found. preemption: 0/8 nodes are available'
NO_GPU = "0/8 nodes are available: 8 Insufficient nvidia.com/gpu."
NOT_YET = "pod a claims a volume, and its scheduler has not looked for it yet"
MISSING = "pod a claims volume 'data', which is not there"


def pod(volumes, message, scheduler="", reason="Unschedulable"):
    conditions = (
        [PodCondition(type="PodScheduled", status="False", reason=reason, message=message)] if message else None
    )
    spec = PodSpec(scheduler_name=scheduler, volumes=volumes)
    return drop_unused_fields(Pod(metadata=ObjectMeta(name="a"), spec=spec, status=PodStatus(conditions=conditions)))


@pytest.mark.parametrize(("is_waiting", "why"), [
    pytest.param(pod(None, ""), "", id="without a claim it need not be looked at first"),
    pytest.param(pod([{"name": "tmp", "emptyDir": {}}], ""), "", id="other volumes are no claims"),
    pytest.param(pod([CLAIM], NO_GPU), "", id="a claim that its scheduler has not missed is there"),
    pytest.param(pod([CLAIM], NO_CLAIM), MISSING, id="no room helps a pod whose claim is not there"),
    pytest.param(pod([CLAIM], ""), NOT_YET, id="nothing is known of a claim before its scheduler has looked"),
    pytest.param(pod([CLAIM], "", "koord-scheduler"), NOT_YET, id="koordinator's scheduler looks at once, too"),
    pytest.param(pod([CLAIM], "", "volcano"), "", id="Volcano may look at it only when there is room"),
    pytest.param(pod([CLAIM], NO_CLAIM, "volcano"), MISSING, id="what Volcano says is heard"),
    pytest.param(pod([CLAIM], NO_GPU, reason="SchedulerError"), NOT_YET, id="a scheduler's own error is no look"),
    pytest.param(pod([{"persistentVolumeClaim": None}], NO_GPU), "", id="a claim without a name raises nothing"),
])  # fmt: skip
def test_a_pod_whose_claim_is_missing_makes_no_room(is_waiting, why):
    assert unbindable_reason(is_waiting, SCHEDULERS) == why
