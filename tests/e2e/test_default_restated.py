"""The demo's "default scheduler" is a restatement: held against the real kube-scheduler, without any extender."""

from __future__ import annotations

import random
from statistics import mean

import msgspec
import pytest

from tests.e2e.stories import PODS
from tests.kit import cluster
from turnout.kube.objects import Node, Pod
from turnout.simulator.cluster.cluster import Cluster, pod_info_of
from turnout.simulator.cluster.scheduler import Chosen, Cursor, schedule_without_extender

pytestmark = [pytest.mark.long, pytest.mark.real, pytest.mark.asyncio]
RUNS, SIZE, GPUS = 20, 8, 4
DRAWS = 10  # of the restatement a run, whose dice can be thrown anew


def strangers(nodes, dice):
    """Pods that fill the nodes unevenly, each bound by hand."""
    nodes_of_strangers = []
    for at, node in enumerate(nodes):
        pod = cluster.make_pod(f"stranger-{at}", dice.choice([0, 0, 2, 6]), nodeName=node)
        room = pod["spec"]["containers"][0]["resources"]
        for kind in ("requests", "limits"):
            room[kind] |= {"cpu": str(dice.randint(1, 60)), "memory": f"{dice.randint(1, 600)}Gi"}
        pod["spec"]["containers"][0]["resources"] = {"requests": room["requests"], "limits": room["requests"]}
        nodes_of_strangers.append(pod)
    return nodes_of_strangers


def restated(nodes, busy_nodes, gang, dice):
    """Place the gang with the restatement, and return {pod: node}."""
    state = Cluster()
    for each in nodes:
        state.put_node(each)
    for at, pod in enumerate(busy_nodes):
        state.place(pod_info_of(member_of(pod, f"s{at}")), pod["spec"]["nodeName"])
    node_by_pod, cursor = {}, Cursor()
    for pod in gang:
        want = pod_info_of(member_of(pod, pod["metadata"]["name"]))
        outcome = schedule_without_extender(state, want, cursor, dice)
        assert isinstance(outcome, Chosen)
        state.place(want, outcome.node)
        node_by_pod[pod["metadata"]["name"]] = outcome.node
    return node_by_pod


def member_of(pod, uid):
    read = msgspec.json.decode(msgspec.json.encode(pod), type=Pod)
    read.metadata.uid = uid
    return read


async def test_its_mean_ring_cost_is_within_a_tenth_of_the_real_schedulers(stage):
    """20 runs on the same nodes and fills; pods are created in rank order, so that ranks are met in one order."""
    await stage.build()
    stage.plane.start_scheduler(None)
    costs = {"real": [], "restated": []}
    async with stage.plane.api() as api:
        nodes = msgspec.json.decode(msgspec.json.encode((await api.get("/api/v1/nodes"))["items"]), type=list[Node])
        for run in range(RUNS):
            busy_nodes = strangers(sorted(stage.ip_of), random.Random(run))
            await api.create_all(busy_nodes)
            gang = cluster.volcano_gang(f"g{run}", SIZE, GPUS)
            for pod in gang:
                await api.create(pod)
            node_by_pod = await api.until(f"{PODS}?labelSelector=gang%3Dg{run}", cluster.bound(SIZE))
            costs["real"].append(stage.ring(node_by_pod).total)
            dice = random.Random(run)
            costs["restated"] += [stage.ring(restated(nodes, busy_nodes, gang, dice)).total for _ in range(DRAWS)]
            await api.call("DELETE", PODS)
            await api.until(PODS, lambda pods: not pods)
    print({name: (round(mean(each), 2), each) for name, each in costs.items()})
    assert mean(costs["restated"]) == pytest.approx(mean(costs["real"]), rel=0.1)
    assert mean(costs["real"]) > 5  # it does scatter: 8 pods, some of which meet under a leaf by chance
