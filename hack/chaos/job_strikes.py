"""The faults of a training job as strikes of kinds, with the invariants of its history as what was checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hack.chaos.fault_kinds import OF_JOB
from hack.chaos.fault_schedule import Fault
from hack.chaos.history import Record
from hack.chaos.invariants import Invariant, Violation
from hack.chaos.strike_table import Check, Strike


def strikes(seed: int, records: Sequence[Record], breaches: Sequence[Violation]) -> list[Strike]:
    """Return a strike for each kind of fault that hit a process, pod or node under this seed.

    A violation counts for each of these kinds.
    """
    checks = tuple(
        Check(law.value, tuple(breach.what for breach in breaches if breach.law is law)) for law in Invariant
    )
    hit = [Fault[record.kind] for record in records if record.event == "fault" and record.who]
    kinds = [OF_JOB[fault] for fault in hit if fault in OF_JOB]
    return [Strike(kind, seed, kinds.count(kind), checks) for kind in dict.fromkeys(kinds)]


def never_hit(asked: Iterable[Fault], records: Iterable[Record]) -> tuple[Fault, ...]:
    """List the faults that were asked for and hit nobody."""
    hit = {record.kind for record in records if record.event == "fault" and record.who}
    return tuple(fault for fault in asked if fault.name not in hit)
