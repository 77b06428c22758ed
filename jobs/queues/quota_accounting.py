"""Charges a queue and its ancestors: does a request fit, and how much is left.

The use of a queue counts in its parent only beyond the amount that is guaranteed to the queue. So available() of Kueue
and a tree of Volcano are one rule: room = min(limit - used, max(0, guaranteed - used) + room of the parent).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from turnout.jobs.queues.model import NOTHING, Amounts


class Bound(Protocol):
    """The fields of a Share that this module reads."""

    @property
    def limit(self) -> Amounts:
        """Return the most that its pods may use."""

    @property
    def used(self) -> Amounts:
        """Return what its pods and its subtree use."""

    @property
    def guaranteed(self) -> Amounts:
        """Return what is reserved for it alone."""

    @property
    def parent_resources(self) -> Mapping[str, str]:
        """Return the names of the resources in the parent share."""

    @property
    def parent(self) -> str:
        """Return the name of the parent share, "" for none."""


Shares = Mapping[str, Bound]


def holds(
    shares: Shares, used: Mapping[str, Amounts], queue: str, needs: Iterable[tuple[str, int]], times: int = 1
) -> bool:
    """True if `times` such requests fit in the queue and all its ancestors. used: by share."""
    for resource, amount in needs:
        what, more, at, left = resource, amount * times, queue, 0
        while more > 0 and (share := shares.get(at)) is not None:
            now = used.get(at, NOTHING).get(what, 0)
            limit = share.limit.get(what)
            if limit is not None and more > left + limit - now:
                return False
            left += max(0, share.guaranteed.get(what, 0) - now)
            what, at = share.parent_resources.get(what, what), share.parent
    return True


def charge(
    shares: Shares, used: dict[str, dict[str, int]], queue: str, needs: Iterable[tuple[str, int]], times: int = 1
) -> None:
    """Charge a queue and its ancestors `times` times; a negative number gives back. Changes `used`."""
    for resource, amount in needs:
        what, more, at = resource, amount * times, queue
        while more and (share := shares.get(at)) is not None:
            mine = used.setdefault(at, {})
            before = mine.get(what, 0)
            mine[what] = before + more
            guaranteed = share.guaranteed.get(what, 0)
            more = max(0, before + more - guaranteed) - max(0, before - guaranteed)
            what, at = share.parent_resources.get(what, what), share.parent


def room(shares: Shares, queue: str, resource: str) -> int | None:
    """Return how much more of a resource fits; negative if too much is used; None without a limit."""
    what, at, left, found = resource, queue, 0, None
    while (share := shares.get(at)) is not None:
        used = share.used.get(what, 0)
        if (limit := share.limit.get(what)) is not None:
            remaining = left + limit - used
            found = remaining if found is None else min(found, remaining)
        left += max(0, share.guaranteed.get(what, 0) - used)
        what, at = share.parent_resources.get(what, what), share.parent
    return found
