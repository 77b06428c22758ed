"""Create late: what is left after every min goes, in whole units, to the jobs that gain most by it."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from autoscaler.lending.ledger import Ledger
from autoscaler.lending.worth import balance_s, pays
from autoscaler.model import Policy, Pool, Reason, Seen, Step
from jobs.model import Pause
from jobs.speed import gain

Unit = tuple[Pool, int]  # so many more workers of one pool
_Why = tuple[Reason, str]
_Next = tuple[int, Seen, int, Unit]  # a job that may grow: its place in turn, to which size, by what
_OTHERS_FIRST: _Why = (Reason.NO_FREE_ROOM, "others came first")


@dataclass(slots=True)
class Growing:
    """The ledgers that growth has to satisfy: with what is on its way out, without it, and with the headroom kept.

    starting: queues in which a job is about to get its min; nobody grows there before it has. full: pools that hold so
    many more workers no more, and why; growth only takes, so that stays true.
    """

    ledger: Ledger
    real: Ledger
    kept: Ledger
    others_wait: bool
    starting: set[str]
    full: dict[Unit, _Why | None] = field(default_factory=dict)
    each: tuple[Ledger, ...] = ()  # of the three, each once

    def __post_init__(self) -> None:
        """Ledgers are compared by identity: most often all three are one."""
        self.each = (self.ledger, *(held for held in (self.real, self.kept) if held is not self.ledger))

    def refused(self, unit: Unit) -> _Why | None:
        """Why there was no room for so many more workers before anybody grew; None when there was."""
        if unit not in self.full:
            self.full[unit] = None if self._could(*unit) else self._why(*unit)
        return self.full[unit]

    def take(self, unit: Unit) -> bool:
        """Charge so many more workers everywhere; False, and nothing charged, when there is no room."""
        if unit not in self.full and self.refused(unit) is not None:
            return False
        pool, pods = unit
        if len(self.each) == 1:
            done = self.ledger.take(pool, pods)
        elif done := all(held.could(pool, pods) for held in self.each):
            for held in self.each:
                held.take(pool, pods)
        if not done:
            self.full[unit] = self._why(pool, pods)
        return done

    def copied(self) -> Growing:
        """The same, to be charged; what is full stays so."""
        copies = {id(held): held.copied() for held in self.each}
        ledger, real, kept = (copies[id(held)] for held in (self.ledger, self.real, self.kept))
        return Growing(ledger, real, kept, self.others_wait, self.starting, dict(self.full))

    def _could(self, pool: Pool, pods: int) -> bool:
        if pool.queue in self.starting or not self.ledger.quota.is_open(pool.queue):
            return False
        return all(held.could(pool, pods) for held in self.each)

    def _why(self, pool: Pool, pods: int) -> _Why:
        if not self.ledger.quota.is_open(pool.queue):
            return Reason.QUEUE_CLOSED, f"queue {pool.queue} is closed"
        if pool.queue in self.starting:
            return Reason.OTHERS_WAIT, f"a job of queue {pool.queue} is about to start"
        if self.ledger.could(pool, pods):
            if self.real.could(pool, pods):
                return Reason.HEADROOM_KEPT, "the room left is kept free"
            return Reason.NO_FREE_ROOM, "what will be free is not free yet"
        if self.others_wait:
            return Reason.OTHERS_WAIT, "what is free is promised to jobs that wait"
        if not self.ledger.quota.holds(pool.queue, pool.needs, pods):
            return Reason.NO_FREE_ROOM, f"queue {pool.queue} is full"
        return Reason.NO_FREE_ROOM, "no whole worker fits on the nodes"


def grow(runners: Sequence[Seen], growing: Growing, policy: Policy, now_s: float, steps: dict[int, Step]) -> None:
    """One step for each of these jobs: larger, or left alone with the reason. steps: put here, by the job's id."""
    able: list[Seen] = []
    any_poor, full, enough = False, growing.full, 2 * policy.restart_s / max(policy.payback_s, 1e-9)
    for each in runners:
        job = each.job
        why = None if each.steady else _unsteady(each, now_s)
        if why is None and job.bank.resized_s:
            why = _too_soon(each, policy, now_s)
        if why is None:
            why = full[each.unit] if each.unit in full else growing.refused(each.unit)
        if why is None:
            if each.first.per_worker < policy.least_gain:
                why = Reason.MARGINAL_GAIN, f"{each.first.share:.1%} faster by the next worker"
            elif not any_poor and (each.first.share < enough or job.bank.restart_s is not None):
                any_poor = not pays(job, each.larger, policy)  # perhaps it does by growing further
        if why is None:
            able.append(each)
        else:
            steps[id(each)] = each.hold(*why)
    _grown(able, growing, policy, any_poor, steps)


