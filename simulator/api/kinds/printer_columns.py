"""The table that kubectl prints for a kind: its columns, filled as the API server's printers fill them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from turnout.kube.times import unix_s
from turnout.simulator.api.model import Object, PrinterColumn, ResourceKind, value_at

NONE = "<none>"
UNKNOWN = "<unknown>"


def format_duration(span_s: float) -> str:
    """Return a duration as kubectl prints it: 5s, 3m20s, 2h, 4d; "<invalid>" for -1 s or less. span_s: seconds."""
    left = int(span_s)
    if left < 0:
        return "<invalid>"
    minutes, hours, days = left // 60, left // 3600, left // 86400
    if left < 120:
        return f"{left}s"
    if minutes < 10:
        return f"{minutes}m{left % 60}s" if left % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d" if days < 730 else f"{days // 365}y"


def time_since(*path: str) -> Callable[[Object, float], str]:
    """Return the function that prints a cell: the time since the timestamp under a path of keys, UNKNOWN without
    one.
    """

    def show(obj: Object, now_s: float) -> str:
        then_s = unix_s(value_at(obj, *path))
        return UNKNOWN if then_s is None else format_duration(now_s - then_s)

    return show


def text(*path: str, absent: str = "") -> Callable[[Object, float], str]:
    """Return a function that returns the text of a cell: the value under a path of keys.

    absent: the text if the value is missing or empty.
    """

    def show(obj: Object, now_s: float) -> str:
        found = value_at(obj, *path)
        return absent if found in (None, "") else str(found)

    return show


def number(*path: str) -> Callable[[Object, float], int]:
    """Return a function that returns the number of a cell: the value under a path of keys, 0 if there is none."""
    return lambda obj, now_s: int(value_at(obj, *path) or 0)


def _fraction(have: tuple[str, ...], of: tuple[str, ...]) -> Callable[[Object, float], str]:
    """Return the function that prints a cell such as 1/3, from the numbers under two paths; a missing number is 0.

    have, of: the paths of the numerator and the denominator.
    """
    return lambda obj, now_s: f"{value_at(obj, *have) or 0}/{value_at(obj, *of) or 0}"


def _ready_containers(pod: Object, now_s: float) -> str:
    """Return the READY column of a pod, such as 1/2: containers that are ready, and all containers."""
    statuses = value_at(pod, "status", "containerStatuses") or ()
    return f"{sum(bool(c.get('ready')) for c in statuses)}/{len(value_at(pod, 'spec', 'containers') or ())}"


def _pod_status(pod: Object, now_s: float) -> str:
    """Return the STATUS column of a pod, as kubectl prints it: Terminating, SchedulingGated, a reason, or the phase.

    The waiting or terminated reason of a container comes before the pod's reason and phase; the first container with
    one counts. Init containers that are not finished come before all of these, as `Init:0/1` or `Init:REASON`.
    "Completed" is printed as Running or NotReady while another container is ready.
    """
    if value_at(pod, "metadata", "deletionTimestamp"):
        return "Terminating"
    conditions = {each.get("type"): each.get("status") for each in value_at(pod, "status", "conditions") or ()}
    if (init_status := _init_status(pod)) and conditions.get("Initialized") != "True":
        return init_status
    statuses = value_at(pod, "status", "containerStatuses") or ()
    shown = _reason_or_phase(pod, statuses)
    if shown == "Completed" and any(map(_is_ready_and_running, statuses)):
        return "Running" if conditions.get("Ready") == "True" else "NotReady"
    gates = value_at(pod, "spec", "schedulingGates")
    return "SchedulingGated" if gates and shown == "Pending" else shown


def _reason_or_phase(pod: Object, statuses: Iterable[Object]) -> str:
    """Return the first reason among the statuses of containers, else the pod's reason or its phase, else UNKNOWN."""
    reasons = (_state_reason(value_at(each, "state") or {}) for each in statuses)
    phase = value_at(pod, "status", "reason") or value_at(pod, "status", "phase") or UNKNOWN
    return next(filter(None, reasons), str(phase))


def _is_ready_and_running(status: Object) -> bool:
    """Return True if a container is ready and runs. status: of the container."""
    return bool(status.get("ready")) and value_at(status, "state", "running") is not None


