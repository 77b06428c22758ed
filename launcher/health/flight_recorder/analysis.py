"""Finds ranks that block a collective, from Flight Recorder sequence numbers: a call ends only when every rank has
begun it.

The result only explains a hang that was found otherwise. A rank that waits itself is not blamed while another one can
be. Missing knowledge of a rank does not count against it.
Source: DL-109; torch/distributed/flight_recorder finds the missing ranks of one group by the same numbers
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from turnout.launcher.health.flight_recorder.model import Call, Group, Record
from turnout.launcher.health.rank_sets import ranks_in, set_of, unfolded

WAITS_S = 1.0  # seconds; a younger call is still in progress: nobody waits in it
MOST_WAITS = 64  # waits that a report contains


class By(StrEnum):
    """Says why a rank is suspect by its sequence numbers, the most certain reason first."""

    BEHIND = "behind"  # it has not begun the call that others wait in, and waits in none itself
    DIFFERS = "differs"  # it calls something else under the same number than two thirds of the group
    CROSSED = "crossed"  # it waits in another group for ranks that wait for it, and those are two thirds of all


@dataclass(frozen=True, slots=True)
class Waits:
    """A call in which ranks wait. Sets of ranks are bit masks, as in stack_traces/model.py."""

    group: str
    number: int
    op: str
    waiting: int  # ranks that wait in the call
    waited_s: float  # the longest wait
    behind: int = 0  # ranks that have not begun it
    elsewhere: int = 0  # those of `behind` that wait in something else
    unknown: int = 0  # ranks without a record
    ops: tuple[tuple[str, int], ...] = ()  # operations called under this number, each with its ranks, if they differ


@dataclass(frozen=True, slots=True)
class Numbers:
    """The result of analysing a world's records."""

    waits: tuple[Waits, ...] = ()
    apart: int = 0  # suspect ranks
    by: By | None = None  # why they are suspect, None if none is
    known: int = 0  # ranks with a record
    why: tuple[tuple[str, int], ...] = ()  # reasons for a missing record, each with its ranks


@dataclass(slots=True)
class _Group:
    """A process group over all ranks that have called in it."""

    name: str
    ranks: int  # its members, 0 if unknown
    of: dict[int, Group]


def judge(records: Mapping[int, Record], world: int, within: int = 0) -> Numbers:
    """Find the calls in which ranks wait, and the ranks that they wait for.

    within: ranks whose stack shows that they wait in torch. Raises nothing. A record of another world or rank is
    skipped and reported.
    """
    known, why = dict[int, Record](), dict[str, int]()
    for rank, record in sorted(records.items()):
        reason = record.why or _stranger(record, rank, world)
        if reason:
            why[reason] = why.get(reason, 0) | 1 << rank
        else:
            known[rank] = record
    groups = _groups(known, world)
    stuck = within | set_of(rank for rank, record in known.items() if record.sends)
    for group in groups:
        stuck |= set_of(rank for rank, each in group.of.items() if any(_waits(call) for call in each.calls))
    waits = tuple(sorted((found for group in groups for found in _look(group, known, stuck)), key=_weight))
    apart, by = _named(waits, set_of(known), stuck & ~_in_calls(waits))
    return Numbers(waits[:MOST_WAITS], apart, by, set_of(known), tuple(sorted(why.items())))


def _weight(waits: Waits) -> tuple[bool, bool, bool, int, str]:
    """Return a sort key that puts the most informative call first."""
    late = waits.behind & ~waits.elsewhere
    return not late, not waits.ops, not waits.behind, -waits.waiting.bit_count(), waits.group


def _stranger(record: Record, rank: int, world: int) -> str:
    if (record.rank, record.world) == (rank, world):
        return ""
    return f"its torch.distributed has rank {record.rank} of {record.world}"


def _waits(call: Call) -> bool:
    return call.open_s is not None and call.open_s >= WAITS_S


