"""MSJobs: the order in which they come up, what MindSpore is told, what ends them, and what their owners are told."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.controllers.jobs import NOW_S, conditions, pod_state, with_status
from tests.kit.hypothesis_examples import scaled
from turnout.controllers import children
from turnout.controllers.kinds.msjob import MSJOB
from turnout.controllers.model import (
    ChildKey,
    ChildState,
    ControlledJob,
    Create,
    Delete,
    GangDialect,
    GangSettings,
    OwnedObjects,
    PodPhase,
    Reason,
    RefusedJob,
    Replica,
)
from turnout.controllers.reconcile import reconcile
from turnout.jobs.kinds.job_kind import CleanPods, Restart
from turnout.kube.times import rfc3339

GUIDE = Path(__file__).parents[2] / "examples/jobs/msjob-dataparallel.yaml"
CONTAINER = {"name": "mindspore", "image": "ms:1"}
SERVICE = ChildKey("Service", "deep-scheduler-0")
ADDRESSED = {SERVICE: ChildState(SERVICE, "s", "scheduler", 0, {"clusterIP": "10.0.0.7"})}


def role(replicas=1, restart=None, container=CONTAINER, **spec):
    raw_role = {"replicas": replicas, "template": {"spec": {"containers": [container], **spec}}}
    return raw_role if restart is None else {**raw_role, "restartPolicy": restart}


def job(roles=None, run=None, **spec):
    roles = {"Scheduler": role(), "Worker": role(4)} if roles is None else roles
    meta = {"name": "deep", "namespace": "ns", "uid": "uid-deep", "resourceVersion": "1"}
    spec = {"msReplicaSpecs": roles, **spec, **({} if run is None else {"runPolicy": run})}
    return {"apiVersion": "mindspore.gitee.com/v1", "kind": "MSJob", "metadata": meta, "spec": spec, "status": {}}


def pod(role="worker", index=0, phase=PodPhase.RUNNING, **more):
    return pod_state(f"deep-{role}-{index}", f"{role}-{index}", role, index, phase, **more)


def workers(*phases):
    return [pod("scheduler"), *(pod(index=index, phase=phase) for index, phase in enumerate(phases))]


def view(raw):
    found = MSJOB.read(raw)
    assert isinstance(found, ControlledJob), found
    return found


def looked(raw, *pods, others=ADDRESSED, now_s=NOW_S, setup=None):
    return reconcile(MSJOB, raw, OwnedObjects(pods, others), now_s, setup or GangSettings())


def after(raw, *pods, **more):
    return with_status(raw, looked(raw, *pods, **more))


def made(outcome):
    return [each.body["metadata"]["name"] for each in outcome.writes if isinstance(each, Create)]


def pod_of(raw, name, index=0):
    view_of_job = view(raw)
    (found,) = [each for each in view_of_job.roles if each.name == name]
    return children.pod_body(
        MSJOB, view_of_job, found, Replica(index, index), OwnedObjects((), ADDRESSED), GangSettings()
    )


def container_of(raw, name):
    (container,) = pod_of(raw, name)["spec"]["containers"]
    return container


def from_field(path):
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


@pytest.mark.contract("MS-44", "MS-12", "MS-10")
def test_a_job_comes_up_in_order():
    """Its Service, then with that one's address the Scheduler, then the others."""
    assert made(looked(job(), others={})) == ["deep-scheduler-0"]
    (create,) = looked(job(), others={}).writes
    assert create.body["kind"] == "Service"
    unaddressed = {SERVICE: replace(ADDRESSED[SERVICE], spec={})}
    assert made(looked(job(), others=unaddressed)) == []
    assert made(looked(job())) == ["deep-scheduler-0"]
    assert made(looked(job(), pod("scheduler", phase=PodPhase.PENDING))) == [f"deep-worker-{at}" for at in range(4)]


@pytest.mark.contract("MS-08")
def test_one_worker_alone_has_no_service_and_is_told_nothing():
    raw = job({"Worker": role()})
    (create,) = looked(raw, others={}).writes
    assert create.body["kind"] == "Pod"
    assert "env" not in container_of(raw, "Worker")


