"""The repair of a gang that lost members and finds no room for them nearby: annotation `turnout.dev/repair`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from turnout.kube import labels

DEFAULT_AFTER_S = 120
MIN_AFTER_S, MAX_AFTER_S = 10, 86_400


class Remedy(Enum):
    """A remedy for a gang below its min, the most patient first."""

    WAIT = "wait"  # its members stay until room becomes free near them
    MOVE = "move"  # its members are evicted when the whole gang fits elsewhere
    GIVE_UP = "give-up"  # its members are evicted, so that others get their nodes; the whole gang waits again


_ORDER = tuple(Remedy)


@dataclass(frozen=True, slots=True)
class Repair:
    """A remedy and its delay."""

    remedy: Remedy = Remedy.WAIT
    after_s: int = DEFAULT_AFTER_S  # seconds below the min, MIN_AFTER_S to MAX_AFTER_S

    def __str__(self) -> str:
        return self.remedy.value if self.remedy is Remedy.WAIT else f"{self.remedy.value} after {self.after_s} s"


WAIT = Repair()


def repair_of(notes: Mapping[str, str], faults: list[str]) -> Repair | None:
    """Return the repair of a pod's annotation, such as "move" or "move/300"; None if it is absent or unreadable."""
    text = notes.get(labels.REPAIR)
    if text is None:
        return None
    name, slash, number = text.partition("/")
    after = re.fullmatch(r"[1-9][0-9]{0,5}", number) is not None and MIN_AFTER_S <= int(number) <= MAX_AFTER_S
    if name not in {each.value for each in _ORDER} or (slash and not after):
        words = ", ".join(each.value for each in _ORDER[:-1])
        expected = (
            f"{words} or {_ORDER[-1].value}, or one with seconds from {MIN_AFTER_S} to {MAX_AFTER_S}, as move/300"
        )
        faults.append(f"{labels.REPAIR} is {text[:40]!r}: it must be {expected}")
        return None
    return Repair(Remedy(name), int(number) if slash else DEFAULT_AFTER_S)


def most_patient(repairs: Iterable[Repair]) -> Repair:
    """Return the repair for a gang whose members disagree: the most patient remedy, after the longest delay."""
    return min(repairs, key=lambda each: (_ORDER.index(each.remedy), -each.after_s), default=WAIT)
