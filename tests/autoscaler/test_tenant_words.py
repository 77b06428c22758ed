"""A tenant's words on a job or a pod never end the autoscaler: they are read, or told and left alone."""

import copy
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.autoscaler.controller.test_scale_writer import Api, noted
from tests.autoscaler.test_cache import job, node, pod
from tests.autoscaler.world import NOW_S, POLICY, state_of, world
from tests.autoscaler.world import job as small
from tests.jobs.kinds.manifests import SAMPLES
from tests.kit.hypothesis_examples import scaled
from turnout.autoscaler.cache import Cache
from turnout.autoscaler.controller.scale_writer import ScaleWriter, with_annotations
from turnout.autoscaler.decide import decide, decide_safely
from turnout.autoscaler.model import Policy, Reason, Step
from turnout.autoscaler.reporting.forecast import run_time_s
from turnout.autoscaler.scaling.resize_cost import is_overruled, resize_annotations
from turnout.jobs.gang import membership
from turnout.jobs.kinds.job_kind import JobKind, number_of
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import BadJob, JobKey, gain, speed
from turnout.kube import labels
from turnout.kube.errors import KubeError
from turnout.kube.objects import Container, EnvVar

# Every name of a label or annotation that is written down in kube/labels.py.
NAMES = sorted({value for value in vars(labels).values() if isinstance(value, str) and "/" in value})
DIGITS = st.text("0123456789²٣۴०⅔Ⅷ-+._:eE, ", max_size=12)
NUMBERS = st.integers(-(10**30), 10**30).map(str) | st.floats().map(str) | st.just("9" * 5000)
MOMENTS = st.sampled_from(
    [
        "2026-01-31T18:00:00Z",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "1970-01-01T00:16:40Z",
        "２026-01-31T18:00:00Z",
        "2026-01-31T18:00:00Z\n",
    ]
)
CURVES = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 3, 999_998, 999_999]), st.sampled_from(["0.000000001", "1", "9999999", "1e9", "²"])
    ),
    max_size=5,
).map(lambda points: ",".join(f"{workers}:{value}" for workers, value in points))
SPANS = st.sampled_from(
    ["600s", "10m", "999999h999999m999999999s", "²s", "٣m", "1_0s", "5s\n", "powers-of-two", "true"]
)
ODD = st.sampled_from(["²", "٣", "⅔", "1_0", " 1", "+1", "1\n", "9" * 5000, "0x1", "1e3", "nan", "inf", "-0"])
WORDS = ODD | DIGITS | NUMBERS | MOMENTS | CURVES | SPANS | st.text(max_size=8)
READ = [labels.TERM, labels.CURVE, labels.GAINED, labels.RESIZED_AT, labels.RESTART_COST, labels.STEP_SECONDS]
NOTES = st.dictionaries(st.sampled_from(READ) | st.sampled_from(NAMES), WORDS, max_size=6)


@settings(max_examples=scaled(400), deadline=None)
@given(st.sampled_from(sorted(SAMPLES)), NOTES, NOTES, NOTES)
def test_no_text_on_a_job_or_its_pods_makes_read_decide_or_write_raise(kind, notes, on_pods, marks):
    raw = copy.deepcopy(SAMPLES[kind])
    raw["metadata"].setdefault("annotations", {}).update(notes)
    raw["metadata"].setdefault("labels", {}).update(marks)
    view = Cache(KINDS)
    for name in ("a", "b"):
        view.put_node(node(name))
    view.put_job(kind, raw)
    for index in range(4):
        one_pod = pod(index, "a", **on_pods)
        one_pod.metadata.labels = dict(marks)
        view.put_pod(one_pod)
    at = view.observation(NOW_S)
    assert not [why for why in view.reader.faults.values() if "cannot be read" in why]  # a fault of ours
    for step in decide(at, POLICY, NOW_S):
        if step.key not in view.jobs.raw:
            continue  # pods of no job
        raw_job, one_pod = view.jobs.raw[step.key], next(each.job for each in at.jobs if each.job.key == step.key)
        is_overruled(raw_job["metadata"]["annotations"], 7, NOW_S)
        if one_pod.elastic:
            annotations = resize_annotations(
                one_pod, Step(step.key, one_pod.bounds.maximum, one_pod.replicas, Reason.IDLE_ROOM), POLICY, NOW_S
            )
            with_annotations(KINDS[kind].change(raw_job, one_pod.bounds.maximum, ("j-3",)), annotations)
            if KINDS[kind].recreate_scale_plan is not None:
                KINDS[kind].recreate_scale_plan(raw_job)


@settings(max_examples=scaled(300), deadline=None)
@given(NOTES, NOTES, WORDS, WORDS)
def test_no_word_on_a_pod_makes_its_gang_raise(notes, marks, env, name):
    one_pod = pod(0, **notes)
    one_pod.metadata.labels, one_pod.metadata.name = marks, f"j-{name}"
    variables = [EnvVar(key, env) for key in ("PET_NNODES", "PET_NPROC_PER_NODE", "WORLD_SIZE")]
    one_pod.spec.containers = [Container(env=variables)]
    membership(one_pod)
    number_of(name)