@pytest.mark.contract("MS-09", "MS-32", "MS-33", "MS-29")
@pytest.mark.parametrize(
    ("name", "host", "word"),
    [
        ("Scheduler", from_field("status.podIP"), "MS_SCHED"),
        ("PS", {"value": "10.0.0.7"}, "MS_PSERVER"),
        ("Worker", {"value": "10.0.0.7"}, "MS_WORKER"),
    ],
)
def test_each_role_is_told_of_the_others_beside_its_own_words(name, host, word):
    own = {**CONTAINER, "env": [{"name": "GLOG_v", "value": "1"}]}
    roles = {"Scheduler": role(container=own), "PS": role(2, container=own), "Worker": role(container=own)}
    assert container_of(job(roles), name)["env"] == [
        {"name": "GLOG_v", "value": "1"},
        {"name": "MS_SCHED_HOST", **host},
        {"name": "MS_SCHED_PORT", "value": "2222"},
        {"name": "MS_NODE_ID", **from_field("metadata.name")},
        {"name": "MS_SERVER_NUM", "value": "2"},
        {"name": "MS_WORKER_NUM", "value": "1"},
        {"name": "MS_ROLE", "value": word},
    ]


def test_a_variable_of_the_user_stays():
    own = {**CONTAINER, "env": [{"name": "MS_NODE_ID", "value": "mine"}]}
    env = container_of(job({"Scheduler": role(), "Worker": role(container=own)}), "Worker")["env"]
    assert [each["value"] for each in env if each["name"] == "MS_NODE_ID"] == ["mine"]


@pytest.mark.contract("MS-25")
def test_the_port_is_2222_or_the_users_in_service_and_environment():
    for ports, port in ((None, 2222), ([{"name": "msjob-port", "containerPort": 3333}], 3333)):
        own = CONTAINER if ports is None else {**CONTAINER, "ports": ports}
        raw = job({"Scheduler": role(container=own), "Worker": role()})
        (service,) = MSJOB.children.others(view(raw), OwnedObjects())
        assert service["spec"]["ports"] == [{"name": "msjob-port", "port": port}]
        assert service["spec"]["type"] == "ClusterIP"
        assert {"name": "MS_SCHED_PORT", "value": str(port)} in container_of(raw, "Worker")["env"]


@pytest.mark.contract("MS-11", "MS-23", "MS-26", "MS-27", "MS-28", "MS-30")
def test_a_pod_of_the_guides_job_is_its_template_and_what_it_is_told():
    raw = yaml.safe_load(GUIDE.read_text())
    raw["metadata"] |= {"namespace": "ns", "uid": "u", "resourceVersion": "1"}
    template = raw["spec"]["msReplicaSpecs"]["Worker"]["template"]["spec"]
    worker_pod = pod_of(raw, "Worker", 3)
    assert worker_pod["metadata"]["name"] == "widedeep-example-worker-3"
    (container,), (expected,) = worker_pod["spec"]["containers"], template["containers"]
    port = [{"name": "msjob-port", "containerPort": 2222}]
    defaults = {"terminationMessagePolicy": "FallbackToLogsOnError", "ports": port, "env": container["env"]}
    assert container == {**expected, **defaults}
    assert worker_pod["spec"]["volumes"] == template["volumes"]
    assert worker_pod["spec"]["restartPolicy"] == "Never"


S, R, F, P = PodPhase.SUCCEEDED, PodPhase.RUNNING, PodPhase.FAILED, PodPhase.PENDING


@pytest.mark.contract("MS-19", "MS-20", "MS-45")
@pytest.mark.parametrize(
    ("spec", "phases", "ends"),
    [
        pytest.param({}, (S, R, R, R), "Succeeded", id="worker 0 has done it"),
        pytest.param({}, (R, S, S, S), "Running", id="the others have"),
        pytest.param({"successPolicy": "AllWorkers"}, (S, S, S, R), "Running", id="3 of all 4"),
        pytest.param({"successPolicy": "AllWorkers"}, (S, S, S, S), "Succeeded", id="all of all 4"),
        pytest.param({}, (R, F, R, R), "Failed", id="one failed"),
        pytest.param({"enableDynamicWorker": True}, (R, F, R, R), "Running", id="one of dynamic workers failed"),
        pytest.param({"enableDynamicWorker": True}, (F, F, F, F), "Failed", id="all dynamic workers failed"),
    ],
)
def test_when_a_job_ends(spec, phases, ends):
    assert conditions(after(job(**spec), *workers(*phases)))[-1] == ends


