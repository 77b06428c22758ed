"""The children that one look at a job makes: bounded in number and bytes, so that no job holds the loop or the memory.

The rest is made by the looks that follow, once the answers to these writes are in the cache. What all children together
may have is decided when a job is read (kinds/fields.py).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from turnout.controllers.model import Create, Object

PORTION_BYTES = 2 << 20  # of the children that one look makes, as JSON
PORTION_CHILDREN = 500  # that one look makes


class Portion:
    """The rest of one look's share. A child larger than the share is made alone."""

    def __init__(self) -> None:
        self._children, self._bytes = PORTION_CHILDREN, PORTION_BYTES
        self._left_out = False

    def is_full(self) -> bool:
        """True if the next look has to make the next child, which this one leaves out."""
        self._left_out |= self._children <= 0 or self._bytes <= 0
        return self._left_out

    def create(self, build: Callable[[], Object]) -> Create:
        """Build a child and charge it. Ask `is_full` before."""
        body = build()
        self._children -= 1
        self._bytes -= len(msgspec.json.encode(body))
        return Create(body)

    def requeue_s(self) -> tuple[float, ...]:
        """Return when to look again, in seconds: at once if a child was left out, else nothing."""
        return (0.0,) if self._left_out else ()
