"""PyTorchJobs: what pods are told, what is refused, and what lies beside pods. The guide's job comes first."""

from pathlib import Path

import pytest
import yaml

from tests.controllers.jobs import CONTAINER, job, others, role, view
from turnout.controllers import children
from turnout.controllers.kinds.pytorchjob import PYTORCHJOB
from turnout.controllers.model import ChildKey, Counts, GangDialect, GangSettings, OwnedObjects, RefusedJob, Replica
from turnout.kube import labels

GUIDE = Path(__file__).parents[2] / "examples/jobs/pytorchjob-elastic.yaml"


def guide():
    """The job of the users' guide."""
    raw = yaml.safe_load(GUIDE.read_text())
    raw["metadata"] |= {"namespace": "ns", "uid": "u", "resourceVersion": "1"}
    return raw


def pod_of(raw, name="worker", index=0, setup=None):
    """One pod of a job."""
    view_of_job = view(raw)
    (found,) = [each for each in view_of_job.roles if each.label == name]
    return children.pod_body(
        PYTORCHJOB, view_of_job, found, Replica(index, index), OwnedObjects(), setup or GangSettings()
    )


def env(raw, name="worker", index=0):
    """The environment of one pod's training container."""
    (container,) = [each for each in pod_of(raw, name, index)["spec"]["containers"] if each["name"] == "pytorch"]
    return {each["name"]: each["value"] for each in container["env"]}


@pytest.mark.contract("PE-17", "PE-18", "PE-19", "PE-20", "PE-22", "PE-24", "PE-25", "PE-26", "PE-27", "PE-39")
def test_the_guides_job_gives_each_worker_this():
    raw = guide()
    assert view(raw).api_version == "ctyun.cn/v1"
    assert env(raw, index=1) == {
        "LOGLEVEL": "DEBUG",
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "auto",
        "PET_RDZV_ENDPOINT": "elastic-example-worker-0:29400",
        "PET_RDZV_BACKEND": "c10d",
        "PET_NNODES": "1:3",
        "PET_NODES": "1:3",
        "PET_MAX_RESTARTS": "100",
        "PET_N_PROC_PER_NODE": "auto",
    }
    worker_pod = pod_of(raw, index=1)
    assert worker_pod["metadata"]["name"] == "elastic-example-worker-1"
    assert worker_pod["metadata"]["labels"]["turnout.dev/job-kind"] == "PyTorchJob.ctyun.cn"
    (container,) = worker_pod["spec"]["containers"]
    assert container["command"][:3] == ["python", "-m", "torch.distributed.run"]
    assert container["env"][0] == {"name": "LOGLEVEL", "value": "DEBUG"}


@pytest.mark.contract("PE-28", "PE-29")
def test_a_job_that_says_little_is_told_little():
    assert env(job(worker=role(2))) == {"PYTHONUNBUFFERED": "1", "PET_NPROC_PER_NODE": "auto", "PET_NNODES": "2"}
    elastic = env(job(worker=role(2), elastic={}))
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} & elastic.keys()
    assert not {"PET_MAX_RESTARTS", "PET_RDZV_ID", "PET_RDZV_CONF", "PET_STANDALONE"} & elastic.keys()


@pytest.mark.parametrize(
    ("elastic", "variables"),
    [
        pytest.param(
            {"rdzvConf": [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}]},
            {"PET_RDZV_CONF": "a=1,b=2"},
            id="settings, without a comma at the end",
        ),
        pytest.param({"standalone": True}, {"PET_STANDALONE": "1"}, id="standalone, as torchrun can read it"),
        pytest.param(
            {"rdzvHost": "etcd", "rdzvPort": 2379}, {"PET_RDZV_ENDPOINT": "etcd:2379"}, id="an endpoint of the user"
        ),
        pytest.param({"rdzvId": "7"}, {"PET_RDZV_ID": "7"}, id="an id"),
        pytest.param(
            {"nProcPerNode": 4},
            {"PET_NPROC_PER_NODE": "4", "PET_N_PROC_PER_NODE": "4"},
            id="processes under both names",
        ),
        pytest.param({"minReplicas": 2}, {"PET_NNODES": "2:2"}, id="a min only"),
        pytest.param({"maxReplicas": 5}, {"PET_NNODES": "5:5"}, id="a max only"),
        pytest.param({"min": 1, "max": 4}, {"PET_NNODES": "1:4"}, id="the article's short names"),
    ],
)
@pytest.mark.contract("PE-32", "PE-33", "PE-34", "PE-38")
def test_an_elastic_policy_is_told_as_torchrun_reads_it(elastic, variables):
    found = env(job(worker=role(2), elastic=elastic))
    assert {key: found[key] for key in variables} == variables