def test_a_scheduler_that_fails_fails_dynamic_workers_too():
    raw = after(job(enableDynamicWorker=True), pod("scheduler", phase=F), *workers(R, R, R, R)[1:])
    assert conditions(raw)[-1] == "Failed"


@pytest.mark.contract("MS-22")
@pytest.mark.parametrize(
    ("restart", "code", "recreates"),
    [
        (None, 1, False),
        ("Never", 1, False),
        ("OnFailure", 1, True),
        ("Always", 1, True),
        ("ExitCode", 138, True),
        ("ExitCode", 1, False),
    ],
)
def test_whether_a_failed_worker_is_made_anew(restart, code, recreates):
    raw = job({"Scheduler": role(), "Worker": role(2, restart)})
    outcome = looked(raw, pod("scheduler"), pod(index=0), pod(index=1, phase=F, exit_code=code))
    assert [each.key.name for each in outcome.writes if isinstance(each, Delete)] == ["deep-worker-1"] * recreates
    assert conditions(with_status(raw, outcome))[-1] == ("Restarting" if recreates else "Failed")


@pytest.mark.contract("MS-18")
@pytest.mark.parametrize(
    ("policy", "deleted"),
    [
        pytest.param(None, ["deep-scheduler-0", "deep-worker-1"], id="running ones, by default"),
        pytest.param("Running", ["deep-scheduler-0", "deep-worker-1"], id="running ones"),
        pytest.param("All", ["deep-scheduler-0", "deep-worker-0", "deep-worker-1"], id="all"),
        pytest.param("None", [], id="none"),
    ],
)
def test_what_is_cleaned_at_the_end(policy, deleted):
    raw = job({"Scheduler": role(), "Worker": role(2)}, {"cleanPodPolicy": policy} if policy else {})
    pods = workers(S, R)
    outcome = looked(after(raw, *pods), *pods)
    assert [each.key.name for each in outcome.writes if isinstance(each, Delete) and each.key.kind == "Pod"] == deleted


@pytest.mark.contract("MS-17")
def test_policies_are_read():
    run = {"ttlSecondsAfterFinished": 5, "activeDeadlineSeconds": 6, "backoffLimit": 7}
    run["schedulingPolicy"] = {"queue": "team", "scheduleTimeoutSeconds": 9}
    found = view(job(run=run))
    assert (found.policy.clean_pods, found.policy.ttl_s, found.policy.active_deadline_s) == (CleanPods.RUNNING, 5, 6)
    assert (found.policy.backoff_limit, found.policy.start_s) == (7, 9)
    assert (found.gang.queue, found.gang.min_member) == ("team", 5)
    assert {each.restart for each in found.roles} == {Restart.NEVER}


@pytest.mark.contract("MS-43")
@pytest.mark.parametrize(
    "policy", [{"schedulingPolicy": {"scheduleTimeoutSeconds": 60}}, {"activeDeadlineSeconds": 60}]
)
def test_a_job_whose_pods_stay_pending_fails_in_time(policy):
    raw = after(job(run=policy), *workers(P, P, P, P))
    outcome = looked(raw, *workers(P, P, P, P))
    assert outcome.requeue_s == 60
    assert conditions(after(raw, *workers(P, P, P, P), now_s=NOW_S + 59)) == ["Created"]
    late = after(raw, *workers(P, P, P, P), now_s=NOW_S + 60)
    assert conditions(late)[-1] == "Failed"


@pytest.mark.contract("MS-43")
def test_a_job_of_which_some_pods_never_start_fails_in_time():
    policy = {"schedulingPolicy": {"scheduleTimeoutSeconds": 60}}
    pods = workers(R, P, P, P)
    running = after(job(run=policy), *pods)
    assert looked(running, *pods, now_s=NOW_S + 1).requeue_s == 59
    assert conditions(after(running, *pods, now_s=NOW_S + 59))[-1] == "Running"
    assert conditions(after(running, *pods, now_s=NOW_S + 60))[-1] == "Failed"


