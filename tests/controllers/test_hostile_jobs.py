"""Laws: no job, whatever its owner writes in it, raises anything or brings about more than its own children."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.controllers.jobs import NOW_S, job, looked, others, pod, role, with_status
from tests.support.examples import scaled
from turnout.controllers.kinds.pytorchjob import PYTORCHJOB
from turnout.controllers.model import Create, JobView, Phase, Seen
from turnout.controllers.reconcile import NOTHING, reconcile

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("pytorchReplicaSpecs", "elasticPolicy", "runPolicy", "nprocPerNode")
INNER = {
    "elasticPolicy": ("minReplicas", "maxReplicas", "rdzvConf", "metrics", "nProcPerNode", "rdzvHost", "standalone"),
    "runPolicy": (
        "suspend",
        "cleanPodPolicy",
        "ttlSecondsAfterFinished",
        "backoffLimit",
        "schedulingPolicy",
        "managedBy",
    ),
}


@st.composite
def hostile(draw):
    """A sound job, of which some fields are anything at all."""
    made = job(worker=role(draw(st.integers(0, 3))), elastic=draw(st.none() | st.just({})), run={})
    for _ in range(draw(st.integers(1, 3))):
        field = draw(st.sampled_from(FIELDS))
        if field in INNER and isinstance(made["spec"].get(field), dict):
            made["spec"][field][draw(st.sampled_from(INNER[field]))] = draw(JSON)
        else:
            made["spec"][field] = draw(JSON)
    if draw(st.booleans()):
        made["spec"]["pytorchReplicaSpecs"] = {
            "Worker": {**role(2), draw(st.sampled_from(["replicas", "template", "restartPolicy"])): draw(JSON)}
        }
    if draw(st.booleans()):
        made["status"] = draw(
            st.dictionaries(st.sampled_from(["conditions", "replicaStatuses", "startTime", "completionTime"]), JSON)
        )
    return made


@settings(max_examples=scaled(300), deadline=None)
@given(hostile(), st.integers(0, 2))
def test_whatever_an_owner_writes_is_read_or_refused(raw, pods):
    outcome = reconcile(PYTORCHJOB, raw, Seen([pod(index) for index in range(pods)]), NOW_S)
    for each in outcome.writes:
        if isinstance(each, Create):
            assert each.body["metadata"]["namespace"] == "ns"
            assert each.body["metadata"]["ownerReferences"][0]["uid"] == "uid-bert"


PODS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(list(Phase)), st.booleans(), st.integers(0, 2)),
    max_size=5,
    unique_by=lambda each: each[0],
)


@settings(max_examples=scaled(300), deadline=None)
@given(st.integers(0, 4), st.sampled_from(["OnFailure", "Never", "ExitCode"]), st.booleans(), PODS)
def test_a_status_once_written_is_not_written_again(replicas, restart, elastic, pods):
    raw = job(worker=role(replicas, restart), elastic={"minReplicas": 1, "maxReplicas": 5} if elastic else None)
    seen = [pod(index, phase, deleting=deleting, restarts=restarts) for index, phase, deleting, restarts in pods]
    for _ in range(3):  # created, judged, and what was active is counted once the job has ended
        raw = with_status(raw, looked(raw, *seen))
    outcome = looked(raw, *seen)
    assert outcome.status is None
    assert isinstance(PYTORCHJOB.read(raw), JobView)
    if not pods and replicas == 0:
        assert reconcile(PYTORCHJOB, raw, Seen((), others(raw)), NOW_S) == NOTHING
