"""Apply patches: merge (RFC 7386), JSON (RFC 6902), and strategic merge as far as our programs use it.

A strategic merge follows the merge keys below; a list that is not among them is replaced, as `atomic` lists are.
"""

from __future__ import annotations

import copy
from typing import Any

from turnout.simulator.api.errors import ApiRefusal

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


def merge(target: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7386) and return a new value.

    Null removes, an object merges, any other value replaces.
    """
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def strategic(target: Any, patch: Any, field: str = "") -> Any:
    """Apply a strategic merge patch.

    Raises ApiRefusal for directives other than `$patch: delete` and `$patch: replace`.
    """
    if isinstance(patch, list) and field in _MERGE_KEYS:
        return _merge_list(target if isinstance(target, list) else [], patch, _MERGE_KEYS[field])
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    if any(key.startswith("$") for key in patch if key != "$patch"):
        raise ApiRefusal("NotImplemented", f"strategic merge directives are not done here: {sorted(patch)}")
    directive = patch.get("$patch")
    merged = dict(target) if isinstance(target, dict) and directive != "replace" else {}
    for key, value in patch.items():
        if key == "$patch":
            continue
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = strategic(merged.get(key), value, key)
    return merged


def _merge_list(target: list[Any], patch: list[Any], key: str) -> list[Any]:
    """Merge entries by their key. New ones come before those that the patch does not name, as in the API server."""
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
            changed.append(strategic({} if at is None else target[at], entry))
    named = deleted_keys | {entry[key] for entry in changed}
    others = [old for old in target if old.get(key) not in named]
    merged: list[Any] = []
    while others and changed:
        at = order.get(changed[0][key])
        merged.append((others if at is not None and order[others[0].get(key)] < at else changed).pop(0))
    return [*merged, *others, *changed]


def json_patch(target: Any, operations: Any) -> Any:
    """Apply a JSON patch (RFC 6902). Raises ApiRefusal (422) where an operation does not fit."""
    if not isinstance(operations, list):
        raise ApiRefusal("BadRequest", "a JSON patch is a list of operations")
    document = copy.deepcopy(target)
    for operation in operations:
        try:
            document = _apply(document, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise ApiRefusal("Invalid", f"the JSON patch does not apply at {operation!r}: {error!r}") from error
    return document


def _apply(document: Any, operation: dict[str, Any]) -> Any:
    path = _steps(operation["path"])
    match operation["op"]:
        case "test":
            if _look(document, path) != operation["value"]:
                raise ValueError("test failed")
        case "remove":
            _take(document, path)
        case "replace":
            if not path:
                return operation["value"]
            if isinstance(_look(document, path[:-1]), list):
                _take(document, path)
            _put(document, path, operation["value"])  # a key that is not there is added, as the API server does it
        case "add":
            if not path:
                return operation["value"]
            _put(document, path, operation["value"])
        case "move":
            _put(document, path, _take(document, _steps(operation["from"])))
        case "copy":
            _put(document, path, copy.deepcopy(_look(document, _steps(operation["from"]))))
        case unknown:
            raise ValueError(f"no such operation: {unknown}")
    return document


def _steps(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise ValueError("a pointer starts with /")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _look(document: Any, path: list[str]) -> Any:
    for step in path:
        document = document[int(step)] if isinstance(document, list) else document[step]
    return document


def _put(document: Any, path: list[str], value: Any) -> None:
    parent, last = _look(document, path[:-1]), path[-1]
    if isinstance(parent, list):
        parent.insert(len(parent) if last == "-" else _index(parent, last, len(parent)), value)
    else:
        parent[last] = value


def _take(document: Any, path: list[str]) -> Any:
    parent, last = _look(document, path[:-1]), path[-1]
    return parent.pop(_index(parent, last, len(parent) - 1)) if isinstance(parent, list) else parent.pop(last)


def _index(items: list[Any], text: str, most: int) -> int:
    at = int(text)
    if not 0 <= at <= most:
        raise IndexError(f"{at} is outside 0..{most}")
    return at
