"""The rows, texts and objects of `turnout jobs`, `describe`, `suspend` and `submit`, as functions of API objects."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from turnout.cli.views.listing import Column, Listing, text
from turnout.controllers.kinds.registry import KINDS
from turnout.controllers.model import ControlledJob, ControlledKind, Object
from turnout.kube.client.logs import printable
from turnout.kube.labels import SUSPENDED
from turnout.kube.times import unix_s

SUSPENDED_BY: Mapping[str, tuple[str, ...]] = {
    "PyTorchJob": ("spec", "runPolicy", "suspend"),
    "MSJob": ("spec", "runPolicy", "suspend"),
    "ElasticJob": ("spec", "suspend"),
    "ColossalAIJob": ("spec", "runMode", "pause", "enabled"),
    "VolcanoJob": ("metadata", "annotations", SUSPENDED),
}


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in a list."""

    namespace: str
    kind: str
    name: str
    state: str
    running: int  # pods
    replicas: int | None  # pods of all roles; None if the object cannot be read
    restarts: int
    age_s: float | None


class JobRequest(NamedTuple):
    """The user's choices for a new job."""

    name: str
    namespace: str
    image: str
    workers: int
    minimum: int  # workers of an elastic job, at least, 1 to `workers`; equal to `workers` for others
    maximum: int  # workers of an elastic job, at most, >= `workers`; equal to `workers` for others
    gpus: int  # of each worker, >= 0
    command: Sequence[str]
    gpu_resource: str = "nvidia.com/gpu"


class BadSubmission(ValueError):
    """A request that the kind cannot express. The caller prints the message and ends with code 2."""


def rows(kind: ControlledKind, objects: Sequence[Object], now_s: float) -> list[JobRow]:
    """Return the rows of jobs, sorted by namespace and name. objects: jobs of `kind`. now_s: since 1970."""
    return sorted((_row(kind, each, now_s) for each in objects), key=lambda row: (row.namespace, row.name))


def _row(kind: ControlledKind, raw: Object, now_s: float) -> JobRow:
    """Return the row of a job in the list of jobs. raw: its object, also without apiVersion. now_s: since 1970."""
    meta = raw["metadata"]
    view = kind.read({"apiVersion": kind.apis[0], **raw})
    replicas = sum(role.replicas for role in view.roles) if isinstance(view, ControlledJob) else None
    created_s = unix_s(meta.get("creationTimestamp"))
    age_s = None if created_s is None else max(0.0, now_s - created_s)
    status = _mapping(raw.get("status"))
    return JobRow(meta["namespace"], kind.full_name, meta["name"], state(status), *_pods(status, replicas), age_s)


def _pods(status: Object, replicas: int | None) -> tuple[int, int | None, int]:
    """Return (running pods, replicas, restarts) of a job, from the status of any kind.

    replicas: passed through, None if unknown.
    """
    roles = [each for each in _mapping(status.get("replicaStatuses")).values() if isinstance(each, Mapping)]
    tasks = status.get("tasks")
    tasks = [each for each in tasks if isinstance(each, Mapping)] if isinstance(tasks, list) else []
    running = _sum(roles, "active") + _number(_mapping(status.get("aggregate")).get("running"))
    running += _number(status.get("running"))
    return running, replicas, _sum(roles, "restarts") + _sum(tasks, "restartCount") + _number(status.get("retryCount"))


def state(status: Object) -> str:
    """Return a job's state in one word: its phase, else the type of its last true condition, else New.

    status: of the job's object, of any kind.
    """
    for part in (status, _mapping(status.get("state"))):
        if isinstance(phase := part.get("phase"), str) and phase:
            return phase
    conditions = status.get("conditions")
    true = [
        each.get("type")
        for each in (conditions if isinstance(conditions, list) else ())
        if isinstance(each, Mapping) and each.get("status") == "True"
    ]
    return str(true[-1]) if true else "New"


def _mapping(value: Any) -> Object:
    return value if isinstance(value, Mapping) else {}


def _sum(parts: Sequence[Object], key: str) -> int:
    return sum(_number(each.get(key)) for each in parts)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _running_and_replicas(row: JobRow) -> tuple[int, int]:
    return row.running, row.replicas or 0


