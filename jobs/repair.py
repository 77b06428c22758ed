"""Read what becomes of a gang that has lost members and finds no room for them near the rest: `turnout.dev/repair`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from turnout.kube import labels

AFTER_S = 120
LEAST_S, MOST_S = 10, 86_400


class Remedy(Enum):
    """A way out for a gang that is below its min; the more patient first."""

    WAIT = "wait"  # it keeps its places until room comes near them
    MOVE = "move"  # the rest is evicted once all of it fits elsewhere
    GIVE_UP = "give-up"  # the rest is evicted, so that others get its places, and it waits whole


_ORDER = tuple(Remedy)


@dataclass(frozen=True, slots=True)
class Repair:
    """A remedy, and after how many seconds below the min it is taken."""

    remedy: Remedy = Remedy.WAIT
    after_s: int = AFTER_S

    def __str__(self) -> str:
        return self.remedy.value if self.remedy is Remedy.WAIT else f"{self.remedy.value} after {self.after_s} s"


WAIT = Repair()


def repair_of(notes: Mapping[str, str], faults: list[str]) -> Repair | None:
    """Read the annotation of a pod: "move", or "move/300" with the seconds; None when it is absent or unreadable."""
    text = notes.get(labels.REPAIR)
    if text is None:
        return None
    name, slash, number = text.partition("/")
    after = re.fullmatch(r"[1-9][0-9]{0,5}", number) is not None and LEAST_S <= int(number) <= MOST_S
    if name not in {each.value for each in _ORDER} or (slash and not after):
        words = ", ".join(each.value for each in _ORDER[:-1])
        wanted = f"{words} or {_ORDER[-1].value}, or one with seconds from {LEAST_S} to {MOST_S}, as move/300"
        faults.append(f"{labels.REPAIR} is {text[:40]!r}: it must be {wanted}")
        return None
    return Repair(Remedy(name), int(number) if slash else AFTER_S)


def agreed(said: Iterable[Repair]) -> Repair:
    """Return what holds for a gang whose members say these: the most patient remedy, after the longest time."""
    return min(said, key=lambda each: (_ORDER.index(each.remedy), -each.after_s), default=WAIT)
