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
from turnout.controllers.model import Create, GangDialect, GangSettings, OwnedObjects, RefusedJob, Update
from turnout.jobs.kinds.registry import KINDS as RESIZED

GUIDE = Path(__file__).parents[3] / "examples/jobs/volcanojob.yaml"
GPU = {"resources": {"limits": {"cpu": "500m", "nvidia.com/gpu": 2}}}
MASTER_AND_TWO = (task("master", 1), task("worker", 2))


def group_of(raw, setup=VOLCANO):
    return children.pod_group(view(raw), setup)


def other_children(raw, owned=None):
    return {each["kind"]: each for each in VOLCANOJOB.children.others(view(raw), owned or OwnedObjects())}


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
        task(replicas=2, minimum=1, spec={"restartPolicy": "Never"}),
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
        task(replicas=4, minimum=1, container=GPU),
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


@pytest.mark.parametrize(
    ("tasks", "minimum", "gpus"),
    [
        pytest.param((task("ps", 2, 1, container=GPU), task("w", 4, 2)), 3, "2", id="each task's least"),
        pytest.param((task("ps", 2, 1, container=GPU), task("w", 4, 2)), 4, "4", id="then more, in order"),
        pytest.param((task("ps", 2, container=GPU), task("w", 4)), 3, "4", id="below their sum, the first in order"),
        pytest.param((task("ps", 2, container=GPU), task("w", 4)), 1, "2", id="one alone"),
    ],
)
def test_the_least_resources_are_those_of_the_least_members(tasks, minimum, gpus):
    assert group_of(job(*tasks, minAvailable=minimum))["spec"]["minResources"]["nvidia.com/gpu"] == gpus


@pytest.mark.contract("VE-17")
def test_all_pods_are_made_and_the_scheduler_decides_who_runs():
    raw = phased("Pending", task(replicas=4, minimum=2), minAvailable=2)
    outcome = looked(raw)
    assert made(outcome) == [f"bert-worker-{index}" for index in range(4)]
    assert group_of(raw)["spec"]["minMember"] == 2


@pytest.mark.contract("VE-17")
def test_under_the_autoscaler_there_are_as_many_pods_as_its_target():
    raw = phased("Running", task(replicas=4, minimum=2), minAvailable=2)
    children = others(raw)
    change = RESIZED["VolcanoJob"].resize(raw, 3).body
    smaller = {**raw, "spec": {**raw["spec"], **change["spec"]}}
    outcome = looked(smaller, *(pod(index) for index in range(4)), owned=children)
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
        pytest.param(GangSettings(), {"schedulerName": "volcano"}, {}, None, id="volcano is not there"),
        pytest.param(
            GangSettings(GangDialect.SCHEDULER_PLUGINS),
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
    found = other_children(raw)
    assert found["ConfigMap"]["data"]["worker.host"] == "bert-worker-0.bert\nbert-worker-1.bert"
    assert found["Service"]["spec"] == {
        "clusterIP": "None",
        "selector": {"volcano.sh/job-name": "bert", "volcano.sh/job-namespace": "ns"},
        "publishNotReadyAddresses": False,
    }


@pytest.mark.parametrize(
    ("arguments", "early", "variables"),
    [
        pytest.param(["--publish-not-ready-addresses"], True, True, id="a switch"),
        pytest.param(["-publish-not-ready-addresses=true"], True, True, id="a switch with a value"),
        pytest.param(["--inject-hosts-env=false"], False, False, id="no variables"),
        pytest.param(["--disable-network-policy=true"], False, True, id="no NetworkPolicy, which is never made here"),
    ],
)
def test_options_of_svc(arguments, early, variables):
    raw = job(plugins={"svc": arguments})
    assert other_children(raw)["Service"]["spec"]["publishNotReadyAddresses"] is early
    assert ("env" in pod_of(raw)["spec"]["containers"][0]) is variables


def test_a_long_host_list_is_read_from_the_config_map():
    body = pod_of(job(task(replicas=500), plugins={"svc": []}))
    assert env_of(body)["VC_WORKER_HOSTS"] == {"configMapKeyRef": {"name": "bert-svc", "key": "VC_WORKER_HOSTS"}}
    assert env_of(body)["VC_WORKER_NUM"] == "500"


def test_the_hosts_follow_the_size_of_a_task():
    raw = phased("Running", task(replicas=2), plugins={"svc": []})
    children = others(raw)
    raw["spec"]["tasks"][0]["replicas"] = 3
    outcome = looked(raw, pod(0), pod(1), owned=children)
    (hosts,) = [each.content for each in outcome.writes if isinstance(each, Update) and each.field == "data"]
    assert hosts["VC_WORKER_NUM"] == "3"


def test_a_variable_of_the_user_stays():
    own = {"env": [{"name": "VC_TASK_INDEX", "value": "7"}]}
    assert env_of(pod_of(job(task(container=own), plugins={"env": []})))["VC_TASK_INDEX"] == "7"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        pytest.param({"tasks": []}, "spec.tasks is empty", id="no task"),
        pytest.param({"tasks": [task(), task()]}, r"spec.tasks\[1\].name is worker", id="one name twice"),
        pytest.param({"tasks": [task("Big")]}, r"spec.tasks\[0\].name is 'Big'", id="a name that is no label"),
        pytest.param({"tasks": [task("a" * 60)]}, "63 characters at most", id="a name too long for pods"),
        pytest.param({"tasks": [task(minimum=4)]}, r"spec.tasks\[0\].minAvailable is 4", id="a task's min above it"),
        pytest.param({"minAvailable": 4}, "spec.minAvailable is 4", id="a min above all"),
        pytest.param({"tasks": [task(replicas=10_001)]}, "at most 10000", id="more pods than anybody has"),
        pytest.param({"tasks": [{"name": "w", "template": {}}]}, "containers is missing", id="no containers"),
        pytest.param({"tasks": [task(spec={"restartPolicy": "ExitCode"})]}, "exitCode instead", id="a restart policy"),
        pytest.param({"plugins": {"magic": []}}, "magic is not supported: env, svc are", id="an unknown plugin"),
        pytest.param({"plugins": {"svc": ["--x=1"]}}, "spec.plugins.svc has '--x=1'", id="an unknown option"),
        pytest.param({"plugins": {"mpi": []}}, "spec.plugins.mpi is not supported", id="a plugin of Volcano's alone"),
        pytest.param({"volumes": [{"mountPath": "/a"}]}, "spec.volumes is not supported", id="claims of the job"),
        pytest.param({"minSuccess": 1}, "spec.minSuccess is not supported", id="an early success"),
        pytest.param({"tasks": [task(dependsOn={"name": ["x"]})]}, "dependsOn is not supported", id="an order"),
        pytest.param(
            {"tasks": [task(partitionPolicy={"totalPartitions": 1, "partitionSize": 3})]},
            r"spec.tasks\[0\].partitionPolicy is not supported",
            id="partitions",
        ),
    ],
)
def test_what_cannot_be_obeyed_is_refused_with_the_field(spec, why):
    raw = job()
    found = VOLCANOJOB.read({**raw, "spec": {**raw["spec"], **spec}})
    assert isinstance(found, RefusedJob), found
    assert re.search(why, found.why), found.why


def test_a_refused_job_has_failed_and_makes_nothing():
    outcome = looked(job(plugins={"magic": []}), owned={})
    assert outcome.status["state"]["phase"] == "Failed"
    assert "spec.plugins.magic" in outcome.status["state"]["message"]
    assert (outcome.writes, outcome.events[0].reason.value) == ((), "Invalid")


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