def _grown(able: list[Seen], growing: Growing, policy: Policy, any_poor: bool, steps: dict[int, Step]) -> None:
    """What becomes of jobs that may grow. A growth that would not pay is taken back, and others have the room."""
    poor: set[int] = set()
    while True:
        attempt = growing.copied() if any_poor else growing
        sizes = _shared_out([each for each in able if id(each) not in poor] if poor else able, attempt, policy)
        late = any_poor and {
            id(each) for each in able if id(each) in sizes and not pays(each.job, sizes[id(each)], policy)
        }
        if not late:
            break
        poor |= late
    for each in able:
        job = each.job
        if (size := sizes.get(id(each))) is not None:
            steps[id(each)] = Step(job.key, size, job.replicas, Reason.IDLE_ROOM, f"room in queue {job.queue}")
        elif id(each) in poor:
            why = f"{each.first.share:.1%} faster by the next worker: no restart is worth it"
            steps[id(each)] = each.hold(Reason.MARGINAL_GAIN, why)
        else:
            steps[id(each)] = each.hold(*(attempt.full.get(each.unit) or _OTHERS_FIRST))


def _shared_out(able: list[Seen], growing: Growing, policy: Policy) -> dict[int, int]:
    """The sizes that jobs get, by id: unit by unit to whoever gains most, and among those that gain alike by turn."""
    sizes: dict[int, int] = {}
    levels: defaultdict[float, list[_Next]] = defaultdict(list)
    full = growing.full
    for turn, each in enumerate(able):
        levels[-each.first.share].append((turn, each, each.larger, each.unit))
    heap = list(levels)
    heapq.heapify(heap)
    while heap:
        level = levels.pop(heapq.heappop(heap))
        level.sort(key=itemgetter(0))
        for turn, each, larger, unit in level:
            if (unit in full and full[unit] is not None) or not growing.take(unit):
                continue
            job = each.job
            sizes[id(each)] = larger
            further = job.sizes.larger(larger)
            if further > job.most:
                continue
            worth = gain(job.curve, job.bounds.least, larger, further)
            if worth.per_worker >= policy.least_gain:
                if -worth.share not in levels:
                    heapq.heappush(heap, -worth.share)
                levels[-worth.share].append((turn, each, further, (each.pool, further - larger)))
    return sizes


def _unsteady(seen: Seen, now_s: float) -> _Why | None:
    """Why a running job is left alone whatever room there is: its owner forbids it, or workers are on their way."""
    job = seen.job
    if job.pause is not Pause.NONE:
        if (paused := job.paused(now_s)) in (Pause.GROW, Pause.BOTH):
            return Reason.PAUSED, paused.value
        if seen.larger > job.most:
            return Reason.AT_MAX, f"{job.replicas} of {job.most}"
    if len(seen.workers) != job.replicas or seen.placed != job.replicas:
        return Reason.NOT_READY, f"{seen.placed} of {job.replicas} workers have a node"
    return None


def _too_soon(seen: Seen, policy: Policy, now_s: float) -> _Why | None:
    """Why a job that was changed before is not changed again yet."""
    job = seen.job
    pause_s, since_s = policy.cooldown_s if job.cooldown_s is None else job.cooldown_s, now_s - job.bank.resized_s
    if since_s < pause_s:
        return Reason.COOLDOWN, f"{pause_s - since_s:.0f} s are left of {pause_s:g}"
    if (balance := balance_s(job, policy, now_s)) < 0:
        return Reason.BUDGET_SPENT, f"restarts have cost it {-balance:.0f} s more than lending has won it"
    return None