def _groups(known: Mapping[int, Record], world: int) -> list[_Group]:
    """Group the records by process group. Groups of one name on disjoint ranks are told apart by their ranks."""
    found, sets = dict[tuple[str, str, int], _Group](), dict[str, int]()  # ranks of a group write the same set
    for rank, record in known.items():
        for each in record.groups:
            if each.ranks not in sets:
                sets[each.ranks] = unfolded(each.ranks, world)
            ranks = sets[each.ranks]
            if ranks and not ranks >> rank & 1:
                continue  # the rank is not a member of this group
            name = f"{each.name} ({each.about}, {each.backend})" if each.about else f"{each.name} ({each.backend})"
            group = found.setdefault((each.name, each.backend, ranks), _Group(name, ranks, {}))
            group.of[rank] = each
    return [found[key] for key in sorted(found)]


def _look(group: _Group, known: Mapping[int, Record], stuck: int) -> Iterator[Waits]:
    """Give the first waiting call that another rank has not begun or calls differently, else the first waiting call.

    Gives nothing if no rank waits.
    """
    calls = {rank: {call.number: call for call in each.calls} for rank, each in group.of.items()}
    begun = {rank: each.begun for rank, each in group.of.items()}
    lacks = group.ranks & ~set_of(begun)
    never = set_of(rank for rank in ranks_in(lacks) if rank in known and _never_called(known[rank], group))
    first: Waits | None = None
    for number in sorted({number for each in calls.values() for number, call in each.items() if _waits(call)}):
        here = {rank: each[number] for rank, each in calls.items() if number in each}
        waiting = {rank: call for rank, call in here.items() if _waits(call)}
        behind = never | set_of(rank for rank, last in begun.items() if last < number)
        ops = dict[str, int]()
        for rank, call in here.items():
            ops[call.op] = ops.get(call.op, 0) | 1 << rank
        found = Waits(
            group.name,
            number,
            max(ops, key=lambda op: (ops[op].bit_count(), op)),
            set_of(waiting),
            max(call.open_s or 0.0 for call in waiting.values()),
            behind,
            behind & stuck,
            lacks & ~never,
            tuple(sorted(ops.items())) if len(ops) > 1 else (),
        )
        if behind or found.ops:
            yield found
            return
        first = first or found
    if first is not None:
        yield first


def _never_called(record: Record, group: _Group) -> bool:
    """True if the record is complete and has no group of this name. A group with other ranks proves nothing."""
    one = next(iter(group.of.values()))  # all have one name and one backend
    return record.whole and all((each.name, each.backend) != (one.name, one.backend) for each in record.groups)


def _in_calls(waits: tuple[Waits, ...]) -> int:
    ranks = 0
    for each in waits:
        ranks |= each.waiting
    return ranks


def _named(waits: tuple[Waits, ...], known: int, unseen: int) -> tuple[int, By | None]:
    """Return the suspect ranks and why. unseen: ranks that wait in something without a sequence number."""
    behind = differs = crossed = 0
    for each in waits:
        behind |= each.behind & ~each.elsewhere
        differs |= _minority(each)
        if not each.unknown and not unseen and 3 * each.waiting.bit_count() >= 2 * known.bit_count():
            crossed |= _crossed(each, waits)
    for ranks, by in ((behind, By.BEHIND), (differs, By.DIFFERS), (crossed, By.CROSSED)):
        if ranks:
            return ranks, by
    return 0, None


def _minority(waits: Waits) -> int:
    """Return the ranks that call another operation than at least two thirds of those known at this number."""
    if not waits.ops:
        return 0
    sizes = [ranks.bit_count() for _, ranks in waits.ops]
    if 3 * max(sizes) < 2 * sum(sizes):
        return 0
    return sum(ranks for _, ranks in waits.ops if ranks.bit_count() < max(sizes))


def _crossed(most: Waits, waits: tuple[Waits, ...]) -> int:
    """Return the ranks that miss this call because they wait in another one, only for ranks that wait in this one."""
    found = 0
    for each in waits:
        if each is not most and each.behind and not each.unknown and not each.behind & ~most.waiting:
            found |= each.waiting & most.behind
    return found
