"""PyTorchJobs. Source: docs/facts/job-kinds.md 1.2; contract PE-17 to PE-48, SD-12 to SD-14.

Differences from the Training Operator 1.8.1:

- The other workers of an elastic job without a Master wait for worker 0 (VE-25).
- The port of an elastic job is 29400 unless the user sets one (SD-14).
- PET_STANDALONE is 1 (SD-13).
- The variables that users' guides name are set together with those that torchrun reads (SD-12).
- PYTHONUNBUFFERED keeps the value of the user (PE-43).
- A host that a pod waits for may also be in /etc/hosts.
- A failed job has a completionTime, so that its TTL ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnout.controllers.children import owner_reference, services
from turnout.controllers.kinds import job_reader
from turnout.controllers.kinds.job_reader import Port
from turnout.controllers.model import (
    KUBEFLOW,
    ChildRules,
    ControlledJob,
    ControlledKind,
    Counts,
    NeededChild,
    Object,
    OwnedObjects,
    PodDerivedCondition,
    Reason,
    Replica,
    Role,
    StatusRules,
    replica_name,
)
from turnout.jobs.fields import ObjectPart
from turnout.jobs.kinds import pytorchjob
from turnout.jobs.kinds.job_kind import CleanPods, NamedRole, Restart
from turnout.jobs.kinds.pytorchjob import CONTAINER, CTYUN_PYTORCH_JOB, KIND, PYTORCH_JOB, PyTorchJobSpec
from turnout.kube.labels import JOB_KIND

PORT_NAME, PORT, ELASTIC_PORT = "pytorchjob-port", 23456, 29400
INIT_IMAGE = "alpine:3.10"  # of the init container that waits for a host
INIT_TRIES = 100  # look-ups of that host, 2 s apart
_LABELS = "training.kubeflow.org/"  # prefix


def _read(raw: Object) -> ControlledJob:
    """Return the job of an object, with PyTorchJobSpec as `spec`. Raises BadJob."""
    meta, spec = raw["metadata"], pytorchjob.read_spec(ObjectPart(raw).part("spec"))
    job_reader.check_name(meta)
    elastic, bounds = spec.elastic_policy is not None, pytorchjob.bounds(spec)
    roles = tuple(_read_role(each, elastic) for each in pytorchjob.roles(spec).values())
    # An elastic job starts with its min, any other with all pods (VE-16).
    minimum = sum(role.replicas for role in roles if bounds is None or role.name != "Worker")
    policy = spec.run_policy
    return job_reader.controlled_job(
        raw,
        KIND,
        roles=roles,
        policy=job_reader.run_policy(policy, CleanPods.NONE),
        gang=job_reader.gang(policy.scheduling_policy, minimum + (bounds[0] if bounds else 0)),
        spec=spec,
        elastic=elastic,
        other_controller=policy.managed_by if policy.managed_by != pytorchjob.OPERATOR else "",
    )


def _read_role(named: NamedRole, elastic: bool) -> Role:
    """Return a role with the port of its training container. elastic: the job has an elasticPolicy. Raises BadJob."""
    port = Port(PORT_NAME, ELASTIC_PORT if elastic and named.name == "Worker" else PORT)
    return job_reader.read_role(named, CONTAINER, port, Restart.ON_FAILURE)


def _processes_per_node(spec: PyTorchJobSpec) -> str:
    """Return nprocPerNode, "auto" by default; "" if only the elasticPolicy sets it."""
    is_set_in_policy = spec.elastic_policy is not None and spec.elastic_policy.n_proc_per_node is not None
    return spec.nproc_per_node or ("" if is_set_in_policy else "auto")


def labels(job: ControlledJob, role: Role, replica: Replica) -> dict[str, str]:
    """Return the labels of one replica's pod and of its Service.

    The Master, or without a Master replica 0 of each role, has the label job-role=master.
    """
    replica_labels = {**selector(job, role), KUBEFLOW.index: str(replica.index)}
    is_lead = role.name == "Master" if _master_role(job) is not None else replica.index == 0
    if job.api_version == CTYUN_PYTORCH_JOB.api_version:
        replica_labels[JOB_KIND] = CTYUN_PYTORCH_JOB.kind
    return {**replica_labels, f"{_LABELS}job-role": "master"} if is_lead else replica_labels


def selector(job: ControlledJob, role: Role) -> dict[str, str]:
    """Return the labels that all pods of a role have."""
    name = {KUBEFLOW.job: job.name, f"{_LABELS}operator-name": "pytorchjob-controller"}
    return {**name, KUBEFLOW.role: role.label}


def pod_spec(job: ControlledJob, role: Role, replica: Replica, _owned: OwnedObjects) -> dict[str, Any]:
    """Return the spec of one replica's pod, with the variables of torchrun.

    If another replica has to come first, an init container waits for its host name.
    """
    spec, index = dict(role.template["spec"]), replica.index
    variables = _env(job, role, index)
    spec["containers"] = [_with_appended_env(each, variables) for each in spec["containers"]]
    if (host := _host_to_wait_for(job, role, index)) is not None:
        spec["initContainers"] = [*(spec.get("initContainers") or ()), _waiting_container(host)]
    return spec


def _with_appended_env(container: Object, added: Sequence[Object]) -> Object:
    """Return a container with variables after its own, even if it sets the same names. added: the variables.

    Python's output is unbuffered unless the container sets PYTHONUNBUFFERED itself.
    """
    own_variables = list(container.get("env") or ())
    own_names = {each.get("name") for each in own_variables}
    unbuffered = [] if "PYTHONUNBUFFERED" in own_names else [{"name": "PYTHONUNBUFFERED", "value": "1"}]
    return {**container, "env": [*own_variables, *unbuffered, *added]}


def _env(job: ControlledJob, role: Role, index: int) -> list[Object]:
    """Return the variables of torchrun for one replica, in the order of the Training Operator.

    Without a Master, the variables of the Master's address, the world size and the rank are left out. An elastic job
    has the variables of its elasticPolicy, with a range as PET_NNODES. index: of the replica in its role.
    """
    total, processes = sum(each.replicas for each in job.roles), _processes_per_node(job.spec)
    variables: list[tuple[str, str]] = []
    if (master := _master_role(job)) is not None:
        port, host = str(_port(master)), _first_host(job, master)
        rank = str(index + (role.name == "Worker"))
        world = total * (int(processes) if processes.isascii() and processes.isdigit() else 1)
        variables += [
            ("MASTER_PORT", port),
            ("PET_MASTER_PORT", port),
            ("MASTER_ADDR", host),
            ("PET_MASTER_ADDR", host),
        ]
        variables += [("WORLD_SIZE", str(world)), ("RANK", rank), ("PET_NODE_RANK", rank)]
    if processes:
        variables.append(("PET_NPROC_PER_NODE", processes))
    variables += _elastic_env(job) if job.elastic else [("PET_NNODES", str(total))]
    return [{"name": name, "value": value} for name, value in variables]


def _elastic_env(job: ControlledJob) -> list[tuple[str, str]]:
    """Return (name, value) of the PET_ variables from which torchrun reads the elasticPolicy.

    Variables without a value are left out.
    """
    spec: PyTorchJobSpec = job.spec
    policy = spec.elastic_policy
    assert policy is not None  # the job is elastic
    nodes = ":".join(map(str, pytorchjob.bounds(spec) or ()))
    processes = _number_text(policy.n_proc_per_node)
    values = {
        "PET_RDZV_ENDPOINT": _endpoint(job, policy),
        "PET_RDZV_BACKEND": policy.rdzv_backend or "c10d",
        "PET_NNODES": nodes,
        "PET_NODES": nodes,
        "PET_MAX_RESTARTS": _number_text(policy.max_restarts),
        "PET_NPROC_PER_NODE": processes,
        "PET_N_PROC_PER_NODE": processes or _processes_per_node(spec),
        "PET_RDZV_ID": policy.rdzv_id,
        "PET_RDZV_CONF": ",".join(f"{each.key}={each.value}" for each in policy.rdzv_conf),
        "PET_STANDALONE": "1" if policy.standalone else "",
    }
    return [(name, value) for name, value in values.items() if value]


def _endpoint(job: ControlledJob, policy: pytorchjob.ElasticPolicy) -> str:
    """Return host:port of the rendezvous: as the policy states, else of worker 0."""
    worker = next(role for role in job.roles if role.name == "Worker")
    return f"{policy.rdzv_host or _first_host(job, worker)}:{policy.rdzv_port or _port(worker)}"


def _number_text(number: int | None) -> str:
    """Return a number as text, "" for None."""
    return "" if number is None else str(number)


def _first_host(job: ControlledJob, role: Role) -> str:
    """Return the host name of a role's first replica."""
    return replica_name(job, role, Replica(0, 0))


