"""Defines the lock that keeps the newest round of a job: what a Lease and a shared folder have in common."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable

from turnout.launcher.model import RoundRecord
from turnout.launcher.rendezvous.arbiter import HeldRound, HolderObservation


class RoundLock(ABC):
    """Keeps the newest round of one job, and grants a claim to only one of several members.

    Every call ends in bounded time. It raises LockUnreachable if the result is unknown: the claim or renewal may have
    succeeded, so call `look`. It raises LockRefused if only a person can help.
    """

    kind: str  # "lease" | "round_file"

    def __init__(self, run: str, monotonic: Callable[[], float]) -> None:
        self._run, self._monotonic = run, monotonic
        self._beats = itertools.count(1)  # differ in each renewal, so that a living holder's text changes
        self._observation = HolderObservation(None, monotonic())

    @abstractmethod
    async def look(self) -> HeldRound:
        """Read the newest round and its holder."""

    @abstractmethod
    async def claim(self, record: RoundRecord, after: HeldRound) -> HeldRound | None:
        """Claim the next round for the record's coordinator. Return it; None if the stored record was changed by
        another member or by hand since `after` was read: call `look`.

        after: the last result of `look`, `claim` or `renew`. Writes the newer one of the restart budgets of `record`
        and of the last round. Raises StaleRound if the round of `record` is not higher than the last one of this run.
        """

    @abstractmethod
    async def renew(self, held_round: HeldRound) -> HeldRound | None:
        """Confirm that this member still holds the round, and store its record's budget and totals.

        Return the renewed round. None if this member has lost the round: it must stop to coordinate.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close all connections. The record stays for the next member."""

    def _observe_round(self, record: RoundRecord | None, token: str, holder: Hashable) -> HeldRound:
        """Return the round that was read just now. A record of another run is dropped, but its round is newest_round.

        record: None if none was read. token: the version that a claim depends on. holder: everything that a renewal
        changes; unrenewed_s counts since this process first read this value.
        """
        now_s = self._monotonic()
        self._observation = self._observation.observe(holder, now_s)
        own_record = record if record and record.run == self._run else None
        return HeldRound(own_record, token, now_s - self._observation.since_s, record.round if record else 0)
