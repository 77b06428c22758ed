"""ColossalAIJobs: keys and host list first, workers with sshd, the launcher last; modes, ends, T9k's status words."""

import copy
from pathlib import Path

import pytest
import yaml

from tests.controllers.jobs import NOW_S, pod_state, with_status
from turnout.controllers import children
from turnout.controllers.kinds.colossalaijob import COLOSSALAIJOB
from turnout.controllers.model import (
    ChildKey,
    ChildState,
    ControlledJob,
    Create,
    Delete,
    GangSettings,
    OwnedObjects,
    PodPhase,
    Reason,
    RefusedJob,
    Replica,
)
from turnout.controllers.reconcile import reconcile
from turnout.kube.times import rfc3339

READ = yaml.safe_load((Path(__file__).parents[2] / "examples/jobs/colossalaijob.yaml").read_text())
CONFIG, SERVICE = ChildKey("ConfigMap", "colossal-config"), ChildKey("Service", "colossal")
R, P, F, S = PodPhase.RUNNING, PodPhase.PENDING, PodPhase.FAILED, PodPhase.SUCCEEDED


def job(worker=None, launcher=None, status=None, container=None, **spec):
    """A job of two workers, with these changes."""
    raw = copy.deepcopy(READ)
    raw["metadata"] = {"name": "colossal", "namespace": "ns", "uid": "UID-colossal", "resourceVersion": "1"}
    raw["spec"]["worker"] |= worker or {}
    raw["spec"]["launcher"] |= launcher or {}
    raw["spec"]["worker"]["template"]["spec"]["containers"][0] |= container or {}
    return {**raw, "spec": {**raw["spec"], **spec}, "status": status or {}}


def view(raw):
    found = COLOSSALAIJOB.read(raw)
    assert isinstance(found, ControlledJob), found
    return found


def others(raw):
    """The Service and the host list, as they are wanted."""
    found = {}
    for body in COLOSSALAIJOB.children.others(view(raw), OwnedObjects()):
        if body["kind"] != "Secret":
            key = children.child_key(body)
            found[key] = ChildState(key, key.name, spec=body.get("spec", {}), data=body.get("data", {}))
    return found


def worker(index=0, phase=R, **more):
    return pod_state(f"colossal-worker-{index}", f"w{index}", "worker", index, phase, **{"mode": "train", **more})


def launcher(phase=R, **more):
    return pod_state("colossal-launcher", "l", "launcher", 0, phase, **{"mode": "train", **more})


ALL = (launcher(), worker(0), worker(1))


def looked(raw, *pods, existing=None, now_s=NOW_S):
    return reconcile(COLOSSALAIJOB, raw, OwnedObjects(pods, others(raw) if existing is None else existing), now_s)


def after(raw, *pods, **more):
    return with_status(raw, looked(raw, *pods, **more))


def made(outcome):
    return [each.body["metadata"]["name"] for each in outcome.writes if isinstance(each, Create)]


def deleted(outcome):
    return [each.key.name for each in outcome.writes if isinstance(each, Delete)]


def conditions(raw):
    return {each["type"]: each["status"] for each in raw["status"]["conditions"]}


def pod_of(raw, name, index=0):
    view_of_job = view(raw)
    (found,) = [each for each in view_of_job.roles if each.name == name]
    return children.pod_body(COLOSSALAIJOB, view_of_job, found, Replica(index, index), OwnedObjects(), GangSettings())


def container_of(raw, name):
    (container,) = pod_of(raw, name)["spec"]["containers"]
    return container


@pytest.mark.contract("CA-05", "CA-06")
def test_a_job_comes_up_in_order():
    """Keys and host list, then the workers, then with all of them running the launcher."""
    assert made(looked(job(), existing={})) == ["colossal-ssh-uid-colo", "colossal", "colossal-config"]
    assert made(looked(job())) == ["colossal-worker-0", "colossal-worker-1"]
    assert made(looked(job(), worker(0), worker(1, P))) == []
    assert made(looked(job(), worker(0), worker(1))) == ["colossal-launcher"]


