"""Apply a CRD's schema: drop unknown fields, fill in absent ones, report wrong ones. Also check built-in kinds.

A structural schema is the subset of OpenAPI v3 that apiextensions.k8s.io/v1 takes. CEL rules are not evaluated:
catalogue.py refuses a CRD that has some.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from turnout.simulator.api.kinds import volcano
from turnout.simulator.api.model import ApiRefusal, Object, ResourceKind, invalid, value_at

Schema = Mapping[str, Any]
# Extensions of a schema.
_PRESERVE_UNKNOWN = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING = "x-kubernetes-int-or-string"
# The Python types of decoded JSON, by the type of a schema.
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
# An escaped character, a class of characters, or the end of the text.
_PATTERN_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\$", re.DOTALL)
_ROOT_FIELDS = ("apiVersion", "kind", "metadata")  # that every object has, also without a schema


def prune(schema: Schema, value: Any, root: bool = True) -> Any:
    """Return the value without the fields that the schema does not name, at every depth. A new value.

    Unknown fields stay where the schema preserves them. root: True if the value is a whole object, which always keeps
    apiVersion, kind and metadata.
    """
    if isinstance(value, list):
        return [prune(schema.get("items") or {}, each, False) for each in value]
    if not isinstance(value, dict):
        return value
    properties, extra_schema = schema.get("properties") or {}, schema.get("additionalProperties")
    embedded = root or schema.get("x-kubernetes-embedded-resource")
    known_fields: dict[str, Any] = {}
    for key, each in value.items():
        if embedded and key in _ROOT_FIELDS:
            known_fields[key] = each
        elif key in properties:
            known_fields[key] = prune(properties[key], each, False)
        elif isinstance(extra_schema, Mapping):
            known_fields[key] = prune(extra_schema, each, False)
        elif schema.get(_PRESERVE_UNKNOWN) or extra_schema is True:
            known_fields[key] = each
    return known_fields


def fill_defaults(schema: Schema, value: Any) -> Any:
    """Return a copy of the value with the schema's defaults for absent fields, and for null where null is not allowed.

    A null that is not allowed and has no default is removed from an object, and stays in a list. This holds at every
    depth. Values that are no lists or objects are returned as they are. Source: pkg/apiserver/schema/defaulting of
    apiextensions-apiserver
    """
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [fill_defaults(items, _default(items) if _is_null_by_mistake(items, each) else each) for each in value]
    if not isinstance(value, dict):
        return value
    properties, extra_schema = schema.get("properties") or {}, schema.get("additionalProperties")
    absent = {key: None for key, part in properties.items() if key not in value and part.get("default") is not None}
    filled: dict[str, Any] = {}
    for key, each in (value | absent).items():
        part = properties.get(key, extra_schema if isinstance(extra_schema, Mapping) else None)
        if part is None:
            filled[key] = each
        elif key in absent or _is_null_by_mistake(part, each):
            if (default := _default(part)) is not None:
                filled[key] = fill_defaults(part, default)
        else:
            filled[key] = fill_defaults(part, each)
    return filled


def _is_null_by_mistake(schema: Schema, value: Any) -> bool:
    """Return True if a value is null, and the schema does not allow null."""
    return value is None and not schema.get("nullable")


def _default(schema: Schema) -> Any:
    """Return a copy of the default of a schema; None without one."""
    return copy.deepcopy(schema.get("default"))


def validation_errors(schema: Schema, value: Any, path: str = "") -> Iterator[str]:
    """Yield a sentence for each fault of a value, such as `spec.replicas: Invalid value: ...`; nothing if it is valid.

    path: of the value in its object, "" for the whole object. The texts are those of the API server, perhaps in another
    order. The API server also checks the paths of the scale subresource, which is not done here. Raises re.error for a
    pattern that Python cannot read. Source: kube-openapi pkg/validation/errors, apiextensions-apiserver
    pkg/apiserver/validation
    """
    if value is None:
        if not schema.get("nullable") and (schema.get("type") or schema.get(_INT_OR_STRING)):
            yield _type_error(schema, value, path)
        return
    if not _is_of_type(schema, value):
        yield _type_error(schema, value, path)
        return
    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(json.dumps(each if isinstance(each, str) else _shown(each)) for each in schema["enum"])
        yield f"{path}: Unsupported value: {_shown(value)}: supported values: {allowed}"
    if isinstance(value, str):
        yield from _text_errors(schema, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number_errors(schema, value, path)
    elif isinstance(value, list):
        yield from _list_errors(schema, value, path)
    elif isinstance(value, dict):
        yield from _object_errors(schema, value, path)


def _is_of_type(schema: Schema, value: Any) -> bool:
    """Return True if a value is of the schema's type. A whole float is an integer too; a bool is no number.

    True for a schema without a type, or with an unknown type.
    """
    if schema.get(_INT_OR_STRING):
        return isinstance(value, int | str) and not isinstance(value, bool)
    python_types = _TYPES.get(schema.get("type", ""))
    if python_types is None:
        return True
    if schema["type"] == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, python_types) and not (isinstance(value, bool) and bool not in python_types)


def _type_error(schema: Schema, value: Any, path: str) -> str:
    """Return the sentence about a value of a wrong type. It names the type of the value, not the value."""
    allowed = "integer,string" if schema.get(_INT_OR_STRING) else schema["type"]
    found = _type_of(value)
    return f'{path}: Invalid value: "{found}": {path} in body must be of type {allowed}: "{found}"'


def _type_of(value: Any) -> str:
    """Return the type of decoded JSON by its name in a schema; "null" for None."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return next(name for name, python_types in _TYPES.items() if isinstance(value, python_types))


