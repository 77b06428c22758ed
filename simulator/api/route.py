"""Parse a URL path: which kind, which object, which subresource."""

from __future__ import annotations

import re
from dataclasses import dataclass

from turnout.simulator.api.errors import ApiRefusal, Unserved
from turnout.simulator.api.kinds.catalogue import Catalogue
from turnout.simulator.api.model import ResourceKind

_OF_PODS = ("binding", "eviction", "log")


@dataclass(frozen=True, slots=True)
class Target:
    """The meaning of a path."""

    kind: ResourceKind
    namespace: str = ""  # "" for all namespaces, or for a kind without one
    name: str = ""  # "" for a whole collection
    subresource: str = ""


def target(catalogue: Catalogue, path: str) -> Target:
    """Parse a resource path. Raises ApiRefusal: 404 for an unserved kind, 501 for an unsupported subresource."""
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
    kind = catalogue.named(group, version, rest[0])
    if kind is None or (namespace and not kind.namespaced):
        raise unserved(group, version, path)
    if len(rest) > 3:
        raise ApiRefusal("NotImplemented", f"the embedded API does not serve {path}")
    found = Target(kind, namespace, *rest[1:])
    if found.subresource:
        _check_subresource(found)
    return found


def unserved(group: str, version: str, path: str) -> Exception:
    """Return the error for a kind that is not in the catalogue.

    A group of Kubernetes itself gets 501, since a real server has it. Its alpha and beta versions are off there unless
    somebody turns them on, so they are not found. Any other group belongs to a CRD that is not applied or is gone.
    """
    ours = group.endswith(".k8s.io") and not group.endswith(".sigs.k8s.io")  # those of special interest groups are CRDs
    if not group or "." not in group or (ours and re.fullmatch(r"v[0-9]+", version)):
        return ApiRefusal("NotImplemented", f"the embedded API does not serve {path}")
    return Unserved()


def _check_subresource(found: Target) -> None:
    part, kind = found.subresource, found.kind
    if (
        (part == "status" and kind.status)
        or (part == "scale" and kind.scaling)
        or (part in _OF_PODS and kind.is_named("pods"))
    ):
        return
    if kind.custom and part in ("status", "scale"):
        raise ApiRefusal("NotFound", "the server could not find the requested resource")
    raise ApiRefusal("NotImplemented", f"the embedded API does not do {kind.resource}/{part}")
