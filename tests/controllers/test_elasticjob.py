"""ElasticJobs: what pods are told, who is made anew, and what is refused. The guide's job comes first."""

from pathlib import Path

import pytest
import yaml

from tests.controllers.elasticjobs import gone, job, lead, looked, made, master, names, others, pod, view, worker
from tests.controllers.jobs import NOW_S, conditions, with_status
from turnout.controllers import children
from turnout.controllers.kinds.elasticjob import ELASTICJOB
from turnout.controllers.kinds.registry import by_api
from turnout.controllers.model import (
    ChildKey,
    GangDialect,
    GangSettings,
    OwnedObjects,
    PodPhase,
    Reason,
    RefusedJob,
    Replica,
)
from turnout.controllers.reconcile import reconcile

GUIDE = Path(__file__).parents[2] / "examples/jobs/elasticjob.yaml"
FAILED = PodPhase.FAILED


def guide():
    """The job of the users' guide."""
    raw = yaml.safe_load(GUIDE.read_text())
    raw["metadata"] |= {"namespace": "ns", "uid": "u", "resourceVersion": "1"}
    return raw


def pod_of(raw, name="worker", replica=None, setup=None):
    """One pod of a job."""
    view_of_job = view(raw)
    (role,) = [each for each in view_of_job.roles if each.name == name]
    return children.pod_body(
        ELASTICJOB, view_of_job, role, replica or Replica(0, 0), OwnedObjects(), setup or GangSettings()
    )


def main(body):
    """The training container of a pod."""
    (container,) = [each for each in body["spec"]["containers"] if each["name"] == "main"]
    return container


def env(body):
    """The environment of a pod's training container; the path of a field for what comes from one."""
    return {each["name"]: each.get("value") or each["valueFrom"]["fieldRef"]["fieldPath"] for each in main(body)["env"]}


