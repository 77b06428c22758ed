"""The CustomResourceDefinition of PyTorchJobs. Source: PE-17 to PE-23, PE-48"""

from __future__ import annotations

from turnout.controllers.kinds.pytorchjob import CONTAINER
from turnout.controllers.model import Kind, Object
from turnout.controllers.schemas.common import ANY, COUNT, TEXT, definition, job_status, role, rules, run_policy

_COLUMNS = (
    ("State", "string", ".status.conditions[-1:].type"),
    ("Workers", "integer", ".spec.pytorchReplicaSpecs.Worker.replicas"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
_SCALE = {
    "specReplicasPath": ".spec.pytorchReplicaSpecs.Worker.replicas",
    "statusReplicasPath": ".status.replicaStatuses.Worker.active",
    "labelSelectorPath": ".status.replicaStatuses.Worker.selector",
}


def pytorchjob(kind: Kind, group: str, version: str) -> Object:
    """Return the definition of PyTorchJobs in one group."""
    return definition(kind, group, version, _spec(), job_status(), _COLUMNS, _SCALE)


def _spec() -> Object:
    return {
        "type": "object",
        "properties": {
            "nprocPerNode": TEXT,
            "elasticPolicy": _elastic_policy(),
            "runPolicy": run_policy(),
            "pytorchReplicaSpecs": {"type": "object", "additionalProperties": role(CONTAINER), "maxProperties": 2},
        },
        "required": ["pytorchReplicaSpecs"],
        "x-kubernetes-validations": rules(_RULES),
    }


_RULES = (
    (
        "self.pytorchReplicaSpecs.all(name, name.lowerAscii() in ['master', 'worker'])",
        "spec.pytorchReplicaSpecs: Master and Worker are the roles",
    ),
    (
        "!('Master' in self.pytorchReplicaSpecs) || !has(self.pytorchReplicaSpecs['Master'].replicas)"
        " || self.pytorchReplicaSpecs['Master'].replicas == 1",
        "spec.pytorchReplicaSpecs.Master.replicas: a job has one Master",
    ),
    (
        "!has(self.elasticPolicy) || !has(self.elasticPolicy.nProcPerNode) || !has(self.nprocPerNode)",
        "spec.elasticPolicy.nProcPerNode must not be used with spec.nprocPerNode",
    ),
    (
        "!has(self.elasticPolicy) || self.pytorchReplicaSpecs.exists(name, name.lowerAscii() == 'worker')",
        "spec.pytorchReplicaSpecs.Worker is missing: spec.elasticPolicy needs it",
    ),
)


def _elastic_policy() -> Object:
    pair = {"type": "object", "properties": {"key": TEXT, "value": TEXT}}
    counts = ("minReplicas", "maxReplicas", "min", "max", "rdzvPort", "maxRestarts", "nProcPerNode")
    return {
        "type": "object",
        "properties": {
            **dict.fromkeys(counts, COUNT),
            **dict.fromkeys(("rdzvBackend", "rdzvHost", "rdzvId"), TEXT),
            "rdzvConf": {"type": "array", "maxItems": 256, "items": pair},
            "standalone": {"type": "boolean"},
            "metrics": {"type": "array", "maxItems": 64, "items": ANY},
        },
        "x-kubernetes-validations": [
            {
                "rule": "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
                "message": "spec.elasticPolicy.minReplicas is above maxReplicas",
            }
        ],
    }
