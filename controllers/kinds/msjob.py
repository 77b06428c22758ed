"""MSJobs, which train with MindSpore. Source: docs/facts/job-kinds.md 1.4; contract MS-01 to MS-46.

Only the Scheduler has a Service. The pods of the other roles get its address as a variable, so they are created once it
has one. Differences from ms-operator: what it only logs as wrong is refused; a job whose dynamic workers have all
failed fails; a variable that the user has set is left as it is; the last log lines of a container that fails are kept,
and known errors in them are explained.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from turnout.controllers.children import meta_of, with_missing_variables
from turnout.controllers.kinds import job_reader
from turnout.controllers.kinds.job_reader import Port
from turnout.controllers.model import (
    KUBEFLOW,
    ChildKey,
    ChildRules,
    ControlledJob,
    ControlledKind,
    Counts,
    Object,
    OwnedObjects,
    PodDerivedCondition,
    PodPhase,
    Reason,
    Replica,
    Role,
    StatusRules,
    replica_name,
)
from turnout.jobs.fields import ObjectPart
from turnout.jobs.kinds import msjob
from turnout.jobs.kinds.job_kind import CleanPods, Restart
from turnout.jobs.kinds.msjob import CONTAINER, KIND, MS_JOB, PS, SCHEDULER, WORKER, MSJobSpec, SuccessPolicy

PORT = Port("msjob-port", 2222)
_MINDSPORE_ROLES = {SCHEDULER: "MS_SCHED", PS: "MS_PSERVER", WORKER: "MS_WORKER"}
_SHARED = ("hostPath", "persistentVolumeClaim", "nfs")  # volumes that several pods write
# A file to which a command redirects its output, and a part of its name that differs between pods.
_REDIRECT = re.compile(r">>?\s*(/[^\s;&|]+)")
_OWN_NAME = re.compile(r"\$\{?(MS_NODE_ID|POD_NAME|HOSTNAME|RANK_ID)|\$\(|`")
HINTS = {
    "bindIP failed": "files of an earlier run are left under MS_RECOVERY_PATH: remove them before the job runs again",
}


def _read(raw: Object) -> ControlledJob:
    """Return the job of an object, with MSJobSpec as `spec`. Raises BadJob."""
    meta, spec = raw["metadata"], msjob.read_spec(ObjectPart(raw).part("spec"))
    job_reader.check_name(meta)
    roles = tuple(job_reader.read_role(each, CONTAINER, PORT, Restart.NEVER) for each in msjob.roles(spec).values())
    gang = job_reader.gang(spec.run_policy.scheduling_policy, sum(role.replicas for role in roles))
    return job_reader.controlled_job(
        raw,
        KIND,
        roles=roles,
        policy=job_reader.run_policy(spec.run_policy, CleanPods.RUNNING, start_s=gang.timeout_s),
        gang=gang,
        spec=spec,
        elastic=spec.enable_dynamic_worker,
    )


def labels(job: ControlledJob, role: Role, replica: Replica) -> dict[str, str]:
    """Return the labels of one replica's pod."""
    return {**selector(job, role), KUBEFLOW.index: str(replica.index)}


def selector(job: ControlledJob, role: Role) -> dict[str, str]:
    """Return the labels that all pods of a role have."""
    operator = {"training.kubeflow.org/operator-name": "msjob-controller"}
    return {KUBEFLOW.job: job.name, **operator, KUBEFLOW.role: role.label}


def pod_spec(job: ControlledJob, role: Role, _replica: Replica, owned: OwnedObjects) -> dict[str, Any]:
    """Return the spec of one replica's pod.

    The training container gets the variables of MindSpore that it does not set itself, and its last log lines as
    termination message unless it states another policy. owned: what the job owns; the address of the Scheduler is read
    from its Service.
    """
    variables = _env(job, role, owned)

    def with_mindspore_fields(container: Object) -> Object:
        """Return the training container with `variables` and the policy of the termination message.

        What the container states itself stays. Any other container is returned as it is.
        """
        if container.get("name") != CONTAINER:
            return container
        env = with_missing_variables(container.get("env") or (), variables)
        return {"terminationMessagePolicy": "FallbackToLogsOnError", **container, **({"env": env} if env else {})}

    spec = dict(role.template["spec"])
    return {**spec, "containers": [with_mindspore_fields(each) for each in spec["containers"]]}


