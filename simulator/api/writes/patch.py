"""Apply patches and scale changes, and note which manager owns which fields.

Patches: merge (RFC 7386), JSON (RFC 6902), and strategic merge as far as our programs use it.

A strategic merge follows the merge keys below; a list that is not among them is replaced, as `atomic` lists are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from turnout.simulator.api.model import ApiRefusal, Object, ResourceKind, ScaleSubresource, invalid, value_at

_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "conditions": "type",
    "ownerReferences": "uid",
    "addresses": "type",
}


def merge_patch(target: Any, patch: Any) -> Any:
    """Return the result of a merge patch (RFC 7386). The target is not changed, but the result shares unchanged parts
    with it.

    In an object of the patch null removes a field; an object is merged, any other value replaces. A patch that is no
    object is itself the result.
    """
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def strategic_merge_patch(target: Any, patch: Any, field: str = "") -> Any:
    """Return the result of a strategic merge patch. The target is not changed; the result shares unchanged parts with
    it.

    Of the directives, `$patch: replace` counts in an object, and `$patch: delete` in an entry of a merged list; another
    value of `$patch` is ignored. field: name of the patched field, "" at the root. Raises ApiRefusal: 501 for a
    directive with another name, 400 for a list entry without its merge key. Raises TypeError for a merge key that is no
    scalar, and AttributeError for a stored list whose entries are no objects.
    """
    if isinstance(patch, list) and field in _MERGE_KEYS:
        return _merge_list(target if isinstance(target, list) else [], patch, _MERGE_KEYS[field])
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    if any(key.startswith("$") for key in patch if key != "$patch"):
        raise ApiRefusal("NotImplemented", f"strategic merge directives are not supported here: {sorted(patch)}")
    directive = patch.get("$patch")
    merged = dict(target) if isinstance(target, dict) and directive != "replace" else {}
    for key, value in patch.items():
        if key == "$patch":
            continue
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = strategic_merge_patch(merged.get(key), value, key)
    return merged


def _merge_list(target: list[Any], patch: list[Any], key: str) -> list[Any]:
    """Return a list with patched entries, merged by the field `key`, in the order that the API server gives them.

    Raises ApiRefusal (400) for an entry of the patch without this field.
    """
    order = {old.get(key): i for i, old in enumerate(target)}
    deleted_keys: set[Any] = set()
    changed: list[Any] = []
    for entry in patch:
        if not isinstance(entry, dict) or key not in entry:
            raise ApiRefusal("BadRequest", f"an entry of a patched list lacks its merge key {key!r}")
        if entry.get("$patch") == "delete":
            deleted_keys.add(entry[key])
        else:
            at = order.get(entry[key])
            changed.append(strategic_merge_patch({} if at is None else target[at], entry))
    named = deleted_keys | {entry[key] for entry in changed}
    return _in_order(order, [old for old in target if old.get(key) not in named], changed, key)


def _in_order(order: Mapping[Any, int], others: list[Any], changed: list[Any], key: str) -> list[Any]:
    """Return the entries of two lists in one order: a changed entry keeps its place, a new one comes before the others.

    Both lists are used up. others: the entries that the patch does not name. changed: the entries of the patch. order:
    the place of each entry before the patch, by the value of its field `key`.
    """
    merged: list[Any] = []
    while others and changed:
        at = order.get(changed[0][key])
        merged.append((others if at is not None and order[others[0].get(key)] < at else changed).pop(0))
    return [*merged, *others, *changed]


def json_patch(target: Any, operations: Any) -> Any:
    """Return the result of a JSON patch (RFC 6902); the target is not changed.

    Raises ApiRefusal: 400 if the operations are no list, 422 if an operation does not apply.
    """
    if not isinstance(operations, list):
        raise ApiRefusal("BadRequest", "a JSON patch is a list of operations")
    document = copy.deepcopy(target)
    for operation in operations:
        try:
            document = _apply(document, operation)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            raise ApiRefusal("Invalid", f"the JSON patch does not apply at {operation!r}: {error!r}") from error
    return document


def _apply(document: Any, operation: dict[str, Any]) -> Any:
    """Apply one operation of a JSON patch to the document, in place if possible, and return the document.

    Raises ValueError, KeyError, IndexError, TypeError or AttributeError if it does not apply.
    """
    path = _pointer_steps(operation["path"])
    match operation["op"]:
        case "test":
            if _value_at(document, path) != operation["value"]:
                raise ValueError("test failed")
        case "remove":
            _remove_value(document, path)
        case "replace":
            if not path:
                return operation["value"]
            if isinstance(_value_at(document, path[:-1]), list):
                _remove_value(document, path)
            _set_value(
                document, path, operation["value"]
            )  # a key that is not there is added, as the API server does it
        case "add":
            if not path:
                return operation["value"]
            _set_value(document, path, operation["value"])
        case "move":
            _set_value(document, path, _remove_value(document, _pointer_steps(operation["from"])))
        case "copy":
            _set_value(document, path, copy.deepcopy(_value_at(document, _pointer_steps(operation["from"]))))
        case unknown:
            raise ValueError(f"no such operation: {unknown}")
    return document


def _pointer_steps(pointer: str) -> list[str]:
    """Return the keys of a JSON pointer, unescaped. Raises ValueError for an invalid pointer."""
    if pointer and not pointer.startswith("/"):
        raise ValueError("a pointer starts with /")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _value_at(document: Any, path: list[str]) -> Any:
    """Return the value at a path of the document, the document itself for [].

    Raises KeyError or IndexError for a missing key or index, ValueError for an index that is no number, and TypeError
    for a step into a value that is neither an object nor a list. A negative index counts from the end.
    """
    for step in path:
        document = document[int(step)] if isinstance(document, list) else document[step]
    return document


def _set_value(document: Any, path: list[str], value: Any) -> None:
    """Set the value at a path of the document, in place. In a list the value is inserted, "-" appends it; in an object
    it replaces a value.

    path: not []. Raises KeyError, IndexError, ValueError or TypeError if the path to the value does not exist.
    """
    parent, last = _value_at(document, path[:-1]), path[-1]
    if isinstance(parent, list):
        parent.insert(len(parent) if last == "-" else _index(last, len(parent)), value)
    else:
        parent[last] = value


def _remove_value(document: Any, path: list[str]) -> Any:
    """Remove the value at a path of the document, and return it.

    path: not []. Raises KeyError or IndexError if there is none, AttributeError for a step into a value that is neither
    an object nor a list, and the errors of _value_at().
    """
    parent, last = _value_at(document, path[:-1]), path[-1]
    return parent.pop(_index(last, len(parent) - 1)) if isinstance(parent, list) else parent.pop(last)


def _index(text: str, maximum: int) -> int:
    """Return a list index. Raises IndexError if it is not in 0..maximum, ValueError if it is no number."""
    at = int(text)
    if not 0 <= at <= maximum:
        raise IndexError(f"{at} is outside 0..{maximum}")
    return at


def scale_of(kind: ResourceKind, obj: Object) -> Object:
    """Return the autoscaling/v1 Scale of an object. Its spec is empty for 0 replicas.

    Raises ApiRefusal (404) for a kind without a scale.
    """
    paths = _scale_paths(kind)
    meta = obj["metadata"]
    selector = value_at(obj, *paths.selector) if paths.selector else None
    status: dict[str, Any] = {"replicas": int(value_at(obj, *paths.status_replicas_path) or 0)}
    if selector_text := _selector(selector):
        status["selector"] = selector_text
    metadata_fields = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in metadata_fields if key in meta},
        "spec": {"replicas": int(value_at(obj, *paths.replicas) or 0)} if value_at(obj, *paths.replicas) else {},
        "status": status,
    }


def with_replicas(kind: ResourceKind, obj: Object, scale: Object) -> Object:
    """Return a copy of the object with the replicas, name, uid and version of a Scale. Absent replicas are 0.

    Without a version in the Scale the object's is removed, so that the update is not checked against one; an absent
    name or uid stays the object's. Raises ApiRefusal: 422 for replicas that are no number >= 0, 404 for a kind without
    a Scale. scale: of autoscaling/v1, as decoded JSON.
    """
    replicas = value_at(scale, "spec", "replicas") or 0
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        raise invalid("Scale", obj["metadata"]["name"], "spec.replicas: must be greater than or equal to 0")
    meta = {**obj["metadata"]}
    scale_meta = scale.get("metadata") or {}
    for key in ("uid", "resourceVersion", "name"):
        if scale_meta.get(key):
            meta[key] = scale_meta[key]
        elif key == "resourceVersion":
            meta.pop(key, None)
    return {**_with_value(obj, _scale_paths(kind).replicas, replicas), "metadata": meta}


def _scale_paths(kind: ResourceKind) -> ScaleSubresource:
    """Return the paths of a kind's scale subresource. Raises ApiRefusal (404) for a kind without one."""
    if kind.scaling is None:
        raise ApiRefusal("NotFound", "the server could not find the requested resource")
    return kind.scaling


