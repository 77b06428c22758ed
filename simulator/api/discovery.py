"""Answer discovery: which groups, versions and kinds the API serves, and their OpenAPI.

The OpenAPI lists only the parameters of writes: kubectl reads it to learn that the server checks fields.
"""

from __future__ import annotations

from typing import Any

from turnout.simulator.api.kinds.catalogue import Catalogue
from turnout.simulator.api.model import Kind

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_WRITES = ["get", "patch", "update"]
_VERSION = {
    "major": "1",
    "minor": "35",
    "gitVersion": "v1.35.4+turnout-local",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "embedded",
}


# kubectl asks for this one, as protobuf alone, where the objects of a `kind: List` are applied. A document that knows
# no schema (field 1, the version) makes it send them as they are.
OPENAPI_V2 = b"\x0a\x032.0"
OPENAPI_V2_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def discovery(catalogue: Catalogue, path: str) -> dict[str, Any] | None:
    """Return the answer of a discovery path; None for other paths and for groups that are not served."""
    groups = catalogue.groups()
    match [step for step in path.split("/") if step]:
        case ["version"]:
            return _VERSION
        case ["api"]:
            addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1"}]
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}
        case ["apis"]:
            group_list = [_group(name, versions) for name, versions in groups.items()]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": group_list}
        case ["apis", name] if name in groups:
            return {**_group(name, groups[name]), "kind": "APIGroup", "apiVersion": "v1"}
        case ["api", version]:
            return _resources(catalogue, "", version)
        case ["apis", name, version]:
            return _resources(catalogue, name, version)
        case ["openapi", "v3"]:
            paths = ["api/v1", *(f"apis/{name}/{version}" for name, vs in groups.items() for version in vs)]
            return {"paths": {each: {"serverRelativeURL": f"/openapi/v3/{each}?hash=0"} for each in paths}}
        case ["openapi", "v3", "api", version]:
            return _openapi(catalogue, "", version)
        case ["openapi", "v3", "apis", name, version]:
            return _openapi(catalogue, name, version)
    return None


def _group(name: str, versions: list[str]) -> dict[str, Any]:
    group_versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": group_versions, "preferredVersion": group_versions[0]}


def _kinds(catalogue: Catalogue, group: str, version: str) -> list[Kind]:
    return [kind for kind in catalogue.kinds() if (kind.group, kind.version) == (group, version)]


def _resources(catalogue: Catalogue, group: str, version: str) -> dict[str, Any] | None:
    kinds = _kinds(catalogue, group, version)
    if not kinds:
        return None
    rows: list[dict[str, Any]] = []
    for kind in kinds:
        singular = kind.singular or kind.kind.lower()
        row = {"name": kind.plural, "singularName": singular, "namespaced": kind.namespaced, "kind": kind.kind}
        categories = {"categories": ["all"]} if kind.workload else {}
        rows.append({**row, "verbs": _VERBS, "shortNames": list(kind.short), **categories})
        part = {"singularName": "", "namespaced": kind.namespaced}
        if kind.status:
            rows.append({**part, "name": f"{kind.plural}/status", "kind": kind.kind, "verbs": _WRITES})
        if kind.scaling:
            scale = {"group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": _WRITES}
            rows.append({**part, "name": f"{kind.plural}/scale", **scale})
    if not group:
        of_pods = {"singularName": "", "namespaced": True}
        rows += [
            {**of_pods, "name": "pods/binding", "kind": "Binding", "verbs": ["create"]},
            {**of_pods, "name": "pods/log", "kind": "Pod", "verbs": ["get"]},
            {**of_pods, "name": "pods/eviction", "group": "policy", "version": "v1", "kind": "Eviction"}
            | {"verbs": ["create"]},
        ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": kinds[0].api_version, "resources": rows}


def _openapi(catalogue: Catalogue, group: str, version: str) -> dict[str, Any] | None:
    kinds = _kinds(catalogue, group, version)
    if not kinds:
        return None
    start = f"/apis/{group}/{version}" if group else f"/api/{version}"
    paths: dict[str, Any] = {}
    for kind in kinds:
        where = f"{start}/namespaces/{{namespace}}/{kind.plural}" if kind.namespaced else f"{start}/{kind.plural}"
        named = {"group": group, "version": version, "kind": kind.kind}
        verbs = {
            verb: {
                "x-kubernetes-group-version-kind": named,
                "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
                "responses": {},
            }
            for verb in ("post", "put", "patch")
        }
        paths[where] = {"post": verbs["post"]}
        paths[f"{where}/{{name}}"] = {"put": verbs["put"], "patch": verbs["patch"]}
    return {"openapi": "3.0.0", "info": {"title": "Turnout's local cluster", "version": "v1"}, "paths": paths}