def _shown(value: Any) -> str:
    """Return a value as JSON. A whole float is shown without a fraction, as Go shows it."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _text_errors(schema: Schema, value: str, path: str) -> Iterator[str]:
    """Yield a sentence for each rule of the schema on length or pattern that a text breaks. path: of the field."""
    limit = schema.get("maxLength", len(value))
    if len(value) > limit:
        yield f"{path}: Too long: may not be more than {limit} byte{'' if limit == 1 else 's'}"
    start = f"{path}: Invalid value: {_shown(value)}: {path} in body"
    if len(value) < schema.get("minLength", 0):
        yield f"{start} should be at least {schema['minLength']} chars long"
    if "pattern" in schema and not _python_pattern(schema["pattern"]).search(value):
        yield f"{start} should match '{schema['pattern']}'"


@functools.lru_cache(maxsize=256)
def _python_pattern(pattern: str) -> re.Pattern[str]:
    """Return the pattern of a schema for Python's re. `$` matches only at the very end, not before a last newline.

    As in Go, \\d, \\w and \\s match ASCII only. A pattern that begins with flags, such as (?m), keeps its `$`. Raises
    re.error for a pattern that Python cannot read.
    """
    if not pattern.startswith("(?"):
        pattern = _PATTERN_PART.sub(lambda part: r"\Z" if part[0] in ("$", r"\z") else part[0], pattern)
    return re.compile(pattern, re.ASCII)


def _number_errors(schema: Schema, value: float, path: str) -> Iterator[str]:
    """Yield a sentence for each bound of the schema that a number breaks. path: of the field."""
    low, high = schema.get("minimum"), schema.get("maximum")
    start = f"{path}: Invalid value: {_shown(value)}: {path} in body should be"
    if low is not None and (value < low or (schema.get("exclusiveMinimum") and value == low)):
        yield f"{start} greater than {'' if schema.get('exclusiveMinimum') else 'or equal to '}{_shown(low)}"
    if high is not None and (value > high or (schema.get("exclusiveMaximum") and value == high)):
        yield f"{start} less than {'' if schema.get('exclusiveMaximum') else 'or equal to '}{_shown(high)}"


def _list_errors(schema: Schema, value: list[Any], path: str) -> Iterator[str]:
    """Yield the errors of a list and of its items, and duplicates of its x-kubernetes-list-map-keys.

    path: of the field.
    """
    size, limit = len(value), schema.get("maxItems", len(value))
    if size > limit:
        yield f"{path}: Too many: {size}: must have at most {limit} item{'' if limit == 1 else 's'}"
    if size < schema.get("minItems", 0):
        yield f"{path}: Invalid value: {size}: {path} in body should have at least {schema['minItems']} items"
    for number, each in enumerate(value):
        yield from validation_errors(schema.get("items") or {}, each, f"{path}[{number}]")
    keys = schema.get("x-kubernetes-list-map-keys")
    if keys:
        item_keys = [tuple(each.get(key) for key in keys) for each in value if isinstance(each, dict)]
        for number, each in enumerate(item_keys):
            if each in item_keys[:number]:
                yield f"{path}[{number}]: Duplicate value: {_shown(dict(zip(keys, each, strict=True)))}"


def _object_errors(schema: Schema, value: dict[str, Any], path: str) -> Iterator[str]:
    """Yield an error for each missing required field of an object, and the errors of its fields.

    path: "" for a whole object, whose apiVersion, kind and metadata are not checked.
    """
    start = f"{path}." if path else ""
    for key in schema.get("required") or ():
        if key not in value:
            yield f"{start}{key}: Required value"
    properties, extra_schema = schema.get("properties") or {}, schema.get("additionalProperties")
    for key, each in value.items():
        part = properties.get(key, extra_schema if isinstance(extra_schema, Mapping) else None)
        if part is not None and not (not path and key in _ROOT_FIELDS):
            yield from validation_errors(part, each, f"{start}{key}")


_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_NODE_CONSTRAINTS = ("nodeSelector", "affinity")  # fields that may become narrower while a pod is gated
# Fields of a pod's spec that an update may change.
_CHANGEABLE_SPEC = ("tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds", "schedulingGates")


def check_metadata(kind: ResourceKind, meta: dict[str, Any], namespace: str) -> None:
    """Check a new object's metadata. meta: with the namespace, for a namespaced kind. namespace: of the URL.

    Raises ApiRefusal: 422 for a name that is no lowercase RFC 1123 subdomain, a wrong label value or an incomplete
    owner reference; 400 for a wrong namespace, or a label or annotation that is no string. The keys of labels are not
    checked. Raises AttributeError or TypeError for labels or owners of another form.
    """
    name = meta.get("name")
    if not name:
        raise invalid(kind.kind, "", "metadata.name: Required value: name or generateName is required")
    if not isinstance(name, str) or len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        raise invalid(kind.kind, str(name), "metadata.name: must be a lowercase RFC 1123 subdomain")
    if kind.namespaced and meta["namespace"] != namespace:
        raise ApiRefusal("BadRequest", "the namespace of the provided object does not match the namespace of the URL")
    if error := next(_metadata_errors(meta), None):
        raise invalid(kind.kind, name, error)


def _metadata_errors(meta: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each wrong label value and each incomplete owner reference.

    Raises ApiRefusal (400) for a label or annotation that is no string.
    """
    for where in ("labels", "annotations"):
        for key, value in (meta.get(where) or {}).items():
            if not isinstance(value, str):
                raise ApiRefusal("BadRequest", f"metadata.{where}[{key}]: {value!r} is not a string")
            if where == "labels" and not _LABEL_VALUE.fullmatch(value):
                yield f"metadata.labels: Invalid value: {value!r}"
    for index, owner in enumerate(meta.get("ownerReferences") or ()):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not isinstance(value_at(owner, key), str):
                yield f"metadata.ownerReferences[{index}].{key}: Required value"


