"""Builds what people submit, one builder for each kind; ../test_kinds.py has Volcano, PyTorch and batch."""

from tests.jobs.test_kinds import indexed, meta, pytorch, template, volcano
from turnout.kube import labels

BOUNDS = {labels.MIN_WORKERS: "2", labels.MAX_WORKERS: "8"}


def running(command, gpus=2):
    pod_template = template(gpus)
    pod_template["spec"]["containers"][0]["command"] = command.split()
    return pod_template


def elastic(replicas=4, notes=None, worker=None, command="dlrover-run --nnodes=2:8 train.py", roles=None, **spec):
    own = {"replicas": replicas, "template": running(command), **(worker or {})}
    spec_fields = {"distributionStrategy": "AllreduceStrategy", "replicaSpecs": {"worker": own, **(roles or {})}}
    return {"metadata": meta(**(BOUNDS if notes is None else notes)), "spec": {**spec_fields, **spec}}


def group(name="worker", replicas=4, gpus=2, **more):
    return {"groupName": name, "replicas": replicas, "template": template(gpus), **more}


def ray(replicas=4, notes=None, marks=None, groups=None, worker=None, **spec):
    head = {"rayStartParams": {}, "template": template(0)}
    spec_fields = {"headGroupSpec": head, "workerGroupSpecs": groups or [group(replicas=replicas, **(worker or {}))]}
    raw_cluster = {"metadata": meta(**(BOUNDS if notes is None else notes)), "spec": {**spec_fields, **spec}}
    raw_cluster["metadata"]["labels"] = marks or {}
    return raw_cluster


def lws(groups=2, size=2, notes=None, marks=None, each=None, **spec):
    template_fields = {"size": size, "workerTemplate": template(), **(each or {})}
    raw_set = {"metadata": meta(**(BOUNDS if notes is None else notes)), "spec": {"replicas": groups, **spec}}
    raw_set["spec"]["leaderWorkerTemplate"] = template_fields
    raw_set["metadata"]["labels"] = marks or {}
    return raw_set


HOROVOD = "horovodrun -np 4 --min-np 2 --max-np 8 --host-discovery-script /etc/mpi/discover_hosts.sh python t.py"


def mpi(replicas=4, notes=None, command=HOROVOD, **spec):
    roles = {
        "Launcher": {"replicas": 1, "template": running(command, gpus=0)},
        "Worker": {"replicas": replicas, "template": template()},
    }
    return {"metadata": meta(**(BOUNDS if notes is None else notes)), "spec": {"mpiReplicaSpecs": roles, **spec}}


def colossal(queue="default", priority=50, **spec):
    """Build a job as in T9k's manual."""
    room = {"limits": {"cpu": 1, "memory": "2Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}}
    spec_fields = {
        "ssh": {"authMountPath": "/root/.ssh", "sshdPath": "/usr/sbin/sshd"},
        "launcher": {"image": "colossalai:0.3.0", "workingDir": "/workspace", "env": [], "resources": room},
        "worker": {"replicas": 2, "procPerWorker": 1, "command": ["train.py"], "template": template(1)},
        "scheduler": {"t9kScheduler": {"queue": queue, "priority": priority}},
    }
    return {"metadata": meta(), "spec": {**spec_fields, **spec}}


def named(container, replicas, gpus=2):
    """Build a role whose container has the name that its operator wants."""
    pod_template = template(gpus)
    pod_template["spec"]["containers"][0]["name"] = container
    return {"replicas": replicas, "template": pod_template}


def mindspore(replicas=4, notes=None, gpus=2, dynamic=True, **spec):
    """Build a job as in MindSpore's tutorial, its workers dynamic."""
    roles = {"Scheduler": named("mindspore", 1, 0), "Worker": named("mindspore", replicas, gpus)}
    spec_fields = {"enableDynamicWorker": dynamic, "msReplicaSpecs": roles}
    return {"metadata": meta(**(BOUNDS if notes is None else notes)), "spec": {**spec_fields, **spec}}


SAMPLES = {
    "VolcanoJob": volcano(notes={labels.MAX_WORKERS: "8"}),
    "PyTorchJob": pytorch(replicas=4),
    "PyTorchJob.ctyun.cn": pytorch(pytorchReplicaSpecs={"Worker": named("pytorch", 4)}),
    "MSJob": mindspore(),
    "Job": indexed(4),
    "ElasticJob": elastic(),
    "RayCluster": ray(),
    "LeaderWorkerSet": lws(),
    "MPIJob": mpi(),
    "ColossalAIJob": colossal(),
}