def test_the_gangs_resources_are_those_of_its_workers_alone():
    """The master is no member: neither its own resources nor its place before the workers counts."""
    raw = job(worker(2))
    raw["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
    spec = children.pod_group(view(raw), GangSettings(GangDialect.VOLCANO))["spec"]
    assert (spec["minMember"], spec["minResources"]) == (2, {"cpu": "4"})


@pytest.mark.parametrize(("span", "elastic"), [("2:4", True), ("4", False), ("4:4", False)])
def test_a_job_is_elastic_whose_launcher_is_told_two_numbers(span, elastic):
    command = ["bash", "-c", f"dlrover-run --nnodes={span} train.py"]
    assert view(job(worker(4, {"command": command}))).elastic is elastic


def test_a_service_leads_to_pods_that_are_not_ready_yet():
    assert all(each.spec["publishNotReadyAddresses"] for each in others(job()).values())


def test_a_pod_avoids_no_node_before_one_was_found_faulty():
    assert "affinity" not in pod_of(job())["spec"]


def test_a_name_may_be_as_long_as_its_services_allow():
    assert view(job(name="b" * 37)).name == "b" * 37


def test_a_container_beside_the_training_one_is_as_its_template_says():
    raw = job(worker())
    sidecar = {"name": "logs", "image": "logs:1"}
    raw["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"].append(sidecar)
    assert pod_of(raw)["spec"]["containers"][1] == sidecar


@pytest.mark.contract("DL-23")
def test_the_guides_job_gives_each_worker_this():
    assert env(pod_of(guide(), replica=Replica(1, 5, 2))) == {
        "POD_NAME": "metadata.name",
        "POD_IP": "status.podIP",
        "NODE_IP": "status.hostIP",
        "ELASTIC_JOB_NAME": "fine-tuning",
        "JOB_UID": "u",
        "NODE_TYPE": "worker",
        "NODE_ID": "5",
        "NODE_RANK": "1",
        "NODE_NUM": "4",
        "WORKER_TYPE": "worker",
        "WORKER_ID": "5",
        "WORKER_RANK": "1",
        "WORKER_NUM": "4",
        "RANK": "1",
        "WORLD_SIZE": "4",
        "DLROVER_MASTER_ADDR": "elasticjob-fine-tuning-dlrover-master:50001",
        "DLROVER_MASTER_SERVICE_TYPE": "grpc",
        "DLROVER_TRAINING_ELASTIC_MODE": "base",
        "GRPC_ENABLE_FORK_SUPPORT": "false",
        "MONITOR_ENABLED": "true",
        "TURNOUT_NAME": "fine-tuning-edljob-worker-1",
        "PET_RDZV_ENDPOINT": "elasticjob-fine-tuning-dlrover-master:50001",
    }


def test_a_pod_is_found_by_its_rank_and_its_id():
    assert pod_of(guide(), replica=Replica(1, 5, 2))["metadata"]["labels"] == {
        "app": "dlrover",
        "elasticjob.dlrover/name": "fine-tuning",
        "elasticjob.dlrover/replica-type": "worker",
        "elasticjob.dlrover/replica-index": "5",
        "elasticjob.dlrover/rank-index": "1",
        "elasticjob.dlrover/relaunch-count": "2",
    }


def test_a_new_job_gets_its_master_then_its_workers_each_with_a_service():
    outcome = reconcile(ELASTICJOB, job(), OwnedObjects(), NOW_S)
    workers = ["bert-edljob-worker-0", "bert-edljob-worker-1"]
    assert names(outcome) == ["elasticjob-bert-dlrover-master-0", *workers]
    assert {key.name for key in others(job())} == {"elasticjob-bert-dlrover-master", *workers}
    assert outcome.status["phase"] == "Created"


def test_a_service_leads_to_whoever_has_the_rank():
    spec = others(job())[ChildKey("Service", "bert-edljob-worker-1")].spec
    marks = pod_of(job(), replica=Replica(1, 7))["metadata"]["labels"]
    assert spec["selector"].items() <= marks.items()
    (port,) = others(job())[ChildKey("Service", "elasticjob-bert-dlrover-master")].spec["ports"]
    assert port["port"] == 50001


@pytest.mark.contract("DL-17", "DL-18", "DL-19", "DL-24", "DL-25", "DL-126")
@pytest.mark.parametrize("policy", ["Never", "Always", "OnFailure"])
def test_a_worker_is_as_its_template_says(policy):
    notes = {"gang.scheduling.koordinator.sh/name": "g", "gang.scheduling.koordinator.sh/min-available": "4"}
    container = {"image": "i:2", "imagePullPolicy": "Never", "resources": {"limits": {"metax-tech.com/gpu": 8}}}
    own = {"restartPolicy": policy, "schedulerName": "koord-scheduler"}
    body = pod_of(job(worker(2, container, own, {"annotations": notes})))
    assert body["metadata"]["annotations"] == notes
    assert own.items() <= body["spec"].items()
    assert container.items() <= main(body).items()
    assert main(body)["command"] == ["bash", "-c", "dlrover-run --nnodes=$NODE_NUM train.py"]


def test_a_workers_own_environment_stands_behind_what_it_may_refer_to():
    own = [{"name": "LOG", "value": "/logs/$(NODE_RANK)"}, {"name": "NODE_RANK", "value": "9"}]
    container = main(pod_of(job(worker(container={"env": own}))))["env"]
    assert container[-1] == own[0]
    assert [each["value"] for each in container if each["name"] == "NODE_RANK"] == ["0"]


COORDINATES = ["--coordinator-only", "--rdzv-endpoint=$(POD_IP):50001"]


@pytest.mark.contract("DL-21", "DL-22")
@pytest.mark.parametrize(
    ("own", "image", "command", "args", "meets"),
    [
        pytest.param(None, "train:1", ["turnout-run"], COORDINATES, True, id="without any, the workers' image"),
        pytest.param({"image": "m:1"}, "m:1", ["turnout-run"], COORDINATES, True, id="with an image"),
        pytest.param(
            {"command": ["m"]}, "train:1", ["m"], None, False, id="with a command, which meets nobody of ours"
        ),
        pytest.param(
            {"command": ["turnout-run", "--coordinator-only"]},
            "train:1",
            ["turnout-run", "--coordinator-only"],
            None,
            True,
            id="with a command that runs our coordinator",
        ),
    ],
)
def test_the_master_runs(own, image, command, args, meets):
    raw = job(lead=None if own is None else master(own))
    found = main(pod_of(raw, "dlrover-master"))
    assert (found["image"], found["command"], found.get("args")) == (image, command, args)
    assert ("PET_RDZV_ENDPOINT" in env(pod_of(raw))) is meets


@pytest.mark.parametrize(
    ("own", "image"),
    [
        pytest.param(None, "masters:3", id="of the admin, where the job has no master of its own"),
        pytest.param({"args": ["--coordinator-only"]}, "masters:3", id="of the admin, where its own names none"),
        pytest.param({"image": "mine:2"}, "mine:2", id="of the job, where it names one"),
    ],
)
def test_the_masters_image_is(own, image):
    kind = by_api(["ElasticJob"], "masters:3")[f"/apis/{ELASTICJOB.apis[0]}"]
    found = kind.read(job(lead=None if own is None else master(own)))
    images = {role.name: role.template["spec"]["containers"][0]["image"] for role in found.roles}
    assert images == {"dlrover-master": image, "worker": "train:1"}


def test_the_master_is_told_what_a_coordinator_decides():
    run = (
        "dlrover-run --nnodes=2:4 --network_check --exclude-straggler --on-hang=restart --lease ns/bert --stacks-dir=$D"
    )
    raw = job(worker(container={"command": ["bash", "-c", f"{run} train.py --token-file"]}))
    assert main(pod_of(raw, "dlrover-master"))["args"] == [
        *COORDINATES,
        "--network-check",
        "--exclude-straggler",
        "--on-hang=restart",
        "--lease=ns/bert",
    ]


@pytest.mark.contract("DL-129")
def test_the_master_is_no_member_of_the_gang():
    notes = {"gang.scheduling.koordinator.sh/name": "g"}
    raw = job(worker(meta={"annotations": notes}))
    setup = GangSettings(GangDialect.VOLCANO)
    assert "annotations" not in pod_of(raw, "dlrover-master", setup=setup)["metadata"]
    assert "schedulerName" not in pod_of(raw, "dlrover-master", setup=setup)["spec"]
    assert children.pod_group(view(raw), setup)["spec"]["minMember"] == 2
    outcome = reconcile(ELASTICJOB, raw, OwnedObjects(), NOW_S, setup)
    assert names(outcome) == ["elasticjob-bert-dlrover-master-0"]  # the workers wait for their PodGroup


@pytest.mark.parametrize(
    ("workers", "notes", "minimum"),
    [
        pytest.param(worker(4), {}, 4, id="all of a fixed size"),
        pytest.param(worker(4, {"command": ["dlrover-run", "--nnodes=2:8"]}), {}, 2, id="the min of its command line"),
        pytest.param(worker(4), {"turnout.dev/min-workers": "3"}, 3, id="the min of its annotation"),
    ],
)
def test_a_gang_starts_with(workers, notes, minimum):
    assert view(job(workers, notes=notes)).gang.min_member == minimum


@pytest.mark.contract("DL-16")
@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param({}, 3, id="three by default"),
        pytest.param({"restartCount": 7}, 7, id="DLRover's spelling, above its silent bound"),
        pytest.param({"restartCounts": 0}, 0, id="the guide's"),
        pytest.param({"restartCount": 2, "restartCounts": 2}, 2, id="both alike"),
    ],
)
def test_how_often_a_rank_gets_a_new_pod(text, count):
    assert view(job(worker(**text))).roles[1].max_restarts == count