def _init_status(pod: Object) -> str:
    """Return the STATUS column of a pod whose init containers are not finished; "" for any other pod."""
    specs = {each.get("name"): each for each in value_at(pod, "spec", "initContainers") or ()}
    for number, container in enumerate(value_at(pod, "status", "initContainerStatuses") or ()):
        state = value_at(container, "state") or {}
        is_sidecar = (specs.get(container.get("name")) or {}).get("restartPolicy") == "Always"
        if value_at(state, "terminated", "exitCode") == 0 or (is_sidecar and container.get("started")):
            continue
        reason = _state_reason(state)
        return f"Init:{reason}" if reason not in ("", "PodInitializing") else f"Init:{number}/{len(specs)}"
    return ""


def _state_reason(state: Object) -> str:
    """Return the reason of a waiting or terminated container as kubectl prints it; "" for a running one.

    state: of the container.
    """
    if reason := value_at(state, "waiting", "reason") or value_at(state, "terminated", "reason"):
        return str(reason)
    if (ended := state.get("terminated")) is None:
        return ""
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def _restarts(pod: Object, now_s: float) -> str:
    """Return the RESTARTS column of a pod: the sum over its containers, without init containers."""
    return str(sum(c.get("restartCount", 0) for c in value_at(pod, "status", "containerStatuses") or ()))


def _node_status(node: Object, now_s: float) -> str:
    """Return the STATUS column of a node: Ready, NotReady or Unknown, with ",SchedulingDisabled" for a cordoned
    node.
    """
    ready: Object = next((c for c in value_at(node, "status", "conditions") or () if c.get("type") == "Ready"), {})
    shown = {"True": "Ready", "False": "NotReady"}.get(ready.get("status", ""), "Unknown")
    return f"{shown},SchedulingDisabled" if value_at(node, "spec", "unschedulable") else shown


def _roles(node: Object, now_s: float) -> str:
    """Return the ROLES column of a node: its roles, sorted and separated by commas; NONE without any."""
    start = "node-role.kubernetes.io/"
    roles = [key.removeprefix(start) for key in value_at(node, "metadata", "labels") or {} if key.startswith(start)]
    return ",".join(sorted(roles)) or NONE


def _address(kind: str) -> Callable[[Object, float], str]:
    """Return the function that prints a cell: a node's address of this type, such as InternalIP.

    NONE if it has none.
    """

    def show(node: Object, now_s: float) -> str:
        addresses = value_at(node, "status", "addresses") or ()
        return next((a.get("address", NONE) for a in addresses if a.get("type") == kind), NONE)

    return show


def _last_seen(event: Object, now_s: float) -> str:
    """Return the time since an Event happened last, as kubectl prints it; UNKNOWN without any timestamp.

    now_s: seconds since 1970.
    """
    for path in (("series", "lastObservedTime"), ("lastTimestamp",), ("eventTime",), ("metadata", "creationTimestamp")):
        if (then_s := unix_s(value_at(event, *path))) is not None:
            return format_duration(now_s - then_s)
    return UNKNOWN


def _involved_object(event: Object, now_s: float) -> str:
    """Return the OBJECT column of an Event: kind/name of the object that it is about."""
    involved = event.get("involvedObject") or {}
    return f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"


def _job_status(job: Object, now_s: float) -> str:
    """Return the STATUS column of a Job: Complete, Failed, Suspended or Running."""
    conditions = {c.get("type"): c.get("status") for c in value_at(job, "status", "conditions") or ()}
    return next((w for w in ("Complete", "Failed", "Suspended") if conditions.get(w) == "True"), "Running")


def _completions(job: Object, now_s: float) -> str:
    """Return the COMPLETIONS column of a Job as kubectl prints it, such as 1/3. now_s: seconds since 1970.

    Without a number of completions the second number is 1, and " of 4" follows for a parallelism of 4.
    """
    done, completions = value_at(job, "status", "succeeded") or 0, value_at(job, "spec", "completions")
    if completions is not None:
        return f"{done}/{completions}"
    parallel = value_at(job, "spec", "parallelism") or 1
    return f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def _duration(job: Object, now_s: float) -> str:
    """Return the DURATION column of a Job: from its start to its completion, or to now without one; "" before its
    start.
    """
    began_s, ended_s = unix_s(value_at(job, "status", "startTime")), unix_s(value_at(job, "status", "completionTime"))
    return "" if began_s is None else format_duration((now_s if ended_s is None else ended_s) - began_s)


NAME = PrinterColumn("Name", text("metadata", "name"), cell_type="name")
AGE = PrinterColumn("Age", time_since("metadata", "creationTimestamp"))