def check_change(kind: ResourceKind, name: str, old: Object, new: Object) -> None:
    """Check an update of a pod or Volcano Job; updates of other kinds are not checked here.

    name: of the object. Raises ApiRefusal (422) if it changes a field that is fixed. old: the stored object. new: the
    object to store.
    """
    if kind.is_named("pods"):
        _check_pod_update(name, old, new)
    elif kind.is_named("jobs", "batch.volcano.sh"):
        _check_volcano_update(name, old, new)


def _check_pod_update(name: str, old: Object, new: Object) -> None:
    """Check an update of a pod. Raises ApiRefusal (422) if it changes a field that Kubernetes keeps fixed.

    name: of the pod. old: the stored pod. new: the pod to store.
    """
    if _immutable_part(old) != _immutable_part(_without_narrowing(old, new)):
        raise invalid(
            "Pod",
            name,
            "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`, "
            "`spec.activeDeadlineSeconds`, `spec.tolerations` (only additions), `spec.terminationGracePeriodSeconds`",
        )


def _check_volcano_update(name: str, old: Object, new: Object) -> None:
    """Check an update of a Volcano Job as its webhook does. Raises ApiRefusal (422) if more than its size changes.

    name: of the job. old: the stored job. new: the job to store.
    """
    if volcano.is_forbidden_change(old.get("spec") or {}, new.get("spec") or {}):
        message = "job updates may not change fields other than `minAvailable`, `tasks[*].replicas under spec`"
        raise invalid("Job", name, message)


