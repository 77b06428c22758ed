"""Pods are told apart by job, and by which go first, from each kind's labels: XD-05, VE-28, VE-32."""

from dataclasses import replace

import pytest

from tests.jobs.kinds.manifests import SAMPLES, colossal, mindspore, mpi
from turnout.autoscaler.cache import Cache
from turnout.autoscaler.observe import job_pods
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.queues.model import QueueSpec
from turnout.kube import labels
from turnout.kube.objects import (
    Container,
    Node,
    NodeStatus,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodSpec,
    PodStatus,
    Resources,
    Toleration,
)
from turnout.kube.pod_shape import PodShape

GPU = "nvidia.com/gpu"
LWS, RAY, DLROVER = "leaderworkerset.sigs.k8s.io", "ray.io", "elasticjob.dlrover"


def pod(name, owner="u", on="a", gpus=2, at=0, deleted=None, **marks):
    requests = {GPU: str(gpus)} if gpus else {"cpu": "1"}
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="ns",
            uid=f"uid-{name}",
            creation_timestamp=f"2026-01-01T00:00:{at:02}Z",
            deletion_timestamp=deleted,
            labels=marks,
            owner_references=[OwnerReference(kind="K", name="j", uid=owner, controller=True)],
        ),
        spec=PodSpec(node_name=on, containers=[Container(resources=Resources(requests=requests))]),
        status=PodStatus(phase="Running"),
    )


def view_of(*jobs):
    view = Cache(KINDS)
    view.put_node(Node(metadata=ObjectMeta(name="a"), status=NodeStatus(allocatable={GPU: "64", "pods": "110"})))
    for kind, raw in jobs:
        view.put_job(kind, raw)
    return view


def worker_names(view):
    return view.observation(0.0).jobs


def names(view):
    (only,) = worker_names(view)
    return [worker.name for worker in only.workers]


def trained(at, **more):
    return {labels.TRAINING_INDEX: str(at), **more}


def of_lws(group, worker):
    return {f"{LWS}/name": "j", f"{LWS}/group-index": group, f"{LWS}/worker-index": worker, f"{LWS}/size": "2"}


def of_mpi(role, **more):
    marks = {"training.kubeflow.org/operator-name": "mpi-operator", "training.kubeflow.org/job-role": role}
    return {**marks, labels.TRAINING_JOB: "j", **more}


def of_dlrover(number, role="worker"):
    return {f"{DLROVER}/replica-type": role, f"{DLROVER}/replica-index": str(number), f"{DLROVER}/rank-index": "0"}


def of_ray(**more):
    return {f"{RAY}/group": "worker", f"{RAY}/node-type": "worker", **more}


PODS = {  # in the order in which they go last to first; none is told in this order
    "VolcanoJob": [pod(f"j-worker-{at}", **{labels.VOLCANO_TASK_INDEX: str(at)}) for at in range(4)],
    "PyTorchJob": [pod(f"j-worker-{at}", **trained(at, **{labels.TRAINING_TYPE: "worker"})) for at in range(4)],
    "PyTorchJob.ctyun.cn": [
        pod(f"j-worker-{at}", **trained(at, **{labels.TRAINING_TYPE: "worker"})) for at in range(4)
    ],
    "MSJob": [pod(f"j-worker-{at}", **trained(at, **{labels.TRAINING_TYPE: "worker"})) for at in range(4)],
    "Job": [pod(f"j-{at}-x", **{labels.JOB_INDEX: str(at)}) for at in range(4)],
    "MPIJob": [pod(f"j-worker-{at}", **of_mpi("worker", **trained(at))) for at in range(4)],
    "LeaderWorkerSet": [
        pod(name, owner=owner, **of_lws(*annotations))
        for name, owner, annotations in (
            ("j-0", "set", ("0", "0")),
            ("j-0-1", "set-0", ("0", "1")),
            ("j-1", "set", ("1", "0")),
            ("j-1-1", "set-1", ("1", "1")),
        )
    ],
    "ElasticJob": [pod(f"j-edljob-worker-{at}", **of_dlrover(at)) for at in (0, 2, 3, 11)],  # 1 was replaced by 11
    "RayCluster": [pod(f"w-{end}", at=at, **of_ray()) for at, end in enumerate("dbca")],  # the newest goes first
}