@settings(max_examples=scaled(300), deadline=None)
@example("999998:0.000000001,999999:9999999", 1, 1, 1)
@example("999998:9999999,999999:0.000000001", 1, 1, 1)
@given(CURVES, st.integers(1, 1000), st.integers(0, 1000), st.integers(1, 1000))
def test_whatever_curve_an_owner_writes_a_speed_is_a_number_above_nought(text, minimum, more, further):
    try:
        curve = KINDS["Job"].read(job(1, **{labels.CURVE: text})).curve
    except BadJob:
        return
    size = minimum + more
    assert 0 < speed(curve, size) < float("inf")
    worth = gain(curve, minimum, size, size + further)
    assert -1 <= worth.share < float("inf")


@settings(max_examples=scaled(200), deadline=None)
@given(WORDS, st.lists(st.none() | WORDS | st.dictionaries(st.sampled_from(["type", "status"]), WORDS), max_size=2))
def test_no_word_in_a_status_makes_a_life_raise(ran, conditions):
    run_time_s({"status": {"runningDuration": ran, "conditions": conditions}})


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        pytest.param("²", False, id="a digit that is no decimal is no term"),
        pytest.param("٨", False, id="nor is a digit of another script"),
        pytest.param("9" * 5000, False, id="nor one that no Lease counts to"),
        pytest.param("8", True, id="a later leader's is one"),
    ],
)
def test_only_a_leases_count_overrules_us(text, ours):
    notes = {labels.TERM: text, labels.RESIZED_AT: "1970-01-12T13:46:40Z"}
    assert is_overruled(notes, 7, NOW_S) is ours


def test_a_moment_that_is_to_come_overrules_nobody_for_ever():
    notes = {labels.TERM: "8", labels.RESIZED_AT: "2999-01-01T00:00:00Z"}
    assert is_overruled(notes, 7, NOW_S) is False


# A fault of ours that one job brings about.


def broken(kind, **fields):
    """A kind of which something raises as no reader should."""
    own = KINDS[kind]
    spec_fields = {
        each: getattr(own, each)
        for each in ("kind", "path", "read", "resize", "resize_with_names", "recreate_scale_plan", "pods")
    }
    return {**KINDS, kind: JobKind(**{**spec_fields, **fields})}


def of_b(function):
    """The function, but on a job called b a fault of ours."""

    def write_or_raise(raw, *rest):
        if raw["metadata"]["name"] == "b":
            raise ZeroDivisionError("of b")
        return function(raw, *rest)

    return write_or_raise


def named(name, uid):
    one_job = job(1, uid)
    one_job["metadata"]["name"] = name
    return one_job


def test_a_job_unreadable_by_our_fault_is_logged_and_others_are_seen():
    view = Cache(broken("Job", read=of_b(KINDS["Job"].read)))
    for name in ("a", "b", "c"):
        view.put_job("Job", named(name, f"u-{name}"))
    assert [each.job.key.name for each in view.observation(0.0).jobs] == ["a", "c"]
    key = JobKey("Job", "ns", "b")
    assert view.reader.faults == {key: "it cannot be read: ZeroDivisionError('of b')"}
    assert view.jobs.identity(key) == ("Job", "batch/v1", "u-b")
    view.drop_job("u-b")
    assert (view.reader.faults, view.jobs.identity(key)) == ({}, None)


@pytest.mark.asyncio
async def test_a_write_failed_by_our_fault_counts_as_refused_and_others_go_on():
    api, outcomes, raw = Api(), [], {}
    for name in ("a", "b", "c"):
        raw[JobKey("Job", "ns", name)] = named(name, f"u-{name}")
    kinds = broken("Job", resize=of_b(KINDS["Job"].resize))
    writer = ScaleWriter(
        api, kinds, lambda: 7, lambda step, word: outcomes.append((step.key.name, word)), dry_run=False
    )
    steps = [Step(key, 4, 1, Reason.IDLE_ROOM) for key in raw]
    assert await writer.carry_out(steps, raw, noted, 0.0) == 2
    assert outcomes == [("a", "Written"), ("c", "Written")]
    back_offs = {JobKey("Job", "ns", "b"): "it cannot be written: ZeroDivisionError('of b')"}
    assert writer.refusals.messages(raw, 0.5) == back_offs
    assert await writer.carry_out(steps[1:2], raw, noted, 0.5) == 0  # no try before its time


def faulty(*names):
    """Decide, but fail where one of these jobs is among those to decide on."""

    def decide_or_raise(at, policy, now_s):
        if any(each.job.key.name in names for each in at.jobs):
            raise ZeroDivisionError("among them")
        return decide(at, policy, now_s)

    return decide_or_raise


AT = world([8], *(state_of(small(name), [0]) for name in "abcde"))


@pytest.mark.parametrize("names", ["", "a", "c", "bd", "abcde"], ids=["none", "the first", "one", "two", "all"])
def test_a_job_that_breaks_deciding_keeps_its_size_and_others_go_on(names):
    steps, faults = decide_safely(faulty(*names), AT, POLICY, NOW_S)
    assert [step.key for step in steps] == [each.job.key for each in AT.jobs]
    assert [step.key.name for step in steps if step.reason is Reason.REFUSED] == sorted(names)
    assert sorted(key.name for key in faults) == sorted(names)
    sound = replace(AT, jobs=tuple(each for each in AT.jobs if each.job.key.name not in names))
    assert [step for step in steps if step.reason is not Reason.REFUSED] == decide(sound, POLICY, NOW_S)


def test_a_fault_that_no_job_brings_about_is_nobodys():
    def decide_or_raise(at, policy, now_s):
        raise KubeError("whoever is there")

    with pytest.raises(KubeError):
        decide_safely(decide_or_raise, world([8]), Policy(), NOW_S)
