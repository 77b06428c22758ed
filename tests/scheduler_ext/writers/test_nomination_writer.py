"""How nominations are written: with whose name, on which version, and not by a former leader."""

import asyncio

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from tests.kit import world
from tests.kit.clock import ManualClock
from tests.kit.world import World
from tests.scheduler_ext.shown import ShownExtender
from turnout.jobs.gang import Dialect
from turnout.kube import labels
from turnout.kube.client.leased_calls import LeasedCalls
from turnout.kube.errors import Conflict
from turnout.scheduler_ext.model import Rules
from turnout.scheduler_ext.planner.nominations import NominationChoices
from turnout.scheduler_ext.server.metrics import Metrics, NominatorMetrics
from turnout.scheduler_ext.writers.nomination_writer import NominationWriter

pytestmark = pytest.mark.asyncio
CHOICES = NominationChoices(Rules(), frozenset({"default-scheduler"}))


class Pods:
    """Takes patches. faults: raised by the first ones."""

    def __init__(self, *faults):
        self.faults, self.patches = list(faults), []
        self.came = asyncio.Event()

    async def patch(self, path, body, content_type=None, field_manager=None):
        self.patches.append((path, body, field_manager))
        self.came.set()
        if self.faults:
            raise self.faults.pop(0)
        return b"{}"


class Scene:
    """A nominator over four nodes, and the pods it writes to."""

    def __init__(self, *faults, leads=True, leaves=(4,)):
        self.leads, self.pods = leads, Pods(*faults)
        clock = ManualClock()
        self.view = ShownExtender(Rules(), clock, Metrics(), lambda notice: None)
        for node in World(*leaves).nodes:
            self.view.view.layout.put_node(node)
        self.view.use_map(World(*leaves).fabric)
        calls = LeasedCalls(self.pods, lambda: self.leads)
        self.nominator = NominationWriter(
            self.view.watches, calls, CHOICES, clock, NominatorMetrics(CollectorRegistry())
        )

    def show(self, pod, version):
        meta = msgspec.structs.replace(pod.metadata, resource_version=version)
        self.view.put_pod(msgspec.structs.replace(pod, metadata=meta))

    async def run(self, until):
        """Let the nominator work until something is true, or it has nothing left to do."""
        work = asyncio.create_task(self.nominator.run())
        try:
            async with asyncio.timeout(5):
                for _ in range(50):
                    await asyncio.sleep(0)
                    if until():
                        return
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


async def test_a_patch_names_the_node_as_ours_and_holds_for_one_pod_version():
    scene = Scene()
    scene.show(world.pod("p", 8), "7")
    await scene.run(lambda: scene.pods.patches)
    ((path, body, manager),) = scene.pods.patches
    assert path == "/api/v1/namespaces/default/pods/p/status"
    assert body["metadata"] == {"uid": "uid-p", "resourceVersion": "7"}
    assert list(body["status"]) == ["nominatedNodeName"]
    assert manager == "turnout-nominator"


async def test_a_leader_that_lost_its_lease_while_it_slept_writes_nothing():
    scene = Scene(leads=False)
    scene.show(world.pod("p", 8), "7")
    await scene.run(lambda: scene.pods.patches)
    assert scene.pods.patches == []


async def test_a_pod_that_changed_meanwhile_is_looked_at_again_with_its_change():
    scene = Scene(Conflict("PATCH", "/p", 409, "changed"))
    pod = world.pod("p", 8)
    scene.show(pod, "7")
    await scene.run(lambda: len(scene.pods.patches) == 1)
    scene.show(world.pod("p", 8, marks={"new": "label"}), "8")
    await scene.run(lambda: len(scene.pods.patches) == 2)
    assert [body["metadata"]["resourceVersion"] for _, body, _ in scene.pods.patches] == ["7", "8"]


async def test_members_that_come_before_the_watch_shows_patches_move_nobody():
    scene = Scene()
    job = [world.pod(f"job-{i}", 8, marks={labels.JOB_INDEX: str(i)}, owner="Job/job") for i in range(4)]
    for pod in job[2:]:  # the later ranks first: without what was sent, the earlier ones would take their places
        scene.show(pod, "7")
    await scene.run(lambda: len(scene.pods.patches) == 2)
    for pod in job[:2]:
        scene.show(pod, "8")
    await scene.run(lambda: len(scene.pods.patches) > 4)
    sent = {path.split("/")[-2]: body["status"]["nominatedNodeName"] for path, body, _ in scene.pods.patches}
    assert len(scene.pods.patches) == 4
    assert len(set(sent.values())) == 4


async def test_who_takes_over_keeps_to_nominations_whatever_it_had_planned():
    scene = Scene(leaves=(2, 2))
    older, younger = world.koordinator("g", 2, created=1), world.koordinator("h", 2, created=2)
    for pod in (*older, *younger):
        scene.show(pod, "7")
    while scene.view.plans.plan_some(scene.view.clock.monotonic()):
        pass
    for pod, node in zip(younger, ("a0", "a1"), strict=True):  # as the leader had it, which saw them first
        raw_pod = msgspec.to_builtins(pod)
        scene.show(world.see(raw_pod, uid=pod.metadata.uid, nominated=node, ours=True, created=2), "8")
    await scene.run(lambda: len(scene.pods.patches) > 2)
    sent = {path.split("/")[-2]: body["status"]["nominatedNodeName"] for path, body, _ in scene.pods.patches}
    assert sent == {"g-0": "b0", "g-1": "b1"}


async def test_a_follower_keeps_no_names_of_gangs_that_come_and_go():
    scene = Scene()
    for each in range(100):
        scene.show(world.pod(f"p-{each}", 8), "7")
        scene.view.drop_pod(f"uid-p-{each}")
    assert not scene.nominator.due
    scene.show(world.pod("q", 8), "7")
    await scene.run(lambda: scene.pods.patches)
    assert [path.split("/")[-2] for path, _, _ in scene.pods.patches] == ["q"]


async def test_no_member_is_nominated_before_the_podgroup_that_it_names_is_seen():
    scene = Scene()
    scene.view.watches.serves = True
    pods = world.volcano("g", 2)
    for pod in pods:
        scene.show(pod, "7")
    await scene.run(lambda: scene.pods.patches)
    assert scene.pods.patches == []
    scene.view.view.groups.put_group(Dialect.VOLCANO, world.group("g", 2))
    await scene.run(lambda: len(scene.pods.patches) == 2)
    assert [path.split("/")[-2] for path, _, _ in scene.pods.patches] == ["g-0", "g-1"]
