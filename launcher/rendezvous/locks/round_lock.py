"""Defines the lock that keeps the newest round of a job: what a Lease and a shared folder have in common."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable

from turnout.launcher.model import RoundRecord
from turnout.launcher.rendezvous.arbiter import HeldRound, HolderObservation


class RoundLock(ABC):
    """Keeps the newest round of one job, and grants a claim to only one of several members.

    Every call ends in bounded time. It raises LockUnreachable, after which a claim or renewal may still have happened,
    so look again. It raises LockRefused if only a person can help.
    """

    kind: str  # "lease" | "round_file"

    def __init__(self, run: str, monotonic: Callable[[], float]) -> None:
        self._run, self._monotonic = run, monotonic
        self._beats = itertools.count(1)  # differ in each renewal, so that a living holder's text changes
        self._observation = HolderObservation(None, monotonic())

    @abstractmethod
    async def look(self) -> HeldRound:
        """Return the round as it is held now."""

    @abstractmethod
    async def claim(self, record: RoundRecord, after: HeldRound) -> HeldRound | None:
        """Take the next round if nobody has since `after`. None if somebody has: look again.

        The newer of both restart budgets is written. Raises StaleRound if the record's round is not higher.
        """

    @abstractmethod
    async def renew(self, mine: HeldRound) -> HeldRound | None:
        """Confirm that this member still holds the round, with a newer budget if it changed. None if it has lost the
        round and must stop.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close what was opened. The record stays for the next member."""

    def _observe_round(self, record: RoundRecord | None, token: str, holder: Hashable) -> HeldRound:
        """Return the round that was read just now. holder: everything that a renewal changes."""
        now_s = self._monotonic()
        self._observation = self._observation.observe(holder, now_s)
        ours = record if record and record.run == self._run else None
        return HeldRound(ours, token, now_s - self._observation.since_s, record.round if record else 0)
