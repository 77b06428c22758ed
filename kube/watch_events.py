"""Decoders of list pages and watch lines, and the table of known objects.

With this table the sink also gets the deletions that happened while no watch was open. An object that cannot be decoded
affects no other object. This module does not know where the bytes come from, or when.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from turnout.kube.errors import KubeError
from turnout.kube.status import UNREADABLE, Status


class Named(Protocol):
    """An object with metadata."""

    @property
    def metadata(self) -> Any:
        """Return the metadata, which has the fields of `Key` and a resource version."""


T = TypeVar("T", bound=Named)
T_in = TypeVar("T_in", bound=Named, contravariant=True)


class Key(NamedTuple):
    """The identity of an object. A re-created object has the same names and another uid."""

    namespace: str
    name: str
    uid: str


class Sink(Protocol[T_in]):
    """The receiver of changes. Calls come in order, from one task, and must not block."""

    def put(self, obj: T_in) -> None:
        """Receive the current state of an object. It may come again unchanged. Raise KubeError if it cannot be used."""

    def drop(self, key: Key) -> None:
        """Receive the deletion of an object."""

    def synced(self, version: str) -> None:
        """Receive the end of a first or later list. version: the list's version, "" if unknown."""


class WatchAction(Enum):
    """The meaning of one watch line."""

    PUT = "put"  # an object was added or modified
    DROP = "drop"  # an object was deleted
    BOOKMARK = "bookmark"  # a BOOKMARK: no object, only a newer resourceVersion
    ERROR = "error"  # an ERROR with a Status
    SKIP = "skip"  # it cannot be read


_ACTIONS = {
    "ADDED": WatchAction.PUT,
    "MODIFIED": WatchAction.PUT,
    "DELETED": WatchAction.DROP,
    "BOOKMARK": WatchAction.BOOKMARK,
}


