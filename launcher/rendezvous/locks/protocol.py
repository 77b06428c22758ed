"""Defines the lock that keeps the newest round of a job, and grants a claim to only one of several members."""

from __future__ import annotations

from typing import Protocol

from turnout.launcher.model import RoundRecord
from turnout.launcher.rendezvous.arbiter import HeldRound


class RoundLock(Protocol):
    """Keeps the newest round of one job. Every call ends in bounded time.

    Each call raises LockUnreachable, after which the claim or renewal may still have happened, so look again. It raises
    LockRefused if only a person can help.
    """

    kind: str  # "lease" | "round_file"

    async def look(self) -> HeldRound:
        """Return the round as it is held now."""

    async def claim(self, record: RoundRecord, after: HeldRound) -> HeldRound | None:
        """Take the next round if nobody has since `after`. None if somebody has: look again.

        The newer of both restart budgets is written. Raises StaleRound if the record's round is not higher.
        """

    async def renew(self, mine: HeldRound) -> HeldRound | None:
        """Confirm that this member still holds the round, with a newer budget if it changed. None if it has lost the
        round and must stop.
        """

    async def close(self) -> None:
        """Close what was opened. The record stays for the next member."""