@pytest.mark.contract("DL-15", "DL-94")
def test_a_rank_gets_three_new_pods_and_its_fourth_failure_is_the_jobs():
    raw, number = with_status(job(), looked(job())), 1
    for count in (1, 2, 3):
        failed = pod(number, 1, FAILED, exit_code=1)
        outcome = looked(raw, lead(), pod(), failed)
        raw = with_status(raw, outcome)
        assert (gone(outcome), outcome.status_first, conditions(raw)) == (
            [failed.name],
            True,
            ["Created", "Restarting"],
        )
        outcome = looked(raw, lead(), pod())  # by a controller that has seen nothing of it
        raw, number = with_status(raw, outcome), number + 1
        (body,) = made(outcome)
        assert body["metadata"]["name"] == f"bert-edljob-worker-{number}"
        assert (env(body)["NODE_RANK"], env(body)["TURNOUT_NAME"]) == ("1", "bert-edljob-worker-1")
        assert body["metadata"]["labels"]["elasticjob.dlrover/relaunch-count"] == str(count)
    raw = with_status(raw, looked(raw, lead(), pod(), pod(number, 1, FAILED, exit_code=1)))
    assert (raw["status"]["phase"], conditions(raw)[-1]) == ("Failed", "Failed")


@pytest.mark.parametrize(
    "left",
    [
        pytest.param([], id="gone at once"),
        pytest.param([pod(1, deleting=True)], id="still running"),
        pytest.param([pod(1, phase=FAILED, deleting=True, exit_code=143)], id="drained"),
    ],
)
def test_a_pod_that_is_deleted_is_replaced_and_not_counted(left):
    raw = with_status(job(), looked(job()))
    outcome = looked(raw, lead(), pod(0), *left)
    assert names(outcome) == ["bert-edljob-worker-2"]
    assert "restartCounts" not in with_status(raw, outcome)["status"]["replicaStatuses"]["worker"]


