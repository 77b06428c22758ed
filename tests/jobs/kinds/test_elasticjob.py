"""DLRover ElasticJobs: one ScalePlan for each change, named by the version that it was decided on; XD-02, VE-16."""

import copy

import pytest

from tests.jobs.kinds.manifests import BOUNDS, elastic
from tests.jobs.kinds.test_every_kind import merged
from tests.jobs.test_kinds import template
from turnout.autoscaler.controller.scale_writer import ScaleWriter
from turnout.autoscaler.model import Reason, Step
from turnout.controllers.scale_plan import scale_job
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import BadJob, Bounds, JobKey, Sizes
from turnout.kube import labels
from turnout.kube.errors import Conflict, Forbidden, ServerFault

KIND = KINDS["ElasticJob"]
KEY = JobKey("ElasticJob", "ns", "j")
PLANS = "/apis/elastic.iml.github.io/v1alpha1/namespaces/ns/scaleplans"


def plan(name="j-turnout-7", workers=6):
    group = "elastic.iml.github.io/v1alpha1"
    return {
        "apiVersion": group,
        "kind": "ScalePlan",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "labels": {"elasticjob-name": "j", "elasticjob.dlrover/name": "j", "scale-type": "manual"},
            "ownerReferences": [{"apiVersion": group, "kind": "ElasticJob", "name": "j", "uid": "u"}],
        },
        "spec": {"ownerJob": "j", "replicaResourceSpecs": {"worker": {"replicas": workers}}},
    }


def test_a_change_is_a_note_on_the_job_and_then_a_plan():
    change = KIND.change(elastic(), 6)
    assert change.body["metadata"]["resourceVersion"] == "7"
    assert change.body["metadata"]["annotations"][labels.SCALE_PLAN] == "j-turnout-7"
    assert "spec" not in change.body  # its master reads no change of replicas
    assert (change.then.method, change.then.path, change.then.body) == ("POST", PLANS, plan())


def test_its_size_is_what_we_asked_for_last():
    raw = elastic()
    assert KIND.read(raw).replicas == 4
    resized = merged(raw, KIND.change(raw, 6).body)
    job = KIND.read(resized)
    assert (job.replicas, job.wanted_workers, resized["spec"]["replicaSpecs"]["worker"]["replicas"]) == (6, None, 4)


def test_a_plan_that_was_lost_is_written_again_under_its_name():
    raw = elastic()
    assert KIND.recreate_scale_plan(raw) is None
    resized = merged(raw, KIND.change(raw, 6).body)
    resized["metadata"]["resourceVersion"] = "9"
    assert KIND.recreate_scale_plan(resized) == KIND.change(raw, 6).then


def followed(raw, workers):
    """The job once our change has been written and our job controller has carried it out."""
    resized = merged(raw, KIND.change(raw, workers).body)
    plan_ = KIND.change(raw, workers).then.body
    scaled = merged(resized, scale_job(plan_, resized, 0.0).job)
    scaled["metadata"]["resourceVersion"] = "9"
    return scaled


@pytest.mark.parametrize(
    ("command", "notes"),
    [
        pytest.param("dlrover-run --nnodes=2:8 t.py", BOUNDS, id="bounded by --nnodes"),
        pytest.param("sh run.sh", BOUNDS, id="bounded by both annotations"),
        pytest.param("sh run.sh", {labels.MAX_WORKERS: "8"}, id="whose min only its size says"),
    ],
)
def test_under_our_job_controller_a_plan_changes_the_size_alone(command, notes):
    raw = elastic(notes=notes, command=command)
    minimum = KIND.read(raw).bounds.minimum
    job = KIND.read(followed(raw, 6))
    assert (job.replicas, job.bounds, job.wanted_workers, job.reapplied_size) == (6, Bounds(minimum, 8), None, None)
    assert KIND.recreate_scale_plan(followed(raw, 6)) is None
    back = KIND.read(followed(followed(raw, 6), 4))
    assert (back.replicas, back.bounds, back.wanted_workers) == (4, Bounds(minimum, 8), None)


def test_a_size_set_by_hand_under_our_job_controller_is_a_wish():
    raw = followed(elastic(), 6)
    raw["spec"]["replicaSpecs"]["worker"]["replicas"] = 3
    job = KIND.read(raw)
    assert (job.replicas, job.wanted_workers) == (3, 3)


def test_an_object_applied_again_under_our_job_controller_is_put_back():
    raw = followed(elastic(), 6)
    raw["spec"]["replicaSpecs"]["worker"]["replicas"] = 4
    job = KIND.read(raw)
    assert (job.replicas, job.wanted_workers, job.reapplied_size) == (4, None, 6)


def test_a_plan_that_is_not_carried_out_yet_is_still_our_word():
    raw = followed(elastic(), 6)
    resized = merged(raw, KIND.change(raw, 2).body)
    assert KIND.read(resized).replicas == 2
    assert KIND.recreate_scale_plan(resized) == KIND.change(raw, 2).then


def test_a_long_name_still_names_a_plan():
    raw = elastic()
    raw["metadata"]["name"] = "j" * 253
    assert len(KIND.change(raw, 6).then.body["metadata"]["name"]) <= 253


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (elastic(notes={}), "is unknown if its master reads ScalePlans"),
        (elastic(distributionStrategy="ParameterServerStrategy"), "distributionStrategy is ParameterServerStrategy"),
        (elastic(distributionStrategy=None), "distributionStrategy is not set"),
        (elastic(optimizeMode="cluster"), "DLRover resizes it by itself"),
        (elastic(worker={"autoScale": True}), "DLRover resizes it by itself"),
    ],
)
def test_each_hazard_is_a_refusal_that_says_why(raw, why):
    assert why in KIND.read(raw).refused


