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
from turnout.controllers.kinds import job_reader
from turnout.controllers.kinds.job_reader import Port
from turnout.controllers.model import (
    KUBEFLOW,
    ControlledJob,
    ControlledKind,
    Counts,
    JobVerdict,
    NeededChild,
    Object,
    OwnedObjects,
    Reason,
    Replica,
    Role,
    replica_name,
)
from turnout.jobs.fields import ObjectPart
from turnout.jobs.kinds import pytorchjob
from turnout.jobs.kinds.job_kind import CleanPods, NamedRole, Restart
from turnout.jobs.kinds.pytorchjob import CONTAINER, CTYUN_PYTORCH_JOB, KIND, PYTORCH_JOB, PyTorchJobSpec
from turnout.kube.labels import JOB_KIND

PORT_NAME, PORT, ELASTIC_PORT = "pytorchjob-port", 23456, 29400
INIT_IMAGE = "alpine:3.10"
INIT_TRIES = 100
_LABELS = "training.kubeflow.org/"


def _read(raw: Object) -> ControlledJob:
    """Return the job as the controllers see it. Raises BadJob."""
    meta, spec = raw["metadata"], pytorchjob.read_spec(ObjectPart(raw).part("spec"))
    job_reader.check_name(meta)
    elastic, bounds = spec.elastic_policy is not None, pytorchjob.bounds(spec)
    roles = tuple(_read_role(each, elastic) for each in pytorchjob.roles(spec).values())
    # An elastic job starts with its min, any other with all pods (VE-16).
    least = sum(role.replicas for role in roles if bounds is None or role.name != "Worker")
    policy = spec.run_policy
    return job_reader.controlled_job(
        raw,
        KIND,
        roles=roles,
        policy=job_reader.run_policy(policy, CleanPods.NONE),
        gang=job_reader.gang(policy.scheduling_policy, least + (bounds[0] if bounds else 0)),
        spec=spec,
        elastic=elastic,
        other_controller=policy.managed_by if policy.managed_by != pytorchjob.OPERATOR else "",
    )


def _read_role(named: NamedRole, elastic: bool) -> Role:
    port = Port(PORT_NAME, ELASTIC_PORT if elastic and named.name == "Worker" else PORT)
    return job_reader.role(named, CONTAINER, port, Restart.ON_FAILURE)


def _processes(spec: PyTorchJobSpec) -> str:
    """Return the processes of a pod, "" if only the elastic policy has their number."""
    only_in_policy = spec.elastic_policy is not None and spec.elastic_policy.n_proc_per_node is not None
    return spec.nproc_per_node or ("" if only_in_policy else "auto")


def labels(view: ControlledJob, role: Role, replica: Replica) -> dict[str, str]:
    """Return the labels of one replica."""
    found = {**selector(view, role), KUBEFLOW.index: str(replica.index)}
    lead = role.name == "Master" if _master_role(view) is not None else replica.index == 0
    if view.api_version == CTYUN_PYTORCH_JOB.api_version:
        found[JOB_KIND] = CTYUN_PYTORCH_JOB.kind
    return {**found, f"{_LABELS}job-role": "master"} if lead else found


def selector(view: ControlledJob, role: Role) -> dict[str, str]:
    """Return the labels that all pods of a role have."""
    name = {KUBEFLOW.job: view.name, f"{_LABELS}operator-name": "pytorchjob-controller"}
    return {**name, KUBEFLOW.role: role.label}


def pod_spec(view: ControlledJob, role: Role, replica: Replica, _known: OwnedObjects) -> dict[str, Any]:
    """Return the pod's spec with what the job's processes have to know of one another."""
    spec, index = dict(role.template["spec"]), replica.index
    added = _env(view, role, index)
    spec["containers"] = [_with_env(each, added) for each in spec["containers"]]
    if (first := _waits_for(view, role, index)) is not None:
        spec["initContainers"] = [*(spec.get("initContainers") or ()), _waiting_container(first)]
    return spec


def _with_env(container: Object, added: Sequence[Object]) -> Object:
    """Return a container with variables added after its own. Python's output is unbuffered unless it says otherwise."""
    own = list(container.get("env") or ())
    named = {each.get("name") for each in own}
    buffered = [] if "PYTHONUNBUFFERED" in named else [{"name": "PYTHONUNBUFFERED", "value": "1"}]
    return {**container, "env": [*own, *buffered, *added]}


def _env(view: ControlledJob, role: Role, index: int) -> list[Object]:
    """Return the environment of one replica, in the order of the Training Operator."""
    total, processes = sum(each.replicas for each in view.roles), _processes(view.spec)
    found: list[tuple[str, str]] = []
    if (master := _master_role(view)) is not None:
        port, host = str(_port(master)), _first_host(view, master)
        rank = str(index + (role.name == "Worker"))
        world = total * (int(processes) if processes.isascii() and processes.isdigit() else 1)
        found += [("MASTER_PORT", port), ("PET_MASTER_PORT", port), ("MASTER_ADDR", host), ("PET_MASTER_ADDR", host)]
        found += [("WORLD_SIZE", str(world)), ("RANK", rank), ("PET_NODE_RANK", rank)]
    if processes:
        found.append(("PET_NPROC_PER_NODE", processes))
    found += _elastic_env(view) if view.elastic else [("PET_NNODES", str(total))]
    return [{"name": name, "value": value} for name, value in found]


