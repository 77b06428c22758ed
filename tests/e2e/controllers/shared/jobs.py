"""PyTorchJobs of the shapes that the Training Operator's examples have, and one for each field of its table."""

from __future__ import annotations

CONTAINER = {"name": "pytorch", "image": "example.org/train:1", "command": ["python", "train.py"]}
METRICS = [
    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
]


def role(replicas=1, restart="OnFailure", meta=None, spec=None, **container):
    """A role of a job. container: fields of the training container; spec: of the pod."""
    pod = {"containers": [{**CONTAINER, **container}], **(spec or {})}
    raw_role = {"replicas": replicas, "template": {"spec": pod, **({"metadata": meta} if meta else {})}}
    return {**raw_role, "restartPolicy": restart} if restart else raw_role


def job(name, worker=None, master=None, elastic=None, run=None, **spec):
    """A job. run: its runPolicy."""
    roles = {key: each for key, each in (("Master", master), ("Worker", worker)) if each is not None}
    raw_spec = {"pytorchReplicaSpecs": roles, **spec}
    if elastic is not None:
        raw_spec["elasticPolicy"] = elastic
    if run is not None:
        raw_spec["runPolicy"] = run
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}, "spec": raw_spec}


PORT = {"ports": [{"name": "pytorchjob-port", "containerPort": 12345}]}
OTHER_PORT = {"ports": [{"name": "metrics", "containerPort": 9000}]}
ENV = {"env": [{"name": "LOGLEVEL", "value": "DEBUG"}]}
TWO = {"containers": [CONTAINER, {"name": "side", "image": "example.org/side:1"}]}
CONF = [{"key": "timeout", "value": "900"}, {"key": "is_host", "value": "1"}]
# What pods do once they run: (role, index, phase, exit code); None for a job whose pods just run.
Story = tuple[str, int, str, int]

SHAPES = {
    "one worker": job("one", role()),
    "three workers": job("three", role(3)),
    "a master alone": job("lone", master=role()),
    "a master and a worker": job("pair", role(), role()),
    "a master and four workers": job("five", role(4), role()),
    "no replicas said": job("unsaid", {"template": {"spec": {"containers": [CONTAINER]}}}),
    "roles in small letters": {**job("small"), "spec": {"pytorchReplicaSpecs": {"worker": role(2)}}},
    "two processes a node": job("twice", role(2), role(), nprocPerNode="2"),
    "processes by GPUs": job("gpus", role(2), role(), nprocPerNode="gpu"),
    "a port of the user": job("port", role(2, **PORT), role(**PORT)),
    "another port beside": job("ports", role(2, **OTHER_PORT)),
    "environment of the user": job("env", role(2, **ENV)),
    "a container beside": job("side", role(2, spec=TWO)),
    "labels and annotations": job("notes", role(2, meta={"labels": {"team": "a"}, "annotations": {"note": "b"}})),
    "an init container of the user": job(
        "inits", role(1, spec={"initContainers": [{"name": "get", "image": "example.org/get:1"}]}), role()
    ),
    "a scheduler of the user": job("sched", role(2, spec={"schedulerName": "mine"})),
    "elastic, nothing more": job("e", role(2), elastic={}),
    "elastic from one to three": job("e13", role(2), elastic={"minReplicas": 1, "maxReplicas": 3}),
    "elastic with a min only": job("emin", role(2), elastic={"minReplicas": 2}),
    "elastic with a max only": job("emax", role(2), elastic={"maxReplicas": 2}),
    "elastic with restarts": job("emr", role(2), elastic={"minReplicas": 1, "maxReplicas": 2, "maxRestarts": 100}),
    "elastic with a backend": job(
        "eb", role(2), elastic={"rdzvBackend": "etcd-v2", "rdzvHost": "etcd", "rdzvPort": 2379}
    ),
    "elastic with an id": job("eid", role(2), elastic={"rdzvId": "42"}),
    "elastic with settings": job("econf", role(2), elastic={"rdzvConf": CONF}),
    "elastic with processes": job("enp", role(2), elastic={"nProcPerNode": 4}),
    "elastic, one node": job("esa", role(1), elastic={"standalone": True}),
    "elastic with metrics": job("ehpa", role(2), elastic={"minReplicas": 1, "maxReplicas": 3, "metrics": METRICS}),
    "elastic with a port of the user": job("eport", role(2, **PORT), elastic={"minReplicas": 1, "maxReplicas": 3}),
    "elastic with a master": job("em", role(2), role(), elastic={"minReplicas": 1, "maxReplicas": 2}),
    "never restarted": job("never", role(2, "Never")),
    "always restarted": job("always", role(2, "Always")),
    "restarted by exit code": job("code", role(2, "ExitCode")),
    "no policy said": job("nopolicy", role(2, None)),
    "suspended": job("asleep", role(2), run={"suspend": True}),
    "suspended, with metrics": job(
        "asleephpa", role(2), elastic={"minReplicas": 1, "maxReplicas": 2, "metrics": METRICS}, run={"suspend": True}
    ),
    "a priority class": job("prio", role(2, spec={"priorityClassName": "system-node-critical"})),
    "eight workers": job("eight", role(8)),
    "resources": job("res", role(2, resources={"limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": "2"}})),
    "a volume": job(
        "vol",
        role(1, spec={"volumes": [{"name": "v", "emptyDir": {}}]}, volumeMounts=[{"name": "v", "mountPath": "/v"}]),
    ),
    "host network": job("net", role(2, spec={"hostNetwork": True}), role(spec={"hostNetwork": True})),
    "the user's own buffering": job("buf", role(1, env=[{"name": "PYTHONUNBUFFERED", "value": "0"}])),
    "a node selector": job(
        "sel", role(1, spec={"nodeSelector": {"gpu": "h100"}, "tolerations": [{"operator": "Exists"}]})
    ),
    "environment by reference": job(
        "ref", role(1, env=[{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}])
    ),
    "managed by the Training Operator": job("by", role(1), run={"cleanPodPolicy": "All"}),
    "a user's restart policy in the template": job("tpl", role(1, spec={"restartPolicy": "Always"})),
}

