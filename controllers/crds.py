"""The CustomResourceDefinitions of the kinds, from one schema each. `python -m hack.codegen.crds` writes them down.

Templates of pods keep their fields as they come: the pods' own schema judges them. What the contract refuses and CEL
can say is refused at once; the rest is refused by the controller, in a condition with the field's path.
"""

from __future__ import annotations

from turnout.controllers.kinds.pytorchjob import CONTAINER, MOST_REPLICAS
from turnout.controllers.model import CleanPods, Kind, Object, Restart

_COUNT = {"type": "integer", "format": "int32", "minimum": 0}
_TEXT = {"type": "string"}
_ANY: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_TIME = {"type": "string", "format": "date-time"}


def pytorchjob(kind: Kind, group: str, version: str) -> Object:
    """Return the definition of PyTorchJobs in one group. Source: PE-17 to PE-23, PE-48"""
    named = "the name must be a DNS label of at most 63 characters"
    types = {"apiVersion": _TEXT, "kind": _TEXT, "metadata": {"type": "object"}}
    schema = {
        "type": "object",
        "properties": {**types, "spec": _spec(), "status": _status()},
        "required": ["spec"],
        "x-kubernetes-validations": [{"rule": "self.metadata.name.size() <= 63", "message": named}],
    }
    names = {"kind": kind.kind, "listKind": f"{kind.kind}List", "plural": kind.plural, "singular": kind.kind.lower()}
    one = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}, "scale": _SCALE},
        "additionalPrinterColumns": [{"name": name, "type": type_, "jsonPath": path} for name, type_, path in _COLUMNS],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{group}", "labels": {"app.kubernetes.io/part-of": "turnout"}},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [one]},
    }


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


def _spec() -> Object:
    one_of = [*({"rule": rule, "message": message} for rule, message in _RULES)]
    return {
        "type": "object",
        "properties": {
            "nprocPerNode": _TEXT,
            "elasticPolicy": _elastic_policy(),
            "runPolicy": _run_policy(),
            "pytorchReplicaSpecs": {"type": "object", "additionalProperties": _role(), "maxProperties": 2},
        },
        "required": ["pytorchReplicaSpecs"],
        "x-kubernetes-validations": one_of,
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
    pair = {"type": "object", "properties": {"key": _TEXT, "value": _TEXT}}
    counts = ("minReplicas", "maxReplicas", "min", "max", "rdzvPort", "maxRestarts", "nProcPerNode")
    return {
        "type": "object",
        "properties": {
            **dict.fromkeys(counts, _COUNT),
            **dict.fromkeys(("rdzvBackend", "rdzvHost", "rdzvId"), _TEXT),
            "rdzvConf": {"type": "array", "maxItems": 256, "items": pair},
            "standalone": {"type": "boolean"},
            "metrics": {"type": "array", "maxItems": 64, "items": _ANY},
        },
        "x-kubernetes-validations": [
            {
                "rule": "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
                "message": "spec.elasticPolicy.minReplicas is above maxReplicas",
            }
        ],
    }


def _run_policy() -> Object:
    scheduling = {
        "type": "object",
        "properties": {
            "minAvailable": _COUNT,
            "queue": _TEXT,
            "priorityClass": _TEXT,
            "minResources": _ANY,
            "scheduleTimeoutSeconds": _COUNT,
        },
    }
    return {
        "type": "object",
        "properties": {
            "cleanPodPolicy": {"type": "string", "enum": [each.value for each in CleanPods]},
            **dict.fromkeys(("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"), _COUNT),
            "suspend": {"type": "boolean"},
            "managedBy": {
                "type": "string",
                "x-kubernetes-validations": [
                    {"rule": "self == oldSelf", "message": "spec.runPolicy.managedBy never changes"}
                ],
            },
            "schedulingPolicy": scheduling,
        },
    }


def _role() -> Object:
    container = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 63}, "image": _TEXT},
        "x-kubernetes-preserve-unknown-fields": True,
    }
    named = {
        "rule": f"self.exists(each, has(each.name) && each.name == '{CONTAINER}')",
        "message": f"one container must be named {CONTAINER}",
    }
    pod = {
        "type": "object",
        "properties": {
            "containers": {"type": "array", "maxItems": 64, "items": container, "x-kubernetes-validations": [named]}
        },
        "required": ["containers"],
        "x-kubernetes-preserve-unknown-fields": True,
    }
    template = {"type": "object", "properties": {"metadata": _ANY, "spec": pod}, "required": ["spec"]}
    return {
        "type": "object",
        "properties": {
            "replicas": {**_COUNT, "maximum": MOST_REPLICAS, "default": 1},
            "restartPolicy": {"type": "string", "enum": [each.value for each in Restart]},
            "template": template,
        },
        "required": ["template"],
    }


def _status() -> Object:
    condition = {
        "type": "object",
        "properties": {
            **dict.fromkeys(("type", "status", "reason", "message"), _TEXT),
            **dict.fromkeys(("lastUpdateTime", "lastTransitionTime"), _TIME),
        },
        "required": ["type", "status"],
    }
    counts = {
        "type": "object",
        "properties": {
            **dict.fromkeys(("active", "succeeded", "failed", "restarts"), _COUNT),
            "selector": _TEXT,
            "restartedPods": {"type": "array", "items": _TEXT},
        },
    }
    return {
        "type": "object",
        "properties": {
            "conditions": {"type": "array", "items": condition},
            "replicaStatuses": {"type": "object", "additionalProperties": counts},
            **dict.fromkeys(("startTime", "completionTime", "lastReconcileTime"), _TIME),
        },
    }