@pytest.mark.parametrize(
    ("command", "bounds", "sizes"),
    [
        ("dlrover-run --nnodes=2:8 t.py", Bounds(2, 8), Sizes()),
        ("dlrover-run --nnodes 2:8 --node_unit=2 t.py", Bounds(2, 8), Sizes(2)),
        ("sh run.sh", Bounds(2, 8), Sizes()),
    ],
)
def test_what_its_launcher_is_told_bounds_it(command, bounds, sizes):
    job = KIND.read(elastic(command=command))
    assert (job.bounds, job.sizes, job.refused) == (bounds, sizes, "")


def test_annotations_may_only_narrow_what_its_launcher_is_told():
    with pytest.raises(BadJob, match=r"ask for 2..8 workers, and --nnodes allows 2..4"):
        KIND.read(elastic(command="dlrover-run --nnodes=2:4 t.py"))


def test_its_other_roles_are_part_of_its_least():
    job = KIND.read(elastic(roles={"evaluator": {"replicas": 1, "template": template(1)}}))
    assert ([count for _, count in job.other_roles], job.role) == ([1], "worker")


# Written by the one write path: the note first, which one writer of a version can make, then the plan.


class Api:
    """Takes what is written, in order; refuses a plan as it is told to, and one whose name is there."""

    def __init__(self, *refusals, note=None):
        self.written, self.plans, self.refusals, self.note = [], {}, list(refusals), note

    async def patch(self, path, body, content_type, field_manager):
        if self.note is not None:
            raise self.note
        self.written.append(("note", body["metadata"]["annotations"][labels.WROTE_WORKERS]))
        return b"{}"

    async def create(self, path, body):
        if self.refusals:
            raise self.refusals.pop(0)
        if body["metadata"]["name"] in self.plans:
            raise Conflict("POST", path, 409, "", reason="AlreadyExists")
        self.plans[body["metadata"]["name"]] = body
        self.written.append(("plan", str(body["spec"]["replicaResourceSpecs"]["worker"]["replicas"])))
        return b"{}"


def writer(api, outcomes, leading=lambda: 7):
    return ScaleWriter(api, KINDS, leading, lambda step, word: outcomes.append(word), dry_run=False)


def grown(raw, workers=6):
    """The job with our note, as the next look sees it."""
    raw_job = merged(raw, KIND.change(raw, workers).body)
    raw_job["metadata"]["resourceVersion"] = "9"
    return raw_job


def grow():
    return Step(KEY, 6, 4, Reason.IDLE_ROOM)


def stays():
    return Step(KEY, 6, 6, Reason.NOT_READY)


def nothing(step):
    return {}


@pytest.mark.asyncio
async def test_the_note_comes_first():
    api, outcomes = Api(), []
    assert await writer(api, outcomes).carry_out([grow()], {KEY: elastic()}, nothing, 0.0) == 1
    assert (api.written, outcomes) == ([("note", "6"), ("plan", "6")], ["Written"])


@pytest.mark.asyncio
async def test_whoever_was_overtaken_writes_no_plan():
    api, outcomes = Api(note=Conflict("PATCH", "j", 409, "")), []
    await writer(api, outcomes).carry_out([grow()], {KEY: elastic()}, nothing, 0.0)
    assert (api.written, outcomes) == ([], ["Conflict"])


@pytest.mark.asyncio
async def test_whoever_no_longer_leads_writes_no_plan():
    terms = iter([7, None])
    api, outcomes = Api(), []
    await writer(api, outcomes, lambda: next(terms)).carry_out([grow()], {KEY: elastic()}, nothing, 0.0)
    assert (api.written, outcomes) == ([("note", "6")], ["Refused"])


@pytest.mark.asyncio
@pytest.mark.parametrize("refusal", [ServerFault("POST", PLANS, 500, ""), Forbidden("POST", PLANS, 403, "")])
async def test_a_plan_that_did_not_get_through_is_written_later(refusal):
    api, outcomes = Api(refusal), []
    doing = writer(api, outcomes)
    await doing.carry_out([grow()], {KEY: elastic()}, nothing, 0.0)
    assert (api.written, outcomes) == ([("note", "6")], ["Refused"])
    for now_s in (0.1, 100.0, 200.0):  # not at once, and not twice
        await doing.carry_out([stays()], {KEY: grown(elastic())}, nothing, now_s)
    assert api.written == [("note", "6"), ("plan", "6")]


@pytest.mark.asyncio
async def test_the_next_leader_writes_the_plan_the_last_one_died_over_only_once():
    api, jobs = Api(), {KEY: grown(elastic())}
    for _ in range(2):
        await writer(api, []).carry_out([stays()], copy.deepcopy(jobs), nothing, 0.0)
    assert (api.written, list(api.plans)) == ([("plan", "6")], ["j-turnout-7"])


@pytest.mark.asyncio
async def test_a_dry_run_writes_no_plan():
    api = Api()
    dry = ScaleWriter(api, KINDS, lambda: 7, lambda step, word: None, dry_run=True)
    await dry.carry_out([grow()], {KEY: elastic()}, nothing, 0.0)
    await dry.carry_out([stays()], {KEY: grown(elastic())}, nothing, 0.0)
    assert api.written == []


def test_bounds_alone_make_no_plan():
    assert KIND.recreate_scale_plan(elastic(notes=BOUNDS)) is None
