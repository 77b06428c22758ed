"""The history of one kind: every change in order, so that a watch can go on from the version it has seen."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from turnout.simulator.api.errors import ApiRefusal
from turnout.simulator.api.model import Object
from turnout.simulator.api.selectors import Question

_SLACK = 8  # changes are forgotten this many times for every `keep` of them
Key = tuple[str, str]  # namespace, name


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as it lies in the store. raw: its JSON, encoded once for every list and watch."""

    obj: Object
    raw: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list. version: of the list. rest: the key after which to go on, None at the end; left: how many."""

    items: tuple[Stored, ...]
    version: int
    rest: Key | None = None
    left: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """One write. before: None at a creation. gone: the object was deleted; `now` is its last state."""

    version: int
    now: Stored
    before: Stored | None
    gone: bool = False


class WatchHistory:
    """The last changes of a kind. `keep`: how many are kept at least; a watch from before them gets 410."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._changes: list[Change] = []
        self._first = 0  # how many changes were forgotten
        self._forgotten = 0  # the version of the last one forgotten
        self.wakers: set[Callable[[], None]] = set()

    def write(self, change: Change) -> None:
        """Add a change and wake the watches."""
        self._changes.append(change)
        if len(self._changes) > self._keep + self._keep // _SLACK:
            gone = len(self._changes) - self._keep
            self._forgotten = self._changes[gone - 1].version
            del self._changes[:gone]
            self._first += gone
        for wake in self.wakers:
            wake()

    def end(self) -> int:
        """The position after the last change."""
        return self._first + len(self._changes)

    def after(self, version: int) -> int:
        """The position of the first change after `version`. Raises ApiRefusal (410) when it is forgotten."""
        if version < self._forgotten:
            raise ApiRefusal("Expired", f"too old resource version: {version} ({self._forgotten + 1})")
        return self._first + bisect_right(self._changes, version, key=lambda change: change.version)

    def since(self, position: int) -> Sequence[Change]:
        """The changes from a position on. Raises ApiRefusal (410) when some of them are forgotten."""
        if position < self._first:
            raise ApiRefusal("Expired", "the watch was too slow: changes it has not read are forgotten")
        return self._changes[position - self._first :]


def raw(stored: Stored) -> bytes:
    """An object as it is."""
    return stored.raw


def event(change: Change, wanted: Question, show: Callable[[Stored], bytes] = raw) -> bytes | None:
    """The watch line of a change as a selector sees it; None: not seen."""
    found = seen(change, wanted)
    return line(found[0], show(found[1])) if found is not None else None


def seen(change: Change, wanted: Question) -> tuple[str, Stored] | None:
    """A change as a selector sees it: an object that stops to match is DELETED; None: not seen."""
    was = change.before is not None and wanted(change.before.obj)
    fits = wanted(change.now.obj)
    if change.gone:
        return ("DELETED", change.now) if was or fits else None
    if fits:
        return ("MODIFIED" if was else "ADDED", change.now)
    return ("DELETED", _last_matching(change)) if was else None


def _last_matching(change: Change) -> Stored:
    """The object as it was when the selector still chose it, at the version at which it stopped to."""
    before = change.before or change.now
    meta = {**before.obj["metadata"], "resourceVersion": str(change.version)}
    obj = {**before.obj, "metadata": meta}
    return Stored(obj, msgspec.json.encode(obj), change.version)


def line(word: str, shown: bytes) -> bytes:
    """One line of a watch."""
    return b'{"type":"' + word.encode() + b'","object":' + shown + b"}\n"
