"""The plan ahead on a real API server and kube-scheduler: nominations written, kept true, and taken back."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from tests.e2e.stories import create_priority_class
from tests.kit import cluster
from turnout.kube import labels
from turnout.topology.map_formats import read_map

pytestmark = [pytest.mark.real, pytest.mark.asyncio]
PODS = "/api/v1/namespaces/default/pods"
EMULATED = [
    pytest.param({}, id="1.35"),
    pytest.param({"emulated_version": "1.33"}, id="emulating 1.33", marks=pytest.mark.slow),
]
OLDER_AND_LONG = pytest.param(*EMULATED[1].values, id=EMULATED[1].id, marks=pytest.mark.long)


def nominations(pods):
    """{pod: node} of the pods that are nominated and wait."""
    waiting = [p for p in pods if not p["spec"].get("nodeName")]
    node_by_pod = {p["metadata"]["name"]: p["status"].get("nominatedNodeName") for p in waiting}
    return {name: node for name, node in node_by_pod.items() if node}


def nominated(count, but=()):
    """Return a question to a list of pods, answered {pod: node} once `count` of them are nominated for nodes not in
    `but`.
    """

    def nominations_of_pods(pods):
        nominations_now = nominations(pods)
        return (
            nominations_now if len(nominations_now) >= count and not set(nominations_now.values()) & set(but) else None
        )

    return nominations_of_pods


def told_their_place(count):
    """Return a question to a list of pods, answered {pod: path} once `count` of them carry a switch path."""

    def paths_of_pods(pods):
        notes = {p["metadata"]["name"]: p["metadata"].get("annotations", {}) for p in pods}
        paths = {
            name: annotations[labels.SWITCH_PATH]
            for name, annotations in notes.items()
            if labels.SWITCH_PATH in annotations
        }
        return paths if len(paths) >= count else None

    return paths_of_pods


def nothing_nominated(pods):
    """True if there are pods and none of them is nominated."""
    return bool(pods) and not nominations(pods)


async def cordon(api, node):
    await api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})


async def occupy(api, node, name):
    """A stranger takes a whole node."""
    await api.create(cluster.make_pod(name, 8, nodeName=node))


@pytest.mark.parametrize("control_plane", EMULATED, indirect=True)
async def test_a_gang_is_nominated_whole_and_lands_there(stage):
    await stage.build()
    stage.start_extender()
    stage.start_nominator("nominator", "--annotate-switch-path")
    await stage.submit(*cluster.koordinator_gang("bert", 8, total=8))
    async with stage.plane.api() as api:
        planned = await api.until(PODS, nominated(8))
        stage.start_scheduler()
        node_by_pod = await stage.landed("bert", 8)
        assert node_by_pod == planned
        assert len(stage.leaves(node_by_pod)) == 1
        assert stage.ring(node_by_pod).total == 0
        paths = await api.until(PODS, told_their_place(8))  # which a launcher reads in its pod
    path_of = {entry.host: "/".join(entry.path) for entry in read_map({"topology_config": stage.text}).entries}
    assert paths == {name: path_of[stage.ip_of[node]] for name, node in node_by_pod.items()}


async def test_a_gang_whose_pods_outran_the_nominator_lands_under_one_leaf(stage):
    await stage.build()
    stage.start_extender()
    stage.start_scheduler()
    first, *rest = [cluster.koordinator_gang("bert", 8, total=8)[at : at + 3] for at in (0, 3, 6)]
    await stage.submit(*first)
    before = await stage.landed("bert", 3)
    stage.start_nominator()
    await stage.submit(*[pod for some in rest for pod in some])
    node_by_pod = await stage.landed("bert", 8)
    assert before.items() <= node_by_pod.items()
    assert len(stage.leaves(node_by_pod)) == 1


async def test_an_indexed_job_is_nominated_by_the_size_that_its_owner_tells(stage):
    await stage.build()
    stage.start_extender()
    stage.start_nominator()
    stage.plane.start_controller_manager()
    await stage.submit(cluster.indexed_job("train", 8))
    async with stage.plane.api() as api:
        planned = await api.until(PODS, nominated(8))
        stage.start_scheduler()
        node_by_pod = await api.until(PODS, cluster.bound(8))
    assert node_by_pod == planned
    assert len(stage.leaves(node_by_pod)) == 1


async def test_a_nomination_of_somebody_else_is_never_overwritten(stage):
    await stage.build()
    pods = cluster.koordinator_gang("bert", 8, total=8)
    await stage.submit(*pods)
    theirs = sorted(stage.ip_of)[0]
    async with stage.plane.api() as api:
        path = f"{PODS}/bert-3/status?fieldManager=somebody"
        await api.patch(path, {"status": {"nominatedNodeName": theirs}})
        stage.start_nominator()
        node_by_pod = await api.until(PODS, nominated(8))
        assert node_by_pod["bert-3"] == theirs
        assert len(stage.leaves(node_by_pod)) == 1  # the others gather around it
        await cordon(api, theirs)
        await api.until(PODS, nominated(8))
        pod = await api.get(f"{PODS}/bert-3")
        assert pod["status"]["nominatedNodeName"] == theirs


async def test_a_nominated_node_that_fills_up_or_is_cordoned_is_given_up(stage):
    await stage.build()
    stage.start_nominator()
    await stage.submit(*cluster.koordinator_gang("bert", 6, total=6))
    async with stage.plane.api() as api:
        planned = await api.until(PODS, nominated(6))
        filled, cordoned = planned["bert-0"], planned["bert-1"]
        await occupy(api, filled, "stranger")
        await cordon(api, cordoned)
        new_node_by_pod = await api.until(PODS, nominated(6, but=(filled, cordoned)))
    assert len(stage.leaves(new_node_by_pod)) == 1  # 6 of the leaf's 8 hosts are left, and the gang fits


async def test_a_gang_that_no_longer_fits_leaves_no_nomination_behind(stage):
    await stage.build(leaves=2)
    stage.start_nominator()
    notes = {labels.TOPOLOGY: "required"}
    await stage.submit(*cluster.koordinator_gang("bert", 8, total=8, notes=notes))
    async with stage.plane.api() as api:
        planned = await api.until(PODS, nominated(8))
        other = next(node for node in stage.ip_of if node not in planned.values())
        await cordon(api, other)  # the other leaf is too small now
        await cordon(api, planned["bert-0"])  # and so is this one
        await api.until(PODS, nothing_nominated)


async def test_a_nomination_that_the_scheduler_does_not_use_expires(stage):
    await stage.build()
    stage.start_nominator("nominator", "--expire-s", "2")
    await stage.submit(*cluster.koordinator_gang("bert", 4, total=4))
    async with stage.plane.api() as api:
        await api.until(PODS, nominated(4))
        await api.until(PODS, nothing_nominated)
    await stage.eventually(lambda: stage.metric('turnout_nominations_total{reason="Expired"}', "nominator") == 4)


async def test_a_gang_ahead_takes_room_and_nominations_of_one_behind(stage):
    await stage.build(leaves=1)
    stage.start_nominator()
    await stage.submit(*cluster.koordinator_gang("low", 8, total=8))
    async with stage.plane.api() as api:
        await api.until(PODS, nominated(8))
        await create_priority_class(api, "high", 1000)
        await api.create_all(cluster.koordinator_gang("top", 8, total=8, priorityClassName="high"))

        def only_top(pods):
            nominations_now = nominations(pods)
            return len(nominations_now) == 8 and all(name.startswith("top-") for name in nominations_now)

        await api.until(PODS, only_top)


@pytest.mark.slow
@pytest.mark.parametrize("control_plane", [EMULATED[0], OLDER_AND_LONG], indirect=True)
async def test_a_follower_takes_over_after_sigkill_and_mends_what_was_left(stage):
    await stage.build(leaves=2)
    stage.start_nominator("first")
    notes = {labels.TOPOLOGY: "required"}
    await stage.submit(*cluster.koordinator_gang("bert", 8, total=8, notes=notes))
    await stage.submit(*cluster.koordinator_gang("gpt", 4, total=4))
    async with stage.plane.api() as api:
        planned = await api.until(PODS, nominated(12))
        stage.start_nominator("second")
        stage.plane.kill_program("first")
        await cordon(api, planned["bert-0"])  # nobody looks now
        free = set(stage.ip_of) - set(planned.values())
        await cordon(api, sorted(free)[0])  # so that the other leaf is too small, too

        def mended(pods):
            nominations_now = nominations(pods)
            return len(nominations_now) == 4 and all(name.startswith("gpt-") for name in nominations_now)

        await api.until(PODS, mended, within_s=60)


async def test_a_person_takes_every_nomination_back_with_one_command(stage):
    await stage.build()
    stage.start_nominator()
    await stage.submit(*cluster.koordinator_gang("bert", 4, total=4))
    async with stage.plane.api() as api:
        await api.until(PODS, nominated(4))
        stage.plane.stop_program("nominator")
        command = [
            sys.executable,
            "-m",
            "turnout.cli",
            "clear-nominations",
            "--kubeconfig",
            str(stage.plane.kubeconfig),
        ]
        process = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=60, check=True
        )
        assert "4 nominations" in process.stdout
        assert not nominations(await api.pods())


async def test_pods_with_volumes_or_affinity_are_placed_but_not_nominated(stage):
    await stage.build()
    stage.start_extender()
    stage.start_nominator()
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    pods = cluster.koordinator_gang("bert", 4, total=4)
    pods[2]["spec"]["volumes"] = volumes
    await stage.submit(*pods)
    async with stage.plane.api() as api:
        node_by_pod = await api.until(PODS, nominated(3))
        assert sorted(node_by_pod) == ["bert-0", "bert-1", "bert-3"]