@pytest.mark.parametrize(
    ("pods", "phase"),
    [
        pytest.param([], "Created", id="no pod exists yet"),
        pytest.param([lead(phase=PodPhase.PENDING)], "Pending", id="nobody runs"),
        pytest.param([lead(), pod(0, phase=PodPhase.PENDING)], "Pending", id="only the master runs"),
        pytest.param([lead(), pod(0), pod(1)], "Running", id="workers run"),
        pytest.param([lead(), pod(0, phase=FAILED, exit_code=1), pod(1)], "Restarting", id="a worker is made anew"),
        pytest.param([lead(), pod(0), pod(1), pod(2, phase=FAILED)], "Running", id="a removed worker has failed"),
        pytest.param(
            [lead(), *(pod(each, phase=PodPhase.SUCCEEDED) for each in (0, 1))], "Succeeded", id="all succeeded"
        ),
        pytest.param([lead(), pod(0, phase=PodPhase.SUCCEEDED), pod(1)], "Running", id="one has succeeded"),
        pytest.param([lead(phase=PodPhase.SUCCEEDED), pod(0), pod(1)], "Succeeded", id="the master says so"),
        pytest.param([lead(phase=FAILED, exit_code=1), pod(0), pod(1)], "Failed", id="the master says it failed"),
        pytest.param([lead(phase=FAILED, exit_code=137), pod(0), pod(1)], "Restarting", id="the master was killed"),
        pytest.param([lead(phase=FAILED, reason="Evicted"), pod(0)], "Restarting", id="the master was evicted"),
    ],
)
def test_the_phase_is_dlrovers(pods, phase):
    assert looked(job(), *pods).status["phase"] == phase


@pytest.mark.parametrize(
    ("workers", "pods", "phase"),
    [
        pytest.param(0, [], "Pending", id="without workers it does not succeed"),
        pytest.param(
            1, [pod(0, phase=PodPhase.SUCCEEDED)], "Succeeded", id="the success of a lone worker is the job's"
        ),
    ],
)
def test_the_phase_of_a_small_job(workers, pods, phase):
    assert looked(job(worker(workers)), lead(), *pods).status["phase"] == phase


def test_a_master_that_died_is_replaced_and_the_workers_stay():
    raw = job()
    outcome = looked(raw, lead(phase=FAILED, exit_code=137), pod(0), pod(1))
    assert gone(outcome) == ["elasticjob-bert-dlrover-master-0"]
    outcome = looked(with_status(raw, outcome), pod(0), pod(1))
    assert (names(outcome), gone(outcome)) == (["elasticjob-bert-dlrover-master-1"], [])


def test_pods_that_run_go_at_the_end_and_others_stay():
    raw = job()
    raw = with_status(raw, looked(raw, lead(), pod(0, phase=PodPhase.SUCCEEDED), pod(1, phase=PodPhase.SUCCEEDED)))
    outcome = looked(raw, lead(), pod(0, phase=PodPhase.SUCCEEDED), pod(1))
    assert sorted(gone(outcome)) == ["bert-edljob-worker-1", "elasticjob-bert-dlrover-master-0"]


def test_a_suspended_job_keeps_its_master_alone():
    raw = job(suspend=True)
    outcome = looked(raw, lead(), pod(0), pod(1))
    assert gone(outcome) == ["bert-edljob-worker-1", "bert-edljob-worker-0"]
    assert outcome.status["phase"] == "Suspended"
    assert names(reconcile(ELASTICJOB, raw, OwnedObjects(), NOW_S)) == ["elasticjob-bert-dlrover-master-0"]
    resumed = {**with_status(raw, outcome), "spec": job()["spec"]}
    outcome = looked(resumed, lead())
    assert names(outcome) == ["bert-edljob-worker-0", "bert-edljob-worker-1"]
    assert with_status(resumed, outcome)["status"]["phase"] == "Pending"


@pytest.mark.contract("XD-05")
def test_who_leaves_first_has_the_highest_rank():
    outcome = looked(job(worker(1)), lead(), pod(0), pod(3, 1), pod(2))
    assert gone(outcome) == ["bert-edljob-worker-2", "bert-edljob-worker-3"]


MEMORY = {"resources": {"limits": {"memory": "16Gi", "cpu": "8"}, "requests": {"memory": "8Gi"}}}
GIB = 2**30


