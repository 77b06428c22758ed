"""Converts a training state to its tree, plain values as JSON text, and to tensors by name; and back.

The caller defines what a tensor is and how its bytes are saved. Saved text can only create objects of kinds that the
caller lists. In the text, null, booleans, numbers and strings stand for themselves. Every other value is an array that
begins with a word: ["tuple", 1, 2], ["dict", key, value, key, value], ["tensor", name]. This text is also called the
skeleton.
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

MAX_DEPTH = 64  # of nested containers

MAX_VALUES = 1 << 20  # counted at each occurrence: a list that contains itself many times ends here

MAX_TEXT_BYTES = 32 << 20  # at most doubled by the quoting of the head, which may have 100 MB

_WORD = range(-(1 << 63), 1 << 63)  # integers that our JSON decoders read exactly

_DOUBLE = struct.Struct(">d")

_HEX = re.compile(r"-?[0-9a-f]+")

_KEYS = "str, int, float, bool, None or a tuple of them"


def _no_plain_form(_value: object) -> None:
    """Return None: by default no further types are supported."""
    return


def flatten(
    state: object,
    is_tensor: Callable[[object], bool],
    plain: Callable[[object], tuple[str, object] | None] = _no_plain_form,
    identity: Callable[[object], Hashable] = id,
) -> tuple[str, dict[str, object]]:
    """Convert a state to JSON text, and to its tensors by name in the order of the state.

    Supports exactly None, bool, int, float, str, bytes, list, tuple, dict and OrderedDict, without subclasses.
    is_tensor: True for a tensor. plain: converts any other value to a word and its parts; None if it cannot. identity:
    returns equal keys for tensors that are the same, such as shared weights; these are saved once, under the first
    name. Raises BadState with the path of a value that cannot be saved, and for more than MAX_VALUES values or
    MAX_TEXT_BYTES bytes of text.
    """
    writer = Writer(is_tensor, plain, identity)
    text = msgspec.json.encode(writer.value(state, "", 0))
    if len(text) > MAX_TEXT_BYTES:
        raise BadState("", f"its plain values are {len(text)} bytes of text: {MAX_TEXT_BYTES} at most; use tensors")
    return text.decode(), writer.tensors


def unflatten(
    text: str, tensors: Mapping[str, object], makers: Mapping[str, Callable[[Any], object]] | None = None
) -> object:
    """Build the state from its text and tensors by name.

    makers: by the words that `plain` returned, a function that rebuilds the value from its parts; None for none. Raises
    BadCheckpoint if the text is invalid or too long, if it names a tensor or word that is missing, or if a maker fails.
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

    Like in JSON pointers, ~ becomes ~0 and / becomes ~1. A key that is no str, and the index of a list or tuple, begins
    with "#"; a str that begins with "#" begins with ~2 instead. ~3 stands for "__metadata__", which safetensors
    reserves.
    """
    return "/".join(map(_segment, keys))


def _segment(key: object) -> str:
    """Return the part of a tensor's name that stands for one key.

    A key that is not a string begins with "#". Strings are escaped, so that no two keys have the same part.
    """
    if type(key) is not str:
        return "#" + _escape(_key_text(key))
    text = _escape(key)
    if text.startswith("#"):
        return "~2" + text[1:]
    return "~3" if text == "__metadata__" else text


def _escape(text: str) -> str:
    """Escape ~ and / in a key, as JSON pointers do."""
    return text.replace("~", "~0").replace("/", "~1") if "~" in text or "/" in text else text


def _key_text(key: object) -> str:
    """Return a text for a key that is no str, different for any two keys."""
    if type(key) is tuple:
        return f"({','.join(map(_key_text, key))})"
    return hex(key) if type(key) is int and key not in _WORD else repr(key)


def _encode_integer(value: int) -> object:
    """Return the skeleton of an integer: itself if 64 bits can hold it with its sign, else its hexadecimal text."""
    return value if value in _WORD else ["int", f"{value:x}"]


def _encode_float(value: float) -> object:
    """Return the skeleton of a float: itself if it is finite, else its bytes as hexadecimal text."""
    return value if math.isfinite(value) else ["float", _DOUBLE.pack(value).hex()]


class Writer:
    """Converts one state to its tree. The arguments are those of `flatten`.

    `tensors`: by name, in the state's order. `values_left`: how many more values are allowed.
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
        self.values_left = MAX_VALUES

    def value(self, value: Any, name: str, depth: int) -> object:
        """Convert a value to its place in the tree. name: path of the value. depth: levels above it.

        Raises BadState if the value, or one below it, cannot be saved, and after MAX_VALUES values.
        """
        self.values_left -= 1
        if self.values_left < 0:
            raise BadState(name, f"it is past the first {MAX_VALUES} values: use tensors")
        kind = type(value)
        if kind is bool or value is None:
            return value
        if kind is str:
            return self._text(value, name)
        if kind is int:
            return _encode_integer(value)
        if kind is float:
            return _encode_float(value)
        if kind is bytes:
            return ["bytes", base64.b64encode(value).decode()]
        if self._is_tensor(value):
            return ["tensor", self._tensor(value, name)]
        return self._branch(value, name, depth + 1)

    def _branch(self, value: Any, name: str, depth: int) -> object:
        """Return the skeleton of a container: its type word, then its keys and values.

        Raises BadState if it contains itself or is nested too deep. name: path of the container. depth: its level, 1
        for the whole state.
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
        """Convert a value of a type that `plain` knows to its place in the tree.

        name: path of the value. depth: its level, 1 for the whole state. Raises BadState if `plain` does not know the
        type.
        """
        parts = self._plain(value)
        if parts is None:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise BadState(name, f"a {kind} is neither a tensor nor a plain value")
        return ["made", parts[0], self.value(parts[1], name, depth)]

    def _tensor(self, value: object, name: str) -> str:
        """Add a tensor and return its name. A tensor that was added before keeps its first name. name: its path."""
        key = self._identity(value)
        first_name = self._names.get(key)
        if first_name is None:
            first_name = self._names[key] = name
            self.tensors[name] = value
        return first_name

    def _key(self, key: Any, name: str, depth: int) -> object:
        """Return the skeleton of a dictionary key.

        Raises BadState for a key of another type than _KEYS. name: path of the dictionary. depth: levels above the key.
        """
        kind = type(key)
        if kind is str:
            return self._text(key, name)
        if kind is bool or key is None:
            return key
        if kind is int:
            return _encode_integer(key)
        if kind is float and not math.isnan(key):  # all nan keys have one name
            return _encode_float(key)
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
    """Builds one state from its tree. The arguments are those of `unflatten`."""

    def __init__(self, tensors: Mapping[str, object], makers: Mapping[str, Callable[[Any], object]]) -> None:
        self._tensors, self._makers = tensors, makers

    def value(self, skeleton: object, depth: int) -> object:
        """Build the value that a part of the tree describes. depth: levels above it. Raises BadCheckpoint for an
        invalid tree.

        skeleton: that part, as decoded from JSON.
        """
        if skeleton is None or isinstance(skeleton, bool | str | float):
            return skeleton
        if isinstance(skeleton, int) and skeleton in _WORD:
            return skeleton
        if not isinstance(skeleton, list) or not skeleton or depth > MAX_DEPTH:
            raise BadCheckpoint("the skeleton holds what no state was written as, or is nested too deep")
        return self._container(skeleton, depth)

    def _container(self, skeleton: list[object], depth: int) -> object:
        """Build the value of an array in the tree, by its first word: a container, a tensor or another object.

        skeleton: the array, not empty. depth: levels above it. Raises BadCheckpoint if the array is invalid, or if it
        names a tensor or word that is missing.
        """
        match skeleton:
            case ["tensor", str(name)] if name in self._tensors:
                return self._tensors[name]
            case ["list", *items]:
                return [self.value(item, depth + 1) for item in items]
            case ["tuple", *items]:
                return tuple([self.value(item, depth + 1) for item in items])
            case ["dict", *items]:
                return self._fill_dict({}, items, depth)
            case ["ordered", *items]:
                return self._fill_dict(OrderedDict(), items, depth)
            case ["made", str(word), payload] if word in self._makers:
                return self._make(word, payload, depth)
            case [str(word), str(text)]:
                return _decode_atom(word, text)
        raise BadCheckpoint(f"the skeleton holds {str(skeleton[0])[:64]!r}, which is not there or not whole")

    def _fill_dict(self, state: dict[object, object], items: list[object], depth: int) -> dict[object, object]:
        """Fill `state` with keys and values that alternate in `items`, and return it.

        state: empty. depth: of the dict in the tree. Raises BadCheckpoint, also for a key that occurs twice.
        """
        if len(items) % 2:
            raise BadCheckpoint("the skeleton has a key without a value")
        for key, child in zip(items[::2], items[1::2], strict=True):
            state[self._key(key, depth)] = self.value(child, depth + 1)
        if 2 * len(state) != len(items):
            raise BadCheckpoint("the skeleton has a key twice")
        return state

    def _key(self, skeleton: object, depth: int) -> Hashable:
        """Return the dictionary key that a skeleton describes. Raises BadCheckpoint for a skeleton that no key has.

        depth: levels above it.
        """
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

        payload: the tree of the object's parts. Raises BadCheckpoint if the maker fails. depth: levels above it.
        """
        parts = self.value(payload, depth + 1)
        try:
            return self._makers[word](parts)
        except Exception as error:  # raised by the caller's own class
            raise BadCheckpoint(f"the skeleton has a {word} that cannot be made: {error}") from error


