"""Locks the rounds of a job with numbered files on shared storage, each of which can be created only once.

    round-0000000007.json   the record granted by the seventh claim; it never changes
    holder-0000000007       rewritten by the holder; while it changes, the holder is alive
    .claim-…, .holder-…     unfinished files; the next successful claim removes them

A claim is for the number after the newest one seen, so only one of several such claims succeeds. Clocks are not used.
Storage operations are in shared_dir.py.
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
from turnout.launcher.rendezvous.locks.serial_executor import SerialExecutor
from turnout.launcher.rendezvous.locks.shared_dir import SharedDir
from turnout.launcher.rendezvous.round_lock import (
    BadRecord,
    HeldRound,
    HolderSeen,
    LockRefused,
    LockUnreachable,
    claimed,
    same_grant,
    seal,
    unseal,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

CALL_S = 5.0
KEPT = 8  # round files kept for people to read
_MOST = 9_999_999_999
_REACH = 1_000  # an unreadable file so far above the newest readable one is not a round file
_ROUND = re.compile(r"round-(\d{10})\.json")
_ANY = re.compile(r"(round-|holder-|\.claim-|\.holder-)(\d{10})(?!\d)")


@dataclass(frozen=True, slots=True)
class _Seen:
    """One look at the folder of round files: its newest round and that round's holder."""

    names: frozenset[str]
    number: int = 0  # of the newest round file, 0 for none
    record: Record | None = None
    holder: bytes | None = None  # the last text that its holder wrote


class FileLock:
    """Gives one member access to its job's round files. All members must name the same folder."""

    kind = "round_file"

    def __init__(
        self, folder: Path, run: str, *, call_s: float = CALL_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Open the folder and run. call_s: the longest time of a call; slower storage counts as unreachable."""
        self._folder, self._run, self._monotonic = SharedDir(folder), run, monotonic
        self._aside = SerialExecutor(call_s)
        self._beats, self._told = itertools.count(1), set[str]()
        self._sighting = HolderSeen(None, monotonic())

    @classmethod
    async def open(cls, folder: Path, run: str, *, call_s: float = CALL_S) -> FileLock:
        """Check that the folder can be used. Raises LockRefused and LockUnreachable."""
        arbiter = cls(folder, run, call_s=call_s)
        await arbiter._do(arbiter._folder.prepare)
        return arbiter

    async def look(self) -> HeldRound:
        """Return the round of the newest file."""
        return self._held(await self._do(self._look))

    async def claim(self, record: Record, after: HeldRound) -> HeldRound | None:
        """Create the round file after the one in `after`. None if another member was first."""
        record = claimed(record, after)
        seen = await self._do(lambda: self._claim(record, after.token))
        return self._ours(seen) if seen else None

    async def renew(self, mine: HeldRound) -> HeldRound | None:
        """Rewrite the holder's file. None if there is a newer round, or if this member's round file is gone."""
        record = mine.record
        if record is None:
            return None
        seen = await self._do(lambda: self._renew(record, _number(mine.token)))
        return self._ours(seen) if seen else None

    async def close(self) -> None:
        """Do nothing: no file is held open."""

    async def _do(self, what: Callable[[], T]) -> T:
        try:
            return await self._aside.call(what)
        except TimeoutError as error:
            raise LockUnreachable(self._folder.name, f"no answer within {self._aside.limit_s:g} s") from error

    def _look(self) -> _Seen:
        with self._folder.opened() as at:
            return self._see(at)

    def _claim(self, record: Record, after: str) -> _Seen | None:
        number = _number(after) + 1
        if number > _MOST:
            raise LockRefused(self._folder.name, f"{after} is the last one there can be", "empty the folder")
        name, private = _name(number), f".claim-{number:010}-{secrets.token_hex(8)}"
        with self._folder.opened() as at:
            there = self._see(at)  # read again: its holder may have changed the budget since
            if there.number == number - 1 and there.record and there.record.run == record.run:
                record = replace(record, budget=record.budget.newer(there.record.budget))
            try:
                self._folder.make(at, private, seal(record))
                if not self._folder.publish(at, private, name):
                    return None
            finally:
                self._folder.sweep(at, [private])
            seen = self._see(at)
            if after and after not in seen.names:  # an old claim: its number is free only because the file was swept
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
            seen = self._see(at)  # after the write, which makes an NFS client drop its cached directory
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
        """Add the restart budget that the holder wrote last."""
        try:
            holder = self._folder.read(at, _holder(seen.number))
            told = unseal(holder) if holder is not None else None
        except BadRecord:  # it does not count: the next renewal writes a whole one
            return seen
        if told and seen.record and same_grant(told, seen.record):
            seen = replace(seen, record=replace(seen.record, budget=seen.record.budget.newer(told.budget)))
        return replace(seen, holder=holder)

    def _unknown(self, number: int, before: int, record: Record | None) -> Record:
        """Make the record of a round whose file is unreadable. Another member may hold it, so its holder must first be
        quiet.
        """
        if record is None or record.run != self._run:
            return Record(self._run, number, "")
        return Record(self._run, max(number, record.round + number - before), "", budget=record.budget)

    def _read(self, at: int, name: str) -> Record | None:
        """Read a round file; None if it does not exist. Raises BadRecord."""
        content = self._folder.read(at, name)
        return None if content is None else unseal(content)

    def _tell(self, name: str, error: BadRecord) -> None:
        if name not in self._told:
            self._told.add(name)
            log.warning("round_unreadable", extra={"file": str(self._folder.path / name), "why": str(error)})

    def _held(self, seen: _Seen) -> HeldRound:
        now_s = self._monotonic()
        self._sighting = self._sighting.again((seen.number, seen.holder), now_s)
        ours = seen.record if seen.record and seen.record.run == self._run else None
        token = _name(seen.number) if seen.number else ""
        return HeldRound(ours, token, now_s - self._sighting.since_s, seen.record.round if seen.record else 0)

    def _ours(self, seen: _Seen) -> HeldRound:
        return replace(self._held(seen), quiet_s=0.0)


def _name(number: int) -> str:
    return f"round-{number:010}.json"


def _holder(number: int) -> str:
    return f"holder-{number:010}"


def _number(token: str) -> int:
    return int(token[6:16]) if token else 0


def _outlived(names: frozenset[str], number: int) -> Sequence[str]:
    """List the files that nobody needs once round file `number` exists."""
    oldest = {"round-": number - KEPT + 1, "holder-": number, ".claim-": number + 1, ".holder-": number}
    found = ((name, _ANY.match(name)) for name in sorted(names))
    return [name for name, parts in found if parts and int(parts[2]) < oldest[parts[1]]]
