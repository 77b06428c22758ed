"""Laws: no job, whatever its owner writes in it, raises anything or brings about more than its own children."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.controllers import elasticjobs
from tests.controllers.jobs import NOW_S, job, looked, others, pod, role, with_status
from tests.kit.hypothesis_examples import scaled
from turnout.controllers.kinds.elasticjob import ELASTICJOB
from turnout.controllers.kinds.pytorchjob import PYTORCHJOB
from turnout.controllers.model import ControlledJob, Create, OwnedObjects, PodPhase
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
    one_job = job(worker=role(draw(st.integers(0, 3))), elastic=draw(st.none() | st.just({})), run={})
    for _ in range(draw(st.integers(1, 3))):
        field = draw(st.sampled_from(FIELDS))
        if field in INNER and isinstance(one_job["spec"].get(field), dict):
            one_job["spec"][field][draw(st.sampled_from(INNER[field]))] = draw(JSON)
        else:
            one_job["spec"][field] = draw(JSON)
    if draw(st.booleans()):
        one_job["spec"]["pytorchReplicaSpecs"] = {
            "Worker": {**role(2), draw(st.sampled_from(["replicas", "template", "restartPolicy"])): draw(JSON)}
        }
    if draw(st.booleans()):
        one_job["status"] = draw(
            st.dictionaries(st.sampled_from(["conditions", "replicaStatuses", "startTime", "completionTime"]), JSON)
        )
    return one_job


@settings(max_examples=scaled(300), deadline=None)
@given(hostile(), st.integers(0, 2))
def test_whatever_an_owner_writes_is_read_or_refused(raw, pods):
    outcome = reconcile(PYTORCHJOB, raw, OwnedObjects([pod(index) for index in range(pods)]), NOW_S)
    for each in outcome.writes:
        if isinstance(each, Create):
            assert each.body["metadata"]["namespace"] == "ns"
            assert each.body["metadata"]["ownerReferences"][0]["uid"] == "uid-bert"


PODS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(list(PodPhase)), st.booleans(), st.integers(0, 2)),
    max_size=5,
    unique_by=lambda each: each[0],
)


@settings(max_examples=scaled(300), deadline=None)
@given(st.integers(0, 4), st.sampled_from(["OnFailure", "Never", "ExitCode"]), st.booleans(), PODS)
def test_a_status_once_written_is_not_written_again(replicas, restart, elastic, pods):
    raw = job(worker=role(replicas, restart), elastic={"minReplicas": 1, "maxReplicas": 5} if elastic else None)
    job_pods = [pod(index, phase, deleting=deleting, restarts=restarts) for index, phase, deleting, restarts in pods]
    for _ in range(3):  # created, judged, and what was active is counted once the job has ended
        raw = with_status(raw, looked(raw, *job_pods))
    outcome = looked(raw, *job_pods)
    assert outcome.status is None
    assert isinstance(PYTORCHJOB.read(raw), ControlledJob)
    if not pods and replicas == 0:
        assert reconcile(PYTORCHJOB, raw, OwnedObjects((), others(raw)), NOW_S) == NOTHING


ELASTIC = {
    "spec": ("distributionStrategy", "optimizeMode", "suspend", "replicaSpecs"),
    "worker": ("replicas", "restartCount", "restartCounts", "restartPolicy", "template"),
    "pod": ("containers", "affinity", "restartPolicy", "volumes", "imagePullSecrets"),
    "container": ("name", "image", "command", "args", "env", "resources", "volumeMounts"),
}
LEARNT = st.dictionaries(
    st.sampled_from(["restarts", "restartedPods", "restartCounts", "memoryKills", "faultyNodes", "nextNumber"]),
    JSON | st.lists(st.text(max_size=4), max_size=3) | st.dictionaries(st.sampled_from("01"), st.integers(0, 9)),
)


@st.composite
def hostile_elastic(draw):
    """A sound ElasticJob, of which some fields of the job, its workers or its master are anything at all."""
    lead = elasticjobs.master({"image": "m"}, restartCount=1)
    raw_job = elasticjobs.job(
        elasticjobs.worker(draw(st.integers(0, 3)), {"resources": {"limits": {"memory": "1Gi"}}}), lead
    )
    role = raw_job["spec"]["replicaSpecs"][draw(st.sampled_from(["worker", "dlrover-master"]))]
    pod_ = role["template"]["spec"]
    parts = {"spec": raw_job["spec"], "worker": role, "pod": pod_, "container": pod_["containers"][0]}
    for _ in range(draw(st.integers(1, 3))):
        part = draw(st.sampled_from(list(ELASTIC)))
        parts[part][draw(st.sampled_from(ELASTIC[part]))] = draw(JSON)
    if draw(st.booleans()):
        raw_job["metadata"]["annotations"] = draw(JSON)
    roles = st.dictionaries(st.sampled_from(["worker", "dlrover-master"]), LEARNT)
    raw_job["status"] = draw(st.fixed_dictionaries({}, optional={"replicaStatuses": JSON | roles, "phase": JSON}))
    return raw_job


@settings(max_examples=scaled(300), deadline=None)
@given(hostile_elastic(), st.sampled_from([1, 137, 138]), st.sampled_from(["", "OOMKilled"]))
def test_whatever_an_owner_of_an_elasticjob_writes_is_read_or_refused(raw, code, reason):
    failed = elasticjobs.pod(0, phase=PodPhase.FAILED, exit_code=code, reason=reason, node="n")
    for pods in (
        OwnedObjects(),
        OwnedObjects([elasticjobs.lead(), failed]),
        OwnedObjects([elasticjobs.lead(), elasticjobs.pod(1)]),
    ):
        outcome = reconcile(ELASTICJOB, raw, pods, NOW_S)
        for each in outcome.writes:
            if isinstance(each, Create):
                assert each.body["metadata"]["ownerReferences"][0]["uid"] == "uid-bert"
        if outcome.status is not None:
            raw = with_status(raw, outcome)


@settings(max_examples=scaled(300), deadline=None)
@given(st.integers(0, 3), st.integers(0, 3), PODS, st.sampled_from([1, 137, None]))
def test_an_elasticjobs_status_once_written_is_not_written_again(replicas, restarts, pods, code):
    raw = elasticjobs.job(elasticjobs.worker(replicas, restartCount=restarts))
    ended = {"exit_code": code, "reason": "OOMKilled" if code == 137 else ""}
    job_pods = [
        elasticjobs.pod(10 + rank, rank, phase, deleting=deleting, **ended) for rank, phase, deleting, _ in pods
    ]
    for _ in range(4):
        raw = with_status(raw, elasticjobs.looked(raw, elasticjobs.lead(), *job_pods))
    outcome = elasticjobs.looked(raw, elasticjobs.lead(), *job_pods)
    creations = [each for each in outcome.writes if isinstance(each, Create)]
    assert outcome.status is None or creations  # numbers that are given are noted
