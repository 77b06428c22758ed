"""How switch paths are written: on which pod, how often, and what follows when the server refuses."""

import asyncio

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from tests.kit import world
from tests.kit.clock import ManualClock
from tests.kit.world import World
from tests.scheduler_ext.shown import ShownExtender
from tests.scheduler_ext.writers.test_nomination_writer import Pods
from turnout.kube import labels
from turnout.kube.client.leased_calls import LeasedCalls
from turnout.kube.errors import Conflict, Forbidden, Rejected, ServerFault
from turnout.scheduler_ext.model import Rules
from turnout.scheduler_ext.server.metrics import Metrics, NominatorMetrics
from turnout.scheduler_ext.writers.switch_path_writer import SwitchPathWriter

pytestmark = pytest.mark.asyncio


def member(at, path="", uid=None):
    notes = {labels.KOORD_TOTAL: "8"} | ({labels.SWITCH_PATH: path} if path else {})
    (pod,) = world.koordinator("g", 1, total=8, at=[at], notes=notes)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=uid or pod.metadata.uid))


class Scene:
    """A marker over two leaves of four nodes, and the pods it writes to."""

    def __init__(self, *faults, leads=True):
        self.leads, self.pods, self.clock = leads, Pods(*faults), ManualClock()
        self.view, self.registry = (
            ShownExtender(Rules(), self.clock, Metrics(), lambda notice: None),
            CollectorRegistry(),
        )
        for node in World(4, 4).nodes:
            self.view.view.layout.put_node(node)
        self.view.use_map(World(4, 4).fabric)
        calls = LeasedCalls(self.pods, lambda: self.leads)
        self.marker = SwitchPathWriter(self.view.watches, calls, self.clock, NominatorMetrics(self.registry))

    @property
    def paths(self):
        return [body["metadata"]["annotations"][labels.SWITCH_PATH] for _, body, _ in self.pods.patches]

    async def run(self, for_s=0.0):
        """Let it work: now, and while the clock is moved on second by second."""
        work = asyncio.create_task(self.marker.run())
        try:
            for _ in range(int(for_s) + 1):
                for _ in range(20):
                    await asyncio.sleep(0)
                await self.clock.advance(1.0)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


async def test_a_patch_writes_one_annotation_on_one_pod_under_our_name():
    scene = Scene()
    scene.view.put_pod(member("a1"))
    await scene.run()
    annotation = {"turnout.dev/switch-path": "psw0/asw0"}
    body = {"metadata": {"uid": "uid-g-0", "annotations": annotation}}
    assert scene.pods.patches == [("/api/v1/namespaces/default/pods/g-0", body, "turnout-nominator")]
    assert scene.registry.get_sample_value("turnout_switch_paths_written_total") == 1


async def test_what_is_true_already_is_not_written_again():
    scene = Scene()
    scene.view.put_pod(member("a1", "psw0/asw0"))
    await scene.run(for_s=60)
    assert scene.pods.patches == []


async def test_a_patch_is_not_repeated_before_the_watch_had_time_to_show_it():
    scene = Scene()
    scene.view.put_pod(member("a1"))
    await scene.run(for_s=12)
    assert len(scene.pods.patches) == 1
    scene.view.put_pod(member("a1", "psw0/asw0"))
    await scene.run(for_s=60)
    assert len(scene.pods.patches) == 1


async def test_another_map_is_written_without_any_change_of_the_pod():
    scene = Scene()
    scene.view.put_pod(member("a1", "psw0/asw0"))
    await scene.run()
    scene.view.use_map(World(1, 4).fabric)  # a1 is not on it: what is written is left
    await scene.run(for_s=6)
    assert scene.paths == []
    scene.view.put_pod(member("a1", "old/place"))
    scene.view.use_map(World(4, 4).fabric)
    await scene.run(for_s=6)
    assert scene.paths == ["psw0/asw0"]


async def test_a_leader_that_lost_its_lease_while_it_slept_writes_nothing():
    scene = Scene(leads=False)
    scene.view.put_pod(member("a1"))
    await scene.run(for_s=6)
    assert scene.pods.patches == []


@pytest.mark.parametrize("error", [Conflict, Rejected])
async def test_a_pod_that_cannot_be_marked_is_left_alone_until_it_changes(error):
    scene = Scene(error("PATCH", "/p", 409, "no"))
    scene.view.put_pod(member("a1"))
    await scene.run(for_s=120)
    assert len(scene.pods.patches) == 1
    scene.view.put_pod(member("b1", uid="next"))
    await scene.run()
    assert scene.paths == ["psw0/asw0", "psw0/asw1"]


@pytest.mark.parametrize("error", [Forbidden, ServerFault])
async def test_a_server_that_refuses_all_is_asked_less_and_told_of_once_a_try(error, caplog):
    faults = [error("PATCH", "/p", 403, "no") for _ in range(1000)]
    scene = Scene(*faults)
    for at in range(40):
        scene.view.put_pod(member("a1", uid=f"u{at}"))
    await scene.run(for_s=900)
    tries = [record for record in caplog.records if record.message == "switch_path_failed"]
    assert 5 <= len(tries) <= 12  # 1, 2, 4 ... 300 s between two of them
    assert len(scene.pods.patches) <= 16 * len(tries)
    scene.pods.faults.clear()
    await scene.run(for_s=310)
    uids = {body["metadata"]["uid"] for _, body, _ in scene.pods.patches[-40:]}
    assert len(uids) == 40
