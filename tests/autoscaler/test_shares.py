"""Borrowed room goes back, and no annotation raises a share: whatever an owner writes once his job has grown."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.autoscaler.test_cache import node, pod
from tests.autoscaler.test_tenant_words import WORDS
from tests.kit.hypothesis_examples import scaled
from turnout.autoscaler.cache import Cache
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import Policy
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import DEFAULT_POWER, JobKey, capped, gain
from turnout.kube import labels

NOW_S, POLICY = 10_000.0, Policy(restart_s=60.0)
GREW = "1970-01-01T02:00:00Z"
STAMPS = {labels.RESIZED_AT: GREW, labels.GAINED: "-60.0", labels.SIZED_AT_START: "false", labels.TERM: "7"}
WROTE = {labels.WROTE_WORKERS: "8", labels.SUBMITTED_WORKERS: "2"}


def raw(name, namespace, size, minimum, maximum, **notes):
    """An Indexed Job of one-GPU workers."""
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    spec = {"parallelism": size, "completions": size, "completionMode": "Indexed"}
    spec["template"] = {"spec": {"containers": [{"name": "m", "resources": limits}]}}
    notes = {labels.MIN_WORKERS: str(minimum), labels.MAX_WORKERS: str(maximum), **notes}
    meta = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1", "annotations": notes}
    return {"metadata": {**meta, "creationTimestamp": "1970-01-01T00:00:00Z"}, "spec": spec}


class Told:
    """A node of GPUs, one job that has grown, perhaps another, and one of another namespace that waits."""

    def __init__(self, size, minimum, waiting_workers, other=0):
        self.view, self.minimum = Cache(KINDS), minimum
        self.view.put_node(node("a", size + other))
        self.put(raw("grown", "mine", minimum, minimum, 16))
        self.grown = raw("grown", "mine", size, minimum, 16, **WROTE, **STAMPS)
        self.put(self.grown)
        self.view.reader.store_written_annotations(JobKey("Job", "mine", "grown"), STAMPS)
        self.pods("grown", "mine", size)
        if other:
            self.put(raw("other", "theirs", other, 1, 16, **STAMPS))
            self.pods("other", "theirs", other)
        self.put(raw("waits", "yours", waiting_workers, waiting_workers, waiting_workers))

    def put(self, raw_job):
        self.view.put_job("Job", raw_job)

    def pods(self, owner, namespace, count):
        for index in range(count):
            one_pod = pod(index, "a", owner=owner, gpus=1)
            one_pod.metadata.namespace, one_pod.metadata.name = namespace, f"{owner}-{index}"
            self.view.put_pod(one_pod)

    def says(self, **notes):
        """Write annotations on the grown job; None takes one away. How many workers it is left with."""
        raw_job = copy.deepcopy(self.grown)
        raw_job["metadata"]["annotations"].update(notes)
        raw_job["metadata"]["annotations"] = {
            key: text for key, text in raw_job["metadata"]["annotations"].items() if text
        }
        self.put(raw_job)
        steps = {step.key.name: step.target for step in decide(self.view.observation(NOW_S), POLICY, NOW_S)}
        return steps.get("grown", self.grown["spec"]["parallelism"])  # left alone with its min


@pytest.mark.parametrize(
    "notes",
    [
        pytest.param({}, id="nothing"),
        pytest.param({labels.PAUSED: "shrink"}, id="that it must not shrink"),
        pytest.param({labels.PAUSED: "true"}, id="that its size is left alone"),
        pytest.param({labels.PAUSED_UNTIL: "2999-01-01T00:00:00Z"}, id="until the end of days"),
        pytest.param({labels.MIN_WORKERS: "8"}, id="that all it has is its min"),
        pytest.param({labels.MIN_WORKERS: "8", labels.UNIT: "8"}, id="that it has one size only"),
        pytest.param({labels.UNIT: "7"}, id="sizes which its min is not"),
        pytest.param({labels.PRIORITY: "much"}, id="what cannot be read"),
        pytest.param({labels.MAX_WORKERS: "1"}, id="a most below its least"),
        pytest.param({labels.SCALE_PLAN: "x", labels.KUEUE_QUEUE: "q"}, id="that Kueue holds it"),
        pytest.param({labels.TERM: "99999999", labels.RESIZED_AT: "2099-01-01T00:00:00Z"}, id="forged stamps"),
        pytest.param(dict.fromkeys([*STAMPS, *WROTE]), id="and takes our notes away"),
    ],
)
def test_what_an_owner_writes_after_growing_keeps_nothing_others_wait_for(notes):
    assert Told(size=8, minimum=2, waiting_workers=6).says(**notes) == 2


KEYS = [
    labels.PAUSED,
    labels.PAUSED_UNTIL,
    labels.MIN_WORKERS,
    labels.MAX_WORKERS,
    labels.UNIT,
    labels.CURVE,
    labels.RESTART_COST,
    labels.COOLDOWN,
    labels.WISH_WORKERS,
    labels.MEASURED,
    labels.CONDITIONS,
    labels.SCALE_PLAN,
    *STAMPS,
    *WROTE,
]
SAID = st.dictionaries(
    st.sampled_from(KEYS),
    st.none()
    | WORDS
    | st.sampled_from(["shrink", "true", "1", "2", "4", "8", "1:1,16:1000000", "1:1,2:1", "0s", "9h"]),
    min_size=1,
    max_size=4,
)


@settings(max_examples=scaled(150), deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(0, 8), st.integers(0, 4), SAID)
def test_no_annotation_raises_a_share(data, minimum, more, other, notes):
    waiting_workers = data.draw(st.integers(1, minimum + more + other))
    plain = Told(minimum + more, minimum, waiting_workers, other).says()
    assert Told(minimum + more, minimum, waiting_workers, other).says(**notes) <= plain


def test_a_min_that_is_raised_counts_once_nothing_is_lent():
    job_in_queue = Told(size=8, minimum=2, waiting_workers=6)
    job_in_queue.says(**{labels.MIN_WORKERS: "8"})
    job_in_queue.put(raw("grown", "mine", 2, 8, 16, **WROTE, **STAMPS))
    (observed_job,) = (each for each in job_in_queue.view.observation(NOW_S).jobs if each.job.key.name == "grown")
    assert observed_job.job.bounds.minimum == 8


def test_a_job_that_was_never_resized_is_refused_as_before():
    raw_job = raw("rigid", "mine", 8, 2, 16, **{labels.KUEUE_QUEUE: "q"})
    raw_job["metadata"]["labels"] = {labels.KUEUE_QUEUE: "q"}
    view = Cache(KINDS)
    view.put_job("Job", raw_job)
    assert view.observation(NOW_S).jobs[0].job.refused


CLAIMED = st.dictionaries(st.integers(1, 64), st.floats(1e-6, 1e6), min_size=1, max_size=6)


@settings(max_examples=scaled(300), deadline=None)
@given(CLAIMED, st.integers(1, 8), st.integers(0, 32), st.integers(1, 32))
def test_a_curve_that_an_owner_claims_promises_no_more_than_none(points, minimum, more, further):
    text = ",".join(f"{workers}:{fast:.6f}" for workers, fast in sorted(points.items()))
    claimed = KINDS["Job"].read(raw("a", "ns", minimum, minimum, 100, **{labels.CURVE: text})).curve
    size = minimum + more
    claimed_gain, usual = gain(claimed, minimum, size, size + further), gain((), minimum, size, size + further)
    assert claimed_gain.share <= usual.share * (1 + 1e-9) + 1e-12
    assert claimed_gain.per_worker <= usual.per_worker * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(
    ("points", "power", "is_so"),
    [
        pytest.param(((1, 1.0), (16, 1e6)), 1.0, ((1, 1.0), (16, 16.0)), id="nobody scales better than perfectly"),
        pytest.param(((1, 1.0), (2, 1.5)), 1.0, ((1, 1.0), (2, 1.5)), id="what is worse stays"),
        pytest.param(
            ((4, 1.0), (8, 9.0)), DEFAULT_POWER, ((4, 1.0), (8, 2**DEFAULT_POWER)), id="from its first point on"
        ),
        pytest.param(((1, 1.0), (2, 9.0), (4, 9.0)), 1.0, ((1, 1.0), (2, 2.0), (4, 4.0)), id="from point to point"),
    ],
)
def test_curves_are_capped(points, power, is_so):
    assert capped(points, power) == tuple((workers, pytest.approx(fast)) for workers, fast in is_so)
