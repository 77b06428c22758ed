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
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import is_, is_not
from typing import Any

import msgspec

from turnout.launcher.checkpoint.format.shard_file import escape_text
from turnout.launcher.errors import BadCheckpoint, BadState

MAX_DEPTH = 64

MAX_VALUES = 1 << 20  # counted at each occurrence: a list that contains itself many times ends here

MAX_TEXT_BYTES = 32 << 20  # at most doubled by the quoting of the head, which may have 100 MB

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
    if len(text) > MAX_TEXT_BYTES:
        raise BadState("", f"its plain values are {len(text)} bytes of text: {MAX_TEXT_BYTES} at most; use tensors")
    return text.decode(), writer.tensors


def unflatten(
    text: str, tensors: Mapping[str, object], makers: Mapping[str, Callable[[Any], object]] | None = None
) -> object:
    """Build the state from its text and tensors. makers: by the words of `plain`, a function that makes the value.
    Raises BadCheckpoint.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise BadCheckpoint(f"a skeleton of {len(text)} characters: {MAX_TEXT_BYTES} at most")
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
    """Return the part of a tensor's name that stands for one key.

    A key that is not a string begins with "#". Strings are escaped, so that no two keys have the same part.
    """
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
        self.left = MAX_VALUES

    def value(self, value: Any, name: str, depth: int) -> object:
        """Convert a value to its place in the tree. name: the path of that place. Raises BadState."""
        self.left -= 1
        if self.left < 0:
            raise BadState(name, f"it is past the first {MAX_VALUES} values: use tensors")
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
        """Return the skeleton of a container: its type word, then its keys and values.

        Raises BadState if it contains itself or is nested too deep. name: path of the container. depth: levels above
        it.
        """
        if depth > MAX_DEPTH:
            raise BadState(name, f"it is nested more than {MAX_DEPTH} deep")
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
        """Add a tensor and return its name. A tensor that was added before keeps its first name."""
        same = self._identity(value)
        known = self._names.get(same)
        if known is None:
            known = self._names[same] = name
            self.tensors[name] = value
        return known

    def _key(self, key: Any, name: str, depth: int) -> object:
        """Return the skeleton of a dictionary key.

        Raises BadState for a key of another type than _KEYS. name: path of the dictionary.
        """
        kind = type(key)
        if kind is str:
            return self._text(key, name)
        if kind is bool or key is None:
            return key
        if kind is int:
            return _integer(key)
        if kind is float and not math.isnan(key):  # all nan keys have one name
            return _fraction(key)
        if kind is tuple and depth < MAX_DEPTH:
            return ["tuple", *(self._key(part, name, depth + 1) for part in key)]
        raise BadState(name, f"a key in it is a {kind.__qualname__}: {_KEYS} is needed, nothing nested deep and no nan")

    def _text(self, value: str, name: str) -> str:
        """Return a string. Raises BadState if UTF-8 cannot encode it. name: path of the value."""
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
        if not isinstance(skeleton, list) or not skeleton or depth > MAX_DEPTH:
            raise BadCheckpoint("the skeleton holds what no state was written as, or is nested too deep")
        return self._container(skeleton, depth)

    def _container(self, skeleton: list[object], depth: int) -> object:
        """Build a dict, list, tuple or set from its skeleton. Raises BadCheckpoint."""
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
                return _decode_atom(word, text)
        raise BadCheckpoint(f"the skeleton holds {str(skeleton[0])[:64]!r}, which is not there or not whole")

    def _filled(self, state: dict[object, object], items: list[object], depth: int) -> dict[object, object]:
        """Fill `state` with keys and values that alternate in `items`. Raises BadCheckpoint."""
        if len(items) % 2:
            raise BadCheckpoint("the skeleton has a key without a value")
        for key, child in zip(items[::2], items[1::2], strict=True):
            state[self._key(key, depth)] = self.value(child, depth + 1)
        if 2 * len(state) != len(items):
            raise BadCheckpoint("the skeleton has a key twice")
        return state

    def _key(self, skeleton: object, depth: int) -> Hashable:
        """Return the dictionary key that a skeleton describes. Raises BadCheckpoint for a skeleton that no key has."""
        match skeleton:
            case ["tuple", *parts] if depth < MAX_DEPTH:
                return tuple([self._key(part, depth + 1) for part in parts])
            case ["int" | "float", str()] | None | bool() | int() | float() | str():
                key = self.value(skeleton, depth)
                if key == key and isinstance(key, Hashable):
                    return key
        raise BadCheckpoint("the skeleton has a key that no state can have")

    def _make(self, word: str, payload: object, depth: int) -> object:
        """Create an object of a caller's class by the maker of its type word.

        Raises BadCheckpoint if the maker fails.
        """
        parts = self.value(payload, depth + 1)
        try:
            return self._makers[word](parts)
        except Exception as error:  # raised by the caller's own class
            raise BadCheckpoint(f"the skeleton has a {word} that cannot be made: {error}") from error


def _decode_atom(word: str, text: str) -> object:
    """Return the bytes, large integer, inf or nan that a skeleton holds as text.

    word: bytes, int or float. Raises BadCheckpoint.
    """
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


PLAIN = (type(None), bool, int, float, str, bytes)  # immutable types: the same object has the same value
# Equal keys of these types are identical; not so 0.0 and -0.0, nor (1,) and (True,).
_EXACT_KEYS = frozenset(PLAIN[:3]) | {str}

_GAP = b"\0"  # cannot occur in JSON: strings escape it

_TENSOR, _PLAIN, _BRANCH = range(3)

_BRANCHES = (dict, OrderedDict, list, tuple)

IsTensor = Callable[[object], bool]

Plain = Callable[[object], tuple[str, object] | None]

Gap = tuple[str, int] | None  # None for a plain value; else name and depth of a container


class _Gapped(Writer):
    """Writes a tree with gaps in place of plain values. A gap is None, or the name and depth of a value that `plain`
    converts.
    """

    def __init__(self, is_tensor: IsTensor, plain: Plain, identity: Callable[[object], Any]) -> None:
        super().__init__(is_tensor, plain, identity)
        self.gaps: list[Gap] = []

    def value(self, value: Any, name: str, depth: int) -> object:
        """Return the skeleton of a value, with a gap in place of a plain value.

        Its content may change from save to save.
        """
        if type(value) in PLAIN:
            self.gaps.append(None)
            return msgspec.Raw(_GAP)
        return super().value(value, name, depth)

    def convert(self, value: object, name: str, depth: int) -> object:
        self.gaps.append((name, depth))
        return msgspec.Raw(_GAP)


@dataclass(frozen=True, slots=True)
class _Branch:
    """Describes one dict, list or tuple of a cached tree."""

    keys: tuple[object, ...] | None  # of a dict; None for a list or tuple
    key_kinds: tuple[type, ...]
    kinds: tuple[type, ...]  # types of the children
    runs: tuple[tuple[int, int, int, _Branch | None], ...]  # kind of child, start, end, and the branch below if any

    def walk(self, value: Any, tensors: list[Any], plain: list[object]) -> bool:
        """Append the tensors and plain values below a value of the same type, in order.

        False if its shape has changed.
        """
        if self.keys is not None:
            keys = tuple(value)
            if not _same(map(type, keys), self.key_kinds, len(keys)) or keys != self.keys:
                return False
            value = tuple(value.values())
        if not _same(map(type, value), self.kinds, len(value)):
            return False
        for what, start, end, below in self.runs:
            if what == _TENSOR:
                tensors.extend(value[start:end])
            elif below is None:
                plain.extend(value[start:end])
            elif not below.walk(value[start], tensors, plain):
                return False
        return True


class TreeCache:
    """Caches the tree of a state that state_tree.flatten has accepted. Keeps no tensor alive."""

    def __init__(self, root: _Branch, kind: type, pieces: Sequence[bytes], gaps: Sequence[Gap], plain: Plain) -> None:
        self._root, self._kind, self._plain = root, kind, plain
        self._gaps = tuple(gaps)
        self._converted_gaps = [at for at, gap in enumerate(gaps) if gap is not None]
        self._values: list[object] = [self] * len(gaps)  # a value that no state has
        self._bytes = [0] * len(gaps)
        self._text_bytes = sum(map(len, pieces))
        self._parts = [escape_text(escape_text(pieces[0]))]
        for piece in pieces[1:]:
            self._parts += [b"", escape_text(escape_text(piece))]

    def walk(self, state: object) -> list[Any] | None:
        """List the value at each place of a tensor, in order. None if the state's shape has changed and it has to be
        converted again.
        """
        tensors, plain = list[Any](), list[object]()
        if type(state) is not self._kind or not self._root.walk(state, tensors, plain):
            return None
        try:
            for at in self._changed(plain):
                text = self._text(plain[at], self._gaps[at])
                self._text_bytes += len(text) - self._bytes[at]
                self._bytes[at], self._values[at] = len(text), plain[at]
                self._parts[2 * at + 1] = escape_text(escape_text(text))
        except BadState:  # the full walk reports it with its path
            return None
        return tensors if self._text_bytes <= MAX_TEXT_BYTES else None

    def _changed(self, plain: Sequence[object]) -> list[int]:
        others = [at for at, is_other in enumerate(map(is_not, plain, self._values)) if is_other]
        return [*others, *self._converted_gaps]

    def _text(self, value: object, gap: Gap) -> bytes:
        writer = Writer(lambda value: False, self._plain, id)
        return msgspec.json.encode(writer.value(value, "", 0) if gap is None else writer.convert(value, *gap))

    def text(self) -> bytes:
        """Return the text of the last walk, escaped twice, as a JSON string inside another one."""
        return b"".join(self._parts)


def cache_tree(state: object, is_tensor: IsTensor, plain: Plain, identity: Callable[[object], Any]) -> TreeCache | None:
    """Cache the tree of a state. The arguments are those of state_tree.flatten. None for states not worth caching."""
    writer = _Gapped(is_tensor, plain, identity)
    pieces = msgspec.json.encode(writer.value(state, "", 0)).split(_GAP)
    if is_tensor(state) or len(pieces) != len(writer.gaps) + 1 or writer.left < MAX_VALUES // 2:
        return None
    root = _branch_of(state, is_tensor) if type(state) in _BRANCHES else None
    return TreeCache(root, type(state), pieces, writer.gaps, plain) if root is not None else None


def _branch_of(value: Any, is_tensor: IsTensor) -> _Branch | None:
    """Cache the form of a container. None if a key or a child of it cannot be cached."""
    keys = tuple(value) if isinstance(value, dict) else None
    key_kinds = tuple(map(type, keys or ()))
    if not _EXACT_KEYS.issuperset(key_kinds):
        return None
    children = tuple(value.values() if keys is not None else value)
    runs = list[tuple[int, int, int, _Branch | None]]()
    for what, group in groupby(range(len(children)), lambda at: _what(children[at], is_tensor)):
        places = list(group)
        if what is not _BRANCH:
            runs.append((what, places[0], places[-1] + 1, None))
            continue
        for at in places:
            below = _branch_of(children[at], is_tensor)
            if below is None:
                return None
            runs.append((what, at, at + 1, below))
    return _Branch(keys, key_kinds, tuple(map(type, children)), tuple(runs))


def _what(value: object, is_tensor: IsTensor) -> int:
    """Return the kind of a child: _PLAIN, _TENSOR or _BRANCH."""
    if type(value) in PLAIN:
        return _PLAIN
    if is_tensor(value):
        return _TENSOR
    return _BRANCH if type(value) in _BRANCHES else _PLAIN


def _same(kinds: Iterable[type], were: tuple[type, ...], count: int) -> bool:
    return count == len(were) and all(map(is_, kinds, were))
