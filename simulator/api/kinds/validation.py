"""Check names and labels, and which fields of a pod may still change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from turnout.simulator.api.errors import ApiRefusal, invalid
from turnout.simulator.api.kinds import volcano
from turnout.simulator.api.model import Object, ResourceKind

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_POLICIES = ("Always", "OnFailure", "Never")
_CHANGEABLE_SPEC = ("tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds", "schedulingGates")


def check_metadata(kind: ResourceKind, meta: dict[str, Any], namespace: str) -> None:
    """Check a new object's metadata.

    Raises ApiRefusal: 422 for a name, label or owner that Kubernetes would refuse, 400 for a wrong namespace.
    """
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
    for at, owner in enumerate(meta.get("ownerReferences") or ()):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not isinstance(owner, dict) or not isinstance(owner.get(key), str):
                raise invalid(kind.kind, name, f"metadata.ownerReferences[{at}].{key}: Required value")


def check_change(kind: ResourceKind, name: str, old: Object, new: Object) -> None:
    """Check an update. Raises ApiRefusal (422) when it changes a field that is fixed."""
    if kind.is_named("pods"):
        _check_pod_update(name, old, new)
    elif kind.is_named("jobs", "batch.volcano.sh"):
        _check_volcano_update(name, old, new)


def _check_pod_update(name: str, old: Object, new: Object) -> None:
    """Check an update of a pod. Raises ApiRefusal (422) when it changes fields that Kubernetes keeps fixed."""
    if _fixed(old) != _fixed(new):
        raise invalid(
            "Pod",
            name,
            "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`, "
            "`spec.activeDeadlineSeconds`, `spec.tolerations` (only additions), `spec.terminationGracePeriodSeconds`",
        )


def _check_volcano_update(name: str, old: Object, new: Object) -> None:
    """Check an update of a Volcano Job as its webhook does. Raises ApiRefusal (422) when more than its size changes."""
    if volcano.forbidden_change(old.get("spec") or {}, new.get("spec") or {}):
        message = "job updates may not change fields other than `minAvailable`, `tasks[*].replicas under spec`"
        raise invalid("Job", name, message)


def _fixed(pod: Object) -> Object:
    spec = {key: value for key, value in (pod.get("spec") or {}).items() if key not in _CHANGEABLE_SPEC}
    for containers in ("containers", "initContainers"):
        if containers in spec:
            spec[containers] = [{**c, "image": ""} for c in spec[containers]]
    return spec


def check_object(kind: ResourceKind, obj: Object) -> None:
    """Check a pod or a set of pods. Raises ApiRefusal (422) for one that no scheduler or kubelet could read."""
    name = obj["metadata"]["name"]
    if kind.is_named("pods"):
        found = list(_pod_faults(obj.get("spec") or {}, "spec"))
    elif kind.plural in ("jobs", "statefulsets", "replicasets", "deployments") and kind.group in ("batch", "apps"):
        template = (obj.get("spec") or {}).get("template") or {}
        found = list(_pod_faults(template.get("spec") or {}, "spec.template.spec"))
        if kind.group == "apps" and not (obj["spec"].get("selector")):
            found.append("spec.selector: Required value")
    elif kind.is_named("jobs", "batch.volcano.sh"):
        found = list(volcano.faults(obj.get("spec") or {}))
    else:
        return
    if found:
        raise invalid(kind.kind, name, found[0] if len(found) == 1 else f"[{', '.join(found)}]")


def _pod_faults(spec: Object, path: str) -> Iterator[str]:
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers:
        yield f"{path}.containers: Required value"
        return
    names = set()
    for number, container in enumerate(containers):
        where = f"{path}.containers[{number}]"
        for key in ("name", "image"):
            if not (isinstance(container, dict) and container.get(key)):
                yield f"{where}.{key}: Required value"
                return
        if container["name"] in names:
            yield f'{where}.name: Duplicate value: "{container["name"]}"'
        names.add(container["name"])
        yield from _limits(container.get("resources") or {}, where)
    policy = spec.get("restartPolicy")
    if policy not in (None, *_POLICIES):
        listed = ", ".join(f'"{each}"' for each in _POLICIES)
        yield f'{path}.restartPolicy: Unsupported value: "{policy}": supported values: {listed}'


def _limits(resources: Object, where: str) -> Iterator[str]:
    """Yield the faults of extended resources: the request must equal the limit."""
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for resource in sorted(requests.keys() | limits.keys()):
        if "/" in resource and requests.get(resource) != limits.get(resource):
            yield f"{where}.resources.requests: Invalid value: must be equal to {resource} limit"
