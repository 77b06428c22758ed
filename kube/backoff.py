"""The wait before the next retry: exponential, with full jitter, so that clients do not retry at the same moment."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Backoff:
    """The back-off of client-go's reflectors. Source: docs/facts/ecosystem.md 1.6"""

    first_s: float = 0.8  # the longest wait before the first retry, in seconds
    max_s: float = 30.0  # the longest wait before any retry, in seconds
    factor: float = 2.0  # by which each failure increases the longest wait
    max_retry_after_s: float = 300.0  # seconds; a longer Retry-After is shortened to this

    def wait_s(self, failures: int, draw: float, retry_after_s: float = 0.0) -> float:
        """Return the seconds to wait before the next retry: a random part of a bound that grows with each failure.

        failures: consecutive failures, >= 1. draw: a random number, uniform in [0, 1); 1.0 for the longest wait.
        retry_after_s: the server's Retry-After, 0 if the server sent none; the wait is at least this, up to
        max_retry_after_s.
        """
        ceiling_s = min(self.max_s, self.first_s * self.factor ** min(failures - 1, 32))
        return max(draw * ceiling_s, min(retry_after_s, self.max_retry_after_s))


@dataclass(slots=True)
class _Pause:
    """The pause of one key."""

    failures: int  # consecutive failures, >= 1
    until_s: float  # the end of the pause, on the clock of the caller


class RetryPauses(Generic[K]):
    """The pauses of several keys: each consecutive failure of a key makes its pause longer, without jitter."""

    def __init__(self, backoff: Backoff) -> None:
        """Start without pauses. backoff: decides their lengths."""
        self._backoff = backoff
        self._pauses: dict[K, _Pause] = {}

    def __contains__(self, key: K) -> bool:
        """Return True if the last try of a key failed and the key was not forgotten since."""
        return key in self._pauses

    def may_try(self, key: K, now_s: float) -> bool:
        """Return True if the pause of a key is over, or if it has none. now_s: on the clock of `note_failure`."""
        pause = self._pauses.get(key)
        return pause is None or now_s >= pause.until_s

    def note_failure(self, key: K, now_s: float, retry_after_s: float = 0.0) -> bool:
        """Begin a pause of a key, and return True. Return False, and change nothing, if the key is in a pause already.

        So of several writes that fail together only the first counts. now_s: seconds on any clock, the same for all
        calls. retry_after_s: the server's Retry-After, 0 if the server sent none.
        """
        if not self.may_try(key, now_s):
            return False
        failures = self._pauses[key].failures + 1 if key in self._pauses else 1
        self._pauses[key] = _Pause(failures, now_s + self._backoff.wait_s(failures, 1.0, retry_after_s))
        return True

    def note_success(self, key: K) -> None:
        """End the pause of a key, and forget its failures."""
        self._pauses.pop(key, None)

    def forget(self, is_gone: Callable[[K], bool]) -> None:
        """Forget the keys for which `is_gone` returns True, because their objects no longer exist."""
        for key in [key for key in self._pauses if is_gone(key)]:
            del self._pauses[key]

    def forget_old(self, now_s: float) -> None:
        """Forget the keys whose pause ended more than the back-off's `max_s` seconds ago."""
        for key in [key for key, pause in self._pauses.items() if pause.until_s + self._backoff.max_s < now_s]:
            del self._pauses[key]

    def clear(self) -> None:
        """Forget all keys, as a new leader does."""
        self._pauses.clear()


class PendingWrites(Generic[K, V]):
    """The newest write of each key until the watch shows its value, or until some time has passed.

    A caller asks it, so as not to repeat a write that is only not visible yet (client-go: expectations).
    """

    def __init__(self, repeat_after_s: float) -> None:
        """Start without writes. repeat_after_s: after this time a write that the watch does not show is repeated."""
        self._repeat_after_s = repeat_after_s
        self._writes: dict[K, tuple[V, float]] = {}  # (value, time of the write) by key

    def note(self, key: K, value: V, now_s: float) -> None:
        """Note that a write of a value begins; it replaces an earlier write of the key. now_s: as for `is_pending`."""
        self._writes[key] = value, now_s

    def is_pending(self, key: K, value: V, now_s: float) -> bool:
        """Return True if the newest write of a key has this value, is younger than `repeat_after_s` and not confirmed.

        now_s: seconds on any clock, the same for all calls.
        """
        write = self._writes.get(key)
        return write is not None and write[0] == value and now_s - write[1] < self._repeat_after_s

    def confirm(self, key: K, value: V) -> bool:
        """Forget the pending write of a key if the watch shows the value that was written.

        value: the value that the watch shows; the write stays if it has another one. Return True if the newest write of
        the key had this value, False if it had another one or if there is none.
        """
        if (write := self._writes.get(key)) is None or write[0] != value:
            return False
        del self._writes[key]
        return True

    def forget(self, key: K) -> None:
        """Forget the write of a key that failed or whose object was deleted."""
        self._writes.pop(key, None)
