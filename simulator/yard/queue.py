"""The pods that wait: which one is next, and who is tried again when something changes.

Source: facts/extender.md 1.5, 1.6: back-off from 1 to 10 s, and any change wakes a pod that an extender refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.yard.cluster import Want


@dataclass(slots=True)
class _Waiter:
    want: Want
    since: int  # arrival, counted
    tries: int = 0
    not_before_s: float = 0.0
    parked: bool = False  # refused, and nothing has changed since


class WaitingPods:
    """Pods by priority, then by arrival. backoff_s: the first and the longest pause after a refusal."""

    def __init__(self, backoff_s: tuple[float, float] = (1.0, 10.0)) -> None:
        self._first_s, self._longest_s = backoff_s
        self._waiters: dict[str, _Waiter] = {}
        self._arrivals = 0

    def put(self, want: Want) -> None:
        """A pod waits, or the one that waits has changed."""
        known = self._waiters.get(want.uid)
        if known is not None:
            if known.want != want:
                known.want, known.parked = want, False
            return
        self._arrivals += 1
        self._waiters[want.uid] = _Waiter(want, self._arrivals)

    def drop(self, uid: str) -> None:
        """A pod waits no longer."""
        self._waiters.pop(uid, None)

    def want(self, uid: str) -> Want | None:
        """The pod that waits under this uid."""
        waiter = self._waiters.get(uid)
        return waiter.want if waiter is not None else None

    def next(self, now_s: float) -> Want | None:
        """The pod to try now; None when nobody may be tried yet."""
        ready = [w for w in self._waiters.values() if not w.parked and w.not_before_s <= now_s]
        if not ready:
            return None
        return min(ready, key=lambda w: (-w.want.priority, w.since)).want

    def refuse(self, uid: str, now_s: float, park: bool) -> None:
        """A try was in vain. park: wait for a change too, not only for the pause to end."""
        waiter = self._waiters.get(uid)
        if waiter is None:
            return
        waiter.not_before_s = now_s + min(self._first_s * 2**waiter.tries, self._longest_s)
        waiter.tries += 1
        waiter.parked = park

    def wake(self) -> None:
        """Something changed in the cluster: whoever was parked is tried again once its pause is over."""
        for waiter in self._waiters.values():
            waiter.parked = False

    def pause_s(self, now_s: float) -> float | None:
        """How long until somebody may be tried; None when only a change helps."""
        ends = [w.not_before_s - now_s for w in self._waiters.values() if not w.parked]
        return max(0.0, min(ends)) if ends else None

    def __len__(self) -> int:
        return len(self._waiters)