def _with_value(obj: Object, path: tuple[str, ...], value: Any) -> Object:
    """Return a copy of the object with a value at a path. Missing objects on the way are created. path: at least one
    key.
    """
    inside = value if len(path) == 1 else _with_value(obj.get(path[0]) or {}, path[1:], value)
    return {**obj, path[0]: inside}


def _selector(value: Any) -> str:
    """Return a selector as text: as it is, or made of the matchLabels of a LabelSelector. "" for another value."""
    if isinstance(value, str):
        return value
    labels = value_at(value, "matchLabels") if isinstance(value, dict) else None
    return ",".join(f"{key}={label}" for key, label in sorted((labels or {}).items()))


Path = tuple[str, ...]
_UNOWNED_METADATA = {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"}
_UNOWNED_METADATA |= {"deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"}


def manager_of(field_manager: str, user_agent: str) -> str:
    """Return the name that the API server gives a writer, cut at 128 characters.

    It is the fieldManager of the query, else the User-Agent up to its first slash, else "unknown".
    """
    return (field_manager or user_agent.split("/", 1)[0] or "unknown")[:128]


def managed_fields(old: Object | None, new: Object, manager: str, part: str, now: str) -> list[dict[str, Any]]:
    """Return the managedFields of `new`, which `manager` wrote over `old`. A new list.

    Fields that changed are taken from other managers. Without a change the entries are those of `old`. old: None for a
    creation. part: the subresource, "" for the object itself. now: RFC 3339.
    """
    before = (old or {}).get("metadata", {}).get("managedFields") or []
    changed = set(_changes(old or {}, new))
    removed_paths = set(_changes(new, old or {})) - changed
    if not changed and not removed_paths:
        return list(before)
    entries: list[dict[str, Any]] = []
    mine: set[Path] = set(changed)
    for entry in before:
        fields = _fields_of(entry)
        if (entry["manager"], entry.get("subresource", "")) == (manager, part):
            mine |= fields - removed_paths
        elif left := fields - changed - removed_paths:
            entries.append({**entry, "fieldsV1": _encode_paths(left)} if left != fields else entry)
    if mine:
        entry = {"manager": manager, "operation": "Update", "apiVersion": new["apiVersion"], "time": now}
        entry |= {"fieldsType": "FieldsV1", "fieldsV1": _encode_paths(mine)}
        entries.append(entry | ({"subresource": part} if part else {}))
    return entries


def _fields_of(entry: Mapping[str, Any]) -> set[Path]:
    """Return the paths of the fields in an entry of managedFields, whether its fieldsV1 is decoded or not."""
    raw = entry["fieldsV1"]
    return set(_decode_paths(msgspec.json.decode(raw) if isinstance(raw, msgspec.Raw) else raw))


def _changes(old: Any, new: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of the fields of `new` that `old` lacks or has with another value. A list counts as one field.

    old, new: objects, as decoded JSON. path: that of both objects, which begins each yielded path. The kind, the
    apiVersion and the metadata that no writer owns are left out.
    """
    for key, value in new.items():
        if (not path and key in ("apiVersion", "kind")) or (path == ("metadata",) and key in _UNOWNED_METADATA):
            continue
        was = old.get(key)
        if isinstance(value, dict) and value:
            yield from _changes(was if isinstance(was, dict) else {}, value, (*path, key))
        elif key not in old or was != value:
            yield (*path, key)


def _decode_paths(fields: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of each field in the managedFields format. fields: decoded JSON.

    path: begins each yielded path.
    """
    for key, inside in fields.items():
        step = (*path, key.removeprefix("f:"))
        if inside:
            yield from _decode_paths(inside, step)
        else:
            yield step


def _encode_paths(paths: set[Path]) -> msgspec.Raw:
    """Encode paths of fields in the managedFields format."""
    fields: dict[str, Any] = {}
    for path in sorted(paths):
        at = fields
        for step in path:
            at = at.setdefault(f"f:{step}", {})
    return msgspec.Raw(msgspec.json.encode(fields))
