"""One reader to be fed: its name, inputs that it takes, and the errors that it may raise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """One reader. corpus: inputs that it takes. refuses: what it may raise; all else is a defect."""

    name: str
    corpus: tuple[bytes, ...]
    read: Callable[[bytes], object]
    refuses: tuple[type[Exception], ...] = ()
