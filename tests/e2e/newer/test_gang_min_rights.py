"""The autoscaler's account on Kubernetes 1.37: of a PodGroup it may change minCount and our annotations only."""

from __future__ import annotations

import pytest

from hack.controlplane.errors import ApiError
from hack.controlplane.tools.parts import NEXT
from tests.deploy.test_autoscaler_account import NOT_OURS, guarded
from tests.deploy.test_autoscaler_installed import AUTOSCALER, SYSTEM, install
from tests.e2e.newer.test_native_resizes import GROUPS, SERVED
from tests.kit import cluster
from turnout.autoscaler.observe.native_gangs import patch_of, read_native_group

POLICY = "turnout-autoscaler-resizes-gang-mins-only"

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio,
    pytest.mark.parametrize(
        "control_plane", [{"release": NEXT, "apiserver_flags": SERVED}], indirect=True, ids=["1.37"]
    ),
]


async def test_of_a_pod_group_the_minimum_may_be_changed_and_nothing_else(control_plane):
    path = f"{GROUPS}/a"
    async with control_plane.api() as api:
        await install(api, "acting autoscaler")
        group = cluster.pod_group("native", "a", 4)
        group["metadata"]["annotations"] = {"kept": "by its owner"}
        stored = await api.create(group)
        async with control_plane.api(control_plane.service_account_token(SYSTEM, AUTOSCALER)) as autoscaler:
            await guarded(lambda: autoscaler.patch(f"{path}?dryRun=All", {"metadata": {"labels": {"a": "b"}}}), POLICY)
            for change in (*NOT_OURS, {"spec": {"priority": 7}}):
                with pytest.raises(ApiError):
                    await autoscaler.patch(path, change)
            for attempt in (lambda: autoscaler.delete(path), lambda: autoscaler.create(group)):
                with pytest.raises(ApiError, match="forbidden"):
                    await attempt()
            lowered = await autoscaler.patch(path, patch_of(read_native_group(stored), 2))
            assert lowered["spec"]["schedulingPolicy"]["gang"]["minCount"] == 2
            with pytest.raises(ApiError) as answer:  # written for a version that is gone
                await autoscaler.patch(path, patch_of(read_native_group(stored), 1))
            assert answer.value.status == 409
            raised = await autoscaler.patch(path, patch_of(read_native_group(lowered), 4))
        assert raised["metadata"]["annotations"] == {"kept": "by its owner"}
