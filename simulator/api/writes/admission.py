"""Whether a write may be done at all: the object is of its path's kind and shape, and no other than is meant."""

from __future__ import annotations

from typing import Any

from simulator.api.errors import ApiRefusal, conflict, invalid
from simulator.api.kinds.schema import faults, fill, prune
from simulator.api.model import Kind, Object

_STALE = "the object has been modified; please apply your changes to the latest version and try again"


def as_kind(kind: Kind, obj: Object) -> Object:
    """The object with the kind and apiVersion of its path. Raises ApiRefusal (400) when it says another."""
    for key, ours in (("kind", kind.kind), ("apiVersion", kind.api_version)):
        if obj.get(key) not in (None, "", ours):
            raise ApiRefusal("BadRequest", f"the {key} of the object is {obj[key]!r}, the path is of {ours!r}")
    return {**obj, "kind": kind.kind, "apiVersion": kind.api_version}


def shaped(kind: Kind, obj: Object) -> Object:
    """The object as its CRD's schema wants it. Raises ApiRefusal (422) with every fault."""
    if kind.schema is None:
        return obj
    obj = fill(kind.schema, prune(kind.schema, obj))
    if found := list(faults(kind.schema, obj)):
        told = found[0] if len(found) == 1 else f"[{', '.join(found)}]"
        raise invalid(f"{kind.kind}.{kind.group}", obj["metadata"].get("name", ""), told)
    return obj


def check_update(kind: Kind, born: dict[str, Any], meta: dict[str, Any]) -> None:
    """Raises ApiRefusal: 400 for another name, 409 for another object or an older version, 422 for none where needed.

    born: the metadata that is stored. meta: the metadata of the update.
    """
    name = born["name"]
    if meta.get("name", name) != name:
        raise ApiRefusal("BadRequest", f"the name of the object ({meta['name']}) does not match the URL ({name})")
    if meta.get("uid") not in (None, "", born["uid"]):
        told = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {born['uid']}"
        raise conflict(kind.resource, name, told)
    version = meta.get("resourceVersion")
    if not version and not kind.unconditional:
        raise invalid(kind.kind, name, "metadata.resourceVersion: must be specified for an update")
    if version and version != born["resourceVersion"]:
        raise conflict(kind.resource, name, _STALE)