@pytest.mark.contract("PE-43")
def test_buffering_is_the_users_where_it_is_set():
    own = {**CONTAINER, "env": [{"name": "PYTHONUNBUFFERED", "value": "0"}]}
    assert env(job(worker=role(containers=[own])))["PYTHONUNBUFFERED"] == "0"


def test_with_a_master_every_pod_knows_it_and_its_rank():
    raw = job(worker=role(2), master=role(), nprocPerNode="2")
    master = {"MASTER_ADDR": "bert-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "6", "PET_NNODES": "3"}
    assert master.items() <= env(raw, "master").items()
    assert [env(raw, *which)["RANK"] for which in (("master", 0), ("worker", 0), ("worker", 1))] == ["0", "1", "2"]


@pytest.mark.contract("PE-42")
@pytest.mark.parametrize(
    ("raw", "port"),
    [
        pytest.param(job(worker=role(elastic={})), 23456, id="23456 for a job of fixed size"),
        pytest.param(job(worker=role(), elastic={}), 29400, id="29400 for an elastic one"),
        pytest.param(
            job(
                worker=role(containers=[{**CONTAINER, "ports": [{"name": "pytorchjob-port", "containerPort": 1}]}]),
                elastic={},
            ),
            1,
            id="the user's",
        ),
    ],
)
def test_the_port_is_on_the_container_and_in_the_service(raw, port):
    (container,) = pod_of(raw)["spec"]["containers"]
    assert container["ports"] == [{"name": "pytorchjob-port", "containerPort": port}]
    assert others(raw)[ChildKey("Service", "bert-worker-0")].spec["ports"] == [
        {"name": "pytorchjob-port", "port": port}
    ]


@pytest.mark.contract("PE-41", "VE-25")
@pytest.mark.parametrize(
    ("raw", "index", "host"),
    [
        pytest.param(job(worker=role(2), master=role()), 0, "bert-master-0", id="a worker waits for its master"),
        pytest.param(job(worker=role(2), elastic={}), 1, "bert-worker-0", id="another worker waits for worker 0"),
        pytest.param(job(worker=role(2), elastic={}), 0, None, id="worker 0 waits for nobody"),
        pytest.param(job(worker=role(2)), 1, None, id="workers that are not told of one another wait for nobody"),
    ],
)
def test_who_waits_until_a_name_resolves(raw, index, host):
    init_containers = pod_of(raw, index=index)["spec"].get("initContainers", [])
    assert [f"nslookup {host};" in each["command"][2] for each in init_containers] == ([True] if host else [])


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        pytest.param(job("Bert", worker=role()), "metadata.name", id="a name that is no DNS label"),
        pytest.param(job(), "spec.pytorchReplicaSpecs", id="no roles"),
        pytest.param(
            job(worker=role(), master=role(2)), "spec.pytorchReplicaSpecs.Master.replicas is 2", id="two masters"
        ),
        pytest.param(
            job(worker=role(containers=[{"name": "other", "image": "i"}])),
            "named pytorch",
            id="no container of that name",
        ),
        pytest.param(
            job(worker=role(containers=[{"name": "pytorch"}])), "containers[0].image is missing", id="no image"
        ),
        pytest.param(
            job(worker=role(restart="Sometimes")), "restartPolicy is 'Sometimes'", id="an unknown restart policy"
        ),
        pytest.param(
            job(worker=role(), run={"backoffLimit": -1}), "spec.runPolicy.backoffLimit is -1", id="a bound below 0"
        ),
        pytest.param(job(master=role(), elastic={}), "Worker is missing", id="an elastic job without workers"),
        pytest.param(
            job(worker=role(), elastic={"minReplicas": 3, "maxReplicas": 2}),
            "minReplicas is 3",
            id="a min above the max",
        ),
        pytest.param(
            job(worker=role(), elastic={"nProcPerNode": 1}, nprocPerNode="2"),
            "must not be used",
            id="processes said twice",
        ),
    ],
)
@pytest.mark.contract("PE-23")
def test_what_cannot_be_obeyed_is_refused_with_its_path(raw, why):
    found = PYTORCHJOB.read(raw)
    assert isinstance(found, RefusedJob)
    assert why in found.why


