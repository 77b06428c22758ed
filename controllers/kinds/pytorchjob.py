"""PyTorchJobs. Source: docs/facts/job-kinds.md 1.2; contract PE-17 to PE-48, SD-12 to SD-14.

What differs from the Training Operator 1.8.1: a masterless elastic job's other workers wait for worker 0 (VE-25), its
port is 29400 unless the user says so (SD-14), PET_STANDALONE is 1 (SD-13), the names that users' guides give are set
beside those that torchrun reads (SD-12), PYTHONUNBUFFERED is the user's where it is set (PE-43), a name that is waited
for may stand in /etc/hosts, and a job that fails for good has a completionTime, without which no TTL ever ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnout.controllers.children import owner, services
from turnout.controllers.kinds import fields
from turnout.controllers.kinds.fields import Port
from turnout.controllers.model import (
    KUBEFLOW,
    CleanPods,
    Counts,
    GangSpec,
    JobView,
    Kind,
    KnownChildren,
    Object,
    PodVerdict,
    Reason,
    Replica,
    Restart,
    Role,
    Wanted,
    replica_name,
)
from turnout.jobs.kinds.pytorchjob import elastic_bounds
from turnout.jobs.model import BadJob
from turnout.jobs.typed_fields import Part

KIND, CONTAINER, PORT_NAME = "PyTorchJob", "pytorch", "pytorchjob-port"
APIS = ("kubeflow.org/v1", "ctyun.cn/v1")
PORT, ELASTIC_PORT = 23456, 29400
OPERATOR = "kubeflow.org/training-operator"
INIT_IMAGE = "alpine:3.10"
INIT_TRIES = 100
_ROLES = {"master": "Master", "worker": "Worker"}
_LABELS = "training.kubeflow.org/"


def _read(raw: Object) -> JobView:
    meta, spec = raw["metadata"], Part(raw).part("spec")
    fields.check_name(meta)
    policy, elastic = spec.part("runPolicy"), spec.has("elasticPolicy")
    roles = tuple(_role(name, part, elastic) for name, part in sorted(_by_role(spec).items()))
    if not roles:
        raise BadJob("spec.pytorchReplicaSpecs is missing: a Master or Workers are needed")
    worker = next((role for role in roles if role.name == "Worker"), None)
    if elastic and worker is None:
        raise BadJob("spec.pytorchReplicaSpecs.Worker is missing: spec.elasticPolicy needs it")
    if spec.has("nprocPerNode") and spec.part("elasticPolicy").has("nProcPerNode"):
        raise BadJob("spec.elasticPolicy.nProcPerNode must not be used with spec.nprocPerNode")
    filled: dict[str, Any] = {"nprocPerNode": spec.text("nprocPerNode")}
    if elastic and worker is not None:
        filled["elasticPolicy"] = _elastic(spec.part("elasticPolicy"), worker.replicas)
    if not filled["nprocPerNode"] and not spec.part("elasticPolicy").has("nProcPerNode"):
        filled["nprocPerNode"] = "auto"
    return JobView(
        api_version=raw["apiVersion"],
        kind=KIND,
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        roles=roles,
        policy=fields.run_policy(policy, CleanPods.NONE),
        gang=_gang(policy.part("schedulingPolicy"), roles, filled.get("elasticPolicy")),
        spec=filled,
        elastic=elastic,
        elsewhere=other if (other := policy.text("managedBy")) not in ("", OPERATOR) else "",
    )


def _by_role(spec: Part) -> dict[str, Part]:
    found: dict[str, Part] = {}
    for name, part in spec.by_name("pytorchReplicaSpecs").items():
        if (role := _ROLES.get(name.lower())) is None:
            raise BadJob(f"spec.pytorchReplicaSpecs.{name:.40} is no role: Master and Worker are")
        if role in found:
            raise BadJob(f"spec.pytorchReplicaSpecs has {role} twice")
        found[role] = part
    return found


def _role(name: str, part: Part, elastic: bool) -> Role:
    port = Port(PORT_NAME, ELASTIC_PORT if elastic and name == "Worker" else PORT)
    role = fields.role(name, part, CONTAINER, port, Restart.ON_FAILURE)
    if name == "Master" and role.replicas != 1:
        raise BadJob(f"{part.at('replicas')} is {role.replicas}: a job has one Master")
    return role


def _elastic(policy: Part, replicas: int) -> Object:
    """Read an elastic policy. Raises BadJob."""
    least, most = elastic_bounds(policy, replicas)
    pairs = [f"{each.text('key')}={each.text('value')}" for each in policy.parts("rdzvConf")]
    return {
        "minReplicas": least,
        "maxReplicas": most,
        "endpoint": (policy.text("rdzvHost"), policy.count("rdzvPort", 0)),
        "backend": policy.text("rdzvBackend") or "c10d",
        "restarts": fields.whole_number(policy, "maxRestarts"),
        "processes": fields.whole_number(policy, "nProcPerNode"),
        "id": policy.text("rdzvId"),
        "conf": ",".join(pairs),
        "standalone": policy.flag("standalone"),
        "metrics": [each.value for each in policy.parts("metrics")],
    }


def _gang(policy: Part, roles: Sequence[Role], elastic: Any) -> GangSpec:
    """Return the fields of the PodGroup. An elastic job starts with its min, any other with all pods (VE-16)."""
    least = sum(role.replicas for role in roles if not elastic or role.name != "Worker")
    return fields.gang(policy, least + (elastic["minReplicas"] if elastic else 0))


def labels(view: JobView, role: Role, replica: Replica) -> dict[str, str]:
    """Return the labels of one replica."""
    found = {**selector(view, role), KUBEFLOW.index: str(replica.index)}
    lead = role.name == "Master" if _master(view) is not None else replica.index == 0
    return {**found, f"{_LABELS}job-role": "master"} if lead else found


def selector(view: JobView, role: Role) -> dict[str, str]:
    """Return the labels that all pods of a role have."""
    name = {KUBEFLOW.job: view.name, f"{_LABELS}operator-name": "pytorchjob-controller"}
    return {**name, KUBEFLOW.role: role.label}


def pod_spec(view: JobView, role: Role, replica: Replica, _known: KnownChildren) -> dict[str, Any]:
    """Return the pod's spec with what the job's processes have to know of one another."""
    spec, index = dict(role.template["spec"]), replica.index
    added = _env(view, role, index)
    spec["containers"] = [_with_env(each, added) for each in spec["containers"]]
    if (first := _waits_for(view, role, index)) is not None:
        spec["initContainers"] = [*(spec.get("initContainers") or ()), _init(first)]
    return spec


def _with_env(container: Object, added: Sequence[Object]) -> Object:
    own = list(container.get("env") or ())
    named = {each.get("name") for each in own}
    buffered = [] if "PYTHONUNBUFFERED" in named else [{"name": "PYTHONUNBUFFERED", "value": "1"}]
    return {**container, "env": [*own, *buffered, *added]}


def _env(view: JobView, role: Role, index: int) -> list[Object]:
    """Return the environment of one replica, in the order of the Training Operator."""
    total, processes = sum(each.replicas for each in view.roles), view.spec["nprocPerNode"]
    found: list[tuple[str, str]] = []
    if (master := _master(view)) is not None:
        port, host = str(_port(master)), _first(view, master)
        rank = str(index + (role.name == "Worker"))
        world = total * (int(processes) if processes.isascii() and processes.isdigit() else 1)
        found += [("MASTER_PORT", port), ("PET_MASTER_PORT", port), ("MASTER_ADDR", host), ("PET_MASTER_ADDR", host)]
        found += [("WORLD_SIZE", str(world)), ("RANK", rank), ("PET_NODE_RANK", rank)]
    if processes:
        found.append(("PET_NPROC_PER_NODE", processes))
    found += _elastic_env(view) if view.elastic else [("PET_NNODES", str(total))]
    return [{"name": name, "value": value} for name, value in found]


def _elastic_env(view: JobView) -> list[tuple[str, str]]:
    policy, worker = view.spec["elasticPolicy"], next(role for role in view.roles if role.name == "Worker")
    host, port = policy["endpoint"]
    nodes = f"{policy['minReplicas']}:{policy['maxReplicas']}"
    found = [
        (
            "PET_RDZV_ENDPOINT",
            f"{host or _first(view, worker)}:{port or _port(worker)}",
        ),
        ("PET_RDZV_BACKEND", policy["backend"]),
        ("PET_NNODES", nodes),
        ("PET_NODES", nodes),
    ]
    if policy["restarts"] is not None:
        found.append(("PET_MAX_RESTARTS", str(policy["restarts"])))
    if policy["processes"] is not None:
        found.append(("PET_NPROC_PER_NODE", str(policy["processes"])))
    processes = view.spec["nprocPerNode"] if policy["processes"] is None else str(policy["processes"])
    optional = {"PET_N_PROC_PER_NODE": processes, "PET_RDZV_ID": policy["id"], "PET_RDZV_CONF": policy["conf"]}
    found += [(name, value) for name, value in optional.items() if value]
    return [*found, ("PET_STANDALONE", "1")] if policy["standalone"] else found


def _first(view: JobView, role: Role) -> str:
    """Return the host of a role's first replica."""
    return replica_name(view, role, Replica(0, 0))