def _env(job: ControlledJob, role: Role, owned: OwnedObjects) -> list[Object]:
    """Return the variables by which MindSpore's processes find the Scheduler; [] for a job without a Scheduler."""
    if (scheduler := _role_named(job, SCHEDULER)) is None:
        return []
    count = {each.name: str(each.replicas) for each in job.roles}
    host = {"value": _service_address(job, scheduler, owned)} if role is not scheduler else _field("status.podIP")
    return [
        {"name": "MS_SCHED_HOST", **host},
        {"name": "MS_SCHED_PORT", "value": str(job_reader.port_of(scheduler, CONTAINER, PORT))},
        {"name": "MS_NODE_ID", **_field("metadata.name")},
        {"name": "MS_SERVER_NUM", "value": count.get(PS, "0")},
        {"name": "MS_WORKER_NUM", "value": count.get(WORKER, "0")},
        {"name": "MS_ROLE", "value": _MINDSPORE_ROLES[role.name]},
    ]


def _field(path: str) -> Object:
    """Return the value of a variable that is a field of the pod."""
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


def _role_named(job: ControlledJob, name: str) -> Role | None:
    """Return the role of this name, None if the job has none."""
    return next((role for role in job.roles if role.name == name), None)


def _service_name(job: ControlledJob, scheduler: Role) -> str:
    """Return the name of the Scheduler's Service."""
    return replica_name(job, scheduler, Replica(0, 0))


def _service_address(job: ControlledJob, scheduler: Role, owned: OwnedObjects) -> str:
    """Return the cluster IP of the Scheduler's Service, "" while it has none."""
    service = owned.others.get(ChildKey("Service", _service_name(job, scheduler)))
    address = service.spec.get("clusterIP") if service is not None else ""
    return address if isinstance(address, str) else ""


def postponed_roles(job: ControlledJob, owned: OwnedObjects) -> Collection[str]:
    """Return the names of the roles whose missing pods are not created yet; () if all may be created.

    All roles wait until the Scheduler's Service has an address. Then the other roles wait until the Scheduler's pod
    exists.
    """
    if (scheduler := _role_named(job, SCHEDULER)) is None:
        return ()
    if not _service_address(job, scheduler, owned):
        return [role.name for role in job.roles]
    scheduler_exists = any(pod.role == scheduler.label for pod in owned.pods)
    return () if scheduler_exists else [role.name for role in job.roles if role is not scheduler]