def listing(job_rows: Sequence[JobRow], notes: Sequence[str] = ()) -> Listing[JobRow]:
    """Return the jobs as a listing for all output formats. Ages are texts in the table, and seconds in JSON and YAML.

    notes: lines below the table.
    """
    return Listing(
        (
            Column("NAMESPACE", lambda row: row.namespace),
            Column("KIND", lambda row: row.kind),
            Column("NAME", lambda row: row.name),
            Column("STATE", lambda row: row.state),
            Column(
                "PODS",
                lambda row: f"{row.running}/{'?' if row.replicas is None else row.replicas}",
                order=_running_and_replicas,
            ),
            Column("RESTARTS", lambda row: str(row.restarts), number=True),
            Column("AGE", lambda row: age(row.age_s), order=lambda row: math.inf if row.age_s is None else row.age_s),
        ),
        job_rows,
        lambda row: f"{row.kind}/{row.namespace}/{row.name}",
        "no job of a kind that the job controllers know is here",
        notes,
        ignored_fields=frozenset(["age_s"]),
    )


def age(seconds: float | None) -> str:
    """Return an age as kubectl prints it, in its two largest units; "-" for None."""
    if seconds is None:
        return "-"
    for unit, letter, under, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= unit:
            rest = int(seconds % unit) // under
            return f"{int(seconds // unit)}{letter}{f'{rest}{small}' if rest else ''}"
    return f"{int(seconds)}s"


def describe_job(
    kind: ControlledKind, raw: Object, pods: Sequence[Object], events: Sequence[Object], now_s: float
) -> list[str]:
    """Return the lines that describe a job: its state and why, its pods with their nodes, and its Events, newest last.

    kind: of the job. raw: its object. pods, events: objects of the job's pods, and of the Events on it. now_s: since
    1970.
    """
    (row,) = rows(kind, [raw], now_s)
    lines = [
        f"{row.kind} {row.namespace}/{row.name}",
        *text(listing([row]), "table").split("\n"),
        "",
        "Conditions:",
    ]
    lines += [*_condition_lines(_mapping(raw.get("status"))), "", "Pods:"]
    lines += [_pod(each) for each in sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))] or ["  none"]
    lines += ["", "Events:"]
    in_order = sorted(events, key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""))
    lines += [f"  {each.get('reason')}: {each.get('message', '')}" for each in in_order] or ["  none"]
    return [printable(line) for line in lines]


