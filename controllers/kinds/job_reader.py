"""Turn the specification of a job into the roles, policies and gang that the controllers act on. Raises BadJob.

Source: docs/facts/job-kinds.md 1.2, 1.4
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from turnout.controllers.model import ControlledJob, GangSpec, Object, Reason, RefusedJob, Role, RunPolicy
from turnout.jobs.fields import ObjectPart
from turnout.jobs.kinds.job_kind import CleanPods, NamedRole, Restart, RunPolicySpec, SchedulingPolicy
from turnout.jobs.model import BadJob

CHILDREN_BYTES = 512 << 20  # bound of the JSON bytes of all pods of one job: 10,000 workers of 52 KiB
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


class Port(NamedTuple):
    """The port that a training container gets unless its user sets one of that name."""

    name: str
    number: int


def refusing(read: Callable[[Object], ControlledJob]) -> Callable[[Object], ControlledJob | RefusedJob]:
    """Return a reader that calls `read`, and returns a RefusedJob for an invalid object or one with too large pods."""

    def read_or_refuse(raw: Object) -> ControlledJob | RefusedJob:
        """Return the job, or a refusal if it is invalid or too large."""
        try:
            job = read(raw)
        except BadJob as error:
            return RefusedJob(str(error))
        return job if (why := _too_large(job)) is None else RefusedJob(why, Reason.TOO_LARGE)

    return read_or_refuse


def _too_large(job: ControlledJob) -> str | None:
    """Return why the pods of a job are too large: replicas times template, above CHILDREN_BYTES; None if they are
    not.
    """
    roles = sorted((each.replicas * (_bytes(each.template) + each.added_bytes), each.name) for each in job.roles)
    total = sum(size for size, _ in roles)
    if total <= CHILDREN_BYTES:
        return None
    return (
        f"the pods of all replicas have {total >> 20} MiB of JSON, above the limit of {CHILDREN_BYTES >> 20} "
        f"MiB; role {roles[-1][1]} has the most: shorten its template or lower its replicas"
    )


def _bytes(template: Object) -> int:
    """Return the JSON bytes of a template."""
    return len(msgspec.json.encode(template))


def controlled_job(raw: Object, kind: str, **fields: Any) -> ControlledJob:
    """Return a job with the names in its object. kind: of the object. fields: the other fields of ControlledJob."""
    meta = raw["metadata"]
    names = {key: meta[key] for key in ("namespace", "name", "uid")}
    return ControlledJob(api_version=raw["apiVersion"], kind=kind, **names, **fields)


def check_name(meta: Object) -> None:
    """Raise BadJob for a job whose name cannot be that of its Services."""
    if not _NAME.fullmatch(meta["name"]):
        raise BadJob(f"metadata.name is {meta['name']!r:.70}: it must be a DNS label that begins with a letter")


def read_role(named: NamedRole, container: str, port: Port | None, restart: Restart) -> Role:
    """Return a role with the full template of its pods. Raises BadJob for an invalid template.

    Exactly one container must have the name `container`, and all need an image. port: added to that container unless it
    has a port of that name; None for no port. restart: the default restart policy of the kind.
    """
    template = named.template
    check_template(template)
    containers = template.part("spec").parts("containers")
    if sum(each.text("name") == container for each in containers) != 1:
        where = template.part("spec").at("containers")
        raise BadJob(f"{where}: one container must be named {container}")
    for each in containers:
        if not each.text("image"):
            raise BadJob(f"{each.at('image')} is missing")
    full_template = template.value if port is None else _with_port(template.value, container, port)
    return Role(named.name, named.spec.replicas, full_template, named.spec.restart_policy or restart)


def check_template(template: ObjectPart) -> None:
    """Raise BadJob for a template with a field of a wrong type, among those that the controllers read.

    Also for a containerPort outside 1..MAX_PODS; the API server refuses those above 65535.
    """
    for named in ("labels", "annotations"):
        template.part("metadata").text_map(named)
    spec = template.part("spec")
    for volume in spec.parts("volumes"):
        volume.text("name")
    for each in (*spec.parts("containers"), *spec.parts("initContainers")):
        for inner in (*each.parts("env"), *each.parts("volumeMounts")):
            inner.text("name")
        for listed in ("command", "args"):
            each.texts(listed)
        for port in each.parts("ports"):
            port.text("name")
            port.count("containerPort", 0, 1)


def _with_port(template: Object, container_name: str, port: Port) -> Object:
    """Return a copy of a pod template whose container `container_name` has the port.

    A port that already has the name `port.name` stays as it is, whatever its number.
    """

    def add_port(container: Object) -> Object:
        """Return a container with the port added, if it is the named container and has no port of that name."""
        ports = list(container.get("ports") or ())
        if container.get("name") != container_name or any(each.get("name") == port.name for each in ports):
            return container
        return {**container, "ports": [*ports, {"name": port.name, "containerPort": port.number}]}

    spec = template["spec"]
    return {**template, "spec": {**spec, "containers": [add_port(each) for each in spec["containers"]]}}


def port_of(role: Role, container: str, port: Port) -> int:
    """Return the number of the port of that name in the container `container`; the default number of `port` if it has
    none.
    """
    for each in role.template["spec"]["containers"]:
        for container_port in each.get("ports") or ():
            if each.get("name") == container and container_port.get("name") == port.name:
                return int(container_port["containerPort"])
    return port.number


def run_policy(spec: RunPolicySpec, clean: CleanPods, start_s: int | None = None) -> RunPolicy:
    """Return a run policy. clean: the kind's default for cleanPodPolicy.

    start_s: seconds for the gang to start; None for no limit.
    """
    return RunPolicy(
        suspended=spec.suspend,
        clean_pods=spec.clean_pod_policy or clean,
        ttl_s=spec.ttl_seconds_after_finished,
        active_deadline_s=spec.active_deadline_seconds,
        backoff_limit=spec.backoff_limit,
        start_s=start_s,
    )


def gang(policy: SchedulingPolicy, default_min: int) -> GangSpec:
    """Return the fields of a PodGroup. default_min: pods that start together if the policy does not state
    minAvailable.
    """
    return GangSpec(
        policy.min_available or default_min,
        policy.queue,
        policy.priority_class,
        policy.min_resources or None,
        policy.schedule_timeout_seconds,
    )
