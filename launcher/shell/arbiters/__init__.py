"""Who settles which round is the next: a Lease, or files on shared storage. Each grants a claim to one of several."""

from __future__ import annotations

from typing import Protocol

from turnout.launcher.model import Record
from turnout.launcher.rendezvous.arbiter import Held


class Arbiter(Protocol):
    """Keeps the newest round of one job. Every call ends in bounded time.

    Each raises ArbiterUnreachable, after which a claim or a renewal may have happened all the same (look), and
    ArbiterRefused when only a person can help.
    """

    kind: str  # "lease" | "round_file"

    async def look(self) -> Held:
        """Give the round as it is held now."""

    async def claim(self, record: Record, after: Held) -> Held | None:
        """Take the next round if nobody did since `after`; None: somebody did, look again.

        The budget that is written is the newer of both. Raises StaleRound when the record raises no round.
        """

    async def renew(self, mine: Held) -> Held | None:
        """Say that we still hold it; the budget of its record may have moved on. None: it is ours no longer, stop."""

    async def close(self) -> None:
        """End what was opened. The record stays, for whoever comes after."""
