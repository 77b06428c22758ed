"""Simulates one possible future: running jobs end at given times, and waiting jobs start in order on the free room.

Room is counted on whole nodes and within quotas, as in decisions. To bound the cost, only the first ends are simulated,
and of jobs with the same request only the first is tried.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from turnout.autoscaler.capacity import Charges
from turnout.autoscaler.model import UNKNOWN_NODE, JobState
from turnout.autoscaler.reporting.runtime_stats import Floats
from turnout.autoscaler.scaling.reservations import CapacityRequest, Reservations
from turnout.kube.pod_shape import PodShape

MOST_ENDS = 48  # of running jobs, the first of a future
ROUNDS = 24  # in which these are handed on
MOST_TRIES = 120  # to find room in one future
NEVER = math.inf
PodCharges = list[tuple[PodShape, Charges]]


@dataclass(slots=True)
class DemandGroup:
    """Jobs that ask for the same, in their turn: where the first finds no room, none of them does.

    needs: what it asks of its queue. life_s: of one of them once it has begun, by future. ranks: their places among
    all that wait.
    """

    request: CapacityRequest
    needs: tuple[tuple[str, int], ...]
    life_s: Floats
    ranks: list[int] = field(default_factory=list)

    def reserve(self, left: Reservations) -> PodCharges | None:
        """Charge one job. Return what it has taken, None if it does not fit."""
        request, room, quota = self.request, left.room, left.quota
        if request.tier is not None:
            return [] if left.reserve(request) else None  # where it stands is not told: its room is not counted again
        if not quota.holds(request.queue, self.needs):
            return None
        reserved: PodCharges = []
        for shape, pods in request.pods:
            charges = room.take(shape, pods)
            if charges is None:
                for other, charged in reserved:
                    room.undo(other, charged)
                return None
            reserved.append((shape, charges))
        quota.take(request.queue, self.needs)
        return reserved

    def leave(self, left: Reservations, charges_of_job: PodCharges) -> None:
        """Give back what one job of the group has held."""
        for shape, charges in charges_of_job:
            left.room.undo(shape, charges)
        if charges_of_job:
            left.quota.take(self.request.queue, self.needs, -1)


@dataclass(frozen=True, slots=True)
class Runner:
    """A running job. lent: its workers above the min have left before it ends."""

    state: JobState
    lent: bool

    def leave(self, left: Reservations, charges: PodCharges) -> None:
        """Give back what a running job holds at its end."""
        stay = self.state.living[: self.state.job.bounds.least] if self.lent else self.state.living
        left.release(
            self.state.pool, [worker.row for worker in stay if worker.row is not None and worker.row != UNKNOWN_NODE]
        )


End = tuple[
    float, int, Runner | DemandGroup, PodCharges
]  # when, a number that tells those of one moment apart, whose, of what


def simulate(
    draw: int,
    start: Reservations,
    running: Sequence[JobState],
    lent: Collection[str],
    left_s: Floats,
    lines: Sequence[DemandGroup],
) -> dict[int, float]:
    """Return when waiting jobs start in one future, by rank, in seconds from now.

    start: the room now. lent: queues whose elastic workers have left. left_s: how long running jobs still run.
    """
    left, starts, line_of = start.copied(), dict[int, float](), _Lines(lines)
    soonest = np.argpartition(left_s, MOST_ENDS)[:MOST_ENDS] if len(left_s) > MOST_ENDS else np.arange(len(left_s))
    ends: list[End] = []
    for at_s, number in zip(left_s[soonest].tolist(), soonest.tolist(), strict=True):
        who = running[number]
        ends.append((at_s, number, Runner(who, who.can_shrink and who.job.queue in lent), []))
    heapq.heapify(ends)
    at_once = max(1, len(ends) // ROUNDS)
    while ends and line_of.tries < MOST_TRIES and len(starts) < line_of.waiters:
        at_s = 0.0
        for _ in range(min(at_once, len(ends))):
            at_s, _, owner, charges = heapq.heappop(ends)
            owner.leave(left, charges)
        for line, rank, charges in line_of.served(left):
            starts[rank] = at_s
            life_s = float(line.life_s[(draw + rank) % len(line.life_s)])
            heapq.heappush(ends, (at_s + life_s, -len(starts), line, charges))
    return starts


_Head = tuple[int, int, DemandGroup]  # whose turn it is in a line: its rank, its place in the line


class _Lines:
    """The heads of the lines, by the first shape that they ask for. tries: how often room was looked for."""

    def __init__(self, lines: Sequence[DemandGroup]) -> None:
        self._of: dict[PodShape, list[_Head]] = {}
        self.waiters, self.tries = sum(len(line.ranks) for line in lines), 0
        for line in lines:
            self._of.setdefault(line.request.pods[0][0], []).append((line.ranks[0], 0, line))

    def served(self, left: Reservations) -> Iterator[tuple[DemandGroup, int, PodCharges]]:
        """Yield the waiting jobs that find room now, in order. A shape without room is not tried."""
        room = {shape: left.room.total(shape) for shape, heads in self._of.items() if heads}
        self.tries += 1
        heads = [head for shape in room if room[shape] for head in self._of[shape]]
        heapq.heapify(heads)
        while heads:
            head = heapq.heappop(heads)
            rank, place, line = head
            shape, pods = line.request.pods[0]
            if room[shape] < pods:
                continue
            self.tries += 1
            if (charges := line.reserve(left)) is None:
                continue
            yield line, rank, charges
            room[shape] = left.room.total(shape)  # of the others it is what they had at most
            mine = self._of[shape]
            mine.remove(head)
            if place + 1 < len(line.ranks):
                mine.append((line.ranks[place + 1], place + 1, line))
                heapq.heappush(heads, mine[-1])
            if not any(room.values()):
                return