def _master(view: JobView) -> Role | None:
    return next((role for role in view.roles if role.name == "Master"), None)


def _port(role: Role) -> int:
    return fields.port_of(role, CONTAINER, Port(PORT_NAME, PORT))


def _waits_for(view: JobView, role: Role, index: int) -> str | None:
    """Return the host that has to resolve before this replica starts."""
    if role.name == "Worker" and (master := _master(view)) is not None:
        return _first(view, master)
    return _first(view, role) if view.elastic and index > 0 else None


def _init(host: str) -> Object:
    look = f"if getent hosts {host} || nslookup {host}; then err=0 && break; fi;echo waiting for {host}; sleep 2;"
    tries = f"for i in $(seq {INIT_TRIES}); do {look} done"
    return {
        "name": "init-pytorch",
        "image": INIT_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": {"cpu": "100m", "memory": "20Mi"}, "requests": {"cpu": "50m", "memory": "10Mi"}},
        "command": ["sh", "-c", f"err=1;{tries}; exit $err"],
    }


def extras(view: JobView, _known: KnownChildren) -> list[Wanted]:
    """Return the children beside pods: a headless Service for each replica, and the HPA of the job's metrics."""
    found: list[Wanted] = [each for role in view.roles for each in services(PYTORCHJOB, view, role)]
    policy = view.spec.get("elasticPolicy") or {}
    if metrics := policy.get("metrics"):
        found.append(_hpa(view, policy, metrics))
    return found


