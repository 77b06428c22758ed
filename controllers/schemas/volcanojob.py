"""The CustomResourceDefinition of Volcano Jobs, for clusters in which Volcano has not installed its own.

Fields and bounds are those of Volcano's; templates of pods keep their fields as they come. Source: VE-14, VE-26
"""

from __future__ import annotations

from typing import Any

from turnout.controllers.kinds.volcanojob_life import ENDS, NEXT, PENDING, RESTARTING, RUNNING
from turnout.controllers.model import Kind, Object
from turnout.controllers.schemas.common import ANY, COUNT, TEXT, TIME, definition, rules

_TEXTS: Object = {"type": "array", "items": TEXT}
_NAME: Object = {"type": "string", "maxLength": 63}
_LONG_NAME: Object = {"type": "string", "maxLength": 253}
_MOST_TASKS = 1_024
# Of Volcano's schema; the controller acts on three of them and refuses the others.
_EVENTS = ("*", "PodFailed", "PodEvicted", "PodPending", "Unknown", "TaskCompleted", "TaskFailed", "JobUpdated")
_OTHER_EVENTS = ("PodRunning", "OutOfSync", "CommandIssued")


def volcanojob(kind: Kind, group: str, version: str) -> Object:
    """Return the definition of Volcano Jobs. Volcano's has no scale, either."""
    return definition(kind, group, version, _spec(), _status(), _COLUMNS, None, short_names=("vcjob", "vj"))


_COLUMNS = (
    ("Status", "string", ".status.state.phase"),
    ("minAvailable", "integer", ".status.minAvailable"),
    ("Runnings", "integer", ".status.running"),
    ("Age", "date", ".metadata.creationTimestamp"),
    ("Queue", "string", ".spec.queue"),
)
_RULES = (("self.tasks.size() > 0", "spec.tasks is empty: a job has one task at least"),)


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _policies() -> Object:
    event = {"type": "string", "enum": [*_EVENTS, *_OTHER_EVENTS]}
    of = {"action": TEXT, "event": event, "events": {"type": "array", "items": event}, "timeout": TEXT}
    return {"type": "array", "items": _object(**of, exitCode={"type": "integer", "format": "int32"})}


def _topology() -> Object:
    mode = {"type": "string", "enum": ["hard", "soft"], "default": "hard"}
    return _object(mode=mode, highestTierAllowed={"type": "integer", "minimum": 0}, highestTierName=_LONG_NAME)


def _task() -> Object:
    containers = {"type": "array", "items": ANY, "minItems": 1}
    pod = {**_object(containers=containers), "required": ["containers"], "x-kubernetes-preserve-unknown-fields": True}
    positive = {**COUNT, "minimum": 1}
    partitions = _object(
        totalPartitions=positive,
        partitionSize=positive,
        minPartitions={**COUNT, "default": 0},
        networkTopology=_topology(),
    )
    schema = _object(
        name=_NAME,
        replicas=COUNT,
        minAvailable=COUNT,
        template={**_object(metadata=ANY, spec=pod), "required": ["spec"]},
        policies=_policies(),
        topologyPolicy={"type": "string", "enum": ["none", "best-effort", "restricted", "single-numa-node"]},
        maxRetry={"type": "integer", "format": "int32", "minimum": -1},
        dependsOn=_object(name=_TEXTS, iteration=TEXT),
        partitionPolicy={**partitions, "required": ["partitionSize", "totalPartitions"]},
    )
    return {**schema, "required": ["template"]}


def _spec() -> Object:
    volume = {**_object(mountPath=TEXT, volumeClaimName=_LONG_NAME, volumeClaim=ANY), "required": ["mountPath"]}
    schema = _object(
        schedulerName=_NAME,
        minAvailable=COUNT,
        volumes={"type": "array", "items": volume},
        tasks={"type": "array", "items": _task(), "maxItems": _MOST_TASKS},
        policies=_policies(),
        plugins={"type": "object", "additionalProperties": _TEXTS},
        runningEstimate=TEXT,
        queue={**_LONG_NAME, "default": "default"},
        maxRetry={**COUNT, "default": 3},
        ttlSecondsAfterFinished=COUNT,
        priorityClassName=_LONG_NAME,
        minSuccess={**COUNT, "minimum": 1},
        networkTopology=_topology(),
    )
    return {**schema, "required": ["tasks"], "x-kubernetes-validations": rules(_RULES)}


def _status() -> Object:
    phases = [PENDING, RUNNING, RESTARTING, *NEXT, *ENDS]
    state = _object(phase={"type": "string", "enum": phases}, reason=TEXT, message=TEXT, lastTransitionTime=TIME)
    counts = ("minAvailable", "pending", "running", "succeeded", "failed", "terminating", "unknown")
    by_phase = _object(phase={"type": "object", "additionalProperties": COUNT})
    return _object(
        state=state,
        **dict.fromkeys((*counts, "version", "retryCount"), COUNT),
        taskStatusCount={"type": "object", "additionalProperties": by_phase},
        runningDuration=TEXT,
        controlledResources={"type": "object", "additionalProperties": TEXT},
        conditions={"type": "array", "items": _object(status=TEXT, lastTransitionTime=TIME)},
    )
