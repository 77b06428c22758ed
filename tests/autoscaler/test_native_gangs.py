"""Native gangs: minCount is at most the pods that run after a resize, and rises again to what its owner stated."""

import asyncio
import copy
import json

import pytest

from tests.autoscaler import test_cache as objects
from tests.autoscaler.controller.test_event_recorder import Recorder
from tests.autoscaler.controller.test_scale_writer import Api, noted, raw, writer
from tests.autoscaler.local_cluster import JOBS, WITHIN_S, local_cluster_with_jobs, manifest
from tests.kit import cluster as cluster_objects
from turnout.autoscaler.cache import Cache
from turnout.autoscaler.controller.event_recorder import DecisionEvents, Refs
from turnout.autoscaler.controller.gang_min_writer import (
    MAX_CONSECUTIVE_FAILURES,
    REFUSAL_PAUSE_S,
    RETRY_PAUSE_S,
    GangMinWriter,
)
from turnout.autoscaler.controller.metrics import Metrics
from turnout.autoscaler.model import Reason, Step
from turnout.autoscaler.observe.native_gangs import MAX_GROUPS_OF_JOB, MAX_PODS_CHECKED, NativeGangs, read_native_group
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import JobKey
from turnout.kube import labels
from turnout.kube.errors import Conflict, Forbidden, NotFound, NotLeading, Rejected, Unreachable

KEY = JobKey("Job", "ns", "j-u")
GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
IMMUTABLE = "spec.schedulingPolicy: Invalid value: field is immutable"


def group(minimum=4, name="g", owner=None, controller=None, version="7", **notes):
    refs = [{"uid": uid, "controller": uid == controller} for uid in filter(None, (owner, controller))]
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": version}
    meta |= {"annotations": notes, "ownerReferences": refs}
    return {"metadata": meta, "spec": {"schedulingPolicy": {"gang": {"minCount": minimum}}}}


def marked(minimum, stated, wrote):
    return group(minimum, **{labels.STATED_MIN_COUNT: str(stated), labels.WROTE_MIN_COUNT: str(wrote)})


def pod(index, name="g", owner="u", phase="Running", deleted=None):
    raw_pod = objects.pod(index, "a", owner, phase, 1, deleted)
    raw_pod.spec.scheduling_group = {"podGroupName": name} if name else None
    return raw_pod


class Server:
    """An API server with PodGroups: it patches the stored object, or answers with the error of the test."""

    def __init__(self):
        self.stored, self.patches, self.error = {}, [], None

    async def patch(self, path, body, content_type, field_manager):
        name = path.rsplit("/", 1)[1]
        self.patches.append((name, body))
        if self.error is not None:
            raise self.error
        found = self.stored[name]
        if body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            raise Conflict("PATCH", path, 409, "changed")
        notes = {**found["metadata"]["annotations"], **body["metadata"]["annotations"]}
        found["metadata"]["annotations"] = {key: text for key, text in notes.items() if text is not None}
        found["metadata"]["resourceVersion"] += "0"
        found["spec"] = body["spec"]
        return json.dumps(found).encode()


class World:
    """A job of some workers on one node, whose pods name PodGroups."""

    def __init__(self, workers=4, *groups, resized=True, part_of=""):
        self.view, self.server, self.recorder = Cache(KINDS), Server(), Recorder()
        self.view.put_node(objects.node("a", 64))
        self.resized, self.part_of = resized, part_of
        self.resize(workers)
        for at in range(workers):
            self.view.put_pod(pod(at))
        for each in groups:
            self.show(each)
        self.metrics = Metrics((objects.GPU,))
        events = DecisionEvents(self.recorder, Refs(self.view).job, Refs(self.view).leaving, self.metrics)
        self.writer = GangMinWriter(self.server, self.view.group_uses, events.report_gang_min)

    def resize(self, workers):
        notes = {labels.WROTE_WORKERS: str(workers)} if self.resized else {}
        raw_job = objects.job(workers, **{labels.MAX_WORKERS: "16", **notes})
        if self.part_of:
            raw_job["metadata"]["ownerReferences"] = [{"uid": self.part_of, "controller": True, "kind": "JobSet"}]
        self.view.put_job("Job", raw_job)
        self.view.observation(0.0)

    def show(self, raw_object):
        self.server.stored[raw_object["metadata"]["name"]] = copy.deepcopy(raw_object)
        self.view.native.put_group(copy.deepcopy(raw_object))

    async def lower(self, size, now_s=0.0):
        self.view.observation(0.0)
        return await self.writer.lower(KEY, size, now_s)

    async def settle(self, changes=(), now_s=0.0):
        self.view.observation(0.0)
        await self.writer.correct_after_resize(lambda key: key in changes, now_s)

    def leave(self, *indices):
        for index in indices:
            self.view.drop_pod(f"u-{index}")

    def group(self, name="g"):
        stored = self.server.stored[name]
        notes = stored["metadata"]["annotations"]
        minimum = stored["spec"]["schedulingPolicy"]["gang"]["minCount"]
        return minimum, notes.get(labels.STATED_MIN_COUNT), notes.get(labels.WROTE_MIN_COUNT)

    def reasons(self):
        return [reason for _, _, _, reason, _ in self.recorder.told]


