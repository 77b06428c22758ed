"""Converts simple objects of a framework to plain values, and back through a list of known classes.

Data that is read can only name the classes that its adapter lists.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum
from typing import Any

from turnout.launcher.errors import BadCheckpoint, BadState

_MARK = "turnout.object"
_SET = "set"
_PAIRS = "pairs"  # a dict with keys that are no plain values, such as torch.dtype
_KEYS = (str, int, float, bool, type(None))

Kinds = Mapping[str, type]


def plain(value: object, kinds: Kinds, path: str = "") -> object:
    """Replace objects of these kinds by dicts. Raises BadState for a dict that already has the marker key."""
    for name, kind in kinds.items():
        if type(value) is kind:
            return {_MARK: name, "fields": plain(dict(vars(value)), kinds, path)}
    if isinstance(value, Enum) and isinstance(value, int | str):
        return value.value
    if isinstance(value, dict):
        return _plain_dict(value, kinds, path)
    if type(value) is set and all(map(_is_key, value)):
        return {_MARK: _SET, "fields": sorted(value, key=repr)}  # the same order on all ranks
    if type(value) is list or type(value) is tuple:
        found = [plain(each, kinds, f"{path}/{at}") for at, each in enumerate(value)]
        return found if type(value) is list else tuple(found)
    return value


def _plain_dict(found: dict[Any, Any], kinds: Kinds, path: str) -> object:
    if _MARK in found:
        raise BadState(path, f"the key {_MARK!r} is taken")
    items = [(key, plain(each, kinds, f"{path}/{key}")) for key, each in found.items()]
    if not all(_is_key(key) for key, _ in items):
        return {_MARK: _PAIRS, "fields": [[key, each] for key, each in items]}
    return OrderedDict(items) if isinstance(found, OrderedDict) else dict(items)


def _is_key(key: object) -> bool:
    return all(map(_is_key, key)) if type(key) is tuple else type(key) in _KEYS


def decode_object(value: object, kinds: Kinds) -> Any:
    """Rebuild a value that `plain` converted; enumerations stay as their values. Raises BadCheckpoint for an unlisted
    kind.
    """
    if isinstance(value, dict) and _MARK in value:
        return _object(value[_MARK], decode_object(value.get("fields"), kinds), kinds)
    if isinstance(value, dict):
        return type(value)((key, decode_object(each, kinds)) for key, each in value.items())
    if type(value) is list or type(value) is tuple:
        found = [decode_object(each, kinds) for each in value]
        return found if type(value) is list else tuple(found)
    return value


def _object(name: object, fields: Any, kinds: Kinds) -> object:
    if name == _PAIRS and isinstance(fields, list):
        return dict(fields)
    if name == _SET and isinstance(fields, list):
        return set(fields)
    if name not in kinds or not isinstance(fields, dict):
        raise BadCheckpoint(f"an object of the kind {name!r}: only {', '.join(kinds) or 'plain values'} are made here")
    found: object = object.__new__(kinds[str(name)])
    vars(found).update(fields)
    return found
