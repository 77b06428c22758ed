"""Create late: what is left after every min goes, in whole units, to who gains most by it, then to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from turnout.autoscaler.model import NODES, JobState, Policy, Pool, Reason, Step
from turnout.autoscaler.scaling.cost_model import balance_s, pays, starts
from turnout.autoscaler.scaling.reservations import Reservations
from turnout.jobs.model import Pause
from turnout.jobs.scaling_curve import gain

Unit = tuple[Pool, int]  # so many more workers of one pool
_Why = tuple[Reason, str]
_OTHERS_FIRST: _Why = (Reason.NO_FREE_ROOM, "others came first")
_SETTLES: _Why = (Reason.ROOM_SETTLES, "what is free has been idle for less than a restart takes")


@dataclass(slots=True)
class Growing:
    """The ledgers that growth has to satisfy: with what is on its way out, without it, and with the headroom kept.

    starting: queues in which a job is about to get its min; nobody grows there before it has. full: pools that hold so
    many more workers no more, and why; growth only takes, so that stays true. settled: what is left of the room that
    has been idle for as long as a restart takes, None where that does not matter. young: units for which too little is.
    """

    ledger: Reservations
    real: Reservations
    kept: Reservations
    others_wait: bool
    starting: set[str]
    full: dict[Unit, _Why | None] = field(default_factory=dict)
    settled: dict[str, dict[str, int]] | None = None
    young: set[Unit] = field(default_factory=set)
    each: tuple[Reservations, ...] = ()  # of the three, each once

    def __post_init__(self) -> None:
        """Ledgers are compared by identity: most often all three are one."""
        self.each = (self.ledger, *(held for held in (self.real, self.kept) if held is not self.ledger))

    def refused(self, unit: Unit) -> _Why | None:
        """Why there was no room for so many more workers before anybody grew; None when there was."""
        if unit not in self.full:
            self.full[unit] = None if self._could(*unit) else self._why(*unit)
        return self.full[unit]

    def take(self, unit: Unit, at_start: bool = False) -> bool:
        """Charge so many more workers everywhere; False, and nothing charged, when there is no room.

        at_start: for a job that starts, to which room is good that was taken a moment ago.
        """
        if unit not in self.full and self.refused(unit) is not None:
            return False
        if not at_start and not self._settled(unit):
            self.young.add(unit)
            return False
        pool, pods = unit
        if len(self.each) == 1:
            done = self.ledger.take(pool, pods)
        elif done := all(held.could(pool, pods) for held in self.each):
            for held in self.each:
                held.take(pool, pods)
        if not done:
            self.full[unit] = self._why(pool, pods)
        elif not at_start:
            for amounts in self._settling(pool.queue):
                for what, amount in pool.needs:
                    if what in amounts:
                        amounts[what] -= amount * pods
        return done

    def _settled(self, unit: Unit) -> bool:
        """Has enough room for so many more workers been idle for long enough?"""
        pool, pods = unit
        for amounts in self._settling(pool.queue):
            for what, amount in pool.needs:
                if amounts.get(what, amount * pods) < amount * pods:
                    return False
        return True

    def _settling(self, queue: str) -> Iterator[dict[str, int]]:
        """Give the room idle for long enough on the nodes, in a queue and above it, where that is bounded."""
        if self.settled is not None:
            for place in (NODES, *self.ledger.quota.chain(queue)):
                if (amounts := self.settled.get(place)) is not None:
                    yield amounts

    def copied(self) -> Growing:
        """The same, to be charged; what is full stays so."""
        copies = {id(held): held.copied() for held in self.each}
        ledger, real, kept = (copies[id(held)] for held in (self.ledger, self.real, self.kept))
        settled = None if self.settled is None else {name: dict(each) for name, each in self.settled.items()}
        return Growing(ledger, real, kept, self.others_wait, self.starting, dict(self.full), settled, set(self.young))

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


def grow(runners: Sequence[JobState], growing: Growing, policy: Policy, now_s: float, steps: dict[int, Step]) -> None:
    """One step for each of these jobs: larger, or left alone with the reason. steps: put here, by the job's id.

    Jobs that start come first: to them growth costs nothing.
    """
    born, able = list[JobState](), list[JobState]()
    any_poor, enough = False, 2 * policy.restart_s / max(policy.payback_s, 1e-9)
    for each in runners:
        job = each.job
        why = None if each.steady else _unsteady(each, now_s)
        if why is None and job.bank.resized_s:
            why = _too_soon(each, policy, now_s)
        if why is None:
            why = growing.refused(each.unit)
        if why is None:
            if each.first.per_worker < policy.least_gain:
                why = Reason.MARGINAL_GAIN, f"{each.first.share:.1%} faster by the next worker"
            elif not any_poor and (each.first.share < enough or job.bank.restart_s is not None):
                any_poor = not pays(job, each.larger, policy)  # perhaps it does by growing further
        if why is None:
            (born if starts(each, policy, now_s) else able).append(each)
        else:
            steps[id(each)] = each.hold(*why)
    if born:
        growing = _grown(born, growing, policy, any_poor, steps, at_start=True)
    _grown(able, growing, policy, any_poor, steps)


def _grown(
    able: list[JobState],
    growing: Growing,
    policy: Policy,
    any_poor: bool,
    steps: dict[int, Step],
    at_start: bool = False,
) -> Growing:
    """Decide for the jobs that may grow. A growth that would not pay is taken back, and others have the room.

    Returns what is left. at_start: do these jobs start?
    """
    poor, restarts = set[int](), 1 if at_start else 2
    while True:
        attempt = growing.copied() if any_poor else growing
        some = [each for each in able if id(each) not in poor]
        sizes = _shared_out(some, attempt, policy, at_start)
        late = any_poor and {
            id(each) for each in able if id(each) in sizes and not pays(each.job, sizes[id(each)], policy, restarts)
        }
        if not late:
            break
        poor |= late
    for each in able:
        job = each.job
        if (size := sizes.get(id(each))) is not None:
            room = f"room in queue {job.queue}{' as it starts' if at_start else ''}"
            steps[id(each)] = Step(job.key, size, job.replicas, Reason.IDLE_ROOM, room, at_start=at_start)
        elif id(each) in poor:
            why = f"{each.first.share:.1%} faster by the next worker: no restart is worth it"
            steps[id(each)] = each.hold(Reason.MARGINAL_GAIN, why)
        else:
            young = None if at_start or each.unit not in attempt.young else _SETTLES
            steps[id(each)] = each.hold(*(attempt.full.get(each.unit) or young or _OTHERS_FIRST))
    return attempt


def _shared_out(able: list[JobState], growing: Growing, policy: Policy, at_start: bool) -> dict[int, int]:
    """The sizes that jobs get, by id: all that it can use to whoever gains most, then to the next.

    Each of two that shared it would pay a restart of its own. Who gain alike come by turn.
    """
    sizes: dict[int, int] = {}
    for each in sorted(able, key=_gains_most):
        if growing.refused(each.unit) is None:
            size = _fed(each, growing, policy, at_start)
            if size > each.job.replicas:
                sizes[id(each)] = size
    return sizes


def _gains_most(each: JobState) -> float:
    """Sort jobs by what their first step of growth is worth, the largest first."""
    return -each.first.share


def _fed(each: JobState, growing: Growing, policy: Policy, at_start: bool) -> int:
    """The size that a job gets, which is charged: as large as there is room and each step is worth it."""
    job, size, larger = each.job, each.job.replicas, each.larger
    while larger <= job.most and gain(job.curve, job.bounds.least, size, larger).per_worker >= policy.least_gain:
        if not growing.take((each.pool, larger - size), at_start):
            break
        size, larger = larger, job.sizes.larger(larger)
    return size


def _unsteady(seen: JobState, now_s: float) -> _Why | None:
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


def _too_soon(seen: JobState, policy: Policy, now_s: float) -> _Why | None:
    """Why a job that was changed before is not changed again yet."""
    job = seen.job
    pause_s, since_s = policy.cooldown_s if job.cooldown_s is None else job.cooldown_s, now_s - job.bank.resized_s
    if since_s < pause_s and not job.bank.at_start:
        return Reason.COOLDOWN, f"{pause_s - since_s:.0f} s are left of {pause_s:g}"
    if (balance := balance_s(job, policy, now_s)) < 0:
        return Reason.BUDGET_SPENT, f"restarts have cost it {-balance:.0f} s more than lending has won it"
    return None
