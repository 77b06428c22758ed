"""Record which manager owns which field in metadata.managedFields, as far as programs read it.

A write gives every field that it changes to its manager and takes it from the others. A list is one field here; the API
server splits some lists by key. Applying (server-side apply) is refused, so every entry is an Update.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from turnout.simulator.api.model import Object

Path = tuple[str, ...]
_NOBODYS = {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"}
_NOBODYS |= {"deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"}


def manager_of(field_manager: str, user_agent: str) -> str:
    """Return the name that the API server gives a writer: its fieldManager, else the name of its program."""
    return (field_manager or user_agent.split("/", 1)[0] or "unknown")[:128]


def owned(old: Object | None, new: Object, manager: str, part: str, now: str) -> list[dict[str, Any]]:
    """Return the managedFields of `new`, which `manager` wrote over `old`.

    old: None for a creation. part: the subresource.
    """
    before = (old or {}).get("metadata", {}).get("managedFields") or []
    changed = set(_changes(old or {}, new))
    removed_paths = set(_changes(new, old or {})) - changed
    if not changed and not removed_paths:
        return list(before)
    entries: list[dict[str, Any]] = []
    mine: set[Path] = set(changed)
    for entry in before:
        fields = set(
            _read(
                msgspec.json.decode(entry["fieldsV1"])
                if isinstance(entry["fieldsV1"], msgspec.Raw)
                else entry["fieldsV1"]
            )
        )
        if (entry["manager"], entry.get("subresource", "")) == (manager, part):
            mine |= fields - removed_paths
        elif left := fields - changed - removed_paths:
            entries.append({**entry, "fieldsV1": _write(left)} if left != fields else entry)
    if mine:
        entry = {"manager": manager, "operation": "Update", "apiVersion": new["apiVersion"], "time": now}
        entry |= {"fieldsType": "FieldsV1", "fieldsV1": _write(mine)}
        entries.append(entry | ({"subresource": part} if part else {}))
    return entries


def _changes(old: Any, new: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the fields of `new` that `old` lacks or has with another value."""
    for key, value in new.items():
        if (not path and key in ("apiVersion", "kind")) or (path == ("metadata",) and key in _NOBODYS):
            continue
        was = old.get(key)
        if isinstance(value, dict) and value:
            yield from _changes(was if isinstance(was, dict) else {}, value, (*path, key))
        elif key not in old or was != value:
            yield (*path, key)


def _read(fields: Any, path: Path = ()) -> Iterator[Path]:
    for key, inside in fields.items():
        step = (*path, key.removeprefix("f:"))
        if inside:
            yield from _read(inside, step)
        else:
            yield step


def _write(paths: set[Path]) -> msgspec.Raw:
    fields: dict[str, Any] = {}
    for path in sorted(paths):
        at = fields
        for step in path:
            at = at.setdefault(f"f:{step}", {})
    return msgspec.Raw(msgspec.json.encode(fields))