NAMESPACE = (NAME, PrinterColumn("Status", text("status", "phase")), AGE)
POD = (
    NAME,
    PrinterColumn("Ready", _ready_containers),
    PrinterColumn("Status", _pod_status),
    PrinterColumn("Restarts", _restarts),
    AGE,
    PrinterColumn("IP", text("status", "podIP", absent=NONE), 1),
    PrinterColumn("Node", text("spec", "nodeName", absent=NONE), 1),
    PrinterColumn("Nominated Node", text("status", "nominatedNodeName", absent=NONE), 1),
    PrinterColumn("Readiness Gates", lambda pod, now_s: NONE, 1),
)
NODE = (
    NAME,
    PrinterColumn("Status", _node_status),
    PrinterColumn("Roles", _roles),
    AGE,
    PrinterColumn("Version", text("status", "nodeInfo", "kubeletVersion")),
    PrinterColumn("Internal-IP", _address("InternalIP"), 1),
    PrinterColumn("External-IP", _address("ExternalIP"), 1),
    PrinterColumn("OS-Image", text("status", "nodeInfo", "osImage", absent=UNKNOWN), 1),
    PrinterColumn("Kernel-Version", text("status", "nodeInfo", "kernelVersion", absent=UNKNOWN), 1),
    PrinterColumn("Container-Runtime", text("status", "nodeInfo", "containerRuntimeVersion", absent=UNKNOWN), 1),
)
EVENT = (
    PrinterColumn("Last Seen", _last_seen),
    PrinterColumn("Type", text("type")),
    PrinterColumn("Reason", text("reason")),
    PrinterColumn("Object", _involved_object),
    PrinterColumn("Message", text("message")),
)
LEASE = (NAME, PrinterColumn("Holder", text("spec", "holderIdentity")), AGE)
JOB = (
    NAME,
    PrinterColumn("Status", _job_status),
    PrinterColumn("Completions", _completions),
    PrinterColumn("Duration", _duration),
    AGE,
)
STATEFUL_SET = (NAME, PrinterColumn("Ready", _fraction(("status", "readyReplicas"), ("spec", "replicas"))), AGE)
REPLICA_SET = (
    NAME,
    PrinterColumn("Desired", number("spec", "replicas"), cell_type="integer"),
    PrinterColumn("Current", number("status", "replicas"), cell_type="integer"),
    PrinterColumn("Ready", number("status", "readyReplicas"), cell_type="integer"),
    AGE,
)
DEPLOYMENT = (
    NAME,
    PrinterColumn("Ready", _fraction(("status", "readyReplicas"), ("spec", "replicas"))),
    PrinterColumn("Up-to-date", number("status", "updatedReplicas"), cell_type="integer"),
    PrinterColumn("Available", number("status", "availableReplicas"), cell_type="integer"),
    AGE,
)
VOLCANO_JOB = (
    NAME,
    PrinterColumn("Status", text("status", "state", "phase")),
    PrinterColumn("minAvailable", number("status", "minAvailable"), cell_type="integer"),
    PrinterColumn("Runnings", number("status", "running"), cell_type="integer"),
    AGE,
)
VOLCANO_GROUP = (
    NAME,
    PrinterColumn("Status", text("status", "phase")),
    PrinterColumn("minMember", number("spec", "minMember"), cell_type="integer"),
    PrinterColumn("Runnings", number("status", "running"), cell_type="integer"),
    AGE,
)
ANY = (NAME, AGE)


def prefers_table(accept: str) -> bool:
    """Return True if a caller prefers a Table to every other form. accept: the Accept header."""
    first = accept.split(",", 1)[0]
    return "as=Table" in first and "g=meta.k8s.io" in first


def table(kind: ResourceKind, objects: Iterable[Object], version: str, now_s: float) -> dict[str, Any]:
    """Return the metav1.Table of some objects, with one row for each. It includes the definitions of the columns.

    version: resourceVersion of the list. now_s: seconds since 1970, for ages.
    """
    columns = kind.columns or ANY
    rows = []
    for obj in objects:
        cells = [column.show(obj, now_s) for column in columns]
        part = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
        rows.append({"cells": cells, "object": part})
    names = [
        {
            "name": c.name,
            "type": "integer" if c.cell_type == "integer" else "string",
            "format": "name" * (c.cell_type == "name"),
        }
        | {"description": "", "priority": c.priority}
        for c in columns
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "columnDefinitions": names,
        "rows": rows,
    }