def _decode_atom(word: str, text: str) -> object:
    """Return the bytes, large integer, inf or nan that a skeleton holds as text.

    word: its type: bytes, int or float. Raises BadCheckpoint for another word, or a text that is invalid for its type.
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


class _GappedWriter(Writer):
    """Writes a tree with gaps in place of the values that may change from save to save. `gaps`: in their order."""

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
        """Return a gap in place of a value that `plain` converts."""
        self.gaps.append((name, depth))
        return msgspec.Raw(_GAP)


@dataclass(frozen=True, slots=True)
class _Branch:
    """One dict, list or tuple of a cached tree."""

    keys: tuple[object, ...] | None  # of a dict; None for a list or tuple
    key_kinds: tuple[type, ...]
    kinds: tuple[type, ...]  # types of the children
    runs: tuple[tuple[int, int, int, _Branch | None], ...]  # kind of child, start, end, and the branch below if any

    def walk(self, value: Any, tensors: list[Any], plain: list[object]) -> bool:
        """Append the tensors in a container and below it to `tensors`, and the plain values to `plain`, in order.

        Returns False if its keys, or the types or the number of its children differ from the cached ones; the lists are
        then incomplete.
        """
        if self.keys is not None:
            keys = tuple(value)
            if not _are_types(map(type, keys), self.key_kinds, len(keys)) or keys != self.keys:
                return False
            value = tuple(value.values())
        if not _are_types(map(type, value), self.kinds, len(value)):
            return False
        for kind, start, end, branch in self.runs:
            if kind == _TENSOR:
                tensors.extend(value[start:end])
            elif branch is None:
                plain.extend(value[start:end])
            elif not branch.walk(value[start], tensors, plain):
                return False
        return True


class TreeCache:
    """The cached tree of a state that `flatten` has accepted. Keeps no tensor alive.

    kind: type of the state. pieces: the text between the gaps, one more than gaps. plain: as in `flatten`.
    """

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
        """Return the tensors of a state in the order of the tree, and update the cached text for changed plain values.

        None if the structure of the state has changed, a value cannot be saved, or the text is too long: `flatten` has
        to convert the state again.
        """
        tensors, plain = list[Any](), list[object]()
        if type(state) is not self._kind or not self._root.walk(state, tensors, plain):
            return None
        try:
            for index in self._changed_gaps(plain):
                text = self._text(plain[index], self._gaps[index])
                self._text_bytes += len(text) - self._bytes[index]
                self._bytes[index], self._values[index] = len(text), plain[index]
                self._parts[2 * index + 1] = escape_text(escape_text(text))
        except BadState:  # the full walk reports it with its path
            return None
        return tensors if self._text_bytes <= MAX_TEXT_BYTES else None

    def _changed_gaps(self, plain: Sequence[object]) -> list[int]:
        """Return the indexes of the gaps whose value is another object than in the last walk, or is converted."""
        changed = [index for index, is_other in enumerate(map(is_not, plain, self._values)) if is_other]
        return [*changed, *self._converted_gaps]

    def _text(self, value: object, gap: Gap) -> bytes:
        """Return the JSON of the value in a gap. Raises BadState if the value cannot be saved."""
        writer = Writer(lambda value: False, self._plain, id)
        return msgspec.json.encode(writer.value(value, "", 0) if gap is None else writer.convert(value, *gap))

    def text(self) -> bytes:
        """Return the text of the last walk, escaped twice, for a JSON string within another JSON string."""
        return b"".join(self._parts)


def cache_tree(state: object, is_tensor: IsTensor, plain: Plain, identity: Callable[[object], Any]) -> TreeCache | None:
    """Return the cached tree of a state that `flatten` has accepted; None for a state that cannot be cached.

    A state is not cached if it is no container, has keys of other types than str, int, bool and None, or is too large.
    The arguments are those of `flatten`.
    """
    writer = _GappedWriter(is_tensor, plain, identity)
    pieces = msgspec.json.encode(writer.value(state, "", 0)).split(_GAP)
    if is_tensor(state) or len(pieces) != len(writer.gaps) + 1 or writer.values_left < MAX_VALUES // 2:
        return None
    root = _branch_of(state, is_tensor) if type(state) in _BRANCHES else None
    return TreeCache(root, type(state), pieces, writer.gaps, plain) if root is not None else None


def _branch_of(value: Any, is_tensor: IsTensor) -> _Branch | None:
    """Return the structure of a container and its children; None if a key in it cannot be cached.

    is_tensor: True for a tensor.
    """
    keys = tuple(value) if isinstance(value, dict) else None
    key_kinds = tuple(map(type, keys or ()))
    if not _EXACT_KEYS.issuperset(key_kinds):
        return None
    children = tuple(value.values() if keys is not None else value)
    runs = list[tuple[int, int, int, _Branch | None]]()
    for kind, group in groupby(range(len(children)), lambda index: _child_kind(children[index], is_tensor)):
        places = list(group)
        if kind is not _BRANCH:
            runs.append((kind, places[0], places[-1] + 1, None))
            continue
        for index in places:
            branch = _branch_of(children[index], is_tensor)
            if branch is None:
                return None
            runs.append((kind, index, index + 1, branch))
    return _Branch(keys, key_kinds, tuple(map(type, children)), tuple(runs))


def _child_kind(value: object, is_tensor: IsTensor) -> int:
    """Return the kind of a child: _TENSOR, _BRANCH, or _PLAIN, also for a value that must be converted."""
    if type(value) in PLAIN:
        return _PLAIN
    if is_tensor(value):
        return _TENSOR
    return _BRANCH if type(value) in _BRANCHES else _PLAIN


def _are_types(kinds: Iterable[type], expected: tuple[type, ...], count: int) -> bool:
    """Return True if `count` types are the expected ones, in order."""
    return count == len(expected) and all(map(is_, kinds, expected))