def _hpa(view: JobView, policy: Object, metrics: Any) -> Object:
    spec = {
        "scaleTargetRef": {"kind": KIND, "name": view.name, "apiVersion": view.api_version},
        "minReplicas": policy["minReplicas"],
        "maxReplicas": policy["maxReplicas"],
        "metrics": metrics,
    }
    meta = {"name": view.name, "namespace": view.namespace, "ownerReferences": [owner(view)]}
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": meta, "spec": spec}


def judge(view: JobView, counts: Mapping[str, Counts], _known: KnownChildren) -> list[PodVerdict]:
    """Return the conditions that follow from the pods' phases. counts: by the name of the role.

    The end of the Master is the end of the job. Without a Master all workers have to succeed, or any worker of an
    elastic job.
    """
    found: list[PodVerdict] = []
    name = f"{KIND} {view.name}"
    for role in view.roles:
        count = counts[role.name]
        if role.name == "Master" or _master(view) is None:
            done = count.succeeded == role.replicas or (view.elastic and count.succeeded > 0)
            if done:
                return [*found, PodVerdict(Reason.SUCCEEDED, f"{name} is successfully completed.")]
            if count.active:
                found.append(PodVerdict(Reason.RUNNING, f"{name} is running."))
        if count.failed and role.replicas > count.succeeded + count.active:
            text = f"because {count.failed} {role.name} replica(s) failed."
            if role.restart is Restart.NEVER:
                return [*found, PodVerdict(Reason.FAILED, f"{name} is failed {text}")]
            found.append(PodVerdict(Reason.RESTARTING, f"{name} is restarting {text}"))
    return found


PYTORCHJOB = Kind(
    KIND, APIS, "pytorchjobs", CONTAINER, fields.refusing(_read), labels, selector, pod_spec, extras, judge
)
