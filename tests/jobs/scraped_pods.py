"""Pods as controllers of the field create them, and the job to which the series of their launchers belong."""

import msgspec

from turnout.kube.objects import Pod

NAMESPACE = "team-a"


def pod(name, owner=None, **labels):
    """A pod. owner: (kind, name) of its controller, None for a pod that nobody controls."""
    meta = {"name": name, "namespace": NAMESPACE, "uid": name, "labels": labels}
    if owner is not None:
        meta["ownerReferences"] = [{"kind": owner[0], "name": owner[1], "uid": "u", "controller": True}]
    limits = {"nvidia.com/gpu": "8"}
    spec = {"containers": [{"name": "m", "resources": {"limits": limits}}]}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": "Running"}}, Pod)


KUBEFLOW = "training.kubeflow.org"
LWS = {"leaderworkerset.sigs.k8s.io/name": "llm"}
# By a sentence: the pod, and the kind and the name of the job.
PODS = {
    "a PyTorchJob": (pod("bert-worker-0", ("PyTorchJob", "bert")), ("PyTorchJob", "bert")),
    "a PyTorchJob of ctyun.cn": (
        pod("gpt-worker-0", ("PyTorchJob", "gpt"), **{"turnout.dev/job-kind": "PyTorchJob.ctyun.cn"}),
        ("PyTorchJob.ctyun.cn", "gpt"),
    ),
    "a label with a kind that has no job of two groups counts for nothing": (
        pod("evil-0", ("StatefulSet", "evil"), **{"turnout.dev/job-kind": "StatefulSet.ctyun.cn"}),
        ("StatefulSet", "evil"),
    ),
    "a Volcano Job": (pod("v-w-0", ("Job", "v"), **{"volcano.sh/job-name": "v"}), ("VolcanoJob", "v")),
    "the label of a Volcano Job on another controller's pod": (
        pod("x-0", ("StatefulSet", "x"), **{"volcano.sh/job-name": "v"}),
        ("StatefulSet", "x"),
    ),
    "a Job of batch/v1": (pod("j-0", ("Job", "j")), ("Job", "j")),
    "the Job of a JobSet": (
        pod("s-w-0-0", ("Job", "s-w-0"), **{"jobset.sigs.k8s.io/jobset-name": "s"}),
        ("Job", "s-w-0"),
    ),
    "the launcher of an MPIJob, which a Job owns": (
        pod(
            "m-launcher-x",
            ("Job", "m-launcher"),
            **{f"{KUBEFLOW}/operator-name": "mpi-operator", f"{KUBEFLOW}/job-name": "m"},
        ),
        ("MPIJob", "m"),
    ),
    "a worker of an MPIJob": (
        pod(
            "m-worker-0", ("MPIJob", "m"), **{f"{KUBEFLOW}/operator-name": "mpi-operator", f"{KUBEFLOW}/job-name": "m"}
        ),
        ("MPIJob", "m"),
    ),
    "the leader of a group of a LeaderWorkerSet": (
        pod("llm-0", ("StatefulSet", "llm"), **LWS),
        ("LeaderWorkerSet", "llm"),
    ),
    "a worker of a group, which the group's StatefulSet owns": (
        pod("llm-0-1", ("StatefulSet", "llm-0"), **LWS),
        ("LeaderWorkerSet", "llm"),
    ),
    "a RayCluster": (pod("r-head", ("RayCluster", "r")), ("RayCluster", "r")),
    "an ElasticJob whose master controls no pod": (pod("e-w-0", **{"elasticjob-name": "e"}), ("ElasticJob", "e")),
    "an ElasticJob of our controller": (
        pod("d-w-0", ("ElasticJob", "d"), **{"elasticjob.dlrover/name": "d"}),
        ("ElasticJob", "d"),
    ),
    "a StatefulSet": (pod("web-0", ("StatefulSet", "web")), ("StatefulSet", "web")),
    "a pod of its own": (pod("alone"), ("Pod", "alone")),
}
