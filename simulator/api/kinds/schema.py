"""Apply a CRD's schema: drop unknown fields, fill in absent ones, report wrong ones.

A structural schema is the subset of OpenAPI v3 that apiextensions.k8s.io/v1 takes. CEL rules are not evaluated:
custom.py refuses a CRD that has some.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from turnout.simulator.api.kinds import volcano
from turnout.simulator.api.model import ApiRefusal, Object, ResourceKind, invalid, value_at

Schema = Mapping[str, Any]
_KEEP = "x-kubernetes-preserve-unknown-fields"
_EITHER = "x-kubernetes-int-or-string"
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
_ROOT = ("apiVersion", "kind", "metadata")


def prune(schema: Schema, value: Any, root: bool = True) -> Any:
    """Return the value without the fields that the schema does not name."""
    if isinstance(value, list):
        return [prune(schema.get("items") or {}, each, False) for each in value]
    if not isinstance(value, dict):
        return value
    known, more = schema.get("properties") or {}, schema.get("additionalProperties")
    embedded = root or schema.get("x-kubernetes-embedded-resource")
    known_fields: dict[str, Any] = {}
    for key, each in value.items():
        if embedded and key in _ROOT:
            known_fields[key] = each
        elif key in known:
            known_fields[key] = prune(known[key], each, False)
        elif isinstance(more, Mapping):
            known_fields[key] = prune(more, each, False)
        elif schema.get(_KEEP) or more is True:
            known_fields[key] = each
    return known_fields


def fill_defaults(schema: Schema, value: Any) -> Any:
    """Return the value with defaults for absent fields, and for null fields that may not be null."""
    if isinstance(value, list):
        return [fill_defaults(schema.get("items") or {}, each) for each in value]
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    for key, part in (schema.get("properties") or {}).items():
        if filled.get(key) is None and "default" in part and not (key in filled and part.get("nullable")):
            filled[key] = copy.deepcopy(part["default"])
        if key in filled:
            filled[key] = fill_defaults(part, filled[key])
    more = schema.get("additionalProperties")
    if isinstance(more, Mapping):
        known = schema.get("properties") or {}
        filled = {key: each if key in known else fill_defaults(more, each) for key, each in filled.items()}
    return filled


def faults(schema: Schema, value: Any, path: str = "") -> Iterator[str]:
    """Yield each fault as text, such as `spec.replicas: Invalid value: ...`."""
    where = path or "object"
    if value is None:
        if not schema.get("nullable") and schema.get("type"):
            yield f"{where}: Invalid value: null: must be of type {schema['type']}"
        return
    if not _is_of_type(schema, value):
        named = "integer or string" if schema.get(_EITHER) else schema.get("type")
        yield f"{where}: Invalid value: {value!r}: must be of type {named}"
        return
    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(f'"{each}"' for each in schema["enum"])
        yield f"{where}: Unsupported value: {value!r}: supported values: {allowed}"
    if isinstance(value, str):
        yield from _text_faults(schema, value, where)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number_faults(schema, value, where)
    elif isinstance(value, list):
        yield from _list_faults(schema, value, where, path)
    elif isinstance(value, dict):
        yield from _object_faults(schema, value, path)


def _is_of_type(schema: Schema, value: Any) -> bool:
    """Return True if a value is of the schema's type. A whole float counts as an integer, a bool as nothing else."""
    if schema.get(_EITHER):
        return isinstance(value, int | str) and not isinstance(value, bool)
    python_types = _TYPES.get(schema.get("type", ""))
    if python_types is None:
        return True
    if schema["type"] == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, python_types) and not (isinstance(value, bool) and bool not in python_types)


def _text_faults(schema: Schema, value: str, where: str) -> Iterator[str]:
    """Yield a message for each rule on length or pattern that a text breaks. where: path of the field."""
    if len(value) > schema.get("maxLength", len(value)):
        yield f"{where}: Too long: may not be more than {schema['maxLength']} bytes"
    if len(value) < schema.get("minLength", 0):
        yield f"{where}: Invalid value: {value!r}: should be at least {schema['minLength']} chars long"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{where}: Invalid value: {value!r}: should match '{schema['pattern']}'"


