"""Decides who may claim the next round, and encodes the record of a round.

Where the record is kept, and that only one of several claims succeeds, is known in locks/. A round is granted once, and
the restart budget in a record never decreases, so it outlives every pod. Source: docs/design.md 5
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from turnout.launcher.errors import BadElasticSpec, LauncherError
from turnout.launcher.model import RoundRecord

HOLD_S = 15.0  # seconds without a renewal after which the round is lost

ROUND = "turnout.dev/round"  # the annotation of a Lease that holds a record

MAX_BYTES = 4_096  # of a record as it is written

MAX_ROUND = 9_999_999_999  # ten digits


class LockUnreachable(LauncherError):
    """The arbiter does not answer. Try again; after round_holder.FENCE_S seconds without an answer, stop training."""

    def __init__(self, arbiter: str, why: str) -> None:
        super().__init__(f"{arbiter} cannot be asked: {why}")
        self.arbiter, self.why = arbiter, why


class LockRefused(LauncherError):
    """The arbiter refuses this member for good. Tell a person what is wrong and what to do next."""

    def __init__(self, arbiter: str, why: str, next_step: str) -> None:
        super().__init__(f"{arbiter} cannot be used: {why}; {next_step}")
        self.arbiter, self.why, self.next_step = arbiter, why, next_step


class StaleRound(LauncherError):
    """The claimed round was granted already. Ask next_round for a higher one."""

    def __init__(self, claimed: int, granted: int) -> None:
        super().__init__(f"round {claimed} is claimed, and round {granted} was granted before")
        self.claimed, self.granted = claimed, granted


class BadRecord(LauncherError):
    """The text is not a valid record of ours. Trust nothing in it."""


@dataclass(frozen=True, slots=True)
class HeldRound:
    """A round as the arbiter holds it."""

    record: RoundRecord | None  # None if no round of this run was claimed yet
    token: str  # the version that a claim or renewal depends on
    unrenewed_s: float  # seconds since this process last observed a renewal, by its own monotonic clock
    newest_round: int = 0  # the newest round granted to anybody, other runs included


class ClaimReason(StrEnum):
    """Says why a round may be claimed or not."""

    NOBODY = "nobody"  # no round of this run was claimed yet
    MINE = "mine"
    HOLDER_DEAD = "holder_dead"  # its port refuses connections, or its process is gone
    HOLDER_QUIET = "holder_quiet"  # no renewal was observed for longer than the hold
    HOLDER_ALIVE = "holder_alive"  # a renewal was observed within the hold


@dataclass(frozen=True, slots=True)
class ClaimVerdict:
    """Says if the next round may be claimed, and why."""

    allowed: bool  # the member may claim it now
    reason: ClaimReason
    wait_s: float = 0.0  # seconds until it is worth asking again; 0 if allowed


@dataclass(frozen=True, slots=True)
class HolderObservation:
    """The last observation of a holder, and since when it is unchanged. Clocks of other hosts are not used."""

    observed: Hashable  # everything that a renewal of the holder changes
    since_s: float  # when it was first observed, by the monotonic clock of the observer

    def observe(self, observed: Hashable, now_s: float) -> HolderObservation:
        """Return this observation, or a new one that begins now if `observed` has changed."""
        return self if observed == self.observed else HolderObservation(observed, now_s)


def may_claim(
    held_round: HeldRound, run: str, member_id: str, *, dead: bool = False, hold_s: float = HOLD_S
) -> ClaimVerdict:
    """Decide if the member `member_id` of `run` may claim the next round.

    dead: the holder is known to be dead; silence alone does not prove that. hold_s: seconds without a renewal after
    which a holder counts as lost. A record of another run does not protect the round. Source: docs/design.md 5
    """
    if held_round.record is None or held_round.record.run != run:
        return ClaimVerdict(True, ClaimReason.NOBODY)
    if held_round.record.coordinator == member_id:
        return ClaimVerdict(True, ClaimReason.MINE)
    if dead:
        return ClaimVerdict(True, ClaimReason.HOLDER_DEAD)
    if held_round.unrenewed_s > hold_s:
        return ClaimVerdict(True, ClaimReason.HOLDER_QUIET)
    return ClaimVerdict(False, ClaimReason.HOLDER_ALIVE, hold_s - held_round.unrenewed_s)


def next_round(held_round: HeldRound, known_round: int = 0) -> int:
    """Return the lowest round that may be claimed. known_round: the newest that the caller knows from members, or 0."""
    return max(held_round.newest_round, held_round.record.round if held_round.record else 0, known_round) + 1


def record_to_write(record: RoundRecord, after: HeldRound) -> RoundRecord:
    """Return `record` with the newer one of its restart budget and the budget that the arbiter has in `after`.

    `record` is returned unchanged if `after` has no record, or one of another run. Raises StaleRound if the record in
    `after` is of the same run and its round is not older than that of `record`.
    """
    before = after.record
    if before is None or before.run != record.run:
        return record
    if record.round <= before.round:
        raise StaleRound(record.round, before.round)
    return replace(record, budget=record.budget.newer_of(before.budget))


def same_grant(record: RoundRecord, other_record: RoundRecord) -> bool:
    """Return True if both records are the same round of the same holder. Budgets may differ."""
    return (record.run, record.round, record.coordinator) == (
        other_record.run,
        other_record.round,
        other_record.coordinator,
    )


class _Sealed(msgspec.Struct):
    sum: str  # checksum of beat and record, hexadecimal
    beat: int  # number of the renewal
    record: msgspec.Raw  # a RoundRecord as JSON


_sealed, _record = msgspec.json.Decoder(_Sealed), msgspec.json.Decoder(RoundRecord)


def seal(record: RoundRecord, beat: int = 0) -> bytes:
    """Encode a record as one line of JSON with its checksum. beat: counts renewals, so that each text differs.

    Raises BadRecord if the record could not be read again.
    """
    plain = msgspec.json.encode(record)
    sealed = msgspec.json.encode(_Sealed(_checksum(plain, beat), beat, msgspec.Raw(plain)))
    unseal(sealed)
    return sealed


def unseal(text: bytes) -> RoundRecord:
    """Decode a sealed record. Raises BadRecord for anything that `seal` did not write."""
    if len(text) > MAX_BYTES:
        raise BadRecord(f"{len(text)} bytes: at most {MAX_BYTES} are a record")
    try:
        sealed = _sealed.decode(text)
        if sealed.sum != _checksum(bytes(sealed.record), sealed.beat):
            raise BadRecord("the checksum is wrong")
        record = _record.decode(sealed.record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadElasticSpec) as error:
        raise BadRecord(f"not a record: {error}") from error
    if not (0 <= record.round <= MAX_ROUND and 0 <= record.port < 65_536):
        raise BadRecord("its round or its port is out of bounds")
    return record


def _checksum(plain: bytes, beat: int) -> str:
    """Return the SHA-256 of an encoded record and the number of its renewal, hexadecimal."""
    return hashlib.sha256(b"%d\n%b" % (beat, plain)).hexdigest()
