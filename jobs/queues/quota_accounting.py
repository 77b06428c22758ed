"""Charging queues and all that is above them: does more fit, and what is left.

A queue's use counts above it only as far as it goes beyond what is kept for it alone. So available() of Kueue and a
tree of Volcano are one rule: room = min(limit - used, max(0, kept - used) + room above).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from turnout.jobs.queues.model import NOTHING, Amounts


class Bound(Protocol):
    """The fields of a Share that charging needs."""

    @property
    def limit(self) -> Amounts:
        """Give the most that its pods may use."""

    @property
    def used(self) -> Amounts:
        """Give what is used by its pods, and by all below it."""

    @property
    def kept(self) -> Amounts:
        """Give what is kept for it alone."""

    @property
    def called(self) -> Mapping[str, str]:
        """Give the resources' names in the share above."""

    @property
    def within(self) -> str:
        """Give the name of the share above, "" for none."""


Shares = Mapping[str, Bound]


def holds(
    shares: Shares, used: Mapping[str, Amounts], queue: str, needs: Iterable[tuple[str, int]], times: int = 1
) -> bool:
    """True if so much more fits, in the queue and all above it. used: by share; empty for no use at all."""
    for resource, amount in needs:
        what, more, at, left = resource, amount * times, queue, 0
        while more > 0 and (share := shares.get(at)) is not None:
            now = used.get(at, NOTHING).get(what, 0)
            limit = share.limit.get(what)
            if limit is not None and more > left + limit - now:
                return False
            left += max(0, share.kept.get(what, 0) - now)
            what, at = share.called.get(what, what), share.within
    return True


def charge(
    shares: Shares, used: dict[str, dict[str, int]], queue: str, needs: Iterable[tuple[str, int]], times: int = 1
) -> None:
    """Charge a queue and what is above it so many times, or with times below 0 give back. used: changed."""
    for resource, amount in needs:
        what, more, at = resource, amount * times, queue
        while more and (share := shares.get(at)) is not None:
            mine = used.setdefault(at, {})
            before = mine.get(what, 0)
            mine[what] = before + more
            kept = share.kept.get(what, 0)
            more = max(0, before + more - kept) - max(0, before - kept)
            what, at = share.called.get(what, what), share.within


def room(shares: Shares, queue: str, resource: str) -> int | None:
    """How much more of a resource fits now, below 0 when too much is used already; None without any limit."""
    what, at, left, found = resource, queue, 0, None
    while (share := shares.get(at)) is not None:
        used = share.used.get(what, 0)
        if (limit := share.limit.get(what)) is not None:
            here = left + limit - used
            found = here if found is None else min(found, here)
        left += max(0, share.kept.get(what, 0) - used)
        what, at = share.called.get(what, what), share.within
    return found
