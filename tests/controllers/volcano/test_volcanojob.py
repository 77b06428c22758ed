"""Volcano Jobs as their objects state them: pods, PodGroup, what plugins add, and what is refused."""

import re
from pathlib import Path

import pytest
import yaml

from tests.controllers.volcano.volcanojobs import (
    CONTAINER,
    VOLCANO,
    deleted,
    env_of,
    job,
    looked,
    made,
    others,
    phased,
    pod,
    pod_of,
    task,
    view,
)
from turnout.controllers import children
from turnout.controllers.kinds.volcanojob import VOLCANOJOB
from turnout.controllers.model import Create, Dialect, Phase, Refused, Seen, Setup, Update
from turnout.jobs.kinds.registry import KINDS as RESIZED

GUIDE = Path(__file__).parents[3] / "examples/jobs/volcanojob.yaml"
GPU = {"resources": {"limits": {"cpu": "500m", "nvidia.com/gpu": 2}}}
MASTER_AND_TWO = (task("master", 1), task("worker", 2))


def group_of(raw, setup=VOLCANO):
    return children.pod_group(view(raw), setup)


def extras(raw, seen=None):
    return {each["kind"]: each for each in VOLCANOJOB.extras(view(raw), seen or Seen())}


OWNER = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "bert", "uid": "uid-bert"}
LABELS = {
    "volcano.sh/job-name": "bert",
    "volcano.sh/job-namespace": "ns",
    "volcano.sh/preemptable": "true",
    "volcano.sh/queue-name": "team",
    "volcano.sh/task-index": "1",
    "volcano.sh/task-spec": "worker",
}
NOTES = {
    "scheduling.k8s.io/group-name": "bert-uid-bert",
    "volcano.sh/job-name": "bert",
    "volcano.sh/job-retry-count": "1",
    "volcano.sh/job-version": "2",
    "volcano.sh/preemptable": "true",
    "volcano.sh/queue-name": "team",
    "volcano.sh/task-index": "1",
    "volcano.sh/task-spec": "worker",
    "volcano.sh/template-uid": "bert-worker",
}


def test_a_pod_is_as_volcanos_controller_makes_it():
    raw = job(
        task(replicas=2, least=1, spec={"restartPolicy": "Never"}),
        queue="team",
        priorityClassName="high",
        notes={"volcano.sh/preemptable": "true", "mine": "stays on the job"},
        marks={"volcano.sh/preemptable": "true"},
        status={"version": 2, "retryCount": 1},
    )
    body = pod_of(raw, index=1)
    assert body["metadata"] == {
        "name": "bert-worker-1",
        "namespace": "ns",
        "ownerReferences": [{**OWNER, "controller": True, "blockOwnerDeletion": True}],
        "labels": LABELS,
        "annotations": NOTES,
    }
    named = {"priorityClassName": "high", "restartPolicy": "Never", "schedulerName": "volcano"}
    assert body["spec"] == {"containers": [CONTAINER], **named}


