"""Laws of Volcano Jobs: whatever an owner writes is read or refused, and a status is written once."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.controllers.jobs import NOW_S
from tests.controllers.test_hostile_jobs import JSON
from tests.controllers.volcano.volcanojobs import VOLCANO, after, job, looked, phased, pod, task
from tests.kit.hypothesis_examples import scaled
from turnout.controllers.kinds.volcanojob import VOLCANOJOB
from turnout.controllers.kinds.volcanojob_life import ENDS, NEXT, PENDING, RESTARTING, RUNNING
from turnout.controllers.model import Create, GangSettings, OwnedObjects, PodPhase
from turnout.controllers.reconcile import reconcile

FIELDS = {
    "job": ("tasks", "minAvailable", "plugins", "policies", "volumes", "queue", "schedulerName", "maxRetry"),
    "more": ("minSuccess", "ttlSecondsAfterFinished", "priorityClassName", "networkTopology"),
    "task": ("name", "replicas", "minAvailable", "template", "policies", "dependsOn", "maxRetry", "partitionPolicy"),
    "pod": ("containers", "initContainers", "volumes", "hostname", "subdomain", "schedulerName", "restartPolicy"),
    "container": ("name", "image", "env", "resources", "volumeMounts", "ports", "command"),
    "policy": ("event", "events", "exitCode", "action", "timeout"),
}
STATUS = ("state", "conditions", "version", "retryCount", "controlledResources", "taskStatusCount")
PLUGINS = {"svc": [], "env": []}


@st.composite
def hostile(draw):
    """A sound job, of which some fields are anything at all."""
    policy = {"event": "PodFailed", "action": draw(st.sampled_from(["RestartJob", "AbortJob"]))}
    one = task(replicas=draw(st.integers(0, 3)), spec={"initContainers": [{"name": "i", "image": "i"}]}, policies=[])
    one_job = job(one, plugins=dict(PLUGINS), policies=[policy])
    pod_ = one["template"]["spec"]
    parts = {"job": one_job["spec"], "more": one_job["spec"], "task": one, "pod": pod_, "policy": policy}
    parts["container"] = pod_["containers"][0]
    for _ in range(draw(st.integers(1, 3))):
        part = draw(st.sampled_from(list(FIELDS)))
        parts[part][draw(st.sampled_from(FIELDS[part]))] = draw(JSON)
    if draw(st.booleans()):
        one_job["metadata"][draw(st.sampled_from(["labels", "annotations"]))] = draw(JSON)
    phases = st.fixed_dictionaries({"phase": st.sampled_from([PENDING, RUNNING, RESTARTING, *NEXT, *ENDS])})
    one_job["status"] = draw(st.dictionaries(st.sampled_from(STATUS), JSON | phases))
    return one_job


@settings(max_examples=scaled(300), deadline=None)
@given(hostile(), st.lists(st.sampled_from(list(PodPhase)), max_size=3), st.sampled_from([VOLCANO, GangSettings()]))
def test_whatever_an_owner_writes_is_read_or_refused(raw, phases, setup):
    pods = [pod(index, phase, exit_code=1) for index, phase in enumerate(phases)]
    outcome = reconcile(VOLCANOJOB, raw, OwnedObjects(pods), NOW_S, setup)
    for each in outcome.writes:
        if isinstance(each, Create):
            assert each.body["metadata"]["namespace"] == "ns"
            assert each.body["metadata"]["ownerReferences"][0]["uid"] == "uid-bert"


PODS = st.lists(st.tuples(st.sampled_from(list(PodPhase)), st.booleans(), st.integers(0, 3)), max_size=4)


@settings(max_examples=scaled(300), deadline=None)
@given(st.integers(0, 4), st.integers(0, 4), PODS, st.sampled_from([PENDING, RUNNING, RESTARTING, *NEXT, *ENDS]))
def test_a_status_once_written_is_not_written_again(replicas, minimum, pods, phase):
    minimum = min(minimum, replicas)
    raw = phased(phase, task(replicas=replicas, minimum=minimum), minAvailable=minimum, plugins={"svc": []})
    job_pods = [
        pod(at, each, deleting=is_leaving, restarts=restarts) for at, (each, is_leaving, restarts) in enumerate(pods)
    ]
    raw = after(raw, *job_pods, rounds=4)
    assert looked(raw, *job_pods).status is None