def test_the_host_list_is_the_workers_names_in_their_order():
    assert others(job())[CONFIG].data["hostfile"] == "colossal-worker-0.colossal\ncolossal-worker-1.colossal\n"
    assert others(job())[SERVICE].spec["clusterIP"] == "None"
    spec = pod_of(job(), "worker", 1)["spec"]
    assert (spec["hostname"], spec["subdomain"]) == ("colossal-worker-1", "colossal")


@pytest.mark.contract("CA-02", "CA-03")
def test_workers_run_sshd_by_its_absolute_path_with_the_jobs_keys():
    container = container_of(job(), "worker")
    assert container["command"][:4] == ["/usr/sbin/sshd", "-De", "-p", "22"]  # whatever the image's file says
    assert "HostKey=/root/.ssh/ssh_host_ecdsa_key" in container["command"]
    for name in ("worker", "launcher"):
        mounts = {each["name"]: each["mountPath"] for each in container_of(job(), name)["volumeMounts"]}
        assert mounts["turnout-ssh"] == "/root/.ssh"
        (keys,) = [each["secret"] for each in pod_of(job(), name)["spec"]["volumes"] if "secret" in each]
        assert keys == {"secretName": "colossal-ssh-uid-colo", "defaultMode": 0o600}


@pytest.mark.contract("CA-02")
def test_keys_lie_in_the_home_folder_by_default():
    assert view(job(ssh={})).spec["ssh"] == {"path": "/root/.ssh", "sshd": "/usr/sbin/sshd"}


@pytest.mark.contract("CA-04", "CA-07", "CA-08", "CA-09", "CA-22")
def test_the_launcher_runs_the_colossalai_runner():
    raw = job({"procPerWorker": 4, "torchArgs": ["--a=1", "--b"]})
    container = container_of(raw, "launcher")
    assert container["command"] == [
        *("python3", "/etc/turnout/launch.py", "/etc/turnout/hostfile", "22", "600", "/dev/termination-log"),
        *("colossalai", "run", "--hostfile", "/etc/turnout/hostfile", "--nproc_per_node", "4"),
        *("--master_addr", "colossal-worker-0.colossal", "--ssh-port", "22"),
        *("--extra_launch_args", "a=1,b", "train.py", "arg1"),
    ]
    fields = {key: each for key, each in container.items() if key not in ("command", "volumeMounts")}
    assert fields == {**raw["spec"]["launcher"], "name": "launcher"}
    assert pod_of(raw, "launcher")["metadata"]["name"] == "colossal-launcher"