@pytest.mark.contract("PE-21", "PE-44", "PE-45", "PE-46", "PE-47")
def test_metrics_bring_an_hpa_of_the_jobs_bounds_and_none_bring_none():
    raw = guide()
    found = others(raw)[ChildKey("HorizontalPodAutoscaler", "elastic-example")]
    assert found.spec == {
        "scaleTargetRef": {"kind": "PyTorchJob", "name": "elastic-example", "apiVersion": "ctyun.cn/v1"},
        "minReplicas": 1,
        "maxReplicas": 3,
        "metrics": raw["spec"]["elasticPolicy"]["metrics"],
    }
    del raw["spec"]["elasticPolicy"]["metrics"]
    assert {key.kind for key in others(raw)} == {"Service"}


@pytest.mark.contract("VE-16", "VE-26")
@pytest.mark.parametrize(
    ("raw", "minimum"),
    [
        pytest.param(
            job(worker=role(3), elastic={"minReplicas": 1, "maxReplicas": 4}), 1, id="the min of an elastic job"
        ),
        pytest.param(job(worker=role(3), master=role()), 4, id="all pods of another"),
        pytest.param(job(worker=role(3), run={"schedulingPolicy": {"minAvailable": 2}}), 2, id="what the user says"),
    ],
)
def test_a_gang_starts_with(raw, minimum):
    group = children.pod_group(view(raw), GangSettings(GangDialect.VOLCANO))
    assert group["spec"] == {"minMember": minimum, "queue": "default", "minResources": {}}


def asking(**resources):
    return [{**CONTAINER, "resources": resources}]


@pytest.mark.parametrize(
    ("raw", "resources"),
    [
        pytest.param(
            job(
                master=role(1, containers=asking(requests={"cpu": "500m"})),
                worker=role(3, containers=asking(requests={"cpu": 2, "memory": "1Gi"})),
                run={"schedulingPolicy": {"minAvailable": 3}},
            ),
            {"cpu": "4500m", "memory": "2147483648"},
            id="those of the first pods, the master's first",
        ),
        pytest.param(
            job(worker=role(2, containers=asking(requests={"cpu": 1}, limits={"cpu": 4, "nvidia.com/gpu": 8}))),
            {"cpu": "2", "nvidia.com/gpu": "16"},
            id="a limit where nothing is requested",
        ),
        pytest.param(
            job(worker=role(2, containers=asking(requests={"cpu": "much", "memory": None}, limits=[]))),
            {},
            id="nothing for what is no quantity",
        ),
        pytest.param(
            job(worker=role(2), run={"schedulingPolicy": {"minResources": {"cpu": "7"}}}),
            {"cpu": "7"},
            id="what the user says",
        ),
    ],
)
def test_a_gang_is_admitted_by_the_resources_that_it_starts_with(raw, resources):
    assert children.pod_group(view(raw), GangSettings(GangDialect.VOLCANO))["spec"]["minResources"] == resources


