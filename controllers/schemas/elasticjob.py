"""The CustomResourceDefinitions of ElasticJobs, and of the ScalePlans that resize them.

A distributionStrategy or an optimizeMode that is not run here is told in a condition, not refused (DL-12).
Source: DL-09 to DL-22; docs/facts/dlrover.md 5.1
"""

from __future__ import annotations

from turnout.controllers.kinds.elasticjob import ALL_REDUCE, MODES, MOST_NAME
from turnout.controllers.kinds.elasticjob_pods import CONTAINER, MASTER, WORKER
from turnout.controllers.model import Kind, Object
from turnout.controllers.scale_plan import OWNER_FORM
from turnout.controllers.schemas.common import ANY, COUNT, TEXT, TIME, definition, job_status, named, role, rules

_COLUMNS = (
    ("Phase", "string", ".status.phase"),
    ("Workers", "integer", ".spec.replicaSpecs.worker.replicas"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
_SCALE = {
    "specReplicasPath": ".spec.replicaSpecs.worker.replicas",
    "statusReplicasPath": ".status.replicaStatuses.worker.active",
    "labelSelectorPath": ".status.replicaStatuses.worker.selector",
}
_COUNTS = {"type": "object", "additionalProperties": COUNT}
_OF_ROLE = {
    **dict.fromkeys(("restartCounts", "memoryKills"), _COUNTS),
    "faultyNodes": {"type": "array", "items": TEXT},
    "nextNumber": COUNT,
}
_MORE = {
    **dict.fromkeys(("restartCount", "restartCounts"), COUNT),
    "autoScale": {"type": "boolean"},
    "restartTimeout": COUNT,
    "priority": TEXT,
}
_PULL = {"imagePullPolicy": {"type": "string", "enum": ["Always", "Never", "IfNotPresent"]}}
_ONCE = (
    (
        "!has(self.restartCount) || !has(self.restartCounts) || self.restartCount == self.restartCounts",
        "restartCount and restartCounts mean the same: say one of them",
    ),
)


def elasticjob(kind: Kind, group: str, version: str) -> Object:
    """Return the definition of ElasticJobs in one group."""
    status = job_status(_OF_ROLE, {"phase": TEXT})
    return definition(kind, group, version, _spec(), status, _COLUMNS, _SCALE, MOST_NAME)


def _spec() -> Object:
    worker = {**role(CONTAINER, _MORE, _PULL), "x-kubernetes-validations": rules(_ONCE)}
    roles = {
        "type": "object",
        "properties": {WORKER: worker, MASTER: _master(), **dict.fromkeys(("ps", "chief", "evaluator"), ANY)},
        "required": [WORKER],
    }
    return {
        "type": "object",
        "properties": {
            "distributionStrategy": {**TEXT, "default": ALL_REDUCE},
            "optimizeMode": {**TEXT, "default": MODES[0]},
            "suspend": {"type": "boolean"},
            "resourceLimits": ANY,
            "envs": {"x-kubernetes-preserve-unknown-fields": True},
            "brainService": TEXT,
            "replicaSpecs": roles,
        },
        "required": ["replicaSpecs"],
    }


def _master() -> Object:
    """Return the schema of the master, whose template overrides what it overrides and needs nothing else."""
    one = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 63}, "image": TEXT, **_PULL},
        "x-kubernetes-preserve-unknown-fields": True,
    }
    pod = {
        "type": "object",
        "properties": {"containers": {"type": "array", "maxItems": 64, "items": one}},
        "x-kubernetes-preserve-unknown-fields": True,
    }
    return {
        "type": "object",
        "properties": {
            "replicas": {**COUNT, "minimum": 1, "maximum": 1, "default": 1},
            "restartPolicy": TEXT,
            **_MORE,
            "template": {"type": "object", "properties": {"metadata": ANY, "spec": pod}},
        },
        "x-kubernetes-validations": rules(_ONCE),
    }


def scale_plan(group: str, version: str) -> Object:
    """Return the definition of ScalePlans in one group."""
    worker = {"type": "object", "properties": {"replicas": COUNT, "resource": ANY}}
    free = {"x-kubernetes-preserve-unknown-fields": True}
    spec = {
        "type": "object",
        "properties": {
            "ownerJob": {**TEXT, "pattern": f"^{OWNER_FORM}$"},
            "manualScaling": {"type": "boolean"},
            "replicaResourceSpecs": {"type": "object", "additionalProperties": worker},
            **dict.fromkeys(("createPods", "removePods", "migratePods", "psHosts"), free),
        },
        "required": ["ownerJob"],
    }
    status = {"type": "object", "properties": {"phase": TEXT, "message": TEXT, **dict.fromkeys(_PLAN_TIMES, TIME)}}
    columns = (("Job", "string", ".spec.ownerJob"), ("Phase", "string", ".status.phase"), _COLUMNS[-1])
    return named("ScalePlan", "scaleplans", group, version, spec, status, columns, None)


_PLAN_TIMES = ("createTime", "finishTime")
