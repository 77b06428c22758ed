"""The wait before the next retry: exponential, with full jitter, so that clients do not retry at the same moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """The back-off of client-go's reflectors. Source: docs/facts/ecosystem.md 1.6"""

    first_s: float = 0.8  # before the first retry, times a random number
    max_s: float = 30.0
    factor: float = 2.0  # per failure
    max_retry_after_s: float = 300.0  # a longer Retry-After is shortened to this

    def wait_s(self, failures: int, draw: float, retry_after_s: float = 0.0) -> float:
        """Return the seconds to wait before the next retry.

        failures: consecutive failures, >= 1. draw: uniform in [0, 1). retry_after_s: the server's Retry-After, 0 if the
        server sent none.
        """
        ceiling_s = min(self.max_s, self.first_s * self.factor ** min(failures - 1, 32))
        return max(draw * ceiling_s, min(retry_after_s, self.max_retry_after_s))
