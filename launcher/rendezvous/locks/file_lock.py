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

from turnout.launcher.model import RoundRecord
from turnout.launcher.rendezvous.locks.serial_executor import SerialExecutor
from turnout.launcher.rendezvous.locks.shared_dir import SharedDir
from turnout.launcher.rendezvous.round_lock import (
    BadRecord,
    HeldRound,
    HolderObservation,
    LockRefused,
    LockUnreachable,
    record_to_write,
    same_grant,
    seal,
    unseal,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

CALL_S = 5.0
KEPT_ROUNDS = 8  # round files kept for people to read
_MOST = 9_999_999_999
_REACH = 1_000  # an unreadable file so far above the newest readable one is not a round file
_ROUND = re.compile(r"round-(\d{10})\.json")
_ANY = re.compile(r"(round-|holder-|\.claim-|\.holder-)(\d{10})(?!\d)")


@dataclass(frozen=True, slots=True)
class _FolderObservation:
    """One look at the folder of round files: its newest round and that round's holder."""

    names: frozenset[str]
    number: int = 0  # of the newest round file, 0 for none
    record: RoundRecord | None = None
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
        self._beats, self._logged_names = itertools.count(1), set[str]()
        self._sighting = HolderObservation(None, monotonic())

    @classmethod
    async def open(cls, folder: Path, run: str, *, call_s: float = CALL_S) -> FileLock:
        """Check that the folder can be used. Raises LockRefused and LockUnreachable."""
        arbiter = cls(folder, run, call_s=call_s)
        await arbiter._call(arbiter._folder.prepare)
        return arbiter

    async def look(self) -> HeldRound:
        """Return the round of the newest file."""
        return self._held_round(await self._call(self._look))

    async def claim(self, record: RoundRecord, after: HeldRound) -> HeldRound | None:
        """Create the round file after the one in `after`. None if another member was first."""
        record = record_to_write(record, after)
        observation = await self._call(lambda: self._claim(record, after.token))
        return self._own_round(observation) if observation else None

    async def renew(self, mine: HeldRound) -> HeldRound | None:
        """Rewrite the holder's file. None if there is a newer round, or if this member's round file is gone."""
        record = mine.record
        if record is None:
            return None
        observation = await self._call(lambda: self._renew(record, _number(mine.token)))
        return self._own_round(observation) if observation else None

    async def close(self) -> None:
        """Do nothing: no file is held open."""

    async def _call(self, what: Callable[[], T]) -> T:
        try:
            return await self._aside.call(what)
        except TimeoutError as error:
            raise LockUnreachable(self._folder.name, f"no answer within {self._aside.limit_s:g} s") from error

    def _look(self) -> _FolderObservation:
        with self._folder.opened() as at:
            return self._observe(at)

    def _claim(self, record: RoundRecord, after: str) -> _FolderObservation | None:
        number = _number(after) + 1
        if number > _MOST:
            raise LockRefused(self._folder.name, f"{after} is the last one there can be", "empty the folder")
        name, private = _name(number), f".claim-{number:010}-{secrets.token_hex(8)}"
        with self._folder.opened() as at:
            newest = self._observe(at)  # read again: its holder may have changed the budget since
            if newest.number == number - 1 and newest.record and newest.record.run == record.run:
                record = replace(record, budget=record.budget.newer(newest.record.budget))
            try:
                self._folder.make(at, private, seal(record))
                if not self._folder.publish(at, private, name):
                    return None
            finally:
                self._folder.sweep(at, [private])
            observation = self._observe(at)
            if (
                after and after not in observation.names
            ):  # an old claim: its number is free only because the file was swept
                self._folder.sweep(at, [name])
                return None
            if observation.number != number:
                return None
            self._folder.sweep(at, _outlived(observation.names, number))
            return observation

    def _renew(self, record: RoundRecord, number: int) -> _FolderObservation | None:
        private = f".holder-{number:010}-{secrets.token_hex(8)}"
        with self._folder.opened() as at:
            if not self._is_granted(at, number, record):
                return None
            try:
                self._folder.make(at, private, seal(record, next(self._beats)))
                self._folder.replace(at, private, _holder(number))
            finally:
                self._folder.sweep(at, [private])
            observation = self._observe(at)  # after the write, which makes an NFS client drop its cached directory
            return observation if observation.number == number else None

    def _is_granted(self, at: int, number: int, record: RoundRecord) -> bool:
        try:
            granted = self._read(at, _name(number))
        except BadRecord as error:
            self._log_unreadable(_name(number), error)
            return False
        return granted is not None and same_grant(granted, record)

    def _observe(self, at: int) -> _FolderObservation:
        names = frozenset(os.listdir(at))
        numbers = sorted((int(found[1]) for name in names if (found := _ROUND.fullmatch(name))), reverse=True)
        torn, number, record = list[int](), 0, None
        for each in numbers:
            try:
                record = self._read(at, _name(each))
            except BadRecord as error:
                self._log_unreadable(_name(each), error)
                torn.append(each)
            if record is not None:
                number = each
                break
        if doubtful := max((each for each in torn if each <= number + _REACH), default=0):
            record, number = self._unknown(doubtful, number, record), doubtful
        if record is None:
            return _FolderObservation(names)
        return self._with_holder(at, _FolderObservation(names, number, record))

    def _with_holder(self, at: int, observation: _FolderObservation) -> _FolderObservation:
        """Add the restart budget that the holder wrote last."""
        try:
            holder = self._folder.read(at, _holder(observation.number))
            held_record = unseal(holder) if holder is not None else None
        except BadRecord:  # it does not count: the next renewal writes a whole one
            return observation
        if held_record and observation.record and same_grant(held_record, observation.record):
            observation = replace(
                observation,
                record=replace(observation.record, budget=observation.record.budget.newer(held_record.budget)),
            )
        return replace(observation, holder=holder)

    def _unknown(self, number: int, before: int, record: RoundRecord | None) -> RoundRecord:
        """Make the record of a round whose file is unreadable. Another member may hold it, so its holder must first be
        quiet.
        """
        if record is None or record.run != self._run:
            return RoundRecord(self._run, number, "")
        return RoundRecord(self._run, max(number, record.round + number - before), "", budget=record.budget)

    def _read(self, at: int, name: str) -> RoundRecord | None:
        """Read a round file; None if it does not exist. Raises BadRecord."""
        content = self._folder.read(at, name)
        return None if content is None else unseal(content)

    def _log_unreadable(self, name: str, error: BadRecord) -> None:
        if name not in self._logged_names:
            self._logged_names.add(name)
            log.warning("round_unreadable", extra={"file": str(self._folder.path / name), "why": str(error)})

    def _held_round(self, observation: _FolderObservation) -> HeldRound:
        now_s = self._monotonic()
        self._sighting = self._sighting.observe((observation.number, observation.holder), now_s)
        ours = observation.record if observation.record and observation.record.run == self._run else None
        token = _name(observation.number) if observation.number else ""
        return HeldRound(
            ours, token, now_s - self._sighting.since_s, observation.record.round if observation.record else 0
        )

    def _own_round(self, observation: _FolderObservation) -> HeldRound:
        return replace(self._held_round(observation), quiet_s=0.0)


def _name(number: int) -> str:
    return f"round-{number:010}.json"


def _holder(number: int) -> str:
    return f"holder-{number:010}"


def _number(token: str) -> int:
    return int(token[6:16]) if token else 0


def _outlived(names: frozenset[str], number: int) -> Sequence[str]:
    """List the files that nobody needs once round file `number` exists."""
    oldest = {"round-": number - KEPT_ROUNDS + 1, "holder-": number, ".claim-": number + 1, ".holder-": number}
    found = ((name, _ANY.match(name)) for name in sorted(names))
    return [name for name, parts in found if parts and int(parts[2]) < oldest[parts[1]]]
