"""Limits the speed of writes to storage, in small pieces, so that training is not slowed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The limits of writing to storage: bytes per second, and the size of one write."""

    bytes_s: float = 0.0  # bytes per second, 0 for no limit
    piece_bytes: int = PIECE_BYTES  # of one write, 4096 or more

    def __post_init__(self) -> None:
        if not self.bytes_s >= 0 or self.piece_bytes < 4_096:
            raise ValueError(f"a pace of {self.bytes_s} bytes/s in pieces of {self.piece_bytes} bytes is none")


class RateLimiter:
    """Limits one writer. Another thread may change its `pace`; a worker that has to leave removes the limit."""

    def __init__(
        self,
        pace: RateLimit | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.pace, self._monotonic, self._sleep = pace or RateLimit(), monotonic, sleep
        self._free_s = monotonic()

    def take(self, size_bytes: int) -> None:
        """Wait until `size_bytes` may be written. Unused time is not saved up."""
        while self.pace.bytes_s and (left_s := self._free_s - self._monotonic()) > 0:
            self._sleep(min(left_s, 0.25))  # notice a new rate soon
        spent_s = size_bytes / self.pace.bytes_s if self.pace.bytes_s else 0.0
        self._free_s = max(self._free_s, self._monotonic()) + spent_s