def test_the_state_that_kubectl_shows_is_never_that_the_gang_has_started():
    policy = {"schedulingPolicy": {"scheduleTimeoutSeconds": 60}}
    raw = after(after(job(run=policy), *workers(R, P, P, P)), *workers(R, R, R, R))
    assert conditions(raw) == ["GangStarted", "Created", "Running"]
    assert conditions(after(job(), *workers(R, R, R, R))) == ["Created", "Running"]


def test_a_resumed_job_has_its_time_to_start_again():
    policy = {"schedulingPolicy": {"scheduleTimeoutSeconds": 60}}
    raw = after(job(run=policy), *workers(R, R, R, R))
    suspended = after({**raw, "spec": {**raw["spec"], "runPolicy": {**policy, "suspend": True}}}, *workers(R, R, R, R))
    resumed = after({**suspended, "spec": raw["spec"]}, *workers(P, P, P, P), now_s=NOW_S + 600)
    assert "Failed" not in conditions(after(resumed, *workers(P, P, P, P), now_s=NOW_S + 659))
    assert conditions(after(resumed, *workers(P, P, P, P), now_s=NOW_S + 660))[-1] == "Failed"


def test_a_dynamic_worker_that_failed_counts_as_started():
    policy = {"schedulingPolicy": {"scheduleTimeoutSeconds": 60}}
    raw = after(job(run=policy, enableDynamicWorker=True), *workers(F, P, P, P))
    raw = after(raw, *workers(F, R, R, R), now_s=NOW_S + 59)
    assert conditions(after(raw, *workers(F, R, R, R), now_s=NOW_S + 60))[-1] == "Running"


def test_a_job_that_has_started_is_never_late_to_start():
    policy = {"schedulingPolicy": {"scheduleTimeoutSeconds": 60}}
    raw = after(job(run=policy), *workers(R, R, R, R))
    assert conditions(after(raw, *workers(R, P, R, R), now_s=NOW_S + 600))[-1] == "Running"


def test_a_job_without_workers_has_not_succeeded():
    raw = job({"Scheduler": role(), "Worker": role(0)}, successPolicy="AllWorkers")
    assert "Succeeded" not in conditions(after(raw, pod("scheduler")))


def test_a_gang_that_has_just_started_in_time_goes_on():
    raw = job(run={"schedulingPolicy": {"scheduleTimeoutSeconds": 600}})
    created = {"type": "Created", "status": "True", "reason": "MSJobCreated"}
    raw["status"] = {"startTime": rfc3339(NOW_S - 600), "conditions": [created]}
    assert conditions(after(raw, *workers(R, R, R, R)))[-1] == "Running"
    assert conditions(after(raw, *workers(R, R, R)))[-1] == "Failed"


@pytest.mark.contract("MS-46")
def test_pods_wait_until_volcano_admits_their_group():
    setup, key = GangSettings(GangDialect.VOLCANO), ChildKey("PodGroup", "deep")
    for phase, count in (("Pending", 0), ("Inqueue", 1)):
        others = {**ADDRESSED, key: ChildState(key, "g", spec={"minMember": 5, "queue": "default"}, phase=phase)}
        assert len(made(looked(job(), others=others, setup=setup))) == count


@pytest.mark.contract("MS-41")
def test_known_last_words_are_explained():
    outcome = looked(job(), pod(index=1, phase=F, message="E: bindIP failed, errno 98"), *workers(R)[:1])
    assert "MS_RECOVERY_PATH" in outcome.status["conditions"][-1]["message"]


@pytest.mark.contract("MS-41")
def test_last_words_of_a_pod_that_has_not_failed_explain_nothing():
    outcome = looked(job(), pod(index=1, phase=F), *workers(R)[:1], pod(index=2, phase=R, message="bindIP failed"))
    assert "MS_RECOVERY_PATH" not in outcome.status["conditions"][-1]["message"]


SHARED = {"volumes": [{"name": "data", "hostPath": {"path": "/data"}}, {"name": "own", "emptyDir": {}}]}
MOUNT = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}