@pytest.mark.parametrize(
    ("shown", "size", "becomes"),
    [
        pytest.param(group(4), 2, (2, "4", "2"), id="the minCount is lowered to the pods that stay"),
        pytest.param(group(2), 2, (2, None, None), id="a minCount that fits is left as it is"),
        pytest.param(group(1), 2, (1, None, None), id="a smaller one, too"),
        pytest.param(group(4), 0, (4, None, None), id="a job that gives all its pods starts whole again"),
        pytest.param(marked(3, 4, 3), 2, (2, "4", "2"), id="the owner's number is kept over several shrinks"),
        pytest.param(marked(4, 8, 3), 2, (2, "4", "2"), id="a number that somebody wrote after us is a new statement"),
        pytest.param(marked(4, "a", 4), 2, (2, "4", "2"), id="an annotation that nobody can read does not count"),
        pytest.param(marked(4, 2, 4), 2, (2, "4", "2"), id="a stated number below the present one does not count"),
        pytest.param(marked(4, "9" * 40, 4), 2, (2, "4", "2"), id="a number without bounds does not count"),
    ],
)
@pytest.mark.asyncio
async def test_a_shrink_lowers_min_count_first(shown, size, becomes):
    w = World(4, shown)
    before = w.group()
    assert await w.lower(size) == ""
    assert (w.group(), len(w.server.patches)) == (becomes, int(before != becomes))


@pytest.mark.asyncio
async def test_pods_that_leave_already_and_pods_that_are_over_do_not_count():
    w = World(4, group(4))
    w.view.put_pod(pod(0, phase="Succeeded"))
    w.view.put_pod(pod(1, deleted="2026-01-01T00:00:00Z"))
    assert await w.lower(3) == ""
    assert w.group() == (1, "4", "1")  # of the other two the fourth leaves


@pytest.mark.parametrize(
    ("shown", "pods", "becomes"),
    [
        pytest.param(marked(2, 4, 2), 4, (4, None, None), id="all run again: as stated, and no mark of ours stays"),
        pytest.param(marked(2, 8, 2), 4, (4, "8", "4"), id="never above the pods that run"),
        pytest.param(marked(2, 3, 2), 4, (3, None, None), id="never above the number that was stated"),
        pytest.param(marked(3, 4, 2), 4, (3, "4", "2"), id="a number that somebody else wrote is left as it is"),
        pytest.param(group(4), 3, (3, "4", "3"), id="a shrink that went ahead without the write is mended"),
        pytest.param(group(4), 4, (4, None, None), id="one that fits is left as it is"),
    ],
)
@pytest.mark.asyncio
async def test_min_count_of_a_job_whose_pods_all_run(shown, pods, becomes):
    w = World(pods, shown)
    await w.settle()
    assert w.group() == becomes
    patches = len(w.server.patches)
    await w.settle()
    assert len(w.server.patches) == patches  # once is enough


@pytest.mark.asyncio
async def test_a_grow_raises_it_once_the_new_pods_run():
    w = World(2, marked(2, 4, 2))
    w.resize(4)
    w.view.put_pod(pod(2))
    w.view.put_pod(pod(3, phase="Pending"))
    await w.settle()
    assert w.group()[0] == 2
    w.view.put_pod(pod(3))
    await w.settle(changes=[KEY])
    assert w.group()[0] == 2  # its size is about to change
    await w.settle()
    assert (w.group()[0], w.reasons()) == (4, ["GangMinRaised"])


@pytest.mark.asyncio
async def test_a_shrink_that_the_watch_does_not_show_yet_raises_nothing():
    w = World(4, group(4))
    assert await w.lower(2) == ""
    await w.settle(changes=[KEY])  # its job was written over the version that is shown
    w.resize(2)
    await w.settle()  # two pods are still there
    assert w.group()[0] == 2
    w.leave(2, 3)
    await w.settle()
    assert (w.group(), len(w.server.patches)) == ((2, "4", "2"), 1)


@pytest.mark.asyncio
async def test_another_autoscaler_goes_on_from_what_the_object_says():
    first = World(4, group(4))
    assert await first.lower(2) == ""
    second = World(4, first.server.stored["g"])
    await second.settle()
    assert second.group() == (4, None, None)


