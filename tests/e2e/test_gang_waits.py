"""Gangs that wait, are refused or go first, on a real kube-scheduler and API server."""

from __future__ import annotations

import asyncio
import time

import pytest

from hack.controlplane import scheduler_config
from hack.controlplane.errors import ApiError
from tests.e2e.stories import PODS, bound_now, create_priority_class, refused, remove
from tests.kit import cluster
from tests.kit.published_crds import published
from turnout.kube import labels

pytestmark = [pytest.mark.real, pytest.mark.asyncio]
REQUIRED = {labels.TOPOLOGY: "required"}
KOORD = "koord-scheduler"
GUIDE = {"scheduleTimeoutSeconds": 100, "minMember": 4}


def hold(stage):
    """Start an extender that holds incomplete gangs, and a scheduler that calls itself koord-scheduler."""
    stage.start_extender("extender", "--hold-incomplete-gangs")
    stage.start_scheduler(shipped=scheduler_config.SHIPPED_KOORDINATOR)


async def test_a_required_gang_that_fits_no_leaf_is_refused_and_told_why(stage):
    await stage.build(leaves=3, hosts_per_leaf=4)
    stage.start_extender()
    stage.start_scheduler()
    await stage.submit(*cluster.koordinator_gang("wide", 5, notes=REQUIRED))
    await refused(stage, "wide", 5)
    (event, *_) = await stage.events("TierTooNarrow")
    assert event["involvedObject"]["kind"] == "Pod"
    assert event["involvedObject"]["name"].startswith("wide-")
    assert "no switch of tier 1 or below holds 5 pods" in event["message"]
    assert await bound_now(stage, "wide") == {}


async def test_of_two_gangs_of_eight_in_room_for_twelve_one_runs_and_one_waits(stage):
    await stage.build(leaves=3, hosts_per_leaf=4)
    one, other = cluster.koordinator_gang("one", 8), cluster.koordinator_gang("two", 8)
    await stage.submit(*[pod for pair in zip(one, other, strict=True) for pod in pair])
    stage.start_extender()  # who looks earlier may place the first pod of a gang before it has seen a second
    stage.start_scheduler()
    async with stage.plane.api() as api:
        await api.until(PODS, cluster.bound(8), 20)
        await api.until(PODS, lambda pods: len(cluster.unschedulable(8)(pods) or ()) >= 8, 20)
    assert sorted([len(await bound_now(stage, "one")), len(await bound_now(stage, "two"))]) == [0, 8]
    ran, waited = ("one", "two") if await bound_now(stage, "one") else ("two", "one")
    await remove(stage, ran, 8)
    assert len(await stage.landed(waited, 8, within_s=20)) == 8


async def test_a_more_important_required_gang_preempts_and_lands_under_one_leaf(stage):
    await stage.build(leaves=3, hosts_per_leaf=4)
    stage.start_extender()
    stage.start_scheduler()
    async with stage.plane.api() as api:
        await create_priority_class(api, "high", 1000)
    await stage.submit(*cluster.volcano_gang("low", 12))
    await stage.landed("low", 12)
    high = cluster.koordinator_gang("high", 4, notes=REQUIRED, priorityClassName="high")
    await stage.submit(*high)
    node_by_pod = await stage.landed("high", 4, within_s=25)
    assert len(stage.leaves(node_by_pod)) == 1
    assert len(await bound_now(stage, "low")) == 8


@pytest.mark.contract("DL-127", "DL-129")
async def test_a_koordinator_gang_stays_pending_until_its_min_exists(stage):
    """DL-127, DL-128, DL-129: min 4 with 2 replicas; the master is no member and runs."""
    await stage.build(leaves=2, hosts_per_leaf=4)
    pods = cluster.koordinator_gang("bert", 4, scheduler=KOORD)
    await stage.submit(cluster.make_pod("bert-master", 0, scheduler=KOORD, marks={"gang": "master"}), *pods[:2])
    hold(stage)  # who looks earlier may refuse the first pod before there is a second
    await stage.landed("master", 1)
    messages = await refused(stage, "bert", 2)
    assert all("GangIncomplete: 2 of 4 members exist" in message for message in messages.values())
    await stage.events("GangIncomplete")
    await asyncio.sleep(2)
    assert await bound_now(stage, "bert") == {}
    await stage.submit(*pods[2:])
    since_s = time.monotonic()
    node_by_pod = await stage.landed("bert", 4, within_s=15)
    print(f"all four bound {time.monotonic() - since_s:.1f} s after the last was created")
    assert len(stage.leaves(node_by_pod)) == 1


@pytest.mark.contract("DL-128")
async def test_a_koordinator_gang_whose_numbers_are_lowered_runs(stage):
    await stage.build(leaves=2, hosts_per_leaf=4)
    hold(stage)
    await stage.submit(*cluster.koordinator_gang("bert", 2, minimum=2, scheduler=KOORD))
    assert len(await stage.landed("bert", 2, within_s=15)) == 2


@pytest.mark.contract("DL-125")
async def test_the_podgroup_of_the_guide_holds_its_gang(stage):
    """DL-125: koordinator's own CRD where it is at hand, else ours of the same name."""
    await stage.build(leaves=2, hosts_per_leaf=4)
    await stage.submit(published("koordinator", "scheduling.sigs.k8s.io_podgroups"))
    async with stage.plane.api() as api:
        await api.until("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", established)
    group = cluster.pod_group("koordinator", "bert", 4)
    group["spec"] = dict(GUIDE)
    await stage.submit(group)
    hold(stage)
    members = cluster.koordinator_gang("bert", 4, scheduler=KOORD)
    for pod in members:
        del pod["metadata"]["annotations"][labels.KOORD_MIN]  # the PodGroup alone says it
    await stage.submit(*members[:2])
    await refused(stage, "bert", 2)
    await stage.submit(*members[2:])
    assert len(await stage.landed("bert", 4, within_s=15)) == 4


@pytest.mark.contract("CS-11", "DL-123")
async def test_a_numeric_annotation_is_refused_by_the_api_server(stage):
    """DL-123: the upstream page writes it unquoted."""
    pod = cluster.koordinator_gang("bert", 1)[0]
    pod["metadata"]["annotations"][labels.KOORD_MIN] = 4
    async with stage.plane.api() as api:
        with pytest.raises(ApiError, match="annotations of type string") as refusal:
            await api.create(pod)
    assert refusal.value.status == 400


def established(crds):
    """True if there are CRDs and all of them are served."""
    return crds and all(
        any(c["type"] == "Established" and c["status"] == "True" for c in crd["status"].get("conditions") or ())
        for crd in crds
    )