def _elastic_env(view: ControlledJob) -> list[tuple[str, str]]:
    """Return the PET_ variables from which torchrun reads the elasticPolicy; those without a value are left out."""
    spec: PyTorchJobSpec = view.spec
    policy = spec.elastic_policy
    assert policy is not None  # the job is elastic
    nodes = ":".join(map(str, pytorchjob.bounds(spec) or ()))
    processes = _text(policy.n_proc_per_node)
    found = {
        "PET_RDZV_ENDPOINT": _endpoint(view, policy),
        "PET_RDZV_BACKEND": policy.rdzv_backend or "c10d",
        "PET_NNODES": nodes,
        "PET_NODES": nodes,
        "PET_MAX_RESTARTS": _text(policy.max_restarts),
        "PET_NPROC_PER_NODE": processes,
        "PET_N_PROC_PER_NODE": processes or _processes(spec),
        "PET_RDZV_ID": policy.rdzv_id,
        "PET_RDZV_CONF": ",".join(f"{each.key}={each.value}" for each in policy.rdzv_conf),
        "PET_STANDALONE": "1" if policy.standalone else "",
    }
    return [(name, value) for name, value in found.items() if value]


def _endpoint(view: ControlledJob, policy: pytorchjob.ElasticPolicy) -> str:
    worker = next(role for role in view.roles if role.name == "Worker")
    return f"{policy.rdzv_host or _first_host(view, worker)}:{policy.rdzv_port or _port(worker)}"


def _text(number: int | None) -> str:
    """Return a number as a text, "" for none."""
    return "" if number is None else str(number)


def _first_host(view: ControlledJob, role: Role) -> str:
    """Return the host of a role's first replica."""
    return replica_name(view, role, Replica(0, 0))


def _master_role(view: ControlledJob) -> Role | None:
    return next((role for role in view.roles if role.name == "Master"), None)


def _port(role: Role) -> int:
    return job_reader.port_of(role, CONTAINER, Port(PORT_NAME, PORT))


def _waits_for(view: ControlledJob, role: Role, index: int) -> str | None:
    """Return the host that has to resolve before this replica starts."""
    if role.name == "Worker" and (master := _master_role(view)) is not None:
        return _first_host(view, master)
    return _first_host(view, role) if view.elastic and index > 0 else None


def _waiting_container(host: str) -> Object:
    """Return the init container that waits until the name of the Master resolves."""
    look = f"if getent hosts {host} || nslookup {host}; then err=0 && break; fi;echo waiting for {host}; sleep 2;"
    tries = f"for i in $(seq {INIT_TRIES}); do {look} done"
    return {
        "name": "init-pytorch",
        "image": INIT_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": {"cpu": "100m", "memory": "20Mi"}, "requests": {"cpu": "50m", "memory": "10Mi"}},
        "command": ["sh", "-c", f"err=1;{tries}; exit $err"],
    }


def extras(view: ControlledJob, _known: OwnedObjects) -> list[NeededChild]:
    """Return the children beside pods: a headless Service for each replica, and the HPA of the job's metrics."""
    found: list[NeededChild] = [each for role in view.roles for each in services(PYTORCHJOB, view, role)]
    policy = view.spec.elastic_policy
    if policy is not None and policy.metrics:
        found.append(_autoscaler(view, policy.metrics))
    return found


def _autoscaler(view: ControlledJob, metrics: Sequence[Object]) -> Object:
    """Return the HorizontalPodAutoscaler of an elastic job."""
    least, most = pytorchjob.bounds(view.spec) or (0, 0)
    target = {"kind": KIND, "name": view.name, "apiVersion": view.api_version}
    spec = {"scaleTargetRef": target, "minReplicas": least, "maxReplicas": most, "metrics": list(metrics)}
    meta = {"name": view.name, "namespace": view.namespace, "ownerReferences": [owner(view)]}
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": meta, "spec": spec}


def judge(view: ControlledJob, counts: Mapping[str, Counts], _known: OwnedObjects) -> list[JobVerdict]:
    """Return the conditions that follow from the pods' phases. counts: by the name of the role.

    The end of the Master is the end of the job. Without a Master all workers have to succeed, or any worker of an
    elastic job.
    """
    found: list[JobVerdict] = []
    name = f"{KIND} {view.name}"
    for role in view.roles:
        count = counts[role.name]
        if role.name == "Master" or _master_role(view) is None:
            done = count.succeeded == role.replicas or (view.elastic and count.succeeded > 0)
            if done:
                return [*found, JobVerdict(Reason.SUCCEEDED, f"{name} is successfully completed.")]
            if count.active:
                found.append(JobVerdict(Reason.RUNNING, f"{name} is running."))
        if count.failed and role.replicas > count.succeeded + count.active:
            text = f"because {count.failed} {role.name} replica(s) failed."
            if role.restart is Restart.NEVER:
                return [*found, JobVerdict(Reason.FAILED, f"{name} is failed {text}")]
            found.append(JobVerdict(Reason.RESTARTING, f"{name} is restarting {text}"))
    return found


PYTORCHJOB = ControlledKind(
    KIND,
    (PYTORCH_JOB.api_version, CTYUN_PYTORCH_JOB.api_version),
    PYTORCH_JOB.plural,
    CONTAINER,
    job_reader.refusing(_read),
    labels,
    selector,
    pod_spec,
    extras,
    judge,
)