@pytest.mark.asyncio
async def test_a_job_that_nobody_resized_keeps_its_min_count():
    w = World(2, group(4), resized=False)
    await w.settle()
    assert w.server.patches == []


@pytest.mark.parametrize(
    ("shown", "more", "reasons"),
    [
        pytest.param(group(4), [], ["GangMinLowered"], id="it has no owner, and only this job names it"),
        pytest.param(group(4), [pod(9, owner="other")], ["GangShared"], id="a pod of another job names it, too"),
        pytest.param(group(4, owner="u"), [pod(9, owner="other")], ["GangMinLowered"], id="it names the job as owner"),
        pytest.param(group(4, controller="u"), [], ["GangMinLowered"], id="the job is its controller"),
        pytest.param(group(4, controller="set"), [], ["GangMinLowered"], id="what made the job is its controller"),
        pytest.param(group(4, controller="x"), [], ["GangNotOwned"], id="another object is its controller"),
        pytest.param(group(4, controller="x", owner="u"), [], ["GangMinLowered"], id="the job is its owner besides"),
    ],
)
@pytest.mark.asyncio
async def test_whose_pod_group_is_changed(shown, more, reasons):
    w = World(4, shown, part_of="set")
    for each in more:
        w.view.put_pod(each)
    for _ in range(3):
        assert await w.lower(2) == ""
    assert w.reasons() == reasons  # reported once
    assert bool(w.server.patches) == (reasons == ["GangMinLowered"])


@pytest.mark.parametrize(
    ("error", "words", "reasons", "patches"),
    [
        pytest.param(NotFound("PATCH", "/x", 404, "gone"), [""] * 6, [], 6, id="deleted meanwhile"),
        pytest.param(Rejected("PATCH", "/x", 422, IMMUTABLE), [""] * 6, ["GangMinRefused"], 1, id="immutable: once"),
        pytest.param(Forbidden("PATCH", "/x", 403, "no"), [""] * 6, ["GangMinRefused"], 1, id="no right: once"),
        pytest.param(NotLeading("PATCH", "/x", 0, ""), ["NotLeading"] * 6, [], 6, id="another replica leads"),
        pytest.param(
            Conflict("PATCH", "/x", 409, "changed"), [*["Conflict"] * 4, "", "Conflict"], [], 6,
            id="somebody writes all the time: the fifth shrink goes ahead"
        ),
        pytest.param(
            Unreachable("PATCH", "/x", 0, "no answer"), [*["Refused"] * 4, "", "Refused"], [], 6, id="no answer"
        ),
    ],
)  # fmt: skip
@pytest.mark.asyncio
async def test_a_failed_write_holds_a_shrink_for_a_few_looks(error, words, reasons, patches):
    w = World(4, group(4))
    w.server.error = error
    assert MAX_CONSECUTIVE_FAILURES == 5
    assert [await w.lower(2) for _ in range(6)] == words
    assert (w.reasons(), len(w.server.patches)) == (reasons, patches)


@pytest.mark.asyncio
async def test_a_refused_write_is_tried_again_after_a_long_pause():
    w = World(4, group(4))
    w.server.error = Rejected("PATCH", "/x", 422, IMMUTABLE)
    for now_s in (0.0, REFUSAL_PAUSE_S - 1, REFUSAL_PAUSE_S):
        await w.lower(2, now_s)
    assert (len(w.server.patches), w.reasons()) == (2, ["GangMinRefused"])
    w.server.error = None  # the API server is newer now
    await w.lower(2, 2 * REFUSAL_PAUSE_S)
    assert w.group() == (2, "4", "2")


@pytest.mark.asyncio
async def test_a_failed_raise_waits_before_it_is_tried_again():
    w = World(4, marked(2, 4, 2))
    w.server.error = Unreachable("PATCH", "/x", 0, "no answer")
    for now_s in (0.0, 1.0, RETRY_PAUSE_S):
        await w.settle(now_s=now_s)
    assert len(w.server.patches) == 2
    w.server.error = None
    await w.settle(now_s=2 * RETRY_PAUSE_S)
    assert w.group() == (4, None, None)


@pytest.mark.asyncio
async def test_a_raise_is_tried_as_long_as_it_fails():
    w = World(4, marked(2, 4, 2))
    w.server.error = Conflict("PATCH", "/x", 409, "changed")
    for number in range(8):
        await w.settle(now_s=number * RETRY_PAUSE_S)
    assert len(w.server.patches) == 8


@pytest.mark.asyncio
async def test_a_writer_that_takes_our_notes_away_is_followed_once():
    w = World(2, group(4))
    await w.settle()
    assert w.group() == (2, "4", "2")
    for number in range(3):  # GitOps replaces the object by its manifest, again and again
        w.show(group(4, version=f"9{number}"))
        await w.settle()
    assert (w.group(), len(w.server.patches)) == ((4, None, None), 1)


