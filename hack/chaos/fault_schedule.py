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


# Faults that end no process and lose no memory.
HARMLESS = frozenset({Fault.STOPPED, Fault.API, Fault.EXTENDER, Fault.AUTOSCALER, Fault.CUT, Fault.FULL})
LOSES_MEMORY = frozenset({Fault.POD, Fault.COORDINATOR, Fault.NODE})
_DURING_RECOVERY = 0.3  # share of faults that hit a job which still recovers from the fault before


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """A planned fault."""

    fault: Fault
    aim: float  # picks the target: its position in the list of possible targets, as a share in [0, 1)
    after_s: float  # seconds of undisturbed training before it; if `during_recovery`, seconds after the fault before it
    lasts_s: float  # seconds until it is undone, for faults that can be
    during_recovery: bool = False  # it does not wait until the job trains again


def schedule(seed: int, faults: int, kinds: Sequence[Fault] = tuple(Fault)) -> tuple[FaultEvent, ...]:
    """Draw a schedule of `faults` faults. Every kind occurs before a kind occurs again.

    The first fault never comes during a recovery. The same seed, count and kinds always give the same schedule.
    """
    rng, events, bag = Random(f"chaos/{seed}"), list[FaultEvent](), list[Fault]()
    for number in range(faults):
        if not bag:
            bag = list(kinds)
            rng.shuffle(bag)
        during_recovery = rng.random() < _DURING_RECOVERY and number > 0
        after_s = rng.uniform(0.0, 2.0) if during_recovery else rng.uniform(0.3, 1.5)
        events.append(
            FaultEvent(bag.pop(), rng.random(), round(after_s, 3), round(rng.uniform(1.0, 4.0), 3), during_recovery)
        )
    return tuple(events)
