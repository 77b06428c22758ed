"""Who may decide the next round, as far as a record tells; and how a record is written down and read again.

Where it is kept, and that only one of several claims gets through, is settled in shell/arbiters. A granted round is
granted once, and the restart budget in a record never goes back, so that it outlives every pod.
Source: docs/design.md 5
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from turnout.launcher.errors import BadTerms, LauncherError
from turnout.launcher.model import Record

HOLD_S = 15.0  # who was not seen to renew for longer has lost its round
ROUND = "turnout.dev/round"  # the annotation of a Lease that holds a record
MOST_BYTES = 4_096  # of a record as it is written
MOST_ROUND = 9_999_999_999  # ten digits


class ArbiterUnreachable(LauncherError):
    """The arbiter gives no answer. Try again; once that has lasted for the hold, stop training."""

    def __init__(self, arbiter: str, why: str) -> None:
        super().__init__(f"{arbiter} cannot be asked: {why}")
        self.arbiter, self.why = arbiter, why


class ArbiterRefused(LauncherError):
    """The arbiter will not have us, now or later. Tell a person: what is wrong with what, and what to do next."""

    def __init__(self, arbiter: str, why: str, next_step: str) -> None:
        super().__init__(f"{arbiter} cannot be used: {why}; {next_step}")
        self.arbiter, self.why, self.next_step = arbiter, why, next_step


class StaleRound(LauncherError):
    """A claim of a round that was granted already. Ask next_round for a higher one."""

    def __init__(self, wanted: int, granted: int) -> None:
        super().__init__(f"round {wanted} is claimed, and round {granted} was granted before")
        self.wanted, self.granted = wanted, granted


class BadRecord(LauncherError):
    """Something that is no record of ours, or is one no longer. Trust nothing of it."""


@dataclass(frozen=True, slots=True)
class Held:
    """A round as an arbiter holds it.

    record: None when nobody has claimed a round of this run yet. token: what a claim or a renewal is conditional on.
    quiet_s: for how long we have seen no renewal, by our own monotonic clock. newest: the newest round that was
    granted to anybody, other runs included.
    """

    record: Record | None
    token: str
    quiet_s: float
    newest: int = 0


class Why(StrEnum):
    """Why a round may be claimed, or not."""

    NOBODY = "nobody"  # no round of this run was claimed yet
    MINE = "mine"
    HOLDER_DEAD = "holder_dead"  # its port refuses connections, or its process is gone
    HOLDER_QUIET = "holder_quiet"  # not seen to renew for longer than the hold
    HOLDER_ALIVE = "holder_alive"  # for all we know


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the next round may be claimed, and why. wait_s: until when to look again if not."""

    may: bool
    why: Why
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """What was seen of a holder, and since when it is the same. Others' clocks have no part in this."""

    what: Hashable
    since_s: float

    def again(self, what: Hashable, now_s: float) -> Sighting:
        """Look once more: something new begins now."""
        return self if what == self.what else Sighting(what, now_s)


def may_claim(held: Held, run: str, me: str, *, dead: bool = False, hold_s: float = HOLD_S) -> Verdict:
    """Whether the member `me` of `run` may claim the next round.

    dead: the holder is known to be dead; silence alone is no such evidence. A record of another run is no record.
    Source: docs/design.md 5
    """
    if held.record is None or held.record.run != run:
        return Verdict(True, Why.NOBODY)
    if held.record.coordinator == me:
        return Verdict(True, Why.MINE)
    if dead:
        return Verdict(True, Why.HOLDER_DEAD)
    if held.quiet_s > hold_s:
        return Verdict(True, Why.HOLDER_QUIET)
    return Verdict(False, Why.HOLDER_ALIVE, hold_s - held.quiet_s)


def next_round(held: Held, known: int = 0) -> int:
    """The lowest round that may be claimed. known: the newest that the caller heard of in any other way."""
    return max(held.newest, held.record.round if held.record else 0, known) + 1


def claimed(record: Record, after: Held) -> Record:
    """The record as it is to be written: its round is new, and of two budgets it has the one that knows more.

    Raises StaleRound when that round was granted already.
    """
    before = after.record
    if before is None or before.run != record.run:
        return record
    if record.round <= before.round:
        raise StaleRound(record.round, before.round)
    return replace(record, budget=record.budget.newer(before.budget))


def same_grant(one: Record, other: Record) -> bool:
    """Whether both are the same round of the same holder; budgets may differ."""
    return (one.run, one.round, one.coordinator) == (other.run, other.round, other.coordinator)


class _Sealed(msgspec.Struct):
    sum: str
    beat: int
    record: msgspec.Raw


def seal(record: Record, beat: int = 0) -> bytes:
    """The record as one line of JSON with its checksum. beat: counts renewals, so that each one is another text.

    Raises BadRecord for one that would not be read again.
    """
    plain = msgspec.json.encode(record)
    sealed = msgspec.json.encode(_Sealed(_sum(plain, beat), beat, msgspec.Raw(plain)))
    unseal(sealed)
    return sealed


def unseal(text: bytes) -> Record:
    """The record in what `seal` wrote. Raises BadRecord for whatever else it is: torn, foreign, or out of bounds."""
    if len(text) > MOST_BYTES:
        raise BadRecord(f"{len(text)} bytes: at most {MOST_BYTES} are a record")
    try:
        sealed = msgspec.json.decode(text, type=_Sealed)
        if sealed.sum != _sum(bytes(sealed.record), sealed.beat):
            raise BadRecord("the checksum is wrong")
        record = msgspec.json.decode(sealed.record, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError, BadTerms) as error:
        raise BadRecord(f"not a record: {error}") from error
    if not (0 <= record.round <= MOST_ROUND and 0 <= record.port < 65_536):
        raise BadRecord("its round or its port is out of bounds")
    return record


def _sum(plain: bytes, beat: int) -> str:
    return hashlib.sha256(b"%d\n%b" % (beat, plain)).hexdigest()