@pytest.mark.contract("VE-16", "VE-26")
def test_a_pod_group_has_the_min_of_the_job_and_of_each_task():
    raw = job(
        task("master", 1, container=GPU),
        task(replicas=4, least=1, container=GPU),
        minAvailable=2,
        queue="team",
        priorityClassName="high",
        networkTopology={"mode": "hard"},
        notes={"mine": "a", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
    )
    group = group_of(raw)
    assert group["metadata"]["name"] == "bert-uid-bert"
    assert group["metadata"]["annotations"] == {"mine": "a"}
    assert group["spec"] == {
        "minMember": 2,
        "minTaskMember": {"master": 1, "worker": 1},
        "minResources": {"cpu": "1", "nvidia.com/gpu": "4"},
        "queue": "team",
        "priorityClassName": "high",
        "networkTopology": {"mode": "hard"},
    }


def test_a_pod_group_names_the_partitions_of_a_task():
    split = {"totalPartitions": 2, "partitionSize": 2, "minPartitions": 1}
    raw = job(task(replicas=4, partitionPolicy=split))
    assert group_of(raw)["spec"]["minTaskMember"] == {"worker": 2}
    (named,) = group_of(raw)["spec"]["subGroupPolicy"]
    assert (named["name"], named["subGroupSize"], named["minSubGroups"]) == ("worker", 2, 1)
    assert named["labelSelector"] == {"matchLabels": {"volcano.sh/task-spec": "worker"}}
    assert named["matchLabelKeys"] == ["volcano.sh/partition-id"]
    assert [pod_of(raw, index=at)["metadata"]["labels"]["volcano.sh/partition-id"] for at in range(4)] == list("0011")


@pytest.mark.parametrize(
    ("tasks", "least", "gpus"),
    [
        pytest.param((task("ps", 2, 1, container=GPU), task("w", 4, 2)), 3, "2", id="each task's least"),
        pytest.param((task("ps", 2, 1, container=GPU), task("w", 4, 2)), 4, "4", id="then more, in order"),
        pytest.param((task("ps", 2, container=GPU), task("w", 4)), 3, "4", id="below their sum, the first in order"),
        pytest.param((task("ps", 2, container=GPU), task("w", 4)), 1, "2", id="one alone"),
    ],
)
def test_the_least_resources_are_those_of_the_least_members(tasks, least, gpus):
    assert group_of(job(*tasks, minAvailable=least))["spec"]["minResources"]["nvidia.com/gpu"] == gpus


@pytest.mark.contract("VE-17")
def test_all_pods_are_made_and_the_scheduler_decides_who_runs():
    raw = phased("Pending", task(replicas=4, least=2), minAvailable=2)
    outcome = looked(raw)
    assert made(outcome) == [f"bert-worker-{index}" for index in range(4)]
    assert group_of(raw)["spec"]["minMember"] == 2


@pytest.mark.contract("VE-17")
def test_under_the_autoscaler_there_are_as_many_pods_as_its_target():
    raw = phased("Running", task(replicas=4, least=2), minAvailable=2)
    there = others(raw)
    change = RESIZED["VolcanoJob"].resize(raw, 3).body
    smaller = {**raw, "spec": {**raw["spec"], **change["spec"]}}
    outcome = looked(smaller, *(pod(index) for index in range(4)), owned=there)
    assert deleted(outcome) == ["bert-worker-3"]
    assert group_of(smaller)["spec"]["minMember"] == 2
    assert not any(isinstance(each, Update) for each in outcome.writes)


def test_pods_wait_for_volcano_to_admit_their_group():
    raw = phased("Pending")
    assert made(looked(raw, owned=others(raw, "Pending"))) == []
    assert len(made(looked(raw, owned=others(raw, "Inqueue")))) == 3


@pytest.mark.parametrize(
    ("setup", "spec", "pods", "named"),
    [
        pytest.param(VOLCANO, {}, {}, "volcano", id="nobody is named"),
        pytest.param(VOLCANO, {"schedulerName": "mine"}, {}, "mine", id="the job names one"),
        pytest.param(VOLCANO, {"schedulerName": "mine"}, {"schedulerName": "own"}, "own", id="a task names its own"),
        pytest.param(Setup(), {"schedulerName": "volcano"}, {}, None, id="volcano is not there"),
        pytest.param(
            Setup(Dialect.SCHEDULER_PLUGINS),
            {"schedulerName": "volcano"},
            {},
            "scheduler-plugins-scheduler",
            id="gangs have another scheduler here",
        ),
    ],
)
def test_pods_get_the_scheduler_of_gangs_where_volcano_is_named(setup, spec, pods, named):
    body = pod_of(job(task(spec=pods), **spec), setup=setup)
    assert body["spec"].get("schedulerName") == named
    assert ("scheduling.k8s.io/group-name" in body["metadata"]["annotations"]) is (setup is VOLCANO)


def test_svc_gives_names_hosts_and_variables():
    raw = job(*MASTER_AND_TWO, plugins={"svc": [], "env": []})
    body = pod_of(raw, index=1)
    assert (body["spec"]["hostname"], body["spec"]["subdomain"]) == ("bert-worker-1", "bert")
    assert env_of(body) == {
        "VC_MASTER_HOSTS": "bert-master-0.bert",
        "VC_MASTER_NUM": "1",
        "VC_WORKER_HOSTS": "bert-worker-0.bert,bert-worker-1.bert",
        "VC_WORKER_NUM": "2",
        "VC_TASK_INDEX": "1",
        "VK_TASK_INDEX": "1",
    }
    assert body["spec"]["volumes"] == [{"name": "bert-svc", "configMap": {"name": "bert-svc"}}]
    assert body["spec"]["containers"][0]["volumeMounts"] == [{"mountPath": "/etc/volcano", "name": "bert-svc"}]
    found = extras(raw)
    assert found["ConfigMap"]["data"]["worker.host"] == "bert-worker-0.bert\nbert-worker-1.bert"
    assert found["Service"]["spec"] == {
        "clusterIP": "None",
        "selector": {"volcano.sh/job-name": "bert", "volcano.sh/job-namespace": "ns"},
        "publishNotReadyAddresses": False,
    }


@pytest.mark.parametrize(
    ("arguments", "early", "told"),
    [
        pytest.param(["--publish-not-ready-addresses"], True, True, id="a switch"),
        pytest.param(["-publish-not-ready-addresses=true"], True, True, id="a switch with a value"),
        pytest.param(["--inject-hosts-env=false"], False, False, id="no variables"),
        pytest.param(["--disable-network-policy=true"], False, True, id="no NetworkPolicy, which is never made here"),
    ],
)
def test_options_of_svc(arguments, early, told):
    raw = job(plugins={"svc": arguments})
    assert extras(raw)["Service"]["spec"]["publishNotReadyAddresses"] is early
    assert ("env" in pod_of(raw)["spec"]["containers"][0]) is told


def test_a_long_host_list_is_read_from_the_config_map():
    body = pod_of(job(task(replicas=500), plugins={"svc": []}))
    assert env_of(body)["VC_WORKER_HOSTS"] == {"configMapKeyRef": {"name": "bert-svc", "key": "VC_WORKER_HOSTS"}}
    assert env_of(body)["VC_WORKER_NUM"] == "500"


def test_the_hosts_follow_the_size_of_a_task():
    raw = phased("Running", task(replicas=2), plugins={"svc": []})
    there = others(raw)
    raw["spec"]["tasks"][0]["replicas"] = 3
    outcome = looked(raw, pod(0), pod(1), owned=there)
    (hosts,) = [each.content for each in outcome.writes if isinstance(each, Update) and each.field == "data"]
    assert hosts["VC_WORKER_NUM"] == "3"


@pytest.mark.parametrize(
    ("tasks", "arguments", "of", "told"),
    [
        pytest.param(MASTER_AND_TWO, [], ("master", 0), ("bert-master-0.bert", "23456", "3", "0"), id="the master"),
        pytest.param(MASTER_AND_TWO, [], ("worker", 1), ("bert-master-0.bert", "23456", "3", "2"), id="a worker"),
        pytest.param(
            (task("a", 1), task("b", 2)),
            ["--master=a", "--worker", "b", "--port=9"],
            ("b", 0),
            ("bert-a-0.bert", "9", "3", "1"),
            id="tasks of other names",
        ),
        pytest.param((task(),), [], ("worker", 2), ("bert-worker-0.bert", "23456", "3", "2"), id="no master"),
        pytest.param(
            (*MASTER_AND_TWO, task("judge", 1)), [], ("judge", 0), ("bert-master-0.bert", "23456", "3", None), id="else"
        ),
    ],
)
def test_pytorch_tells_torch_who_is_who(tasks, arguments, of, told):
    body = pod_of(job(*tasks, plugins={"pytorch": arguments}), *of)
    env = env_of(body)
    assert tuple(env.get(key) for key in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")) == told
    assert body["spec"]["containers"][0]["ports"] == [{"name": "pytorchjob-port", "containerPort": int(told[1])}]
    assert body["spec"]["subdomain"] == "bert"


def test_a_variable_of_the_user_stays():
    own = {"env": [{"name": "RANK", "value": "7"}]}
    assert env_of(pod_of(job(task(container=own), plugins={"pytorch": []})))["RANK"] == "7"


def test_ssh_keys_are_made_before_the_hosts_and_mounted():
    raw = job(*MASTER_AND_TWO, plugins={"mpi": []})
    found = extras(raw)
    assert "Host bert-worker-0\n  HostName bert-worker-0.bert\n  Port 22\n" in found["Secret"]["stringData"]["config"]
    assert "Secret" not in extras(raw, Seen(others=others(raw)))
    body = pod_of(raw, "master")
    assert env_of(body)["MPI_HOST"] == "bert-worker-0.bert,bert-worker-1.bert"
    (volume,) = [each for each in body["spec"]["volumes"] if "secret" in each]
    assert volume["secret"]["secretName"] == found["Secret"]["metadata"]["name"] == "bert-ssh-uid-bert"
    assert {"mountPath": "/root/.ssh", "subPath": ".ssh", "name": "bert-ssh"} in body["spec"]["containers"][0][
        "volumeMounts"
    ]


def test_claims_are_mounted_in_every_container():
    volumes = [{"mountPath": "/data", "volumeClaimName": "c"}, {"mountPath": "/more", "volumeClaimName": "c"}]
    spec = pod_of(job(volumes=volumes))["spec"]
    assert [each["persistentVolumeClaim"]["claimName"] for each in spec["volumes"]] == ["c"]
    assert [each["mountPath"] for each in spec["containers"][0]["volumeMounts"]] == ["/data", "/more"]


@pytest.mark.parametrize(
    ("depends", "pods", "comes"),
    [
        pytest.param({"name": ["ps"]}, [], False, id="nobody is there"),
        pytest.param({"name": ["ps"]}, [pod(0, task="ps", ready=False)], False, id="it is not ready"),
        pytest.param({"name": ["ps"]}, [pod(0, task="ps")], True, id="it is ready"),
        pytest.param({"name": ["ps"]}, [pod(0, Phase.SUCCEEDED, "ps")], True, id="it has succeeded"),
        pytest.param({"name": ["ps", "db"]}, [pod(0, task="ps")], False, id="one of two"),
        pytest.param({"name": ["ps", "db"], "iteration": "any"}, [pod(0, task="ps")], True, id="any of two"),
    ],
)
def test_a_task_waits_for_those_that_it_depends_on(depends, pods, comes):
    raw = phased("Pending", task("ps", 2, least=1), task("db", 1), task(replicas=1, dependsOn=depends))
    assert ("bert-worker-0" in made(looked(raw, *pods))) is comes


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        pytest.param({"tasks": []}, "spec.tasks is empty", id="no task"),
        pytest.param({"tasks": [task(), task()]}, r"spec.tasks\[1\].name is worker", id="one name twice"),
        pytest.param({"tasks": [task("Big")]}, r"spec.tasks\[0\].name is 'Big'", id="a name that is no label"),
        pytest.param({"tasks": [task("a" * 60)]}, "63 characters at most", id="a name too long for pods"),
        pytest.param({"tasks": [task(least=4)]}, r"spec.tasks\[0\].minAvailable is 4", id="a task's min above it"),
        pytest.param({"minAvailable": 4}, "spec.minAvailable is 4", id="a min above all"),
        pytest.param({"tasks": [task(replicas=10_001)]}, "at most 10000", id="more pods than anybody has"),
        pytest.param({"tasks": [{"name": "w"}]}, "containers is missing", id="no containers"),
        pytest.param({"tasks": [task(spec={"restartPolicy": "ExitCode"})]}, "exitCode instead", id="a restart policy"),
        pytest.param({"plugins": {"magic": []}}, "spec.plugins.magic is not known", id="an unknown plugin"),
        pytest.param({"plugins": {"svc": ["--x=1"]}}, "spec.plugins.svc has '--x=1'", id="an unknown option"),
        pytest.param({"plugins": {"pytorch": ["--port=x"]}}, "port is 'x'", id="a port that is no number"),
        pytest.param({"volumes": [{"mountPath": "/a", "volumeClaim": {}}]}, "claims are not made", id="a new claim"),
        pytest.param({"tasks": [task(dependsOn={"name": ["x"]})]}, "which is no task", id="a dependence on nobody"),
        pytest.param(
            {"tasks": [task("a", dependsOn={"name": ["b"]}), task("b", dependsOn={"name": ["a"]})]},
            "a, b wait for one another",
            id="two that wait for each other",
        ),
    ],
)
def test_what_cannot_be_obeyed_is_refused_with_the_field(spec, why):
    raw = job()
    found = VOLCANOJOB.read({**raw, "spec": {**raw["spec"], **spec}})
    assert isinstance(found, Refused), found
    assert re.search(why, found.why), found.why


def test_a_refused_job_has_failed_and_makes_nothing():
    outcome = looked(job(plugins={"magic": []}), owned={})
    assert outcome.status["state"]["phase"] == "Failed"
    assert "spec.plugins.magic" in outcome.status["state"]["message"]
    assert (outcome.writes, outcome.says[0].reason.value) == ((), "Invalid")


def test_a_job_that_has_begun_keeps_its_pods_whatever_is_refused():
    outcome = looked(phased("Running", plugins={"magic": []}), pod(0), owned={})
    assert (outcome.writes, outcome.status) == ((), None)


@pytest.mark.contract("VE-17", "VE-26")
def test_the_guides_job_has_four_pods_of_which_two_start_it():
    raw = yaml.safe_load(GUIDE.read_text())
    raw["metadata"] |= {"namespace": "ns", "uid": "u"}
    outcome = looked({**raw, "status": {"state": {"phase": "Pending"}}})
    assert len(made(outcome)) == 4
    assert group_of(raw)["spec"]["minMember"] == 2
    assert all(isinstance(each, Create) for each in outcome.writes)
