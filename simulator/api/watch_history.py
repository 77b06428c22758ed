"""Keep the history of one kind: every change in order, so that a watch can continue from any recent version."""

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
    """An object in the store."""

    obj: Object
    raw: bytes  # its JSON, encoded once for every list and watch
    version: int


@dataclass(frozen=True, slots=True)
class StorePage:
    """One page of a list."""

    items: tuple[Stored, ...]
    version: int  # of the list
    rest: Key | None = None  # the key after which to continue, None at the end
    left: int = 0  # how many objects follow this page


@dataclass(frozen=True, slots=True)
class StoreChange:
    """One write."""

    version: int
    now: Stored  # the last state, when `gone`
    before: Stored | None  # None for a creation
    deleted: bool = False  # True: the object was deleted


class WatchHistory:
    """The last changes of a kind.

    keep: how many are kept at least. A watch from an earlier version gets 410.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._changes: list[StoreChange] = []
        self._first = 0  # how many changes were forgotten
        self._forgotten = 0  # the version of the last one forgotten
        self.wakers: set[Callable[[], None]] = set()

    def write(self, change: StoreChange) -> None:
        """Add a change and wake the watches."""
        self._changes.append(change)
        if len(self._changes) > self._keep + self._keep // _SLACK:
            surplus = len(self._changes) - self._keep
            self._forgotten = self._changes[surplus - 1].version
            del self._changes[:surplus]
            self._first += surplus
        for wake in self.wakers:
            wake()

    def end(self) -> int:
        """Return the position after the last change."""
        return self._first + len(self._changes)

    def after(self, version: int) -> int:
        """Return the position of the first change after `version`. Raises ApiRefusal (410) when it is forgotten."""
        if version < self._forgotten:
            raise ApiRefusal("Expired", f"too old resource version: {version} ({self._forgotten + 1})")
        return self._first + bisect_right(self._changes, version, key=lambda change: change.version)

    def since(self, position: int) -> Sequence[StoreChange]:
        """Return the changes from a position on. Raises ApiRefusal (410) when some of them are forgotten."""
        if position < self._first:
            raise ApiRefusal("Expired", "the watch was too slow: changes it has not read are forgotten")
        return self._changes[position - self._first :]


def raw(stored: Stored) -> bytes:
    """Return an object's JSON as it is stored."""
    return stored.raw


def event(change: StoreChange, selection: Question, show: Callable[[Stored], bytes] = raw) -> bytes | None:
    """Return the watch line of a change for a selector; None when the selector does not see the change."""
    found = event_for(change, selection)
    return line(found[0], show(found[1])) if found is not None else None


def event_for(change: StoreChange, selection: Question) -> tuple[str, Stored] | None:
    """Return a change as a selector sees it, None when it does not.

    An object that no longer matches is DELETED.
    """
    was = change.before is not None and selection(change.before.obj)
    fits = selection(change.now.obj)
    if change.deleted:
        return ("DELETED", change.now) if was or fits else None
    if fits:
        return ("MODIFIED" if was else "ADDED", change.now)
    return ("DELETED", _last_matching(change)) if was else None


def _last_matching(change: StoreChange) -> Stored:
    """Return the last state that the selector chose, with the version of the change."""
    before = change.before or change.now
    meta = {**before.obj["metadata"], "resourceVersion": str(change.version)}
    obj = {**before.obj, "metadata": meta}
    return Stored(obj, msgspec.json.encode(obj), change.version)


def line(word: str, shown: bytes) -> bytes:
    """Return one line of a watch."""
    return b'{"type":"' + word.encode() + b'","object":' + shown + b"}\n"
