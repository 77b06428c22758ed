"""What a name must look like, and what of a pod may change once it is there."""

from __future__ import annotations

import re
from typing import Any

from simulator.api.errors import ApiRefusal, invalid
from simulator.api.model import Kind, Object

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_CHANGEABLE_SPEC = ("tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds", "schedulingGates")


def check_metadata(kind: Kind, meta: dict[str, Any], namespace: str) -> None:
    """Raises ApiRefusal: 422 for a name or label that Kubernetes would refuse, 400 for a wrong namespace."""
    name = meta.get("name")
    if not name:
        raise invalid(kind.kind, "", "metadata.name: Required value: name or generateName is required")
    if not isinstance(name, str) or len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        raise invalid(kind.kind, str(name), "metadata.name: must be a lowercase RFC 1123 subdomain")
    if kind.namespaced and meta["namespace"] != namespace:
        raise ApiRefusal("BadRequest", "the namespace of the provided object does not match the namespace of the URL")
    for where in ("labels", "annotations"):
        for key, value in (meta.get(where) or {}).items():
            if not isinstance(value, str):
                raise ApiRefusal("BadRequest", f"metadata.{where}[{key}]: {value!r} is not a string")
            if where == "labels" and not _LABEL_VALUE.fullmatch(value):
                raise invalid(kind.kind, name, f"metadata.labels: Invalid value: {value!r}")


def check_pod_update(name: str, old: Object, new: Object) -> None:
    """Raises ApiRefusal (422) when more changes than Kubernetes lets change in a pod's spec."""
    if _fixed(old) != _fixed(new):
        raise invalid(
            "Pod",
            name,
            "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`, "
            "`spec.activeDeadlineSeconds`, `spec.tolerations` (only additions), `spec.terminationGracePeriodSeconds`",
        )


def _fixed(pod: Object) -> Object:
    spec = {key: value for key, value in (pod.get("spec") or {}).items() if key not in _CHANGEABLE_SPEC}
    for containers in ("containers", "initContainers"):
        if containers in spec:
            spec[containers] = [{**c, "image": ""} for c in spec[containers]]
    return spec
