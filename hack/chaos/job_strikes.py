"""Converts the faults of one seed into strikes: for each kind of fault, how often it hit, and the result of every
invariant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hack.chaos.fault_kinds import OF_JOB
from hack.chaos.fault_schedule import Fault
from hack.chaos.history import Record
from hack.chaos.invariants import Invariant, Violation
from hack.chaos.strike_table import Check, Strike


def strikes(seed: int, records: Sequence[Record], violations: Sequence[Violation]) -> list[Strike]:
    """Return a strike for each kind of fault that hit a process, pod or node under this seed.

    Each strike has the number of hits and the results of all invariants: one history is checked for all its faults.
    violations: in the history `records`.
    """
    checks = tuple(
        Check(invariant.value, tuple(each.what for each in violations if each.invariant is invariant))
        for invariant in Invariant
    )
    hit = [Fault[record.kind] for record in records if record.event == "fault" and record.who]
    kinds = [OF_JOB[fault] for fault in hit if fault in OF_JOB]
    return [Strike(kind, seed, kinds.count(kind), checks) for kind in dict.fromkeys(kinds)]


def faults_without_hit(faults: Iterable[Fault], records: Iterable[Record]) -> tuple[Fault, ...]:
    """Return the faults in `faults` that hit nothing, although the schedule may have them."""
    hit = {record.kind for record in records if record.event == "fault" and record.who}
    return tuple(fault for fault in faults if fault.name not in hit)
