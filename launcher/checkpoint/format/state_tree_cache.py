"""Caches the tree of a state, so that the next state of the same shape is converted in a few steps.

Only state_tree.py knows the text of a state. Here that text is kept, escaped for a header, with gaps where plain values
stand. Every key, type and length is compared each time, and any difference makes the caller convert the whole tree
again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import is_, is_not
from typing import Any

import msgspec

from turnout.launcher.checkpoint.format.safetensors_layout import escape_text
from turnout.launcher.checkpoint.format.state_tree import MOST_TEXT_BYTES, MOST_VALUES, Writer
from turnout.launcher.errors import BadState

PLAIN = (type(None), bool, int, float, str, bytes)  # immutable types: the same object has the same value
# Equal keys of these types are identical; not so 0.0 and -0.0, nor (1,) and (True,).
_KEYS = frozenset(PLAIN[:3]) | {str}
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
        return tensors if self._text_bytes <= MOST_TEXT_BYTES else None

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
    if is_tensor(state) or len(pieces) != len(writer.gaps) + 1 or writer.left < MOST_VALUES // 2:
        return None
    root = _branch_of(state, is_tensor) if type(state) in _BRANCHES else None
    return TreeCache(root, type(state), pieces, writer.gaps, plain) if root is not None else None


def _branch_of(value: Any, is_tensor: IsTensor) -> _Branch | None:
    keys = tuple(value) if isinstance(value, dict) else None
    key_kinds = tuple(map(type, keys or ()))
    if not _KEYS.issuperset(key_kinds):
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
    if type(value) in PLAIN:
        return _PLAIN
    if is_tensor(value):
        return _TENSOR
    return _BRANCH if type(value) in _BRANCHES else _PLAIN


def _same(kinds: Iterable[type], were: tuple[type, ...], count: int) -> bool:
    return count == len(were) and all(map(is_, kinds, were))