@pytest.mark.parametrize(
    ("kills", "mode", "gib"),
    [
        pytest.param(0, "single-job", None, id="as its template says at first"),
        pytest.param(1, "single-job", (24, 12), id="half more after the first kill"),
        pytest.param(2, "single-job", (32, 16), id="twice after the second"),
        pytest.param(5, "single-job", (32, 16), id="and never more"),
        pytest.param(5, "manual", None, id="as its template says where the job is sized by hand"),
    ],
)
def test_a_worker_that_lacked_memory_gets(kills, mode, gib):
    body = pod_of(job(worker(container=MEMORY), optimizeMode=mode), replica=Replica(0, 9, kills, kills))
    expected = {
        "limits": {"memory": str(gib[0] * GIB), "cpu": "8"},
        "requests": {"memory": str(gib[1] * GIB)},
    } if gib else MEMORY["resources"]  # fmt: skip
    assert main(body)["resources"] == expected


def test_a_lack_of_memory_is_remembered_for_the_rank():
    raw = job(worker(container=MEMORY))
    raw = with_status(raw, looked(raw, lead(), pod(0, phase=FAILED, exit_code=137, reason="OOMKilled"), pod(1)))
    (body,) = made(looked(raw, lead(), pod(1)))
    assert main(body)["resources"]["limits"]["memory"] == str(24 * GIB)


def test_a_node_that_a_check_found_faulty_is_avoided_by_all_later_pods():
    raw = job()
    raw = with_status(raw, looked(raw, lead(), pod(0, phase=FAILED, exit_code=138, node="gpu-7"), pod(1)))
    (body,) = made(looked(raw, lead(), pod(1)))
    avoids = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["gpu-7"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [avoids]}}
    assert body["spec"]["affinity"] == {"nodeAffinity": required}


def test_a_workers_own_affinity_stays_beside_the_nodes_that_it_avoids():
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    own = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term, term]}}}
    body = pod_of(job(worker(pod={"affinity": {**own, "podAffinity": {}}})), replica=Replica(0, 2, 1, 0, ("a", "b")))
    (one, other) = body["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert one == other
    assert one["matchExpressions"] == term["matchExpressions"]
    assert [each["values"] for each in one["matchFields"]] == [["a"], ["b"]]
    assert body["spec"]["affinity"]["podAffinity"] == {}


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        pytest.param(job(name="b" * 38), "metadata.name has 38 characters", id="a name too long for its Services"),
        pytest.param(job(name="Bert"), "metadata.name is 'Bert'", id="a name that is no DNS label"),
        pytest.param(job(distributionStrategy="Local"), "spec.distributionStrategy is 'Local'", id="a strategy"),
        pytest.param(job(optimizeMode="cluster"), "spec.optimizeMode is 'cluster'", id="a mode that needs a brain"),
        pytest.param(job(replicaSpecs={}), "spec.replicaSpecs.worker is missing", id="no workers"),
        pytest.param(
            job(replicaSpecs={"worker": worker(), "ps": worker()}), "spec.replicaSpecs.ps is no role", id="another role"
        ),
        pytest.param(job(worker(restartCount=1, restartCounts=2)), "restartCount is 1 and", id="two restart counts"),
        pytest.param(job(worker(restartCount=-1)), "worker.restartCount is -1", id="a count below 0"),
        pytest.param(job(worker(container={"name": "x"})), "must be named main", id="no container of that name"),
        pytest.param(job(worker(container={"image": ""})), "containers[0].image is missing", id="no image"),
        pytest.param(
            job(worker(meta={"annotations": {"gang.scheduling.koordinator.sh/min-available": 4}})),
            "annotations.gang.scheduling.koordinator.sh/min-available is 4: it must be a text",
            id="a number in an annotation",
        ),
        pytest.param(job(lead={"replicas": 2}), "dlrover-master.replicas is 2", id="two masters"),
        pytest.param(
            job(lead={"template": {"spec": {"containers": [{"name": each, "image": "i"} for each in "ab"]}}}),
            "one container must be named main",
            id="a master of two containers, neither of which is the main one",
        ),
        pytest.param(job(worker(10_001)), "worker.replicas is 10001", id="more workers than anybody has"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_with_its_path(raw, why):
    found = ELASTICJOB.read(raw)
    assert isinstance(found, RefusedJob)
    assert why in found.why


@pytest.mark.contract("DL-12")
def test_an_unknown_strategy_is_told_in_a_condition():
    outcome = reconcile(ELASTICJOB, job(distributionStrategy="Ring"), OwnedObjects(), NOW_S)
    (condition,) = outcome.status["conditions"]
    assert (condition["type"], outcome.status["phase"]) == ("Failed", "Failed")
    assert "spec.distributionStrategy is 'Ring'" in condition["message"]
    assert [each.reason for each in outcome.events] == [Reason.INVALID]
    assert outcome.writes == ()
