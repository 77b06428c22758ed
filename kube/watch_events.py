"""Reads list pages and watch lines, and tells a receiver so that it never misses a change.

One object that cannot be read costs only itself. Nothing here knows where the bytes came from or when.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from turnout.kube.errors import KubeError
from turnout.kube.status import Status

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Metadata(Protocol):
    """The metadata that every kind must have, so that its objects can be told apart."""

    name: str
    namespace: str
    uid: str
    resource_version: str


class Named(Protocol):
    @property
    def metadata(self) -> Any:  # a Metadata; structs are invariant in their fields
        """Give the object's name and version."""


T = TypeVar("T", bound=Named)
T_in = TypeVar("T_in", bound=Named, contravariant=True)


class Key(NamedTuple):
    """The identity of an object. A re-created one has the same names and another uid."""

    namespace: str
    name: str
    uid: str


class Sink(Protocol[T_in]):
    """The receiver of changes. Calls come in order, from one task, and must not block."""

    def put(self, obj: T_in) -> None:
        """This is what the object looks like now. May come again unchanged. A KubeError means: cannot be used."""

    def drop(self, key: Key) -> None:
        """This object is gone."""

    def synced(self, version: str) -> None:
        """A whole list has been told, the first one or a later one, as things were at that version; "" for none."""


class WatchAction(Enum):
    """The meaning of one line of a watch."""

    PUT = "put"
    DROP = "drop"
    MARK = "mark"
    FAULT = "fault"
    SKIP = "skip"


_ACTIONS = {
    "ADDED": WatchAction.PUT,
    "MODIFIED": WatchAction.PUT,
    "DELETED": WatchAction.DROP,
    "BOOKMARK": WatchAction.MARK,
}


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Bare(msgspec.Struct):
    """Any object, as far as it takes to know which one it is."""

    metadata: _Meta


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Items(msgspec.Struct, Generic[T]):
    items: list[T] | None  # Go writes null for none
    metadata: _ListMeta


class _Event(msgspec.Struct, Generic[T]):
    type: str
    object: T


class Line(NamedTuple, Generic[T]):
    """One line of a watch. version: to go on from, "" when it could not be read."""

    word: WatchAction
    version: str = ""
    obj: T | None = None
    key: Key | None = None
    status: Status | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list. unread: objects there but unreadable. skipped: how many, nameless ones included."""

    version: str
    items: list[T]
    unread: tuple[Key, ...] = ()
    skipped: int = 0


class Feed(Generic[T]):
    """Decoders for one kind: a quick one for whole pages and lines, a patient one where the quick one stumbles."""

    def __init__(self, kind: type[T]) -> None:
        self._one = msgspec.json.Decoder(kind)
        self._page: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Items[kind])  # type: ignore[valid-type]
        self._line: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Event[kind])  # type: ignore[valid-type]
        self._raw_page = msgspec.json.Decoder(_Items[msgspec.Raw])  # type: ignore[type-var]
        self._raw_line = msgspec.json.Decoder(_Event[msgspec.Raw])  # type: ignore[type-var]
        self._bare = msgspec.json.Decoder(_Bare)
        self._status = msgspec.json.Decoder(Status)

    def page(self, raw: bytes) -> Page[T]:
        """Raises one of UNREADABLE only when the page as a whole is no list."""
        try:
            page = self._page.decode(raw)
        except UNREADABLE:
            return self._page_one_by_one(raw)
        items = page.items or []
        return Page(page.metadata.resource_version, items)

    def _page_one_by_one(self, raw: bytes) -> Page[T]:
        page = self._raw_page.decode(raw)
        items: list[T] = []
        unread: list[Key] = []
        skipped = 0
        for one in page.items or []:
            try:
                items.append(self._one.decode(one))
            except UNREADABLE:
                skipped += 1
                if key := self._whose(one)[0]:
                    unread.append(key)
        return Page(page.metadata.resource_version, items, tuple(unread), skipped)

    def line(self, raw: bytes) -> Line[T]:
        """Raises nothing: what cannot be read is a SKIP."""
        try:
            event = self._line.decode(raw)
        except UNREADABLE:
            return self._odd_line(raw)
        word = _ACTIONS.get(event.type)
        meta = event.object.metadata
        if word is None or (word is not WatchAction.MARK and not meta.name):
            return self._odd_line(raw)
        return Line(word, meta.resource_version, event.object, Key(meta.namespace, meta.name, meta.uid))

    def _odd_line(self, raw: bytes) -> Line[T]:
        """An ERROR, an object of the wrong shape, a word we do not know, or noise."""
        try:
            event = self._raw_line.decode(raw)
            if event.type == "ERROR":
                return Line(WatchAction.FAULT, status=self._status.decode(event.object))
        except UNREADABLE:
            return Line(WatchAction.SKIP)
        key, version = self._whose(event.object)
        word = _ACTIONS.get(event.type)
        if word is WatchAction.MARK and version:
            return Line(word, version)
        if word is WatchAction.DROP and key:  # who is gone is all that matters
            return Line(word, version, key=key)
        return Line(WatchAction.SKIP, version if word else "")

    def _whose(self, raw: msgspec.Raw) -> tuple[Key | None, str]:
        try:
            meta = self._bare.decode(raw).metadata
        except UNREADABLE:
            return None, ""
        return (Key(meta.namespace, meta.name, meta.uid) if meta.name else None), meta.resource_version


class KnownObjects(Generic[T]):
    """Which objects the receiver has, without the objects: enough to tell it what went while we were away."""

    def __init__(self, sink: Sink[T]) -> None:
        self._sink = sink
        self._have: dict[tuple[str, str], tuple[str, str]] = {}
        self._listed: set[tuple[str, str]] = set()
        self.refused = 0  # objects that the receiver could not use

    def __len__(self) -> int:
        return len(self._have)

    def put(self, obj: T) -> None:
        """Tell of an object, unless this very version is told already; a namesake with another uid goes first."""
        meta = obj.metadata
        name, told = (meta.namespace, meta.name), (meta.uid, meta.resource_version)
        had = self._have.get(name)
        if had == told and told[1]:
            return
        if had is not None and had[0] != meta.uid:
            self._sink.drop(Key(*name, had[0]))
        self._have[name] = told
        try:
            self._sink.put(obj)
        except KubeError:
            self.refused += 1

    def drop(self, key: Key) -> None:
        """Tell that an object is gone, unless it is not known or a namesake has its place already."""
        had = self._have.get(key[:2])
        if had is not None and (not key.uid or had[0] == key.uid):
            del self._have[key[:2]]
            self._sink.drop(Key(key.namespace, key.name, had[0]))

    def begin(self) -> None:
        """A list starts."""
        self._listed.clear()

    def page(self, page: Page[T]) -> None:
        """One page of it. An object that we can no longer read stays as the receiver last saw it."""
        for obj in page.items:
            self._listed.add((obj.metadata.namespace, obj.metadata.name))
            self.put(obj)
        for key in page.unread:
            had = self._have.get(key[:2])
            if had is not None and had[0] == key.uid:
                self._listed.add(key[:2])

    def end(self, version: str = "") -> None:
        """The list is whole: what it did not hold is gone. version: of the list."""
        for name in [name for name in self._have if name not in self._listed]:
            self.drop(Key(*name, ""))
        self._listed.clear()
        self._sink.synced(version)