def _master_role(job: ControlledJob) -> Role | None:
    """Return the role Master, None for a job without one."""
    return next((role for role in job.roles if role.name == "Master"), None)


def _port(role: Role) -> int:
    """Return the port of the training container of a role."""
    return job_reader.port_of(role, CONTAINER, Port(PORT_NAME, PORT))


def _host_to_wait_for(job: ControlledJob, role: Role, index: int) -> str | None:
    """Return the host name that has to resolve before a replica starts; None if it starts at once.

    Workers wait for the Master. Without a Master, the other workers of an elastic job wait for worker 0.
    """
    if role.name == "Worker" and (master := _master_role(job)) is not None:
        return _first_host(job, master)
    return _first_host(job, role) if job.elastic and index > 0 else None


def _waiting_container(host: str) -> Object:
    """Return the init container that waits until a host name resolves, and fails after INIT_TRIES look-ups."""
    attempt = f"if getent hosts {host} || nslookup {host}; then err=0 && break; fi;echo waiting for {host}; sleep 2;"
    tries = f"for i in $(seq {INIT_TRIES}); do {attempt} done"
    return {
        "name": "init-pytorch",
        "image": INIT_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": {"cpu": "100m", "memory": "20Mi"}, "requests": {"cpu": "50m", "memory": "10Mi"}},
        "command": ["sh", "-c", f"err=1;{tries}; exit $err"],
    }


