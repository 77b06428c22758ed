"""The parts that the CustomResourceDefinitions of several kinds share.

Templates of pods keep their fields as they come: the pods' own schema judges them. What the contract refuses and CEL
can say is refused at once; the rest is refused by the controller, in a condition with the field's path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnout.controllers.kinds.fields import MOST_REPLICAS
from turnout.controllers.model import CleanPods, Kind, Object, Restart

COUNT = {"type": "integer", "format": "int32", "minimum": 0}
TEXT = {"type": "string"}
ANY: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
TIME = {"type": "string", "format": "date-time"}

Column = tuple[str, str, str]  # name, type and JSON path


def definition(
    kind: Kind,
    group: str,
    version: str,
    spec: Object,
    status: Object,
    columns: Sequence[Column],
    scale: Object | None,
    most_name: int = 63,
    short_names: Sequence[str] = (),
) -> Object:
    """Return the definition of a kind in one group.

    scale: the paths of its scale subresource, None without one. most_name: characters of a job's name. short_names:
    for kubectl.
    """
    return named(kind.kind, kind.plural, group, version, spec, status, columns, scale, most_name, short_names)


def named(
    kind: str,
    plural: str,
    group: str,
    version: str,
    spec: Object,
    status: Object,
    columns: Sequence[Column],
    scale: Object | None,
    most_name: int = 253,
    short_names: Sequence[str] = (),
) -> Object:
    """Return the definition of a kind by its name, as `definition` does."""
    length = f"the name must be a DNS label of at most {most_name} characters"
    types = {"apiVersion": TEXT, "kind": TEXT, "metadata": {"type": "object"}}
    schema = {
        "type": "object",
        "properties": {**types, "spec": spec, "status": status},
        "required": ["spec"],
        "x-kubernetes-validations": [{"rule": f"self.metadata.name.size() <= {most_name}", "message": length}],
    }
    names: dict[str, Any] = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    names |= {"shortNames": list(short_names)} if short_names else {}
    one = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}, **({} if scale is None else {"scale": scale})},
        "additionalPrinterColumns": [{"name": name, "type": type_, "jsonPath": path} for name, type_, path in columns],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "labels": {"app.kubernetes.io/part-of": "turnout"}},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [one]},
    }


def rules(pairs: Sequence[tuple[str, str]]) -> list[Object]:
    """Return validations by CEL: each a rule and the message for who breaks it."""
    return [{"rule": rule, "message": message} for rule, message in pairs]


def run_policy() -> Object:
    """Return the schema of a runPolicy as kubeflow/common has it."""
    scheduling = {
        "type": "object",
        "properties": {
            "minAvailable": COUNT,
            "queue": TEXT,
            "priorityClass": TEXT,
            "minResources": ANY,
            "scheduleTimeoutSeconds": COUNT,
        },
    }
    return {
        "type": "object",
        "properties": {
            "cleanPodPolicy": {"type": "string", "enum": [each.value for each in CleanPods]},
            **dict.fromkeys(("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"), COUNT),
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


def role(
    container: str, more: Mapping[str, Any] | None = None, of_container: Mapping[str, Any] | None = None
) -> Object:
    """Return the schema of a role. container: that must be there. more: further fields. of_container: the same."""
    one = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 63}, "image": TEXT, **(of_container or {})},
        "x-kubernetes-preserve-unknown-fields": True,
    }
    named = {
        "rule": f"self.exists(each, has(each.name) && each.name == '{container}')",
        "message": f"one container must be named {container}",
    }
    pod = {
        "type": "object",
        "properties": {
            "containers": {"type": "array", "maxItems": 64, "items": one, "x-kubernetes-validations": [named]}
        },
        "required": ["containers"],
        "x-kubernetes-preserve-unknown-fields": True,
    }
    template = {"type": "object", "properties": {"metadata": ANY, "spec": pod}, "required": ["spec"]}
    return {
        "type": "object",
        "properties": {
            "replicas": {**COUNT, "maximum": MOST_REPLICAS, "default": 1},
            "restartPolicy": {"type": "string", "enum": [each.value for each in Restart]},
            "template": template,
            **(more or {}),
        },
        "required": ["template"],
    }


def job_status(of_role: Mapping[str, Any] | None = None, more: Mapping[str, Any] | None = None) -> Object:
    """Return the schema of a status as kubeflow/common has it. of_role: further fields of a role. more: of the job."""
    condition = {
        "type": "object",
        "properties": {
            **dict.fromkeys(("type", "status", "reason", "message"), TEXT),
            **dict.fromkeys(("lastUpdateTime", "lastTransitionTime"), TIME),
        },
        "required": ["type", "status"],
    }
    counts = {
        "type": "object",
        "properties": {
            **dict.fromkeys(("active", "succeeded", "failed", "restarts"), COUNT),
            "selector": TEXT,
            "restartedPods": {"type": "array", "items": TEXT},
            "quickFailures": {"type": "object", "additionalProperties": COUNT},
            "lastFailures": {"type": "object", "additionalProperties": {"type": "integer", "format": "int64"}},
            **(of_role or {}),
        },
    }
    return {
        "type": "object",
        "properties": {
            "conditions": {"type": "array", "items": condition},
            "replicaStatuses": {"type": "object", "additionalProperties": counts},
            **dict.fromkeys(("startTime", "completionTime", "lastReconcileTime"), TIME),
            **(more or {}),
        },
    }
