"""The coordinator's own small store: what one member puts, others get. Bounded; the first value of a key stays."""

from __future__ import annotations

from collections import defaultdict

from launcher.shell.meeting.door import Guest
from launcher.wire import Get, Put, Value

MOST_KEYS = 4_096


class Values:
    """Key to value, and who waits for a key that nobody has put yet."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._wanted: defaultdict[str, list[Guest]] = defaultdict(list)

    def take(self, guest: Guest, message: Put | Get) -> None:
        """Keep a value, or hand one out now or later."""
        if isinstance(message, Get):
            if (value := self._values.get(message.key)) is not None:
                guest.tell(Value(message.key, value))
            elif len(self._wanted) < MOST_KEYS:
                self._wanted[message.key].append(guest)
            return
        if len(self._values) >= MOST_KEYS:
            self._values.pop(next(iter(self._values)))  # the oldest: values are of one round
        value = self._values.setdefault(message.key, message.value)
        for waiting in self._wanted.pop(message.key, ()):
            waiting.tell(Value(message.key, value))