def other_children(job: ControlledJob, _owned: OwnedObjects) -> list[Object]:
    """Return the Scheduler's Service, which has a cluster IP; empty for a job without a Scheduler."""
    if (scheduler := _role_named(job, SCHEDULER)) is None:
        return []
    service_labels = labels(job, scheduler, Replica(0, 0))
    ports = [{"name": PORT.name, "port": job_reader.port_of(scheduler, CONTAINER, PORT)}]
    meta = meta_of(job, _service_name(job, scheduler), service_labels)
    spec = {"type": "ClusterIP", "selector": service_labels, "ports": ports}
    return [{"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}]


def conditions_of_pods(
    job: ControlledJob, counts: Mapping[str, Counts], owned: OwnedObjects
) -> list[PodDerivedCondition]:
    """Return the conditions that follow from the pods' phases; [] if none does. counts: by the name of the role.

    Under AllWorkers all workers have to succeed, else worker 0. A failed pod fails the job if its role is never
    restarted, else it adds RESTARTING. Failed dynamic workers do neither, until all workers have failed.
    """
    name, count, spec = f"{KIND} {job.name}", counts[WORKER], job.spec
    worker = next(role for role in job.roles if role.name == WORKER)
    if _has_succeeded(spec, worker, count, owned):
        return [PodDerivedCondition(Reason.SUCCEEDED, f"{name} is successfully completed.")]
    pod_conditions = [PodDerivedCondition(Reason.RUNNING, f"{name} is running.")] if count.active else []
    for role in job.roles:
        failed = counts[role.name].failed
        if not failed or (role is worker and spec.enable_dynamic_worker and failed < role.replicas):
            continue
        text = f"because {failed} {role.name} replica(s) failed."
        if role.restart is Restart.NEVER:
            return [
                *pod_conditions,
                PodDerivedCondition(Reason.FAILED, f"{name} is failed {text}{_failure_hint(owned)}"),
            ]
        pod_conditions.append(PodDerivedCondition(Reason.RESTARTING, f"{name} is restarting {text}"))
    return pod_conditions


def _has_succeeded(spec: MSJobSpec, worker: Role, count: Counts, owned: OwnedObjects) -> bool:
    """Return True if the job has succeeded by its success policy: all workers, or worker 0."""
    if spec.success_policy is SuccessPolicy.ALL_WORKERS:
        return count.succeeded >= worker.replicas > 0
    first_worker = (pod for pod in owned.pods if pod.role == worker.label and pod.index == 0)
    return any(pod.phase is PodPhase.SUCCEEDED for pod in first_worker)


def _failure_hint(owned: OwnedObjects) -> str:
    """Return " POD says TEXT: HINT.", to append to a message, for the first known error in the last log lines of a
    failed pod; "" without one.

    Source: MS-41
    """
    hints = (
        f" {pod.name} says {error_text!r}: {hint}."
        for pod in owned.pods
        for error_text, hint in HINTS.items()
        if pod.phase is PodPhase.FAILED and error_text in pod.training_container.message
    )
    return next(hints, "")


def creation_warnings(job: ControlledJob) -> Sequence[str]:
    """Return texts about a new job that its owner should read; [] if there are none.

    They are about relative paths, whose files are lost with the container, and about redirects of several pods to the
    same file of a shared volume. Source: MS-39, MS-40, MS-42
    """
    return [text for role in job.roles for text in _creation_warnings(role)]


def _creation_warnings(role: Role) -> Iterator[str]:
    """Yield warnings about files that are lost with a container, or that several pods overwrite."""
    spec = role.template["spec"]
    volumes = spec.get("volumes") or ()
    shared = {each.get("name") for each in volumes if any(kind in each for kind in _SHARED)}
    for container in spec["containers"]:
        mounts = [each for each in container.get("volumeMounts") or () if each.get("name") in shared]
        where = f"spec.msReplicaSpecs.{role.name}, container {container.get('name')}"
        if mounts and not container.get("workingDir"):
            path = mounts[0].get("mountPath")
            yield (
                f"{where}: files written to a relative path are lost with the container;"
                f" set workingDir to {path} to keep them"
            )
        for target in _overwritten_files(container, [str(each.get("mountPath")) for each in mounts]):
            if role.replicas > 1:
                yield f"{where}: all {role.replicas} pods write to {target}; $MS_NODE_ID in its name keeps them apart"


def _overwritten_files(container: Object, mounts: Sequence[str]) -> Iterator[str]:
    """Yield the files on shared volumes to which a command redirects, with the same name in every pod.

    mounts: paths of the shared volumes in the container.
    """
    for text in (*(container.get("command") or ()), *(container.get("args") or ())):
        for target in _REDIRECT.findall(str(text)):
            if not _OWN_NAME.search(target) and any(target.startswith(f"{mount.rstrip('/')}/") for mount in mounts):
                yield target


MSJOB = ControlledKind(
    KIND,
    (MS_JOB.api_version,),
    MS_JOB.plural,
    CONTAINER,
    job_reader.refusing(_read),
    ChildRules(labels, selector, pod_spec, other_children, owns=("Pod", "Service")),
    StatusRules(conditions_of_pods),
    postponed_roles=postponed_roles,
    creation_warnings=creation_warnings,
)
