"""Converts a training state to its tree, plain values as JSON text, and to tensors by name; and back.

The caller defines what a tensor is and how its bytes are saved. Text that is read can never name a class or a function:
the caller lists what may be made.
In the text, null, booleans, numbers and strings stand for themselves. Everything else is an array that begins with a
word: ["tuple", 1, 2], ["dict", key, value, key, value], ["tensor", name].
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import msgspec

from turnout.launcher.errors import BadCheckpoint, BadState

MOST_DEPTH = 64
MOST_VALUES = 1 << 20  # counted at each occurrence: a list that contains itself many times ends here
MOST_TEXT_BYTES = 32 << 20  # at most doubled by the quoting of the head, which may have 100 MB

_WORD = range(-(1 << 63), 1 << 63)  # integers that any JSON reader of ours keeps exactly
_DOUBLE = struct.Struct(">d")
_HEX = re.compile(r"-?[0-9a-f]+")
_KEYS = "str, int, float, bool, None or a tuple of them"


def _no_plain_form(_value: object) -> None:
    return None


def flatten(
    state: object,
    is_tensor: Callable[[object], bool],
    plain: Callable[[object], tuple[str, object] | None] = _no_plain_form,
    identity: Callable[[object], Hashable] = id,
) -> tuple[str, dict[str, object]]:
    """Convert a state to JSON text, and to its tensors by name in the order of the state.

    Supports exactly None, bool, int, float, str, bytes, list, tuple, dict and OrderedDict, without subclasses.
    plain: converts any other value to a word and its parts, or None.
    identity: equal for tensors that are the same, such as shared weights; these are saved once, under the first name.
    Raises BadState with the path of a value that cannot be saved.
    """
    writer = Writer(is_tensor, plain, identity)
    text = msgspec.json.encode(writer.value(state, "", 0))
    if len(text) > MOST_TEXT_BYTES:
        raise BadState("", f"its plain values are {len(text)} bytes of text: {MOST_TEXT_BYTES} at most; use tensors")
    return text.decode(), writer.tensors


def unflatten(
    text: str, tensors: Mapping[str, object], makers: Mapping[str, Callable[[Any], object]] | None = None
) -> object:
    """Build the state from its text and tensors. makers: by the words of `plain`, a function that makes the value.
    Raises BadCheckpoint.
    """
    if len(text) > MOST_TEXT_BYTES:
        raise BadCheckpoint(f"a skeleton of {len(text)} characters: {MOST_TEXT_BYTES} at most")
    try:
        skeleton = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadCheckpoint(f"the skeleton is no JSON: {error}") from error
    return _Reader(tensors, makers or {}).value(skeleton, 0)


def name_of(*keys: object) -> str:
    """Make the name of a tensor: its keys joined by "/", each escaped so that no two places share a name.

    Like in JSON pointers, ~ becomes ~0 and / becomes ~1. A key that is not a str begins with "#", as does the index of
    a list or tuple. A str that begins with "#" begins with ~2 instead. ~3 is "__metadata__", which safetensors
    reserves.
    """
    return "/".join(map(_segment, keys))


def _segment(key: object) -> str:
    if type(key) is not str:
        return "#" + _escaped(_shown(key))
    text = _escaped(key)
    if text.startswith("#"):
        return "~2" + text[1:]
    return "~3" if text == "__metadata__" else text


def _escaped(text: str) -> str:
    return text.replace("~", "~0").replace("/", "~1") if "~" in text or "/" in text else text


def _shown(key: object) -> str:
    if type(key) is tuple:
        return f"({','.join(map(_shown, key))})"
    return hex(key) if type(key) is int and key not in _WORD else repr(key)


def _integer(value: int) -> object:
    return value if value in _WORD else ["int", f"{value:x}"]


def _fraction(value: float) -> object:
    return value if math.isfinite(value) else ["float", _DOUBLE.pack(value).hex()]


class Writer:
    """Converts one state to its tree. tensors: by name, in the state's order. left: how many more values are
    allowed.
    """

    def __init__(
        self,
        is_tensor: Callable[[object], bool],
        plain: Callable[[object], tuple[str, object] | None],
        identity: Callable[[object], Hashable],
    ) -> None:
        self.tensors: dict[str, object] = {}
        self._is_tensor, self._plain, self._identity = is_tensor, plain, identity
        self._names: dict[Hashable, str] = {}
        self._open: set[int] = set()  # ids of the containers around the current value, to find cycles
        self.left = MOST_VALUES

    def value(self, value: Any, name: str, depth: int) -> object:
        """Convert a value to its place in the tree. name: the path of that place. Raises BadState."""
        self.left -= 1
        if self.left < 0:
            raise BadState(name, f"it is past the first {MOST_VALUES} values: use tensors")
        kind = type(value)
        if kind is bool or value is None:
            return value
        if kind is str:
            return self._text(value, name)
        if kind is int:
            return _integer(value)
        if kind is float:
            return _fraction(value)
        if kind is bytes:
            return ["bytes", base64.b64encode(value).decode()]
        if self._is_tensor(value):
            return ["tensor", self._tensor(value, name)]
        return self._branch(value, name, depth + 1)

    def _branch(self, value: Any, name: str, depth: int) -> object:
        if depth > MOST_DEPTH:
            raise BadState(name, f"it is nested more than {MOST_DEPTH} deep")
        if id(value) in self._open:
            raise BadState(name, "it contains itself")
        self._open.add(id(value))
        kind, under = type(value), f"{name}/" if depth > 1 else ""
        skeleton: list[object]
        if kind is dict or kind is OrderedDict:
            skeleton = ["dict" if kind is dict else "ordered"]
            for key, child in value.items():
                skeleton.append(self._key(key, name, depth))
                skeleton.append(self.value(child, under + _segment(key), depth))
        elif kind is list or kind is tuple:
            skeleton = [kind.__name__]
            skeleton.extend(self.value(child, f"{under}#{at}", depth) for at, child in enumerate(value))
        else:
            node = self.convert(value, name, depth)
            self._open.remove(id(value))
            return node
        self._open.remove(id(value))
        return skeleton

    def convert(self, value: object, name: str, depth: int) -> object:
        """Convert a value of a type that `plain` knows. Raises BadState if it knows none."""
        parts = self._plain(value)
        if parts is None:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise BadState(name, f"a {kind} is neither a tensor nor a plain value")
        return ["made", parts[0], self.value(parts[1], name, depth)]

    def _tensor(self, value: object, name: str) -> str:
        same = self._identity(value)
        known = self._names.get(same)
        if known is None:
            known = self._names[same] = name
            self.tensors[name] = value
        return known

    def _key(self, key: Any, name: str, depth: int) -> object:
        kind = type(key)
        if kind is str:
            return self._text(key, name)
        if kind is bool or key is None:
            return key
        if kind is int:
            return _integer(key)
        if kind is float and not math.isnan(key):  # all nan keys have one name
            return _fraction(key)
        if kind is tuple and depth < MOST_DEPTH:
            return ["tuple", *(self._key(part, name, depth + 1) for part in key)]
        raise BadState(name, f"a key in it is a {kind.__qualname__}: {_KEYS} is needed, nothing nested deep and no nan")

    def _text(self, value: str, name: str) -> str:
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise BadState(name, f"text that is no Unicode: {error}") from error
        return value


class _Reader:
    def __init__(self, tensors: Mapping[str, object], makers: Mapping[str, Callable[[Any], object]]) -> None:
        self._tensors, self._makers = tensors, makers

    def value(self, skeleton: object, depth: int) -> object:
        """Build the value of a part of the tree. Raises BadCheckpoint."""
        if skeleton is None or isinstance(skeleton, bool | str | float):
            return skeleton
        if isinstance(skeleton, int) and skeleton in _WORD:
            return skeleton
        if not isinstance(skeleton, list) or not skeleton or depth > MOST_DEPTH:
            raise BadCheckpoint("the skeleton holds what no state was written as, or is nested too deep")
        match skeleton:
            case ["tensor", str(name)] if name in self._tensors:
                return self._tensors[name]
            case ["list", *items]:
                return [self.value(item, depth + 1) for item in items]
            case ["tuple", *items]:
                return tuple([self.value(item, depth + 1) for item in items])
            case ["dict", *items]:
                return self._filled({}, items, depth)
            case ["ordered", *items]:
                return self._filled(OrderedDict(), items, depth)
            case ["made", str(word), payload] if word in self._makers:
                return self._make(word, payload, depth)
            case [str(word), str(text)]:
                return _atom(word, text)
        raise BadCheckpoint(f"the skeleton holds {str(skeleton[0])[:64]!r}, which is not there or not whole")

    def _filled(self, state: dict[object, object], items: list[object], depth: int) -> dict[object, object]:
        if len(items) % 2:
            raise BadCheckpoint("the skeleton has a key without a value")
        for key, child in zip(items[::2], items[1::2], strict=True):
            state[self._key(key, depth)] = self.value(child, depth + 1)
        if 2 * len(state) != len(items):
            raise BadCheckpoint("the skeleton has a key twice")
        return state

    def _key(self, skeleton: object, depth: int) -> Hashable:
        match skeleton:
            case ["tuple", *parts] if depth < MOST_DEPTH:
                return tuple([self._key(part, depth + 1) for part in parts])
            case ["int" | "float", str()] | None | bool() | int() | float() | str():
                key = self.value(skeleton, depth)
                if key == key and isinstance(key, Hashable):
                    return key
        raise BadCheckpoint("the skeleton has a key that no state can have")

    def _make(self, word: str, payload: object, depth: int) -> object:
        parts = self.value(payload, depth + 1)
        try:
            return self._makers[word](parts)
        except Exception as error:  # raised by the caller's own class
            raise BadCheckpoint(f"the skeleton has a {word} that cannot be made: {error}") from error


def _atom(word: str, text: str) -> object:
    try:
        if word == "bytes":
            return base64.b64decode(text, validate=True)
        if word == "int" and _HEX.fullmatch(text):
            return int(text, 16)
        if (
            word == "float"
            and len(text) == 16
            and not math.isfinite(value := float(*_DOUBLE.unpack(bytes.fromhex(text))))
        ):
            return value
    except (ValueError, struct.error) as error:
        raise BadCheckpoint(f"the skeleton has {word} that cannot be read: {error}") from error
    raise BadCheckpoint(f"the skeleton holds {word[:64]!r}, which is not there or not whole")
