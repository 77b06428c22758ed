"""Gates on a real kube-scheduler that knows no extender: gangs are placed whole, or stay behind their gates."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from hack.controlplane.tools.parts import NEXT
from tests.e2e.stories import create_priority_class
from tests.kit import cluster
from turnout.kube import labels

pytestmark = [pytest.mark.real, pytest.mark.asyncio]
PODS = "/api/v1/namespaces/default/pods"
EMULATED = [
    pytest.param({}, id="1.35"),
    pytest.param({"emulated_version": "1.33"}, id="emulating 1.33", marks=pytest.mark.slow),
    pytest.param({"release": NEXT}, id="1.37"),
]
EACH = [EMULATED[0], pytest.param({"release": NEXT}, id="1.37", marks=pytest.mark.slow)]
GATE = [{"name": labels.PLACEMENT_GATE}]


def gang(name, size, **more):
    """A koordinator gang whose template carries the gate."""
    return cluster.koordinator_gang(name, size, schedulingGates=GATE, **more)


def gated(pods):
    """The names of the pods that are behind a gate."""
    return {pod["metadata"]["name"] for pod in pods if pod["spec"].get("schedulingGates")}


def being_deleted(pods, count):
    """The names of the pods that are being deleted, once they are so many."""
    found = {pod["metadata"]["name"] for pod in pods if pod["metadata"].get("deletionTimestamp")}
    return found if len(found) >= count else None


async def begin(stage, leaves=8, **more):
    """A cluster whose scheduler is the default one, and our nominator beside it."""
    await stage.build(leaves=leaves, **more)
    stage.plane.start_scheduler()
    stage.start_nominator("nominator", "--gates", "--lease-seconds", "4")


@pytest.mark.parametrize("control_plane", EMULATED, indirect=True)
@pytest.mark.parametrize(
    "apart_s", [pytest.param(0.0, id="together"), pytest.param(0.02, id="20 ms apart", marks=pytest.mark.slow)]
)
async def test_a_gated_gang_lands_under_one_leaf_without_an_extender(stage, apart_s):
    await begin(stage)
    pods = gang("bert", 8)
    stage.rng.shuffle(pods)
    async with stage.plane.api() as api:
        for pod in pods:
            await api.create(pod)
            await asyncio.sleep(apart_s)
    node_by_pod = await stage.landed("bert", 8)
    assert len(stage.leaves(node_by_pod)) == 1
    assert stage.ring(node_by_pod).total == 0
    obeyed = 'turnout_gate_bindings_total{as_nominated="true"}'
    await stage.eventually(lambda: stage.metric(obeyed, "nominator") == 8)
    assert stage.metric("turnout_gated_pods", "nominator") == 0


async def test_beside_an_extender_both_hold_one_plan(stage):
    await stage.build()
    stage.start_extender()
    stage.start_scheduler()
    stage.start_nominator("nominator", "--gates")
    await stage.submit(*gang("bert", 8), *gang("gpt", 4))
    node_by_pod = await stage.landed("bert", 8)
    assert len(stage.leaves(node_by_pod)) == 1
    assert len(stage.leaves(await stage.landed("gpt", 4))) == 1
    obeyed = 'turnout_gate_bindings_total{as_nominated="true"}'
    await stage.eventually(lambda: stage.metric(obeyed, "nominator") == 12)


async def test_a_gang_that_does_not_fit_stays_gated_and_goes_when_room_comes(stage):
    await begin(stage, leaves=1)
    stranger = cluster.make_pod("stranger", 8)
    async with stage.plane.api() as api:
        await api.create(stranger)
        await api.until(PODS, cluster.bound(1))
        await api.create_all(gang("bert", 8))
        await api.create_all(gang("gpt", 4))  # behind it, and it fits
        await api.until(PODS, cluster.bound(5))
        assert gated(await api.pods()) == {f"bert-{at}" for at in range(8)}
        for name in ("stranger", *(f"gpt-{at}" for at in range(4))):
            await api.delete(f"{PODS}/{name}")
        node_by_pod = await api.until(PODS, cluster.bound(8), within_s=10)
    assert len(set(node_by_pod.values())) == 8


@pytest.mark.parametrize("control_plane", EACH, indirect=True)
async def test_a_higher_priority_evicts_exactly_the_cheapest_gang_and_lands(stage):
    await stage.build(leaves=2)
    stage.plane.start_scheduler()
    stage.start_nominator("nominator", "--gates", "--preempt", "--lease-seconds", "4")
    async with stage.plane.api() as api:
        for priority, name in ((0, "cheap"), (5, "dear"), (9, "high")):
            await create_priority_class(api, name, priority)
        for name, size, of in (("big", 8, "dear"), ("cheap", 4, "cheap"), ("small", 4, "dear")):
            pods = gang(name, size, priorityClassName=of)
            for pod in pods if of == "cheap" else ():
                pod["metadata"]["finalizers"] = ["example.com/ends-slowly"]
            await api.create_all(pods)
            await stage.landed(name, size)
        await api.create_all(gang("low", 4, priorityClassName="cheap"))
        await api.create_all(gang("high", 4, priorityClassName="high"))
        cheap = {f"cheap-{at}" for at in range(4)}
        leaving = await api.until(PODS, lambda pods: being_deleted(pods, 4))
        assert leaving == cheap
        assert gated(await api.pods()) == {f"{name}-{at}" for name in ("low", "high") for at in range(4)}
        nodes = {each["spec"]["nodeName"] for each in await api.pods() if each["metadata"]["name"] in cheap}
        for name in sorted(cheap):
            await api.patch(f"{PODS}/{name}", {"metadata": {"finalizers": None}})
        node_by_pod = await stage.landed("high", 4)
        assert set(node_by_pod.values()) == nodes
        assert gated(await api.pods()) == {f"low-{at}" for at in range(4)}
        assert not [each for each in await api.pods() if each["metadata"].get("deletionTimestamp")]
    events = await stage.events("Preempted")
    assert {event["involvedObject"]["name"] for event in events} <= cheap


@pytest.mark.slow
async def test_members_that_never_come_are_told_and_the_rest_stays_gated(stage):
    await begin(stage, leaves=1)
    await stage.submit(*gang("bert", 8)[:7])
    (event,) = await stage.events("GangIncomplete", within_s=30)
    assert "7 of 8 members exist" in event["message"]
    async with stage.plane.api() as api:
        assert len(gated(await api.pods())) == 7


async def test_a_required_gang_is_let_go_to_its_hosts_and_to_no_others(stage):
    await begin(stage, leaves=2)
    hosts = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}
    own = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [hosts]}}}
    await stage.submit(*gang("bert", 8, notes={labels.TOPOLOGY: "required"}, affinity=own))
    node_by_pod = await stage.landed("bert", 8)
    assert len(stage.leaves(node_by_pod)) == 1
    async with stage.plane.api() as api:
        for pod in await api.pods():
            required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            requirement = {"key": "metadata.name", "operator": "In", "values": [pod["spec"]["nodeName"]]}
            assert required["nodeSelectorTerms"] == [{**hosts, "matchFields": [requirement]}]


async def test_a_gate_on_a_pod_of_no_gang_is_lifted_at_once_and_told(stage):
    await begin(stage, leaves=1)
    await stage.submit(cluster.make_pod("lone", 1, schedulingGates=GATE))
    async with stage.plane.api() as api:
        await api.until(PODS, cluster.bound(1))
    await stage.events("GateWithoutGang")


async def test_a_gate_of_somebody_else_keeps_the_gang_until_it_is_lifted(stage):
    await begin(stage, leaves=1)
    pods = gang("bert", 4)
    pods[2]["spec"]["schedulingGates"] = [*GATE, {"name": "example.com/quota"}]
    await stage.submit(*pods)
    async with stage.plane.api() as api:
        await stage.eventually(lambda: stage.metric("turnout_gated_pods", "nominator") == 4)
        assert len(gated(await api.pods())) == 4
        await api.patch(f"{PODS}/bert-2", {"spec": {"schedulingGates": GATE}})
        await api.until(PODS, cluster.bound(4))


async def test_a_follower_takes_over_and_lets_go_what_the_leader_left(stage):
    await begin(stage, leaves=2)
    await stage.submit(cluster.make_pod("warm", 1, schedulingGates=GATE))
    async with stage.plane.api() as api:
        await api.until(PODS, cluster.bound(1))  # the first leads
        stage.start_nominator("second", "--gates", "--lease-seconds", "4")
        stage.plane.kill_program("nominator")
        await api.create_all(gang("bert", 8))
        node_by_pod = await stage.landed("bert", 8, within_s=8)  # 5 are promised, and pods are bound after that
    assert len(stage.leaves(node_by_pod)) == 1


@pytest.mark.long
async def test_a_leader_that_slept_through_its_lease_then_changes_nothing(stage):
    await begin(stage, leaves=2)
    await stage.submit(cluster.make_pod("warm", 1, schedulingGates=GATE))
    async with stage.plane.api() as api:
        await api.until(PODS, cluster.bound(1))
        await api.delete(f"{PODS}/warm")
        stage.start_nominator("second", "--gates", "--lease-seconds", "4")
        sleeper = stage.plane.pid("nominator")
        os.kill(sleeper, signal.SIGSTOP)
        try:
            await api.create_all(gang("bert", 8))
            node_by_pod = await stage.landed("bert", 8, within_s=15)
            before = {each["metadata"]["name"]: each["spec"] for each in await api.pods()}
        finally:
            os.kill(sleeper, signal.SIGCONT)
        await stage.eventually(lambda: stage.metric('turnout_leading{component="nominator"}', "nominator") == 0)
        await api.create_all(gang("gpt", 8))  # by the one that leads, with the other awake beside it
        assert len(stage.leaves(await stage.landed("gpt", 8))) == 1
        after = {each["metadata"]["name"]: each["spec"] for each in await api.pods()}
    assert len(stage.leaves(node_by_pod)) == 1
    assert {name: after[name] for name in before} == before
    assert "gate_failed" not in stage.plane.logs("nominator")  # it did not even try


@pytest.mark.slow
async def test_a_leader_killed_amid_many_gangs_leaves_none_of_them_in_parts(stage):
    await begin(stage)
    stage.start_nominator("second", "--gates", "--lease-seconds", "4")
    names = [f"g{at}" for at in range(8)]
    async with stage.plane.api() as api:
        await api.create(cluster.make_pod("warm", 1, schedulingGates=GATE))
        await api.until(PODS, cluster.bound(1))  # the first leads
        await api.delete(f"{PODS}/warm")
        first = asyncio.create_task(api.until(PODS, cluster.bound(1)))
        first.add_done_callback(lambda _: stage.plane.kill_program("nominator"))
        await api.create_all([pod for name in names[:6] for pod in gang(name, 8)])
        await first
        await api.create_all([pod for name in names[6:] for pod in gang(name, 8)])  # nobody leads for a while
        left = len(gated(await api.pods()))
        node_by_pod = await api.until(PODS, cluster.bound(64), within_s=12)
    assert left > 0
    for name in names:
        mine = {pod: node for pod, node in node_by_pod.items() if pod.startswith(f"{name}-")}
        assert len(stage.leaves(mine)) == 1


async def test_a_person_lets_everything_go_with_one_command(stage):
    await stage.build(leaves=1)
    stage.plane.start_scheduler()
    await stage.submit(*gang("bert", 4))  # and nobody is there to place it
    command = [sys.executable, "-m", "turnout.cli", "release", "--all", "--kubeconfig", str(stage.plane.kubeconfig)]
    process = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=True)
    assert process.stdout == "4 gates lifted\n"
    await stage.landed("bert", 4)