@pytest.mark.parametrize(
    ("dialect", "scheduler", "marks"),
    [
        pytest.param(
            GangDialect.VOLCANO,
            "volcano",
            {"scheduling.k8s.io/group-name": "bert", "volcano.sh/task-spec": "worker"},
            id="Volcano's annotations",
        ),
        pytest.param(
            GangDialect.SCHEDULER_PLUGINS,
            "scheduler-plugins-scheduler",
            {"scheduling.x-k8s.io/pod-group": "bert"},
            id="scheduler-plugins' label",
        ),
    ],
)
def test_a_pod_names_its_gang_in_the_schedulers_dialect(dialect, scheduler, marks):
    worker_pod = pod_of(job(worker=role()), setup=GangSettings(dialect))
    labels_and_notes = {**worker_pod["metadata"]["labels"], **worker_pod["metadata"].get("annotations", {})}
    assert (worker_pod["spec"]["schedulerName"], marks.items() <= labels_and_notes.items()) == (scheduler, True)


OURS = {"name": labels.PLACEMENT_GATE}
GPU = {**CONTAINER, "resources": {"limits": {"nvidia.com/gpu": "8"}}}


@pytest.mark.parametrize(
    ("setup", "container", "gates", "becomes"),
    [
        pytest.param(GangSettings(gate_pods=True), GPU, None, [OURS], id="a pod of a gang"),
        pytest.param(GangSettings(GangDialect.VOLCANO, gate_pods=True), GPU, None, [OURS], id="in any dialect"),
        pytest.param(
            GangSettings(gate_pods=True), GPU, [{"name": "a/x"}], [{"name": "a/x"}, OURS], id="beside another's"
        ),
        pytest.param(GangSettings(gate_pods=True), GPU, [OURS], [OURS], id="once"),
        pytest.param(GangSettings(gate_pods=True), GPU, ["a/x"], ["a/x", OURS], id="after a gate that is no object"),
        pytest.param(GangSettings(gate_pods=True), CONTAINER, None, None, id="not without an accelerator"),
        pytest.param(GangSettings(), GPU, None, None, id="not unless it is asked for"),
    ],
)
def test_pods_wait_behind_our_gate_where_it_is_asked_for(setup, container, gates, becomes):
    workers = role(2, containers=(container,))
    workers["template"]["spec"] |= {"schedulingGates": gates} if gates else {}
    assert pod_of(job(worker=workers), setup=setup)["spec"].get("schedulingGates") == becomes


@pytest.mark.parametrize(("active", "words"), [(1, ["Running", "Restarting"]), (2, ["Running"])])
def test_a_job_restarts_while_a_replica_lacks_its_pod(active, words):
    raw = view(job(worker=role(2)))
    found = PYTORCHJOB.status.conditions_of_pods(raw, {"Worker": Counts(active=active, failed=1)}, OwnedObjects())
    assert [each.reason.value for each in found] == words


@pytest.mark.parametrize(
    ("raw", "leads"),
    [
        pytest.param(job(worker=role(2)), {"bert-worker-0"}, id="worker 0"),
        pytest.param(job(worker=role(2), master=role(1)), {"bert-master-0"}, id="its master where it has one"),
    ],
)
def test_the_label_of_a_lead_is_on(raw, leads):
    view_of_job = view(raw)
    labels = {
        f"bert-{each.label}-{index}": PYTORCHJOB.children.labels(view_of_job, each, Replica(index, index))
        for each in view_of_job.roles
        for index in range(each.replicas)
    }
    assert {name for name, each in labels.items() if each.get("training.kubeflow.org/job-role") == "master"} == leads


@pytest.mark.parametrize(("replicas", "refused"), [(10_000, False), (10_001, True)])
def test_so_many_replicas_are_made_and_no_more(replicas, refused):
    assert isinstance(PYTORCHJOB.read(job(worker=role(replicas))), RefusedJob) is refused


@pytest.mark.parametrize(
    ("manager", "elsewhere"),
    [
        (None, ""),
        ("", ""),
        ("kubeflow.org/training-operator", ""),
        ("kueue.x-k8s.io/multikueue", "kueue.x-k8s.io/multikueue"),
    ],
)
def test_a_job_is_elsewhere_that_names_another_manager(manager, elsewhere):
    assert view(job(worker=role(1), run={"managedBy": manager})).other_controller == elsewhere