@pytest.mark.contract("CA-10", "CA-13", "CA-18", "CA-27", "CA-28")
def test_a_worker_is_its_template_but_for_what_it_needs():
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    raw = job()
    template = raw["spec"]["worker"]["template"]["spec"]
    template["volumes"].append(shm)
    template["containers"][0]["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})
    expected = copy.deepcopy(template)
    spec = pod_of(raw, "worker")["spec"]
    assert "schedulerName" not in spec
    assert spec["restartPolicy"] == "OnFailure"
    assert spec["volumes"][:2] == expected["volumes"]
    (container,) = spec["containers"]
    (own,) = expected["containers"]
    fields = {key: each for key, each in container.items() if key not in ("command", "env", "volumeMounts")}
    assert fields == {key: each for key, each in own.items() if key != "volumeMounts"}
    assert container["volumeMounts"][:2] == own["volumeMounts"]


@pytest.mark.contract("CA-27", "CA-29")
def test_t9ks_queue_reaches_pods_and_their_group():
    raw = job(scheduler={"t9kScheduler": {"queue": "team", "priority": 50}})
    worker_pod = pod_of(raw, "worker")
    assert worker_pod["spec"]["schedulerName"] == "t9k-scheduler"
    labels = worker_pod["metadata"]["labels"]
    assert labels["scheduler.tensorstack.dev/queue"] == "team"
    assert labels["scheduler.tensorstack.dev/role"] == "worker"
    assert (view(raw).gang.queue, view(raw).gang.min_member) == ("team", 3)


@pytest.mark.contract("CA-04")
def test_a_workers_variables_go_with_the_launcher_to_every_host():
    secret = {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    field = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    own = [{"name": "A", "value": "worker"}, secret, field]
    raw = job(launcher={"env": [{"name": "A", "value": "launcher"}]}, container={"env": own})
    assert container_of(raw, "launcher")["env"] == [{"name": "A", "value": "launcher"}, secret]


DEBUG = {"debug": {"enabled": True}}


@pytest.mark.contract("CA-30", "CA-31", "CA-35")
def test_a_debugged_job_waits_to_be_visited_and_trains_once_it_is_not():
    raw = job(runMode=DEBUG)
    assert made(looked(raw)) == ["colossal-launcher", "colossal-worker-0", "colossal-worker-1"]
    for name in ("launcher", "worker"):
        assert container_of(raw, name)["command"] == ["sleep", "inf"]
    pods = (launcher(mode="debug"), worker(0, mode="debug"), worker(1, mode="debug"))
    assert made(looked(raw, *pods)) == deleted(looked(raw, *pods)) == []
    assert deleted(looked(job(), *pods)) == ["colossal-launcher", "colossal-worker-0", "colossal-worker-1"]
    assert deleted(looked(raw, *ALL)) == ["colossal-launcher", "colossal-worker-0", "colossal-worker-1"]


@pytest.mark.contract("CA-32", "CA-33", "CA-34")
def test_a_replica_type_is_debugged_in_its_own_way():
    init = {"initContainers": [{"name": "i", "image": "i"}]}
    specs = [{"type": "worker", "skipInitContainer": True, "command": ["/usr/bin/sshd"]}]
    raw = job(runMode={"debug": {"enabled": True, "replicaSpecs": specs}})
    raw["spec"]["worker"]["template"]["spec"] |= init
    assert container_of(raw, "worker")["command"] == ["/usr/bin/sshd"]
    assert container_of(raw, "launcher")["command"] == ["sleep", "inf"]
    assert "initContainers" not in pod_of(raw, "worker")["spec"]
    specs[0]["skipInitContainer"] = False
    assert "initContainers" in pod_of(raw, "worker")["spec"]


PAUSE = {"pause": {"enabled": True}}


@pytest.mark.contract("CA-36", "CA-37", "CA-48", "CA-50", "CA-51", "CA-52", "CA-53")
def test_a_job_is_paused_and_resumed_twice():
    raw = after(job(), existing={})
    assert raw["status"]["phase"] == "Pending"
    for _ in range(2):
        raw = after({**raw, "spec": job()["spec"]}, *ALL)
        assert raw["status"]["phase"] == "Running"
        paused = {**raw, "spec": job(runMode=PAUSE)["spec"]}
        outcome = looked(paused, *ALL)
        assert set(deleted(outcome)) >= {"colossal-launcher", "colossal-worker-0", "colossal-worker-1"}
        raw = with_status(paused, outcome)
        assert (raw["status"]["phase"], conditions(raw)["Paused"]) == ("Paused", "True")
        assert conditions(raw)["Running"] == "False"
        raw = after({**raw, "spec": job()["spec"]}, worker(0, P), worker(1, P))
        assert (raw["status"]["phase"], conditions(raw)["Paused"]) == ("Resuming", "False")


@pytest.mark.contract("CA-40", "CA-42")
@pytest.mark.parametrize(
    ("spec", "command", "args"),
    [
        pytest.param(None, "/usr/sbin/sshd", None, id="none: as before"),
        pytest.param({"command": ["/bin/other"]}, "/bin/other", None, id="a command"),
        pytest.param({"args": ["-x"]}, "/usr/sbin/sshd", ["-x"], id="arguments"),
    ],
)
def test_what_a_resumed_worker_runs(spec, command, args):
    specs = [] if spec is None else [{"type": "worker", "skipInitContainer": True, **spec}]
    mode = {"pause": {"enabled": False, "resumeSpecs": specs}}
    status = {"conditions": [{"type": "Paused", "status": "False"}]}
    found = container_of(job(runMode=mode, status=status), "worker")
    assert (found["command"][0], found.get("args")) == (command, args)
    assert container_of(job(runMode=mode), "worker")["command"][0] == "/usr/sbin/sshd"


@pytest.mark.contract("CA-38", "CA-39")
@pytest.mark.parametrize("skip", [True, False, None])
@pytest.mark.parametrize("type_", ["worker", "launcher"])
def test_init_containers_are_dropped_where_a_resumed_type_skips_them(type_, skip):
    specs = [{"type": type_} if skip is None else {"type": type_, "skipInitContainer": skip}]
    raw = job(runMode={"pause": {"resumeSpecs": specs}}, status={"conditions": [{"type": "Paused", "status": "False"}]})
    raw["spec"]["worker"]["template"]["spec"]["initContainers"] = [{"name": "i", "image": "i"}]
    view_of_job = view(raw)
    (changed,) = view_of_job.spec["resume"]
    assert (changed, view_of_job.spec["resume"][type_].skip_init_container) == (type_, bool(skip))
    assert ("initContainers" in pod_of(raw, "worker")["spec"]) == (type_ == "launcher" or not skip)


SUMMARY = "\n====== Training on All Nodes =====\ncolossal-worker-0.colossal: success\ncolossal-worker-1.colossal: {}\n"


@pytest.mark.contract("CA-23", "CA-24", "CA-46", "CA-47", "CA-54")
@pytest.mark.parametrize(
    ("pod", "phase"),
    [
        pytest.param(launcher(S, message=SUMMARY.format("success")), "Succeeded", id="all hosts succeeded"),
        pytest.param(launcher(S, message=SUMMARY.format("failure")), "Failed", id="it ended with 0, a host failed"),
        pytest.param(launcher(F, exit_code=1), "Failed", id="it failed"),
        pytest.param(launcher(S), "Succeeded", id="it said nothing"),
    ],
)
def test_how_a_launcher_ends_its_job(pod, phase):
    raw = after(after(job(), *ALL), pod, worker(0), worker(1))
    assert raw["status"]["phase"] == phase
    ended = (conditions(raw)["Completed"], conditions(raw)["Failed"])
    assert ended == (("True", "False") if phase == "Succeeded" else ("False", "True"))
    for later in (ALL, (), (launcher(F),)):
        assert after(raw, *later)["status"]["phase"] == phase


@pytest.mark.contract("CA-14")
def test_why_a_pod_has_no_node_stands_in_the_status_until_it_has_one():
    words = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    raw = after(job(), worker(0), worker(1, P, scheduler_message=words))
    (task,) = [each for each in raw["status"]["tasks"] if each["type"] == "worker"]
    assert [each.get("message") for each in task["replicas"]] == [None, words]
    assert raw["status"]["aggregate"]["pending"] == 1
    (task,) = [each for each in after(raw, *ALL)["status"]["tasks"] if each["type"] == "worker"]
    assert [each.get("message") for each in task["replicas"]] == [None, None]


@pytest.mark.contract("CA-21", "CA-57")
def test_a_worker_that_starts_again_fails_the_job_and_says_so():
    pods = (launcher(), worker(0, restarts=1), worker(1, restarts=2))
    raw = after(after(job(), *ALL), *pods)
    assert raw["status"]["phase"] == "Failed"
    (failed,) = [each for each in raw["status"]["conditions"] if each["type"] == "Failed"]
    assert "colossal-worker-0 started again" in failed["message"]
    assert [(each["type"], each["restartCount"]) for each in raw["status"]["tasks"]] == [("launcher", 0), ("worker", 3)]


@pytest.mark.contract("CA-25", "CA-26")
@pytest.mark.parametrize("clean", [True, False])
def test_what_is_cleaned_at_the_end_is_never_the_launcher(clean):
    raw = after(after(job(runPolicy={"cleanUpWorkers": clean}), *ALL), launcher(S), worker(0), worker(1))
    deleted_names = [name for name in deleted(looked(raw, launcher(S), worker(0), worker(1))) if "worker" in name]
    assert deleted_names == (["colossal-worker-0", "colossal-worker-1"] if clean else [])
    assert "colossal-launcher" not in deleted(looked(raw, launcher(S), worker(0), worker(1)))
    assert not {"colossal", "colossal-config"} & set(deleted(looked(raw, launcher(S), worker(0), worker(1))))


@pytest.mark.contract("CA-43", "CA-44", "CA-45", "CA-49", "CA-56")
def test_the_status_of_a_job_whose_training_failed_is_the_guides():
    begun = after(job(), existing={})
    assert conditions(begun)["Initialized"] == "False"
    raw = after(begun, *ALL)
    raw = after(raw, launcher(S, message=SUMMARY.format("failure")), worker(0), worker(1))
    assert raw["status"]["phase"] == "Failed"
    condition_fields = [(each["type"], each["status"], each["reason"]) for each in raw["status"]["conditions"]]
    assert condition_fields == [
        ("Initialized", "True", "-"),
        ("Running", "True", "-"),
        ("ReplicaFailure", "False", "-"),
        ("Completed", "False", "Failed"),
        ("Failed", "True", "Failed"),
    ]
    messages = [each["message"] for each in raw["status"]["conditions"]][:3]
    assert messages == ["The job has been initialized successfully.", *["All pods are running normally."] * 2]
    fields = {"type", "status", "reason", "message", "lastTransitionTime"}
    assert all(set(each) == fields for each in raw["status"]["conditions"])


@pytest.mark.contract("CA-45")
def test_a_replica_that_failed_is_told():
    raw = after(after(job(), *ALL), launcher(F), worker(0), worker(1))
    assert conditions(raw)["ReplicaFailure"] == "True"


def test_of_many_replicas_that_failed_the_first_eight_are_named():
    failed = [worker(index, F) for index in range(40)]
    raw = after(after(job(worker={"replicas": 40}), *ALL), launcher(), *failed)
    (message,) = (each["message"] for each in raw["status"]["conditions"] if each["type"] == "ReplicaFailure")
    assert message.endswith("-worker-7 and 32 others failed.")


def test_a_paused_job_that_is_resumed_is_paused_no_more_once():
    raw = after(after(job(), *ALL), *ALL)
    paused = after({**raw, "spec": {**raw["spec"], "runMode": {"pause": {"enabled": True}}}}, *ALL)
    assert (conditions(paused)["Paused"], conditions(paused)["Running"]) == ("True", "False")
    resumed = after({**paused, "spec": raw["spec"]})
    assert (conditions(resumed)["Paused"], resumed["status"]["phase"]) == ("False", "Resuming")
    assert not [each for each in looked(resumed).events if each.reason is Reason.RESUMED]


def test_a_job_that_has_succeeded_has_run():
    raw = after(after(job(), *ALL), launcher(S), worker(0), worker(1))
    assert (conditions(raw)["Completed"], conditions(raw)["Running"]) == ("True", "True")


def test_a_worker_runs_one_process_unless_its_job_says_more():
    raw = job()
    del raw["spec"]["worker"]["procPerWorker"]
    assert view(raw).spec["processes"] == 1


def test_a_condition_has_the_time_at_which_it_came_about():
    raw = after(job(), *ALL)
    raw = after(raw, launcher(F), worker(0), worker(1), now_s=NOW_S + 60)
    times = {each["type"]: each["lastTransitionTime"] for each in raw["status"]["conditions"]}
    assert (times["Initialized"], times["Failed"]) == (rfc3339(NOW_S), rfc3339(NOW_S + 60))
    raw["status"]["conditions"][0]["lastTransitionTime"] = 7
    second_status = after(raw, launcher(F), worker(0), worker(1), now_s=NOW_S + 90)
    assert second_status["status"]["conditions"][0]["lastTransitionTime"] == rfc3339(NOW_S + 90)


@pytest.mark.contract("CA-59")
def test_pods_are_counted_by_what_they_do():
    pods = (launcher(P), worker(0, R), worker(1, R))
    zero = dict.fromkeys(("creating", "pending", "running", "succeeded", "failed", "deleted", "unknown"), 0)
    assert after(job(), *pods)["status"]["aggregate"] == {**zero, "pending": 1, "running": 2}
    more = (launcher(P, node="n"), worker(0, R, deleting=True), worker(1, PodPhase.UNKNOWN))
    found = after(job(), *more)["status"]
    assert found["aggregate"] == {**zero, "creating": 1, "deleted": 1, "unknown": 1}
    assert found["phase"] == "Unknown"


@pytest.mark.contract("CA-15", "CA-58")
def test_containers_are_told_as_they_are():
    state = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    containers = [{"name": "worker", "restartCount": 0, "state": state}]
    raw = after(job(), launcher(), worker(0), worker(1, F, containers=containers))
    (_, workers) = raw["status"]["tasks"]
    assert workers["status"] == workers["replicas"]
    assert workers["status"][1] == {
        "phase": "Failed",
        "name": "colossal-worker-1",
        "uid": "w1",
        "containers": containers,
    }


@pytest.mark.contract("CA-12", "CA-18")
@pytest.mark.parametrize(
    ("container", "size", "words"),
    [
        pytest.param({"command": ["train"]}, "1Gi", ["has no effect"], id="a command of its own"),
        pytest.param({}, "16Gi", ["counts against the memory limit 8Gi"], id="more shared memory than memory"),
        pytest.param({}, "1Gi", [], id="shared memory within the limit"),
    ],
)
def test_what_a_new_jobs_owner_is_told(container, size, words):
    raw = job(container=container)
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    raw["spec"]["worker"]["template"]["spec"]["volumes"].append(shm)
    advice = [each.text for each in looked(raw, existing={}).events if each.reason is Reason.ADVICE and each.warning]
    assert len(advice) == len(words)
    assert all(each in text for each, text in zip(words, advice, strict=True))


@pytest.mark.contract("CA-03", "CA-09", "CA-12", "CA-16")
@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (job(ssh={"sshdPath": "sshd"}), "spec.ssh.sshdPath is 'sshd': an absolute path"),
        (job(ssh={"authMountPath": "keys"}), "spec.ssh.authMountPath is 'keys'"),
        (job(ssh={"authMountPath": "/"}), "spec.ssh.authMountPath is '/'"),
        (job({"torchArgs": ["--a=1,2"]}), "colossalai splits it at a comma"),
        (job({"torchArgs": ["--a=1=2"]}), "colossalai splits it at a comma or a second ="),
        (job(container={"name": "other"}), "must be named worker"),
        (job({"command": []}), "spec.worker.command is missing"),
        (job({"command": ["train.sh"]}), "begins with 'train.sh'"),
        (job({"replicas": 0}), "spec.worker.replicas is 0: it must be a whole number from 1 to 10000"),
        (job({"procPerWorker": 0}), "spec.worker.procPerWorker is 0: it must be a whole number of at least 1"),
        (job(launcher={"image": ""}), "spec.launcher.image is missing"),
        (
            job(scheduler={"t9kScheduler": {"priority": 101}}),
            "priority is 101: it must be a whole number from 0 to 100",
        ),
        (job(runMode={"debug": {"enabled": True, "replicaSpecs": [{"type": "ps"}]}}), "launcher or worker"),
        (
            job(container={"resources": {"limits": {"cpu": 1}, "requests": {"cpu": 2}}}),
            "spec.worker.template.spec.containers[0].resources.limits.cpu is below",
        ),
        (job(container={"resources": {"limits": {"cpu": "much"}}}), "limits.cpu is 'much': a quantity is needed"),
        (job(launcher={"resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}}}), "is below"),
    ],
)
def test_a_job_that_cannot_be_obeyed_is_refused_with_its_field(raw, why):
    refused = COLOSSALAIJOB.read(raw)
    assert isinstance(refused, RefusedJob)
    assert why in refused.why
    assert after(raw, existing={})["status"]["phase"] == "Failed"
