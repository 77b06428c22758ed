"""From a URL path to what it means: which kind, which object, which subresource; and what discovery tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulator.api.errors import ApiRefusal
from simulator.api.model import KINDS, Kind, kind_named

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names. name: "" for a whole collection; namespace: "" for all of them, or a kind without one."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def target(path: str) -> Target:
    """Read a resource path. Raises ApiRefusal: 501 for one that Kubernetes may know and we do not."""
    steps = [step for step in path.split("/") if step]
    if steps[:1] == ["api"] and len(steps) > 2:
        group, version, rest = "", steps[1], steps[2:]
    elif steps[:1] == ["apis"] and len(steps) > 3:
        group, version, rest = steps[1], steps[2], steps[3:]
    else:
        raise ApiRefusal("NotImplemented", f"the embedded API does not serve {path}")
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    kind = kind_named(group, version, rest[0])
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
        raise ApiRefusal("NotImplemented", f"the embedded API does not serve {path}")
    return Target(kind, namespace, *rest[1:])


def discovery(path: str) -> dict[str, Any] | None:
    """The answer of a discovery path; None when it is none."""
    groups = sorted({k.group for k in KINDS if k.group})
    match [step for step in path.split("/") if step]:
        case ["version"]:
            return {"major": "1", "minor": "35", "gitVersion": "v1.35.0+turnout-yard", "platform": "embedded"}
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in groups]}
        case ["apis", name] if name in groups:
            return {**_group(name), "kind": "APIGroup", "apiVersion": "v1"}
        case ["api", version]:
            return _resources("", version)
        case ["apis", name, version]:
            return _resources(name, version)
    return None


def _group(name: str) -> dict[str, Any]:
    versions = [
        {"groupVersion": f"{name}/{version}", "version": version}
        for version in sorted({k.version for k in KINDS if k.group == name})
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resources(group: str, version: str) -> dict[str, Any] | None:
    kinds = [k for k in KINDS if (k.group, k.version) == (group, version)]
    if not kinds:
        return None
    rows: list[dict[str, Any]] = []
    for kind in kinds:
        row = {"name": kind.plural, "singularName": kind.kind.lower(), "namespaced": kind.namespaced}
        rows.append({**row, "kind": kind.kind, "verbs": _VERBS, "shortNames": list(kind.short)})
        if kind.status:
            rows.append(
                {**row, "name": f"{kind.plural}/status", "kind": kind.kind, "verbs": ["get", "patch", "update"]}
            )
    if not group:
        rows.append({"name": "pods/binding", "namespaced": True, "kind": "Binding", "verbs": ["create"]})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": kinds[0].api_version, "resources": rows}
