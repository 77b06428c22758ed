"""A limit on the rate of calls: a number of calls a second, and a burst that may leave at once."""

from __future__ import annotations

from turnout.kube.client.clock import Clock


class RateLimiter:
    """A rate limiter that serves its callers in the order in which they asked."""

    def __init__(self, clock: Clock, per_s: float, burst: float | None = None) -> None:
        """Make a limiter. per_s: calls a second, > 0. burst: calls that may leave at once; None for one second's."""
        if per_s <= 0:
            raise ValueError(f"per_s is {per_s}, must be above 0")
        self._clock, self._gap_s = clock, 1 / per_s
        self._slack_s = (burst if burst is not None else max(per_s, 1.0)) * self._gap_s
        self._next_s = clock.monotonic() - self._slack_s

    async def acquire(self) -> None:
        """Wait until the caller's call may leave. Callers wait in the order of their calls."""
        now_s = self._clock.monotonic()
        self._next_s = max(self._next_s, now_s - self._slack_s) + self._gap_s
        wait_s = self._next_s - now_s
        if wait_s > self._gap_s / 1000:  # floats do not add up exactly
            await self._clock.sleep(wait_s)
