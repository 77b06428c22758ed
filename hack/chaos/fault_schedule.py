"""A schedule of faults, drawn from a seed, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random


class Fault(Enum):
    """One thing that goes wrong, or that others do."""

    PROCESS = "process killed"
    AGENT = "agent killed"  # with all of its container; the pod keeps its memory
    POD = "pod killed"  # and its memory is gone
    COORDINATOR = "coordinator's pod killed"
    NODE = "node lost"
    STOPPED = "process stopped"  # SIGSTOP, then SIGCONT
    RIVAL = "rigid job comes"
    API = "API server restarts"
    EXTENDER = "extender restarts"
    AUTOSCALER = "autoscaler's leader killed"
    CUT = "storage cut off"
    FULL = "storage full"


# What training must not notice: nobody's process ends by it, nobody's memory is lost.
UNNOTICED = frozenset({Fault.STOPPED, Fault.API, Fault.EXTENDER, Fault.AUTOSCALER, Fault.CUT, Fault.FULL})
LOSES_MEMORY = frozenset({Fault.POD, Fault.COORDINATOR, Fault.NODE})
_HURRIED = 0.3  # of all faults hit a job that still recovers from the one before


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """One fault. aim: 0 to 1, which of those that can be hit. lasts_s: until it is taken back, where it is.

    hurried: it does not wait until the job trains again, but comes after_s seconds after the one before it.
    Otherwise it comes after so many seconds of quiet training.
    """

    fault: Fault
    aim: float
    after_s: float
    lasts_s: float
    hurried: bool = False


def schedule(seed: int, faults: int, kinds: Sequence[Fault] = tuple(Fault)) -> tuple[FaultEvent, ...]:
    """Draw a schedule of `faults` faults. Every kind occurs before a kind occurs again.

    The first fault is never hurried. The same seed, count and kinds always give the same schedule.
    """
    rng, events, bag = Random(f"chaos/{seed}"), list[FaultEvent](), list[Fault]()
    for number in range(faults):
        if not bag:
            bag = list(kinds)
            rng.shuffle(bag)
        hurried = rng.random() < _HURRIED and number > 0
        after_s = rng.uniform(0.0, 2.0) if hurried else rng.uniform(0.3, 1.5)
        events.append(FaultEvent(bag.pop(), rng.random(), round(after_s, 3), round(rng.uniform(1.0, 4.0), 3), hurried))
    return tuple(events)
