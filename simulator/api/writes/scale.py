"""Read and write the scale subresource: autoscaling/v1 Scale."""

from __future__ import annotations

from typing import Any

from turnout.simulator.api.errors import ApiRefusal, invalid
from turnout.simulator.api.kinds.printer_columns import at
from turnout.simulator.api.model import Object, ResourceKind, ScaleSubresource


def scale_of(kind: ResourceKind, obj: Object) -> Object:
    """Return the Scale of an object. Raises ApiRefusal (404) for a kind without one."""
    paths = _paths(kind)
    meta = obj["metadata"]
    selector = at(obj, *paths.selector) if paths.selector else None
    status: dict[str, Any] = {"replicas": int(at(obj, *paths.status_replicas_path) or 0)}
    if selector_text := _selector(selector):
        status["selector"] = selector_text
    metadata_fields = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in metadata_fields if key in meta},
        "spec": {"replicas": int(at(obj, *paths.replicas) or 0)} if at(obj, *paths.replicas) else {},
        "status": status,
    }


def scaled(kind: ResourceKind, obj: Object, scale: Object) -> Object:
    """Return the object with the replicas of a Scale. Raises ApiRefusal (422) for a value that is no number."""
    replicas = at(scale, "spec", "replicas") or 0
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        raise invalid("Scale", obj["metadata"]["name"], "spec.replicas: must be greater than or equal to 0")
    meta = {**obj["metadata"]}
    scale_meta = scale.get("metadata") or {}
    for key in ("uid", "resourceVersion", "name"):
        if scale_meta.get(key):
            meta[key] = scale_meta[key]
        elif key == "resourceVersion":
            meta.pop(key, None)
    return {**_with(obj, _paths(kind).replicas, replicas), "metadata": meta}


def _paths(kind: ResourceKind) -> ScaleSubresource:
    if kind.scaling is None:
        raise ApiRefusal("NotFound", "the server could not find the requested resource")
    return kind.scaling


def _with(obj: Object, path: tuple[str, ...], value: Any) -> Object:
    inside = value if len(path) == 1 else _with(obj.get(path[0]) or {}, path[1:], value)
    return {**obj, path[0]: inside}


def _selector(value: Any) -> str:
    """Return a selector as text: as it is, or made of its matchLabels."""
    if isinstance(value, str):
        return value
    labels = at(value, "matchLabels") if isinstance(value, dict) else None
    return ",".join(f"{key}={label}" for key, label in sorted((labels or {}).items()))