def _without_narrowing(old: Object, new: Object) -> Object:
    """Return the new pod with the old node constraints if the old pod was gated and the update only narrows these.

    That is a copy; else the new pod itself. Source: ValidatePodUpdate and KEP-3838 of Kubernetes
    """
    before, after = old.get("spec") or {}, new.get("spec") or {}
    if not before.get("schedulingGates") or not _only_adds_node_constraints(before, after):
        return new
    spec = {key: value for key, value in after.items() if key not in _NODE_CONSTRAINTS}
    return {**new, "spec": spec | {key: before[key] for key in _NODE_CONSTRAINTS if key in before}}


def _only_adds_node_constraints(before: Object, after: Object) -> bool:
    """Return True if an update of a pod's spec only adds node constraints, as Kubernetes allows for a gated pod.

    The nodeSelector keeps its entries, and each required node selector term keeps its requirements; without such terms
    any may be set. Preferred node terms may change. Pod affinity and anti-affinity must be equal. before, after: the
    spec.
    """
    if not (before.get("nodeSelector") or {}).items() <= (after.get("nodeSelector") or {}).items():
        return False
    old, new = (dict(spec.get("affinity") or {}) for spec in (before, after))
    old_terms, new_terms = (_required_terms(affinity.pop("nodeAffinity", None) or {}) for affinity in (old, new))
    terms_narrower = not old_terms or (
        len(old_terms) == len(new_terms) and all(map(_adds_requirements, old_terms, new_terms))
    )
    return old == new and terms_narrower


def _required_terms(node_affinity: Object) -> list[Object]:
    """Return the required node selector terms of a node affinity; empty without any."""
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return list(required.get("nodeSelectorTerms") or ())


def _adds_requirements(old_term: Object, new_term: Object) -> bool:
    """Return True if a node selector term has all requirements that it had before."""
    fields = ("matchExpressions", "matchFields")
    return all(each in (new_term.get(field) or ()) for field in fields for each in old_term.get(field) or ())


def _immutable_part(pod: Object) -> Object:
    """Return a copy of the part of a pod's spec that no update may change. Images are empty in it, because they may
    change.
    """
    spec = {key: value for key, value in (pod.get("spec") or {}).items() if key not in _CHANGEABLE_SPEC}
    for containers in ("containers", "initContainers"):
        if containers in spec:
            spec[containers] = [{**c, "image": ""} for c in spec[containers]]
    return spec


def check_object(kind: ResourceKind, obj: Object) -> None:
    """Check a new or updated pod, set of pods, batch Job or Volcano Job. Other kinds are not checked.

    Raises ApiRefusal (422) with all errors.
    """
    if errors := _errors_of(kind, obj):
        text = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
        raise invalid(kind.kind, obj["metadata"]["name"], text)


def _errors_of(kind: ResourceKind, obj: Object) -> list[str]:
    """Return the errors of a pod, a set of pods, a batch Job or a Volcano Job; [] for a valid object or another
    kind.
    """
    spec = obj.get("spec") or {}
    if kind.is_named("pods"):
        return list(_pod_errors(spec, "spec"))
    if kind.is_named("jobs", "batch.volcano.sh"):
        return list(volcano.validation_errors(spec))
    if kind.plural not in ("jobs", "statefulsets", "replicasets", "deployments") or kind.group not in ("batch", "apps"):
        return []
    errors = list(_pod_errors((spec.get("template") or {}).get("spec") or {}, "spec.template.spec"))
    if kind.group == "apps" and not spec.get("selector"):
        errors.append("spec.selector: Required value")
    return errors


def _pod_errors(spec: Object, path: str) -> Iterator[str]:
    """Yield a sentence for each fault of a pod's spec: missing names and images, duplicate names, limits, restart
    policy.

    Init containers are not checked. path: of the spec in its object. A container without a name or image ends the
    check.
    """
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
        yield from _extended_resource_errors(container.get("resources") or {}, where)
    policy = spec.get("restartPolicy")
    if policy not in (None, *_RESTART_POLICIES):
        listed = ", ".join(f'"{each}"' for each in _RESTART_POLICIES)
        yield f'{path}.restartPolicy: Unsupported value: "{policy}": supported values: {listed}'


def _extended_resource_errors(resources: Object, where: str) -> Iterator[str]:
    """Yield a sentence for each extended resource whose request differs from its limit.

    where: path of the container. resources: of the container.
    """
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for resource in sorted(requests.keys() | limits.keys()):
        if "/" in resource and requests.get(resource) != limits.get(resource):
            yield f"{where}.resources.requests: Invalid value: must be equal to {resource} limit"