@pytest.mark.contract("VE-28", "VE-32", "XD-05")
@pytest.mark.parametrize("kind", PODS)
def test_a_jobs_workers_are_counted_so_that_the_highest_go_first(kind):
    view = view_of((kind, SAMPLES[kind]))
    for each in reversed(PODS[kind]):
        view.put_pod(each)
    (only,) = worker_names(view)
    assert [(worker.index, worker.name) for worker in only.workers] == list(
        enumerate(each.metadata.name for each in PODS[kind])
    )
    assert (only.bound_workers, only.job.replicas) == (4, 4)


@pytest.mark.parametrize("kind", PODS)
def test_it_is_all_one_whether_the_job_or_its_pods_are_seen_first(kind):
    view = view_of()
    for each in PODS[kind]:
        view.put_pod(each)
    view.put_job(kind, SAMPLES[kind])
    assert names(view) == [each.metadata.name for each in PODS[kind]]
    view.drop_pod(PODS[kind][3].metadata.uid)
    assert len(names(view)) == 3


@pytest.mark.contract("MS-31")
def test_the_gpus_of_an_ms_jobs_workers_count_in_its_queue():
    raw = mindspore(2, gpus=1, runPolicy={"schedulingPolicy": {"minAvailable": 3, "queue": "q"}})
    view = view_of(("MSJob", raw))
    view.queues.put(QueueSpec("q"))
    scheduler = pod("j-scheduler-0", gpus=0, **trained(0, **{labels.TRAINING_TYPE: "scheduler"}))
    scheduler.spec.containers[0].resources.requests = {GPU: "0"}
    view.put_pod(scheduler)
    for at in range(2):
        view.put_pod(pod(f"j-worker-{at}", gpus=1, **trained(at, **{labels.TRAINING_TYPE: "worker"})))
    observed = view.observation(0.0)
    (only,) = observed.jobs
    assert (observed.queues["q"].used[GPU], only.bound_workers, only.other_pods, only.is_waiting) == (2, 2, (1,), False)


ADMITTED = [
    Toleration("node.kubernetes.io/not-ready", "Exists", effect="NoExecute"),
    Toleration("node.kubernetes.io/unreachable", "Exists", effect="NoExecute"),
]


@pytest.mark.parametrize(
    ("requests", "tolerations"),
    [
        pytest.param({GPU: "0"}, ADMITTED, id="tolerations that every API server adds"),
        pytest.param({"cpu": "100m"}, ADMITTED, id="requests that a LimitRange adds"),
        pytest.param({GPU: "0"}, None, id="nothing"),
    ],
)
def test_a_pod_of_another_role_counts_whatever_was_added_to_it(requests, tolerations):
    view = view_of(("MSJob", mindspore(2, gpus=1)))
    scheduler = pod("j-scheduler-0", gpus=0, **trained(0, **{labels.TRAINING_TYPE: "scheduler"}))
    scheduler.spec.containers[0].resources.requests, scheduler.spec.tolerations = requests, tolerations
    view.put_pod(scheduler)
    for at in range(2):
        view.put_pod(pod(f"j-worker-{at}", gpus=1, **trained(at, **{labels.TRAINING_TYPE: "worker"})))
    (only,) = worker_names(view)
    assert (only.bound_workers, only.other_pods, only.is_waiting) == (2, (1,), False)


BIG, SMALL, ODD = (PodShape(requests=((GPU, gpus), ("pods", 1))) for gpus in (8, 1, 3))
BIG_ADMITTED = replace(BIG, tolerations=(("a", "Exists", "", ""),))


@pytest.mark.parametrize(
    ("pods", "counts"),
    [
        pytest.param([BIG, SMALL, SMALL], (1, 2), id="each as its template says"),
        pytest.param([BIG_ADMITTED, SMALL], (1, 1), id="with tolerations more, by what it asks for"),
        pytest.param([ODD, BIG], (1, 1), id="one that asks for something else fills what is lacking"),
        pytest.param([BIG, BIG, BIG, BIG], (1, 2), id="never more than are wanted"),
        pytest.param([], (0, 0), id="none"),
    ],
)
def test_pods_of_other_roles_are_counted_by_what_they_ask_for(pods, counts):
    assert job_pods.count_other_roles(((BIG, 1), (SMALL, 2)), pods) == counts


def test_jobs_of_one_name_in_two_groups_are_two():
    kinds = ("PyTorchJob", "PyTorchJob.ctyun.cn")
    view = Cache(KINDS)
    for kind in kinds:
        raw = SAMPLES[kind]
        view.put_job(kind, {**raw, "metadata": {**raw["metadata"], "uid": f"uid of {kind}"}})
    found = {view.jobs.identity(each.job.key) for each in worker_names(view)}
    assert found == {
        ("PyTorchJob", "kubeflow.org/v1", "uid of PyTorchJob"),
        ("PyTorchJob", "ctyun.cn/v1", "uid of PyTorchJob.ctyun.cn"),
    }


