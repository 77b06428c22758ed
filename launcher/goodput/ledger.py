"""Decides which kind each interval of a job's wall time is. A pure state machine: the time is an argument.

Training time is undecided at first. A saved step makes the steps up to it productive; a new world makes the others
wasted. Whoever knows the job's phases calls this module: launcher/rendezvous/job_time_account.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from turnout.launcher.goodput.job_time import NS, JobTime, RankZero, TimeKind, Totals

# A job that has reported no step for so long reports none: its time is not a start.
LONGEST_START_NS = 3_600 * NS

NO_TOTALS = Totals()


@dataclass(frozen=True, slots=True)
class UndecidedTime:
    """The time of the newest world that is not of a kind yet, in nanoseconds."""

    start_ns: int = 0  # of a world without a step: its start
    steps_ns: int = 0  # of steps that are done and not preserved
    tail_ns: int = 0  # since the newest step

    @property
    def total_ns(self) -> int:
        """Return the sum of all parts, in nanoseconds."""
        return self.start_ns + self.steps_ns + self.tail_ns


@dataclass(frozen=True, slots=True)
class Ledger:
    """The totals of one coordinator, those that it inherited, and the time that is not decided yet."""

    issuer: str = ""  # member id of this coordinator
    begun_ns: int = 0  # when it began, in nanoseconds since 1970
    start_ns: int = 0  # the same moment on the clock of now_ns
    now_ns: int = 0  # end of the counted time, on a clock that never goes back
    inherited: JobTime | None = None  # totals of an earlier coordinator; None for none
    own: Totals = NO_TOTALS  # since this coordinator began
    gpus: int = 0  # of the newest world, whose steps are undecided
    undecided: UndecidedTime = UndecidedTime()
    mark: int = -1  # the newest decided step: the time of later steps is in undecided.steps_ns
    step: int = -1  # the newest step of this round, -1 for none
    preserved: int = -1  # the newest preserved step
    saved: int = -1  # the newest saved step that was reported before the first world here; -1 for none
    pause: TimeKind = TimeKind.RENDEZVOUS  # the kind of time between two worlds
    started: bool = False  # some world of this job has made a step
    claimed_ns: Mapping[TimeKind, int] = field(default_factory=dict)  # rank 0's phases that were counted in this round


def new_ledger(
    issuer: str, begun_ns: int, now_ns: int, record: JobTime | None = None, pause: TimeKind = TimeKind.RENDEZVOUS
) -> Ledger:
    """Return a new ledger for a coordinator. begun_ns: since 1970; now_ns: the same on a clock that never goes back.

    record: the newest totals of an earlier coordinator, None if unknown. pause: the kind of the time until a world
    forms, if there is no record.
    """
    ledger = Ledger(issuer, begun_ns, now_ns, now_ns, pause=pause)
    return ledger if record is None else inherit(ledger, record)


def later_totals(own: JobTime | None, stored: JobTime | None) -> JobTime | None:
    """Return the totals with the later `until_ns`, `own` if they are equal; None if there are none.

    own: those of this coordinator's agent. stored: those that the arbiter keeps. If only `stored` is known, no member
    of the last world is left: the job has stopped as a whole. Then a copy is returned whose `pause` is RECOVERY, so
    that the time until the next world counts as recovery.
    """
    if stored is None or (own is not None and own.until_ns >= stored.until_ns):
        return own
    return stored if own is not None else replace(stored, pause=TimeKind.RECOVERY)


def inherit(ledger: Ledger, record: JobTime) -> Ledger:
    """Adopt the totals of an earlier coordinator, unless newer ones are known.

    Its undecided steps stay undecided until the first world forms here. After that they are wasted.
    """
    known = ledger.inherited
    is_own = record.issuer == ledger.issuer and record.until_ns >= ledger.begun_ns
    if is_own or (known is not None and known.until_ns >= record.until_ns):
        return ledger
    if ledger.gpus and known is None:  # a world was formed before this coordinator learned the totals of an earlier one
        lost = Totals().plus(record.time_ns, record.gpu_us).add(TimeKind.WASTED, record.undecided_ns, record.gpus)
        return replace(ledger, inherited=replace(record, time_ns=lost.time_ns, gpu_us=lost.gpu_us, undecided_ns=0))
    if ledger.gpus:
        return ledger
    return replace(
        ledger,
        inherited=record,
        undecided=replace(ledger.undecided, steps_ns=record.undecided_ns),
        mark=record.mark,
        step=record.step,
        preserved=record.mark,
        pause=record.pause,
        started=record.steps_reported,
    )


def record_of(ledger: Ledger) -> JobTime:
    """Return the job's totals up to now: this coordinator's, the inherited ones, and the time between the two.

    The time between counts as the `pause` of the inherited totals.
    """
    totals, origin_ns = ledger.own, ledger.begun_ns
    if (past := ledger.inherited) is not None:
        totals = totals.plus(past.time_ns, past.gpu_us)
        totals = totals.add(past.pause, ledger.begun_ns - past.until_ns, past.gpus)
        origin_ns = min(past.origin_ns, origin_ns)
    return JobTime(
        ledger.issuer,
        origin_ns,
        ledger.begun_ns + ledger.now_ns - ledger.start_ns,
        totals.time_ns,
        totals.gpu_us,
        ledger.undecided.total_ns,
        _gpus(ledger),
        ledger.mark,
        ledger.step,
        ledger.pause,
        ledger.started,
    )


def count_pause(ledger: Ledger, now_ns: int, kind: TimeKind, gpus: int = 0) -> Ledger:
    """Return the ledger with the time up to `now_ns` counted as `kind`. No world trained in that time.

    gpus: those of the members present, if no world has formed before; 0: those of the last world.
    """
    passed_ns = max(now_ns - ledger.now_ns, 0)
    own = ledger.own.add(kind, passed_ns, _gpus(ledger) or gpus)
    return replace(ledger, now_ns=ledger.now_ns + passed_ns, own=own)


def count_training(ledger: Ledger, now_ns: int, report: RankZero | None = None, *, hung: bool = False) -> Ledger:
    """Return the ledger with the time up to `now_ns` counted as time in which a world trained.

    report: the newest of rank 0, None if it is unknown. hung: a process hangs.
    """
    passed_ns = max(now_ns - ledger.now_ns, 0)
    starts, undecided = ledger.step < 0, ledger.undecided
    waited_ns = passed_ns + (undecided.start_ns if starts else undecided.tail_ns)
    if report is not None:
        ledger, waited_ns = _claim(ledger, report, waited_ns, starts)
    ledger = replace(ledger, now_ns=ledger.now_ns + passed_ns)
    if hung:
        undecided = replace(undecided, start_ns=0, tail_ns=0)
        return replace(_add(ledger, TimeKind.HANG, waited_ns), undecided=undecided)
    if not starts:
        return replace(ledger, undecided=replace(undecided, tail_ns=waited_ns))
    if not ledger.started and waited_ns > LONGEST_START_NS:
        return replace(_add(ledger, TimeKind.OTHER, waited_ns), undecided=replace(undecided, start_ns=0))
    return replace(ledger, undecided=replace(undecided, start_ns=waited_ns))


def begin_steps(ledger: Ledger, first: int, since_first_ns: int = 0) -> Ledger:
    """Record that the world has done the first step of its round; the time before it was the start.

    first: number of that step. since_first_ns: nanoseconds since it ended.
    """
    if ledger.step >= 0 or first < 0:
        return ledger
    rest_ns = min(since_first_ns, ledger.undecided.start_ns)
    kind = TimeKind.REINIT if ledger.started else TimeKind.STARTUP
    ledger = _add(ledger, kind, ledger.undecided.start_ns - rest_ns)
    undecided = replace(ledger.undecided, start_ns=0, tail_ns=rest_ns)
    return replace(ledger, undecided=undecided, step=first, mark=max(first, ledger.preserved), started=True)


def advance(ledger: Ledger, step: int, since_step_ns: int = 0) -> Ledger:
    """Record the newest step that the world has done. Steps that were preserved before, and are repeated, are wasted.

    since_step_ns: nanoseconds since the step ended. An older step changes nothing.
    """
    if step <= ledger.step or ledger.step < 0:
        return ledger
    undecided = ledger.undecided
    rest_ns = min(since_step_ns, undecided.tail_ns)
    done_ns = undecided.tail_ns - rest_ns
    repeated = min(max(ledger.preserved - ledger.step, 0), step - ledger.step)  # steps that were preserved before
    repeated_ns = done_ns * repeated // (step - ledger.step)
    undecided = replace(undecided, tail_ns=rest_ns, steps_ns=undecided.steps_ns + done_ns - repeated_ns)
    return replace(_add(ledger, TimeKind.WASTED, repeated_ns), undecided=undecided, step=step)


def preserve(ledger: Ledger, saved: int) -> Ledger:
    """Count the time of the steps up to `saved` as productive. The steps between two reports count as equally long.

    Before this coordinator's first world the undecided steps are inherited, and a member may still bring newer totals
    of the same steps. Then `saved` is only remembered until that world forms. saved: the newest step that was
    preserved.
    """
    if not ledger.gpus:
        return replace(ledger, saved=max(saved, ledger.saved))
    return _preserve(ledger, saved)


def stop(ledger: Ledger, tail: TimeKind) -> Ledger:
    """Return the ledger at the end of a round. tail: the kind of the time since the newest step."""
    start = TimeKind.REINIT if ledger.started else TimeKind.OTHER  # without any step, nobody knows what it was
    ledger = _add(_add(ledger, start, ledger.undecided.start_ns), tail, ledger.undecided.tail_ns)
    return replace(ledger, undecided=replace(ledger.undecided, start_ns=0, tail_ns=0))


def form(ledger: Ledger, gpus: int) -> Ledger:
    """Begin a round with this many GPUs. Steps that nobody preserved are wasted.

    If nobody ends the round, its coordinator was lost: the time until the next world is recovery.
    """
    ledger = _settle(ledger)
    ledger = _add(ledger, TimeKind.WASTED, ledger.undecided.steps_ns)
    undecided = replace(ledger.undecided, steps_ns=0)
    return replace(ledger, undecided=undecided, step=-1, gpus=gpus, claimed_ns={}, pause=TimeKind.RECOVERY)


def finish(ledger: Ledger, *, success: bool) -> Ledger:
    """End the job. The steps of a job that succeeds are preserved, those of another one are wasted."""
    kind = TimeKind.PRODUCTIVE if success else TimeKind.WASTED
    ledger = _settle(ledger)
    ledger = _add(ledger, kind, ledger.undecided.steps_ns)
    return replace(ledger, undecided=replace(ledger.undecided, steps_ns=0))


def _settle(ledger: Ledger) -> Ledger:
    """Preserve what was reported as saved before the first world here."""
    return ledger if ledger.saved < 0 else _preserve(replace(ledger, saved=-1), ledger.saved)


def _preserve(ledger: Ledger, saved: int) -> Ledger:
    """Count the undecided steps up to the saved step as productive: their share of the time of all undecided steps."""
    if saved <= ledger.preserved:
        return ledger
    if ledger.step >= 0:
        ledger = advance(ledger, saved)  # another rank has reported the save before rank 0 reported the step
    if saved <= ledger.mark or ledger.step <= ledger.mark:
        return replace(ledger, preserved=saved, mark=max(saved, ledger.mark))
    steps_ns = ledger.undecided.steps_ns
    share_ns = steps_ns * (saved - ledger.mark) // (ledger.step - ledger.mark)
    undecided = replace(ledger.undecided, steps_ns=steps_ns - share_ns)
    return replace(_add(ledger, TimeKind.PRODUCTIVE, share_ns), undecided=undecided, mark=saved, preserved=saved)


def _claim(ledger: Ledger, report: RankZero, waited_ns: int, starts: bool) -> tuple[Ledger, int]:
    """Count the time that rank 0 reports for its phases (restore, save, data, other) and that is not yet counted.

    waited_ns: time in which the world did no step; at most this much is counted, and the rest by a later call. starts:
    before the first step, when the phase OTHER is part of the start. Returns the ledger and what is left of waited_ns.
    """
    claimed_ns = dict(ledger.claimed_ns)
    for kind, spent_ns in report.by_kind().items():
        if starts and kind is TimeKind.OTHER:
            claimed_ns[kind] = spent_ns
            continue
        taken_ns = min(max(spent_ns - claimed_ns.get(kind, 0), 0), waited_ns)
        ledger, waited_ns = _add(ledger, kind, taken_ns), waited_ns - taken_ns
        claimed_ns[kind] = claimed_ns.get(kind, 0) + taken_ns
    return replace(ledger, claimed_ns=claimed_ns), waited_ns


def _gpus(ledger: Ledger) -> int:
    """Return the GPUs of the newest world, here or before this coordinator; 0 before the first."""
    return ledger.gpus or (ledger.inherited.gpus if ledger.inherited is not None else 0)


def _add(ledger: Ledger, kind: TimeKind, amount_ns: int) -> Ledger:
    """Add an interval to the totals that this coordinator counted, for the GPUs of the newest world."""
    return replace(ledger, own=ledger.own.add(kind, amount_ns, _gpus(ledger)))