def other_children(job: ControlledJob, _owned: OwnedObjects) -> list[NeededChild]:
    """Return the children that are not pods: a Service for each replica, and the HPA of the elasticPolicy's metrics."""
    children: list[NeededChild] = [each for role in job.roles for each in services(PYTORCHJOB, job, role)]
    policy = job.spec.elastic_policy
    if policy is not None and policy.metrics:
        children.append(_hpa(job, policy.metrics))
    return children


def _hpa(job: ControlledJob, metrics: Sequence[Object]) -> Object:
    """Return the HorizontalPodAutoscaler of an elastic job.

    metrics: of spec.elasticPolicy.metrics, as autoscaling/v2 has them, at least one.
    """
    min_workers, max_workers = pytorchjob.bounds(job.spec) or (0, 0)
    target = {"kind": KIND, "name": job.name, "apiVersion": job.api_version}
    spec = {"scaleTargetRef": target, "minReplicas": min_workers, "maxReplicas": max_workers, "metrics": list(metrics)}
    meta = {"name": job.name, "namespace": job.namespace, "ownerReferences": [owner_reference(job)]}
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": meta, "spec": spec}


def conditions_of_pods(
    job: ControlledJob, counts: Mapping[str, Counts], _owned: OwnedObjects
) -> list[PodDerivedCondition]:
    """Return the conditions that follow from the pods' phases; [] if none does. counts: by the name of the role.

    The job succeeds when its Master does; without a Master, when all workers succeed, or any worker of an elastic job.
    A failed pod whose replacement does not run yet adds RESTARTING, or FAILED if its role is never restarted. SUCCEEDED
    or FAILED is always the last entry.
    """
    pod_conditions: list[PodDerivedCondition] = []
    name = f"{KIND} {job.name}"
    for role in job.roles:
        count = counts[role.name]
        if role.name == "Master" or _master_role(job) is None:
            has_succeeded = count.succeeded == role.replicas or (job.elastic and count.succeeded > 0)
            if has_succeeded:
                return [*pod_conditions, PodDerivedCondition(Reason.SUCCEEDED, f"{name} is successfully completed.")]
            if count.active:
                pod_conditions.append(PodDerivedCondition(Reason.RUNNING, f"{name} is running."))
        if count.failed and role.replicas > count.succeeded + count.active:
            text = f"because {count.failed} {role.name} replica(s) failed."
            if role.restart is Restart.NEVER:
                return [*pod_conditions, PodDerivedCondition(Reason.FAILED, f"{name} is failed {text}")]
            pod_conditions.append(PodDerivedCondition(Reason.RESTARTING, f"{name} is restarting {text}"))
    return pod_conditions


PYTORCHJOB = ControlledKind(
    KIND,
    (PYTORCH_JOB.api_version, CTYUN_PYTORCH_JOB.api_version),
    PYTORCH_JOB.plural,
    CONTAINER,
    job_reader.refusing(_read),
    ChildRules(labels, selector, pod_spec, other_children),
    StatusRules(conditions_of_pods),
)