# Jobs with what becomes of their pods, once all run: by role, index, phase and exit code, in this order; the condition
# that they come to, and how many pods are left then.
DONE = ("Succeeded", 0)
STORIES = {
    "all workers succeed": (job("s-all", role(2)), [("worker", 0, *DONE), ("worker", 1, *DONE)], "Succeeded", 2),
    "one of two workers succeeds": (job("s-one", role(2)), [("worker", 0, *DONE)], "Running", 2),
    "one of an elastic job succeeds": (
        job("s-any", role(2), elastic={"minReplicas": 1, "maxReplicas": 2}),
        [("worker", 1, *DONE)],
        "Succeeded",
        2,
    ),
    "the master succeeds": (job("s-master", role(2), role()), [("master", 0, *DONE)], "Succeeded", 3),
    "the workers of a master succeed": (
        job("s-workers", role(2), role()),
        [("worker", 0, *DONE), ("worker", 1, *DONE)],
        "Running",
        3,
    ),
    "a worker fails that is never restarted": (
        job("s-never", role(2, "Never")),
        [("worker", 1, "Failed", 1)],
        "Failed",
        2,
    ),
    "a worker fails and is made anew": (job("s-again", role(2)), [("worker", 1, "Failed", 1)], "Running", 2),
    "a worker is ended by a signal": (
        job("s-signal", role(2, "ExitCode")),
        [("worker", 1, "Failed", 137)],
        "Running",
        2,
    ),
    "a worker fails for good": (job("s-code", role(2, "ExitCode")), [("worker", 1, "Failed", 1)], "Failed", 2),
    "a master fails for good": (job("s-lost", role(2), role(1, "Never")), [("master", 0, "Failed", 1)], "Failed", 3),
    "pods that run are cleaned up": (
        job("s-running", role(2), role(), run={"cleanPodPolicy": "Running"}),
        [("master", 0, *DONE)],
        "Succeeded",
        1,
    ),
    "all pods are cleaned up": (
        job("s-clean", role(2), run={"cleanPodPolicy": "All"}),
        [("worker", 0, *DONE), ("worker", 1, *DONE)],
        "Succeeded",
        0,
    ),
    "a limit of restarts that is not reached": (
        job("s-back", role(2), run={"backoffLimit": 1}),
        [("worker", 0, *DONE), ("worker", 1, *DONE)],
        "Succeeded",
        2,
    ),
    "a job of a time to live": (
        job("s-ttl", role(1), run={"ttlSecondsAfterFinished": 3600}),
        [("worker", 0, *DONE)],
        "Succeeded",
        1,
    ),
    "a job whose time to live is over": (
        job("s-ttl0", role(1), run={"ttlSecondsAfterFinished": 0}),
        [("worker", 0, *DONE)],
        "",
        0,
    ),
}

# Jobs that their owners change while their pods run: each merge patch of the spec, the condition that they come to, and
# how many pods are left then.
CHANGES = {
    "made smaller": (
        job("c-down", role(3), elastic={"minReplicas": 1, "maxReplicas": 3}),
        [({"pytorchReplicaSpecs": {"Worker": {"replicas": 1}}}, "Running", 1)],
    ),
    "suspended and resumed": (
        job("c-sleep", role(2), role()),
        [({"runPolicy": {"suspend": True}}, "Suspended", 0), ({"runPolicy": {"suspend": False}}, "Running", 3)],
    ),
    "given a deadline that is over": (
        job("c-late", role(2)),
        [({"runPolicy": {"activeDeadlineSeconds": 1}}, "Failed", 0)],
    ),
}