def test_ray_numbers_its_replicas_and_those_count():
    view = view_of(("RayCluster", SAMPLES["RayCluster"]))
    for at, (end, index) in enumerate([("x", "2"), ("y", "0"), ("z", "1")]):
        view.put_pod(pod(f"w-{end}", at=at, **of_ray(**{f"{RAY}/worker-group-replica-index": index})))
    assert names(view) == ["w-y", "w-z", "w-x"]


def test_one_that_leaves_takes_no_number_from_those_that_stay():
    view = view_of(("RayCluster", SAMPLES["RayCluster"]))
    for at, end in enumerate("abc"):
        view.put_pod(pod(f"w-{end}", at=at, deleted="2026-01-01T01:00:00Z" if end == "a" else None, **of_ray()))
    assert names(view) == ["w-b", "w-c", "w-a"]
    assert [worker.leaving for worker in worker_names(view)[0].workers] == [False, False, True]


def test_a_head_is_no_worker_and_stands_beside():
    view = view_of(("RayCluster", SAMPLES["RayCluster"]))
    head = SAMPLES["RayCluster"]["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["resources"]
    assert head["limits"][GPU] == "0"
    view.put_pod(pod("head", gpus=0, **{f"{RAY}/group": "headgroup", f"{RAY}/node-type": "head"}))
    view.put_pod(pod("w-a", **of_ray()))
    assert names(view) == ["w-a"]


def test_the_pods_of_one_name_in_another_namespace_are_others():
    view = view_of(("LeaderWorkerSet", SAMPLES["LeaderWorkerSet"]))
    theirs = pod("j-0", owner="set", **of_lws("0", "0"))
    theirs.metadata.namespace = "elsewhere"
    view.put_pod(theirs)
    assert names(view) == []


def launcher():
    """The Job of batch/v1 that mpi-operator makes for a launcher."""
    owner = {"kind": "MPIJob", "name": "j", "uid": "u", "controller": True}
    meta = {"name": "j-launcher", "namespace": "ns", "uid": "launcher", "resourceVersion": "3"}
    template = mpi()["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]
    return {"metadata": {**meta, "ownerReferences": [owner]}, "spec": {"template": template, "parallelism": 1}}


@pytest.mark.parametrize("first", ["MPIJob", "Job"])
def test_a_launcher_counts_with_its_mpi_job_and_in_its_queue_and_not_twice(first):
    raw = mpi(runPolicy={"schedulingPolicy": {"minAvailable": 3, "queue": "q"}})
    jobs = [("MPIJob", raw), ("Job", launcher())]
    view = view_of(*(jobs if first == "MPIJob" else reversed(jobs)))
    view.queues.put(QueueSpec("q"))
    launcher_pod = pod("j-launcher-x", owner="launcher", gpus=0, **of_mpi("launcher"))
    launcher_pod.spec.containers[0].resources.requests = {GPU: "0"}
    view.put_pod(launcher_pod)
    (only,) = worker_names(view)
    assert (str(only.job.key), only.workers, only.other_pods) == ("MPIJob/ns/j", (), (1,))
    view.put_pod(pod("j-worker-0", **of_mpi("worker", **trained(0))))
    observed = view.observation(0.0)
    assert (observed.queues["q"].used[GPU], observed.queues["q"].used["pods"]) == (2, 2)
    view.drop_job("u")  # its launcher is then a Job like any other
    assert [str(each.job.key) for each in worker_names(view)] == ["Job/ns/j-launcher"]


@pytest.mark.parametrize("role", [{"scheduler.tensorstack.dev/role": "launcher"}, {}])
def test_a_t9k_job_waits_until_all_its_workers_have_a_node(role):
    view = view_of(("ColossalAIJob", colossal()))
    starter = pod("j-launcher", gpus=0, **role)
    starter.spec.containers[0].resources.requests = {"cpu": "500m", "memory": "1Gi"}
    view.put_pod(starter)
    view.put_pod(pod("j-worker-0", gpus=1))
    assert (
        worker_names(view)[0].bound_workers,
        worker_names(view)[0].other_pods,
        worker_names(view)[0].is_waiting,
    ) == (1, (1,), True)
    view.put_pod(pod("j-worker-1", gpus=1))
    assert worker_names(view)[0].is_waiting is False