def _number_faults(schema: Schema, value: float, where: str) -> Iterator[str]:
    """Yield a message for each bound that a number breaks. where: path of the field."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and (value < low or (schema.get("exclusiveMinimum") and value == low)):
        yield f"{where}: Invalid value: {value}: should be greater than or equal to {low}"
    if high is not None and (value > high or (schema.get("exclusiveMaximum") and value == high)):
        yield f"{where}: Invalid value: {value}: should be less than or equal to {high}"


def _list_faults(schema: Schema, value: list[Any], where: str, path: str) -> Iterator[str]:
    """Yield the faults of a list and of its items; of an x-kubernetes-list-map-keys list also keys that stand twice."""
    if len(value) > schema.get("maxItems", len(value)):
        yield f"{where}: Too many: {len(value)}: must have at most {schema['maxItems']} items"
    if len(value) < schema.get("minItems", 0):
        yield f"{where}: Invalid value: {len(value)}: should have at least {schema['minItems']} items"
    for number, each in enumerate(value):
        yield from faults(schema.get("items") or {}, each, f"{path}[{number}]")
    keys = schema.get("x-kubernetes-list-map-keys")
    if keys:
        item_keys = [tuple(each.get(key) for key in keys) for each in value if isinstance(each, dict)]
        for number, each in enumerate(item_keys):
            if each in item_keys[:number]:
                yield f"{path}[{number}]: Duplicate value: {dict(zip(keys, each, strict=True))}"


def _object_faults(schema: Schema, value: dict[str, Any], path: str) -> Iterator[str]:
    """Yield missing required fields of an object, and the faults of its fields."""
    start = f"{path}." if path else ""
    for key in schema.get("required") or ():
        if key not in value:
            yield f"{start}{key}: Required value"
    known, more = schema.get("properties") or {}, schema.get("additionalProperties")
    for key, each in value.items():
        part = known.get(key, more if isinstance(more, Mapping) else None)
        if part is not None and not (not path and key in _ROOT):
            yield from faults(part, each, f"{start}{key}")


_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_POLICIES = ("Always", "OnFailure", "Never")
_NODE_CHOICE = ("nodeSelector", "affinity")  # may become narrower while a pod is gated
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
    if fault := next(_metadata_faults(meta), None):
        raise invalid(kind.kind, name, fault)


def _metadata_faults(meta: dict[str, Any]) -> Iterator[str]:
    """Yield the faults of labels and owners. Raises ApiRefusal (400) for a label or annotation that is no string."""
    for where in ("labels", "annotations"):
        for key, value in (meta.get(where) or {}).items():
            if not isinstance(value, str):
                raise ApiRefusal("BadRequest", f"metadata.{where}[{key}]: {value!r} is not a string")
            if where == "labels" and not _LABEL_VALUE.fullmatch(value):
                yield f"metadata.labels: Invalid value: {value!r}"
    for at, owner in enumerate(meta.get("ownerReferences") or ()):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not isinstance(value_at(owner, key), str):
                yield f"metadata.ownerReferences[{at}].{key}: Required value"


def check_change(kind: ResourceKind, name: str, old: Object, new: Object) -> None:
    """Check an update. Raises ApiRefusal (422) when it changes a field that is fixed."""
    if kind.is_named("pods"):
        _check_pod_update(name, old, new)
    elif kind.is_named("jobs", "batch.volcano.sh"):
        _check_volcano_update(name, old, new)


def _check_pod_update(name: str, old: Object, new: Object) -> None:
    """Check an update of a pod. Raises ApiRefusal (422) when it changes fields that Kubernetes keeps fixed."""
    if _immutable_part(old) != _immutable_part(_without_narrowing(old, new)):
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


def _without_narrowing(old: Object, new: Object) -> Object:
    """Return the new pod with the old constraints on its node if it was gated and they only became narrower.

    Source: ValidatePodUpdate and KEP-3838 of Kubernetes
    """
    before, after = old.get("spec") or {}, new.get("spec") or {}
    if not before.get("schedulingGates") or not _is_narrower(before, after):
        return new
    spec = {key: value for key, value in after.items() if key not in _NODE_CHOICE}
    return {**new, "spec": spec | {key: before[key] for key in _NODE_CHOICE if key in before}}


def _is_narrower(before: Object, after: Object) -> bool:
    """Return True if a pod's spec allows no node that it did not allow before, and its other affinity is the same."""
    if not (before.get("nodeSelector") or {}).items() <= (after.get("nodeSelector") or {}).items():
        return False
    old, new = (dict(spec.get("affinity") or {}) for spec in (before, after))
    was, now = (_required_terms(affinity.pop("nodeAffinity", None) or {}) for affinity in (old, new))
    narrowed = not was or (len(was) == len(now) and all(map(_adds_requirements, was, now)))
    return old == new and narrowed


def _required_terms(node_affinity: Object) -> list[Object]:
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return list(required.get("nodeSelectorTerms") or ())


def _adds_requirements(was: Object, now: Object) -> bool:
    """Return True if a term has all requirements that it had before."""
    fields = ("matchExpressions", "matchFields")
    return all(each in (now.get(field) or ()) for field in fields for each in was.get(field) or ())


def _immutable_part(pod: Object) -> Object:
    """Return the part of a pod's spec that no update may change."""
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
    """Yield the faults of a pod's spec: containers without name or image, and names that stand twice."""
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