@pytest.mark.asyncio
async def test_a_pod_group_made_again_under_its_name_is_another_one():
    w = World(4, group(4))
    w.server.stored["g"] = group(4, version="9")  # the watch has not shown it yet
    assert await w.lower(2) == "Conflict"
    assert w.server.patches[0][1]["metadata"]["uid"] == "uid-g"
    assert w.group() == (4, None, None)


@pytest.mark.asyncio
async def test_the_groups_of_one_job_have_a_bound():
    w = World(0)
    w.resize(40)
    for at in range(40):
        w.view.put_pod(pod(at, f"g{at // 2:02}"))
    for number in range(20):
        w.show(group(2, f"g{number:02}"))
    assert await w.lower(39) == ""
    assert w.server.patches == []  # the last group is beyond the first sixteen by name
    assert len(w.view.group_uses.of_job(KEY, 40)) == MAX_GROUPS_OF_JOB == 16


def test_one_look_goes_through_a_bounded_number_of_pods():
    gangs = NativeGangs()
    for number in range(4):
        gangs.put_group(group(4, f"g{number}"))
        for at in range(MAX_PODS_CHECKED // 2):
            one_pod = pod(at, f"g{number}")
            one_pod.metadata.uid = f"{number}-{at}"
            gangs.put_pod(one_pod)
    groups = [gangs.take_groups_to_check() for _ in range(3)]
    assert [[name for _, name in each] for each in groups] == [["g0", "g1"], ["g2", "g3"], []]


@pytest.mark.parametrize("policy", [None, {}, {"basic": {}}, {"gang": {}}, {"gang": {"minCount": "4"}}, {"gang": 7}])
def test_a_pod_group_without_a_readable_minimum_is_nobodys(policy):
    raw_group = group()
    raw_group["spec"]["schedulingPolicy"] = policy
    assert read_native_group(raw_group) is None


@pytest.mark.asyncio
async def test_an_embedded_cluster_lends_from_a_native_gang_and_gives_back(tmp_path):
    async with local_cluster_with_jobs(tmp_path) as cluster:
        await cluster.api.call("POST", GROUPS, cluster_objects.pod_group("native", "a", 6))
        raw_job = manifest("a", 2, 8, size=6)
        raw_job["spec"]["tasks"][0]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "a"}
        await cluster.api.call("POST", JOBS, raw_job)
        await cluster.until(a=6)
        await cluster.autoscaler("--act", "--cooldown-s", "1")
        await cluster.until(a=8)
        await cluster.submit("b", 5)
        await cluster.until(a=3, b=5)
        lowered, job = await cluster.api.call("GET", f"{GROUPS}/a"), await cluster.api.call("GET", f"{JOBS}/a")
        assert lowered["spec"]["schedulingPolicy"]["gang"]["minCount"] == 3
        notes = lowered["metadata"]["annotations"]
        assert (notes[labels.STATED_MIN_COUNT], notes[labels.WROTE_MIN_COUNT]) == ("6", "3")
        assert int(lowered["metadata"]["resourceVersion"]) < int(job["metadata"]["resourceVersion"])  # written before
        await cluster.told("a", "GangMinLowered", "PodGroup default/a: minCount 6 to 3, of the stated 6")
        await cluster.api.call("DELETE", f"{JOBS}/b")
        async with asyncio.timeout(WITHIN_S):
            async for word, now in cluster.api.changes(GROUPS):
                if word != "SYNCED" and now.obj["spec"]["schedulingPolicy"]["gang"]["minCount"] == 6:
                    break
        assert not now.obj["metadata"].get("annotations")
        await cluster.says('"reason": "GangMinRaised"')


@pytest.mark.asyncio
async def test_a_job_is_written_after_its_pod_group_only():
    api, outcomes, order = Api(), [], []

    async def before(key, size, now_s):
        order.append((key.name, size, len(api.patches)))
        return "Conflict" if key.name == "held" else ""

    doing = writer(api, outcomes)
    doing = type(doing)(
        api, KINDS, lambda: 7, lambda step, word: outcomes.append((step.key.name, word)), False, before_shrink=before
    )
    steps = [Step(JobKey("Job", "ns", name), target, 4, Reason.MAKES_ROOM) for name, target in (("held", 2), ("a", 2))]
    grow = Step(JobKey("Job", "ns", "grows"), 6, 4, Reason.IDLE_ROOM)
    await doing.carry_out([*steps, grow], raw("held", "a", "grows"), noted, 0.0)
    assert order == [("held", 2, 0), ("a", 2, 0)]
    assert [name for name, _ in api.patches] == ["a", "grows"]
    assert outcomes == [("held", "Conflict"), ("a", "Written"), ("grows", "Written")]
