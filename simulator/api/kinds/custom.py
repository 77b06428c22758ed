"""Read a kind from a CustomResourceDefinition, and refuse CRDs that the embedded API cannot serve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from turnout.simulator.api.errors import ApiRefusal, invalid
from turnout.simulator.api.kinds.printer_columns import AGE, NAME, UNKNOWN, at, since
from turnout.simulator.api.model import Object, PrinterColumn, ResourceKind, ScaleSubresource, Show

_STEP = re.compile(r"\.([A-Za-z0-9_-]+)|\['?\"?([^'\"\]]+)'?\"?\]")


def kind_of(crd: Object) -> ResourceKind:
    """Return the kind that a CRD defines. Raises ApiRefusal: 422 for a CRD with faults, 501 for an unsupported one."""
    spec, name = crd.get("spec") or {}, crd["metadata"]["name"]
    names, group = spec.get("names") or {}, spec.get("group", "")
    for path, value in (
        ("spec.group", group),
        ("spec.names.plural", names.get("plural")),
        ("spec.names.kind", names.get("kind")),
    ):
        if not value:
            raise invalid("CustomResourceDefinition", name, f"{path}: Required value")
    if name != f"{names['plural']}.{group}":
        raise invalid("CustomResourceDefinition", name, 'metadata.name: must be spec.names.plural+"."+spec.group')
    served = [version for version in spec.get("versions") or () if version.get("served")]
    if len(served) != 1:
        raise ApiRefusal("NotImplemented", f"CRD {name} serves {len(served)} versions; the embedded API does one")
    (version,) = served
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    if schema is None:
        raise invalid("CustomResourceDefinition", name, "spec.versions[0].schema.openAPIV3Schema: Required value")
    if any(_has_rules(schema)):
        raise ApiRefusal("NotImplemented", f"CRD {name} has x-kubernetes-validations, which need a real API server")
    parts = version.get("subresources") or {}
    return ResourceKind(
        group,
        version["name"],
        names["kind"],
        names["plural"],
        spec.get("scope") == "Namespaced",
        status="status" in parts,
        unconditional=False,
        counted=True,
        short=tuple(names.get("shortNames") or ()),
        custom=True,
        scaling=_scaling(parts["scale"]) if "scale" in parts else None,
        columns=_columns(version.get("additionalPrinterColumns") or ()),
        schema=schema,
        singular=names.get("singular", ""),
    )


def established(crd: Object, now: str) -> Object:
    """Return the status that a CRD has once its kind is served."""
    names = crd["spec"]["names"]
    names = {**names, "singular": names.get("singular") or names["kind"].lower()}
    names["listKind"] = names.get("listKind") or f"{names['kind']}List"
    conditions = [
        {"type": word, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message}
        for word, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    stored = [version["name"] for version in crd["spec"]["versions"] if version.get("storage")]
    return {"conditions": conditions, "acceptedNames": names, "storedVersions": stored}


def _has_rules(schema: Any) -> Iterator[bool]:
    if isinstance(schema, dict):
        yield "x-kubernetes-validations" in schema
        for each in schema.values():
            yield from _has_rules(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _has_rules(each)


def _scaling(subresource: dict[str, Any]) -> ScaleSubresource:
    def path(key: str) -> tuple[str, ...]:
        return tuple(step for step in str(subresource.get(key, "")).split(".") if step)

    return ScaleSubresource(path("specReplicasPath"), path("statusReplicasPath"), path("labelSelectorPath"))


def _columns(columns: Any) -> tuple[PrinterColumn, ...]:
    found = [
        PrinterColumn(
            each["name"],
            _show(each),
            int(each.get("priority", 0)),
            "integer" if each.get("type") == "integer" else "string",
        )
        for each in columns
    ]
    return (NAME, *found) if found else (NAME, AGE)


def _show(column: dict[str, Any]) -> Show:
    """Return the printer of a cell for a simple JSONPath such as `.status.phase` or `.metadata.labels['a.b/c']`."""
    steps = tuple(a or b for a, b in _STEP.findall(column.get("jsonPath", "")))
    if column.get("type") == "date":
        return since(*steps)

    def show(obj: Object, now_s: float) -> str | int:
        found = at(obj, *steps)
        if isinstance(found, bool):
            return "true" if found else "false"
        return (
            ""
            if found is None
            else found
            if isinstance(found, int)
            else str(found)
            if not isinstance(found, dict | list)
            else UNKNOWN
        )

    return show