def _condition_lines(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each condition of a job, then the message of its state."""
    conditions = status.get("conditions")
    for each in conditions if isinstance(conditions, list) else ():
        if isinstance(each, Mapping):
            words = "=".join(str(each[key]) for key in ("type", "status") if key in each)
            yield f"  {words}  {each.get('message', '')}".rstrip()
    if message := _mapping(status.get("state")).get("message"):
        yield f"  {message}"


def _pod(pod: Object) -> str:
    """Return the line about a pod: name, phase, node and restarts."""
    status = _mapping(pod.get("status"))
    statuses = status.get("containerStatuses")
    restarts = _sum([each for each in statuses or () if isinstance(each, Mapping)], "restartCount")
    node = _mapping(pod.get("spec")).get("nodeName") or "no node yet"
    return f"  {pod['metadata']['name']}  {status.get('phase', 'Pending')}  {node}  {restarts} restarts"


def suspend_patch(kind: str, *, on: bool) -> dict[str, Any]:
    """Return the merge patch that suspends a job of this kind, or resumes it if `on` is False.

    kind: a key of SUSPENDED_BY.
    """
    *above, last = SUSPENDED_BY[kind]
    value: bool | str = str(on).lower() if above[-1:] == ["annotations"] else on
    patch: dict[str, Any] = {last: value}
    for key in reversed(above):
        patch = {key: patch}
    return patch


def submission(kind: str, request: JobRequest) -> dict[str, Any]:
    """Return the object of a new job.

    Raises BadSubmission for a kind that cannot be submitted, or that cannot express `request`.
    """
    if not 1 <= request.minimum <= request.workers <= request.maximum:
        text = f"--min {request.minimum}, --workers {request.workers}, --max {request.maximum}"
        raise BadSubmission(f"{text}: 1 <= --min <= --workers <= --max is required")
    if request.gpus < 0:
        raise BadSubmission(f"--gpus {request.gpus}: must be 0 or more")
    if kind not in _SPECS:
        raise BadSubmission(f"--kind {kind}: one of {', '.join(sorted(_SPECS))}")
    meta = {"name": request.name, "namespace": request.namespace}
    return {
        "apiVersion": KINDS[kind].apis[0],
        "kind": KINDS[kind].kind,
        "metadata": meta,
        "spec": _SPECS[kind](request),
    }


def _container(request: JobRequest, name: str, *, command: bool = True) -> dict[str, Any]:
    container: dict[str, Any] = {"name": name, "image": request.image}
    container |= {"command": list(request.command)} if command else {}
    return {**container, "resources": {"limits": {request.gpu_resource: request.gpus}}} if request.gpus else container


def _role(request: JobRequest, container: str, restart: str, replicas: int) -> dict[str, Any]:
    template = {"spec": {"containers": [_container(request, container)]}}
    return {"replicas": replicas, "restartPolicy": restart, "template": template}


def _fixed(request: JobRequest, kind: str) -> None:
    if request.minimum != request.maximum:
        raise BadSubmission(f"--min and --max: a job of kind {kind} has one size")


def _fixed_most(request: JobRequest, kind: str) -> None:
    if request.workers != request.maximum:
        raise BadSubmission(f"--max must not be above --workers for a job of kind {kind}")


def _pytorchjob(request: JobRequest) -> dict[str, Any]:
    """Return the spec of a PyTorchJob. It is elastic if `minimum` and `maximum` of the request differ."""
    spec: dict[str, Any] = {"pytorchReplicaSpecs": {"Worker": _role(request, "pytorch", "OnFailure", request.workers)}}
    if request.minimum != request.maximum:
        spec["elasticPolicy"] = {"minReplicas": request.minimum, "maxReplicas": request.maximum}
    return spec


def _msjob(request: JobRequest) -> dict[str, Any]:
    """Return the spec of an MSJob. Several workers get a scheduler. Raises BadSubmission for an elastic request."""
    _fixed(request, "MSJob")
    roles = {"Worker": _role(request, "mindspore", "Never", request.workers)}
    if request.workers > 1:
        roles["Scheduler"] = _role(request._replace(gpus=0), "mindspore", "Never", 1)
    return {"successPolicy": "AllWorkers", "msReplicaSpecs": roles}


def _elasticjob(request: JobRequest) -> dict[str, Any]:
    _fixed(request, "ElasticJob")
    worker = {"replicas": request.workers, "template": {"spec": {"containers": [_container(request, "main")]}}}
    return {"distributionStrategy": "AllreduceStrategy", "replicaSpecs": {"worker": worker}}


def _colossalaijob(request: JobRequest) -> dict[str, Any]:
    """Return the spec of a ColossalAIJob. Raises BadSubmission for an elastic request."""
    _fixed(request, "ColossalAIJob")
    worker = {
        "replicas": request.workers,
        "procPerWorker": max(1, request.gpus),
        "command": list(request.command),
        "template": {"spec": {"containers": [_container(request, "worker", command=False)]}},
    }
    return {"launcher": {"image": request.image}, "worker": worker}


def _volcanojob(request: JobRequest) -> dict[str, Any]:
    """Return the spec of a Volcano Job. Raises BadSubmission if its max is above its workers."""
    _fixed_most(request, "VolcanoJob")
    template = {"spec": {"restartPolicy": "OnFailure", "containers": [_container(request, "main")]}}
    worker = {"name": "worker", "replicas": request.workers, "minAvailable": request.minimum, "template": template}
    return {"minAvailable": request.minimum, "plugins": {"svc": [], "env": []}, "tasks": [worker]}


_SPECS: Mapping[str, Callable[[JobRequest], dict[str, Any]]] = {
    "PyTorchJob": _pytorchjob,
    "MSJob": _msjob,
    "ElasticJob": _elasticjob,
    "ColossalAIJob": _colossalaijob,
    "VolcanoJob": _volcanojob,
}
