"""CustomResourceDefinitions of job kinds, derived from the structs of their fields.

Templates of pods keep their fields as they come: the pods' own schema judges them. Rules that CEL can express are
checked by the API server; the controller checks the others, and reports them in a condition with the field's path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import inspect

from turnout.jobs.fields import FieldStruct

Column = tuple[str, str, str]  # header, type and JSON path of a column of kubectl get
Rules = Sequence[tuple[str, str]]  # each a rule in CEL, and the message if an object breaks it
AGE = ("Age", "date", ".metadata.creationTimestamp")
TEXT = {"type": "string"}
ANY_OBJECT: Mapping[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@dataclass(frozen=True, slots=True)
class Crd:
    """The content of a CustomResourceDefinition, without the names of its kind."""

    spec: type[FieldStruct]  # the fields of `spec` of an object
    status: type[FieldStruct]  # the fields of its `status`
    columns: tuple[Column, ...]  # of kubectl get
    template: Mapping[str, Any] = field(default_factory=lambda: ANY_OBJECT)  # the schema of a role's pods
    scale: tuple[str, str] | None = None  # the paths of the workers in spec and status; None without a scale
    max_name: int = 63  # largest number of characters of an object's name
    short_names: tuple[str, ...] = ()  # for kubectl


def _name_rule(crd: Crd) -> tuple[str, str]:
    """Return (CEL rule on the length of an object's name, its message). Controllers check further rules on names."""
    return f"self.metadata.name.size() <= {crd.max_name}", f"the name must have at most {crd.max_name} characters"


def crd_manifest(kind: str, path: str, crd: Crd) -> dict[str, Any]:
    """Return the CustomResourceDefinition of a kind as JSON values.

    kind: as in objects. path: /apis/GROUP/VERSION/PLURAL, the path of all objects of the kind. crd: the rest of the
    definition.
    """
    group, version, plural = path.split("/")[2:]
    properties = {
        "apiVersion": TEXT,
        "kind": TEXT,
        "metadata": {"type": "object"},
        "spec": schema(crd.spec, crd.template),
        "status": schema(crd.status),
    }
    object_schema = {
        "type": "object",
        "properties": properties,
        "required": ["spec"],
        "x-kubernetes-validations": rules([_name_rule(crd)]),
    }
    names: dict[str, Any] = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    names |= {"shortNames": list(crd.short_names)} if crd.short_names else {}
    version_entry = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": object_schema},
        "subresources": {"status": {}, **({} if crd.scale is None else {"scale": _scale(*crd.scale)})},
        "additionalPrinterColumns": [
            {"name": name, "type": type_, "jsonPath": json_path} for name, type_, json_path in crd.columns
        ],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "labels": {"app.kubernetes.io/part-of": "turnout"}},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version_entry]},
    }


def _scale(spec: str, status: str) -> dict[str, str]:
    """Return the scale subresource of a definition.

    spec, status: the JSON paths of the objects with the fields `replicas` and `active`, as in .spec.worker.
    """
    return {
        "specReplicasPath": f"{spec}.replicas",
        "statusReplicasPath": f"{status}.active",
        "labelSelectorPath": f"{status}.selector",
    }


def rules(pairs: Rules) -> list[dict[str, str]]:
    """Return CEL rules in the form of `x-kubernetes-validations`."""
    return [{"rule": rule, "message": message} for rule, message in pairs]


def pod_template(container: str, container_fields: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the OpenAPI schema of a role's pod template. Fields that it does not name are preserved.

    container: the name of a container that is required, "" for none. container_fields: schemas of further fields of
    containers, by name; None for none.
    """
    container_schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 63}, "image": TEXT, **(container_fields or {})},
        "x-kubernetes-preserve-unknown-fields": True,
    }
    rule = (
        f"self.exists(each, has(each.name) && each.name == '{container}')",
        f"one container must be named {container}",
    )
    containers = {"type": "array", "maxItems": 64, "items": container_schema}
    containers |= {"x-kubernetes-validations": rules([rule])} if container else {}
    pod = {
        "type": "object",
        "properties": {"containers": containers},
        **({"required": ["containers"]} if container else {}),
        "x-kubernetes-preserve-unknown-fields": True,
    }
    required = {"required": ["spec"]} if container else {}
    return {"type": "object", "properties": {"metadata": ANY_OBJECT, "spec": pod}, **required}


def schema(type_: type[FieldStruct], template: Mapping[str, Any] = ANY_OBJECT) -> dict[str, Any]:
    """Return the OpenAPI schema of a struct. template: the schema of the pod templates in it."""
    return _schema(inspect.type_info(type_), template)


def _schema(info: inspect.Type, template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI schema of a type. `X | None` gets the schema of X.

    A field marked `is_template` gets `template`, the schema of pod templates. The extra_json_schema of `Annotated[...]`
    is added, and replaces equal keys.
    """
    if isinstance(info, inspect.Metadata):
        if (info.extra or {}).get("is_template"):
            return dict(template)
        return {**_schema(info.type, template), **(info.extra_json_schema or {})}
    if isinstance(info, inspect.UnionType):
        return _schema(next(each for each in info.types if not isinstance(each, inspect.NoneType)), template)
    return _schema_of_bare(info, template)


def _schema_of_bare(info: inspect.Type, template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI schema of a type that is neither `Annotated[...]` nor a union.

    {}, which allows any value, for others. template: the schema of pod templates inside the type.
    """
    match info:
        case inspect.StructType():
            return _struct_schema(info, template)
        case inspect.DictType(value_type=inspect.AnyType()):
            return {"type": "object"}
        case inspect.DictType(value_type=inner):
            return {"type": "object", "additionalProperties": _schema(inner, template)}
        case inspect.ListType(item_type=inner, max_length=max_items):
            return {"type": "array", **_limits(maxItems=max_items), "items": _schema(inner, template)}
        case inspect.IntType(ge=minimum):
            return {"type": "integer", "format": "int32", **_limits(minimum=minimum)}
        case inspect.EnumType(cls=cls):
            return {"type": "string", "enum": [each.value for each in cls]}
        case inspect.StrType():
            return {"type": "string"}
        case inspect.BoolType():
            return {"type": "boolean"}
    return {}


def _limits(**limits: int | None) -> dict[str, int]:
    """Return the keyword arguments that are not None: limits of a schema by their names."""
    return {name: limit for name, limit in limits.items() if limit is not None}


def _struct_schema(info: inspect.StructType, template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI schema of a struct, with the CEL rules in RULES of its class, if it has them.

    template: the schema of pod templates in its fields.
    """
    required = [each.encode_name for each in info.fields if each.required]
    properties = {each.encode_name: _schema(each.type, template) for each in info.fields}
    cel = rules(getattr(info.cls, "RULES", ()))
    return {
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        **({"x-kubernetes-validations": cel} if cel else {}),
    }