@pytest.mark.contract("MS-39", "MS-40", "MS-42")
@pytest.mark.parametrize(
    ("container", "advice"),
    [
        pytest.param({**MOUNT}, ["set workingDir to /data"], id="a shared volume and no working directory"),
        pytest.param({**MOUNT, "workingDir": "/data"}, [], id="a working directory"),
        pytest.param({}, [], id="no volume"),
        pytest.param({"volumeMounts": [{"name": "own", "mountPath": "/o"}]}, [], id="a volume of the pod alone"),
        pytest.param(
            {**MOUNT, "workingDir": "/data", "command": ["sh", "-c", "python t.py > /data/log 2>&1"]},
            ["all 2 pods write to /data/log"],
            id="one log of all pods",
        ),
        pytest.param(
            {**MOUNT, "workingDir": "/data", "args": ["python t.py >>/data/$HOSTNAME.log"]}, [], id="a log for each pod"
        ),
        pytest.param(
            {**MOUNT, "workingDir": "/data", "command": ["sh", "-c", "x > /tmp/log"]}, [], id="a log in the container"
        ),
    ],
)
def test_what_a_new_jobs_owner_is_told(container, advice):
    raw = job({"Worker": role(2, container={**CONTAINER, **container}, **SHARED)})
    outcome = looked(raw, others={})
    texts = [each.text for each in outcome.events if each.reason is Reason.ADVICE]
    assert len(texts) == len(advice)
    assert all(words in text for words, text in zip(advice, texts, strict=True))
    assert not [each for each in looked(with_status(raw, outcome)).events if each.reason is Reason.ADVICE]


@pytest.mark.contract("MS-02", "MS-16")
@pytest.mark.parametrize("spell", [str.lower, str.upper, str.title])
def test_roles_have_any_letter_case(spell):
    raw = job({spell("Scheduler"): role(), spell("Worker"): role(2), spell("ps"): role()})
    assert [each.name for each in view(raw).roles] == ["Scheduler", "PS", "Worker"]
    assert pod_of(raw, "PS")["metadata"]["name"] == "deep-ps-0"


@pytest.mark.contract("MS-21", "MS-24", "MS-37")
@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (job({"Scheduler": role(2), "Worker": role()}), "a job has one Scheduler"),
        (job({"Scheduler": role(), "scheduler": role(), "Worker": role()}), "has Scheduler twice"),
        (job({"Scheduler": role()}), "Worker is missing"),
        (job({"Boss": role(), "Worker": role()}), "msReplicaSpecs.Boss is no role"),
        (job({"Worker": role(container={"name": "other", "image": "i"})}), "must be named mindspore"),
        (job({"Worker": role(container={"image": "i"})}), "must be named mindspore"),
        (job({"Worker": role(container={"name": "mindspore"})}), "image is missing"),
        (job(successPolicy="Some"), "successPolicy is 'Some'"),
        ({**job(), "metadata": {**job()["metadata"], "name": "my_job"}}, "metadata.name is 'my_job'"),
    ],
)
def test_a_job_that_cannot_be_obeyed_is_refused_with_its_field(raw, why):
    refused = MSJOB.read(raw)
    assert isinstance(refused, RefusedJob)
    assert why in refused.why
    assert conditions(after(raw)) == ["Failed"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=scaled(200), deadline=None)
@given(
    st.sampled_from(["msReplicaSpecs", "successPolicy", "runPolicy", "enableDynamicWorker"]),
    st.sampled_from(["command", "args", "env", "ports", "volumeMounts", "name", "workingDir"]),
    JSON,
    JSON,
    st.sampled_from([{}, ADDRESSED, {SERVICE: ChildState(SERVICE, "s", spec={"clusterIP": 7})}]),
)
def test_whatever_an_owner_writes_is_read_or_refused(field, inner, outer, value, others):
    for raw in (
        job(**{field: outer}),
        job({"Scheduler": role(), "Worker": role(2, container={**CONTAINER, inner: value})}),
        job({"Worker": role(volumes=value)}),
    ):
        looked(raw, *workers(R, F), others=others)
