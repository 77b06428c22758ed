"""The CustomResourceDefinition of MSJobs. Source: MS-01, MS-15 to MS-25"""

from __future__ import annotations

from turnout.controllers.kinds.msjob import ALL_WORKERS, CONTAINER
from turnout.controllers.model import Kind, Object
from turnout.controllers.schemas.common import definition, job_status, role, rules, run_policy


def msjob(kind: Kind, group: str, version: str) -> Object:
    """Return the definition of MSJobs."""
    return definition(kind, group, version, _spec(), job_status(), _COLUMNS, _SCALE)


_COLUMNS = (
    ("State", "string", ".status.conditions[-1:].type"),
    ("Workers", "integer", ".spec.msReplicaSpecs.Worker.replicas"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
_SCALE = {
    "specReplicasPath": ".spec.msReplicaSpecs.Worker.replicas",
    "statusReplicasPath": ".status.replicaStatuses.Worker.active",
    "labelSelectorPath": ".status.replicaStatuses.Worker.selector",
}
_RULES = (
    (
        "self.msReplicaSpecs.all(name, name.lowerAscii() in ['scheduler', 'ps', 'worker'])",
        "spec.msReplicaSpecs: Scheduler, PS and Worker are the roles",
    ),
    (
        "self.msReplicaSpecs.exists(name, name.lowerAscii() == 'worker')",
        "spec.msReplicaSpecs.Worker is missing: a job needs workers",
    ),
    (
        "self.msReplicaSpecs.all(name, name.lowerAscii() != 'scheduler' || !has(self.msReplicaSpecs[name].replicas)"
        " || self.msReplicaSpecs[name].replicas == 1)",
        "spec.msReplicaSpecs.Scheduler.replicas: a job has one Scheduler",
    ),
)


def _spec() -> Object:
    return {
        "type": "object",
        "properties": {
            "runPolicy": run_policy(),
            "successPolicy": {"type": "string", "enum": ["", ALL_WORKERS]},
            "enableDynamicWorker": {"type": "boolean"},
            "msReplicaSpecs": {"type": "object", "additionalProperties": role(CONTAINER), "maxProperties": 3},
        },
        "required": ["msReplicaSpecs"],
        "x-kubernetes-validations": rules(_RULES),
    }