class _Meta(msgspec.Struct, rename="camel"):
    """The metadata of an object, as far as they identify it and its version."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _MetadataOnly(msgspec.Struct):
    """Any object, decoded only as far as its identity."""

    metadata: _Meta


class _ListMeta(msgspec.Struct, rename="camel"):
    """The metadata of a list."""

    resource_version: str = ""


class _Items(msgspec.Struct, Generic[T]):
    """A page of a list."""

    items: list[T] | None  # Go writes null for none
    metadata: _ListMeta


class _Event(msgspec.Struct, Generic[T]):
    """A line of a watch."""

    type: str
    object: T


class WatchLine(NamedTuple, Generic[T]):
    """One line of a watch."""

    action: WatchAction
    version: str = ""  # the version to continue from, "" if it could not be read
    obj: T | None = None  # the object; None if it cannot be decoded or the line has none
    key: Key | None = None  # the identity of the object; None if the line has no object
    status: Status | None = None  # the Status of an ERROR, else None


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """One page of a list."""

    version: str  # the resourceVersion of the list
    items: list[T]  # the objects that can be decoded
    unreadable: tuple[Key, ...] = ()  # objects that exist but cannot be decoded
    skipped_count: int = 0  # the number of objects that cannot be decoded, including those without a name


class KindDecoder(Generic[T]):
    """The decoders of one kind: fast decoders, and slow ones for pages and lines that the fast decoders reject."""

    def __init__(self, kind: type[T]) -> None:
        """Make the decoders. kind: the struct of the objects."""
        self._object_decoder = msgspec.json.Decoder(kind)
        self._page_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Items[kind])  # type: ignore[valid-type]
        self._line_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Event[kind])  # type: ignore[valid-type]
        self._raw_page_decoder = msgspec.json.Decoder(_Items[msgspec.Raw])  # type: ignore[type-var]
        self._raw_line_decoder = msgspec.json.Decoder(_Event[msgspec.Raw])  # type: ignore[type-var]
        self._metadata_decoder = msgspec.json.Decoder(_MetadataOnly)
        self._status_decoder = msgspec.json.Decoder(Status)

    def page(self, raw: bytes) -> ListPage[T]:
        """Return a page of a list. Objects that cannot be decoded are left out and counted in the result.

        Raises an UNREADABLE error only if it is no list at all.
        """
        try:
            page = self._page_decoder.decode(raw)
        except UNREADABLE:
            return self._decode_page_by_object(raw)
        items = page.items or []
        return ListPage(page.metadata.resource_version, items)

    def _decode_page_by_object(self, raw: bytes) -> ListPage[T]:
        """Return a page of a list that is decoded object by object.

        Objects that cannot be decoded are left out and counted. Raises an UNREADABLE error if the page is no list.
        """
        page = self._raw_page_decoder.decode(raw)
        items: list[T] = []
        unreadable: list[Key] = []
        skipped = 0
        for raw_object in page.items or []:
            try:
                items.append(self._object_decoder.decode(raw_object))
            except UNREADABLE:
                skipped += 1
                if key := self._identify(raw_object)[0]:
                    unreadable.append(key)
        return ListPage(page.metadata.resource_version, items, tuple(unreadable), skipped)

    def line(self, raw: bytes) -> WatchLine[T]:
        """Return a line of a watch. Raises nothing: a line that cannot be read is a SKIP.

        The deletion of an object that cannot be decoded is a DROP if its name can be read.
        """
        try:
            event = self._line_decoder.decode(raw)
        except UNREADABLE:
            return self._decode_unusual_line(raw)
        action = _ACTIONS.get(event.type)
        meta = event.object.metadata
        if action is None or (action is not WatchAction.BOOKMARK and not meta.name):
            return self._decode_unusual_line(raw)
        return WatchLine(action, meta.resource_version, event.object, Key(meta.namespace, meta.name, meta.uid))

    def _decode_unusual_line(self, raw: bytes) -> WatchLine[T]:
        """Return a line that the fast decoder rejects: an ERROR, an object of the wrong shape, an unknown type or
        invalid bytes.

        A line that cannot be used is a SKIP, with the version of its object if that can be read and the type is known.
        Raises nothing.
        """
        try:
            event = self._raw_line_decoder.decode(raw)
            if event.type == "ERROR":
                return WatchLine(WatchAction.ERROR, status=self._status_decoder.decode(event.object))
        except UNREADABLE:
            return WatchLine(WatchAction.SKIP)
        key, version = self._identify(event.object)
        action = _ACTIONS.get(event.type)
        if action is WatchAction.BOOKMARK and version:
            return WatchLine(action, version)
        if action is WatchAction.DROP and key:  # a deletion needs only the key
            return WatchLine(action, version, key=key)
        return WatchLine(WatchAction.SKIP, version if action else "")

    def _identify(self, raw: msgspec.Raw) -> tuple[Key | None, str]:
        """Return (key, resourceVersion) of an object that cannot be decoded as a whole.

        The key is None without a name. (None, "") if even the metadata are unreadable.
        """
        try:
            meta = self._metadata_decoder.decode(raw).metadata
        except UNREADABLE:
            return None, ""
        return (Key(meta.namespace, meta.name, meta.uid) if meta.name else None), meta.resource_version


class KnownObjects(Generic[T]):
    """The identities and versions of the objects that a sink has, by which it learns of deletions between watches."""

    def __init__(self, sink: Sink[T]) -> None:
        """Start without objects. sink: receives the changes."""
        self._sink = sink
        self._versions: dict[tuple[str, str], tuple[str, str]] = {}  # (namespace, name) -> (uid, resourceVersion)
        self._listed: set[tuple[str, str]] = set()  # (namespace, name) of the objects in the current list
        self.refused_count = 0  # objects that the sink could not use

    def __len__(self) -> int:
        return len(self._versions)

    def put(self, obj: T) -> None:
        """Pass an object to the sink, unless the sink has this version already.

        A known object with the same name and another uid is dropped first. An object that the sink cannot use
        (KubeError) is counted in `refused_count`, and is not passed again before it changes. An object without a
        resourceVersion is always passed.
        """
        meta = obj.metadata
        name, version = (meta.namespace, meta.name), (meta.uid, meta.resource_version)
        known_version = self._versions.get(name)
        if known_version == version and version[1]:
            return
        if known_version is not None and known_version[0] != meta.uid:
            self._sink.drop(Key(*name, known_version[0]))
        self._versions[name] = version
        try:
            self._sink.put(obj)
        except KubeError:
            self.refused_count += 1

    def drop(self, key: Key) -> None:
        """Pass a deletion to the sink, unless the object is unknown or was re-created.

        key: with the uid "" for any uid.
        """
        known_version = self._versions.get(key[:2])
        if known_version is not None and (not key.uid or known_version[0] == key.uid):
            del self._versions[key[:2]]
            self._sink.drop(Key(key.namespace, key.name, known_version[0]))

    def begin_list(self) -> None:
        """Begin a list: all objects that are not put before `end_list` will be dropped."""
        self._listed.clear()

    def put_page(self, page: ListPage[T]) -> None:
        """Pass one page of a list to the sink.

        Call begin_list() before the first page and end_list() after the last one. Of a known object that is now
        unreadable, the sink keeps the last readable version.
        """
        for obj in page.items:
            self._listed.add((obj.metadata.namespace, obj.metadata.name))
            self.put(obj)
        for key in page.unreadable:
            known_version = self._versions.get(key[:2])
            if known_version is not None and known_version[0] == key.uid:
                self._listed.add(key[:2])

    def end_list(self, version: str = "") -> None:
        """Drop the objects that the complete list did not contain, and report the end of the list to the sink.

        version: of the list, "" if unknown.
        """
        for name in [name for name in self._versions if name not in self._listed]:
            self.drop(Key(*name, ""))
        self._listed.clear()
        self._sink.synced(version)
