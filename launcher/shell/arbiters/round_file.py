"""The newest round of a job as the newest of numbered files on shared storage, each of which can be made only once.

round-0000000007.json   the record that was granted by the seventh claim; nobody ever changes it
holder-0000000007       rewritten by who holds it: as long as this changes, it is alive
.claim-…, .holder-…     files in the making; the next claim that gets through sweeps them away

A claim is for the number after the newest one that was seen, so of several after the same one a single one gets
through. Clocks have no part in it. How storage does that is in folder.py.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from turnout.launcher.model import Record
from turnout.launcher.rendezvous.arbiter import (
    ArbiterRefused,
    ArbiterUnreachable,
    BadRecord,
    Held,
    Sighting,
    claimed,
    same_grant,
    seal,
    unseal,
)
from turnout.launcher.shell.arbiters.aside import Aside
from turnout.launcher.shell.arbiters.folder import Folder

log = logging.getLogger(__name__)
T = TypeVar("T")

CALL_S = 5.0
KEPT = 8  # rounds, for people to read
_MOST = 9_999_999_999
_REACH = 1_000  # an unreadable file this far above the newest readable one is none of ours
_ROUND = re.compile(r"round-(\d{10})\.json")
_ANY = re.compile(r"(round-|holder-|\.claim-|\.holder-)(\d{10})(?!\d)")


@dataclass(frozen=True, slots=True)
class _Seen:
    """A look at the folder. number: of the newest round file, 0 for none. holder: what its holder wrote last."""

    names: frozenset[str]
    number: int = 0
    record: Record | None = None
    holder: bytes | None = None


class RoundFileArbiter:
    """One member's way to the round files of its job. All members name the same folder."""

    kind = "round_file"

    def __init__(
        self, folder: Path, run: str, *, call_s: float = CALL_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """call_s: how long a call may take; storage that hangs longer is as good as gone."""
        self._folder, self._run, self._monotonic = Folder(folder), run, monotonic
        self._aside = Aside(call_s)
        self._beats, self._told = itertools.count(1), set[str]()
        self._sighting = Sighting(None, monotonic())

    @classmethod
    async def open(cls, folder: Path, run: str, *, call_s: float = CALL_S) -> RoundFileArbiter:
        """See that the folder can be used. Raises ArbiterRefused and ArbiterUnreachable."""
        arbiter = cls(folder, run, call_s=call_s)
        await arbiter._do(arbiter._folder.prepare)
        return arbiter

    async def look(self) -> Held:
        """Give the round as the newest file tells it."""
        return self._held(await self._do(self._look))

    async def claim(self, record: Record, after: Held) -> Held | None:
        """Make the round file after the one in `after`; None when somebody was first."""
        record = claimed(record, after)
        seen = await self._do(lambda: self._claim(record, after.token))
        return self._ours(seen) if seen else None

    async def renew(self, mine: Held) -> Held | None:
        """Rewrite the file of the holder; None when there is a newer round, or ours is not there."""
        record = mine.record
        if record is None:
            return None
        seen = await self._do(lambda: self._renew(record, _number(mine.token)))
        return self._ours(seen) if seen else None

    async def close(self) -> None:
        """Nothing is held open."""

    async def _do(self, what: Callable[[], T]) -> T:
        try:
            return await self._aside.call(what)
        except TimeoutError as error:
            raise ArbiterUnreachable(self._folder.name, f"no answer within {self._aside.limit_s:g} s") from error

    def _look(self) -> _Seen:
        with self._folder.opened() as at:
            return self._see(at)

    def _claim(self, record: Record, after: str) -> _Seen | None:
        number = _number(after) + 1
        if number > _MOST:
            raise ArbiterRefused(self._folder.name, f"{after} is the last one there can be", "empty the folder")
        name, private = _name(number), f".claim-{number:010}-{secrets.token_hex(8)}"
        with self._folder.opened() as at:
            there = self._see(at)  # once more: what its holder has told of the budget since that look counts too
            if there.number == number - 1 and there.record and there.record.run == record.run:
                record = replace(record, budget=record.budget.newer(there.record.budget))
            try:
                self._folder.make(at, private, seal(record))
                if not self._folder.publish(at, private, name):
                    return None
            finally:
                self._folder.sweep(at, [private])
            seen = self._see(at)
            if after and after not in seen.names:  # that was long ago: its number is free only since it was swept away
                self._folder.sweep(at, [name])
                return None
            if seen.number != number:
                return None
            self._folder.sweep(at, _outlived(seen.names, number))
            return seen

    def _renew(self, record: Record, number: int) -> _Seen | None:
        private = f".holder-{number:010}-{secrets.token_hex(8)}"
        with self._folder.opened() as at:
            if not self._stands(at, number, record):
                return None
            try:
                self._folder.make(at, private, seal(record, next(self._beats)))
                self._folder.replace(at, private, _holder(number))
            finally:
                self._folder.sweep(at, [private])
            seen = self._see(at)  # after the write, which makes an NFS client forget what it remembered of the folder
            return seen if seen.number == number else None

    def _stands(self, at: int, number: int, record: Record) -> bool:
        try:
            granted = self._read(at, _name(number))
        except BadRecord as error:
            self._tell(_name(number), error)
            return False
        return granted is not None and same_grant(granted, record)

    def _see(self, at: int) -> _Seen:
        names = frozenset(os.listdir(at))
        numbers = sorted((int(found[1]) for name in names if (found := _ROUND.fullmatch(name))), reverse=True)
        torn, number, record = list[int](), 0, None
        for each in numbers:
            try:
                record = self._read(at, _name(each))
            except BadRecord as error:
                self._tell(_name(each), error)
                torn.append(each)
            if record is not None:
                number = each
                break
        if doubtful := max((each for each in torn if each <= number + _REACH), default=0):
            record, number = self._unknown(doubtful, number, record), doubtful
        if record is None:
            return _Seen(names)
        return self._with_holder(at, _Seen(names, number, record))

    def _with_holder(self, at: int, seen: _Seen) -> _Seen:
        """With the budget that its holder wrote last."""
        try:
            holder = self._folder.read(at, _holder(seen.number))
            told = unseal(holder) if holder is not None else None
        except BadRecord:  # it counts for nothing: the next renewal puts a whole one there
            return seen
        if told and seen.record and same_grant(told, seen.record):
            seen = replace(seen, record=replace(seen.record, budget=seen.record.budget.newer(told.budget)))
        return replace(seen, holder=holder)

    def _unknown(self, number: int, before: int, record: Record | None) -> Record:
        """A round of which only the number can be trusted: somebody may hold it, so it has to be quiet for the hold."""
        if record is None or record.run != self._run:
            return Record(self._run, number, "")
        return Record(self._run, max(number, record.round + number - before), "", budget=record.budget)

    def _read(self, at: int, name: str) -> Record | None:
        """What a round file tells; None when it is not there. Raises BadRecord."""
        content = self._folder.read(at, name)
        return None if content is None else unseal(content)

    def _tell(self, name: str, error: BadRecord) -> None:
        if name not in self._told:
            self._told.add(name)
            log.warning("round_unreadable", extra={"file": str(self._folder.path / name), "why": str(error)})

    def _held(self, seen: _Seen) -> Held:
        now_s = self._monotonic()
        self._sighting = self._sighting.again((seen.number, seen.holder), now_s)
        ours = seen.record if seen.record and seen.record.run == self._run else None
        token = _name(seen.number) if seen.number else ""
        return Held(ours, token, now_s - self._sighting.since_s, seen.record.round if seen.record else 0)

    def _ours(self, seen: _Seen) -> Held:
        return replace(self._held(seen), quiet_s=0.0)


def _name(number: int) -> str:
    return f"round-{number:010}.json"


def _holder(number: int) -> str:
    return f"holder-{number:010}"


def _number(token: str) -> int:
    return int(token[6:16]) if token else 0


def _outlived(names: frozenset[str], number: int) -> Sequence[str]:
    """What nobody needs once round file `number` is made."""
    oldest = {"round-": number - KEPT + 1, "holder-": number, ".claim-": number + 1, ".holder-": number}
    found = ((name, _ANY.match(name)) for name in sorted(names))
    return [name for name, parts in found if parts and int(parts[2]) < oldest[parts[1]]]
