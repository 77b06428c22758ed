"""Feeds the coordinator's phases and causes, interval by interval, into the ledger of the job's time. docs/goodput.md

launcher/goodput/ledger.py decides to which kind of time (goodput) an interval belongs.
"""

from __future__ import annotations

from dataclasses import replace

from turnout.launcher.goodput import ledger as ledgers
from turnout.launcher.goodput.job_time import NS, JobTime, TimeKind
from turnout.launcher.goodput.ledger import Ledger
from turnout.launcher.model import Exit, Reason
from turnout.launcher.rendezvous.state import Phase, State, Transition

TRAINING_PHASES = (Phase.TRAINING, Phase.DRAINING)  # in which processes train
_END_PHASES = (Phase.FINISHING, Phase.OVER)
_RESIZE_KINDS = {  # the kind of the pause after a round that ended for this reason; RECOVERY for other reasons
    Reason.MEMBER_LEFT: TimeKind.ELASTIC_SHRINK,
    Reason.DRAINED: TimeKind.ELASTIC_SHRINK,
    Reason.MEMBER_JOINED: TimeKind.ELASTIC_GROW,
}
# The kind of the time since the last step of a round that ended for this reason; WASTED for other reasons.
_LAST_STEP_KINDS = {**_RESIZE_KINDS, Reason.ALL_DONE: TimeKind.OTHER, Reason.PROCESS_HUNG: TimeKind.HANG}


def adopt_totals(ledger: Ledger | None, record: JobTime | None) -> Ledger | None:
    """Return the ledger with the totals that a member knows from an earlier coordinator, if those are newer.

    None for a job whose time is not measured (`ledger` is None). Without a record the ledger is returned unchanged.
    """
    return ledger if ledger is None or record is None else ledgers.inherit(ledger, record)


def account_time(transition: Transition, before: State) -> None:
    """Update transition.state.ledger: add the time since its last entry, then record what this transition has changed.

    Records a save, an ended round, a new world and the end of the job. Logs the totals at the end of a round and of
    the job. Does nothing without a ledger. before: the state at the start of this transition, which decides the kind
    of the time.
    """
    if (ledger := transition.state.ledger) is None:
        return
    after, now_ns = transition.state, round(transition.now_s * NS)
    trained, in_world = before.phase in TRAINING_PHASES, after.phase in TRAINING_PHASES
    new_world = in_world and transition.state.world_round != (before.world.round if before.world is not None else 0)
    ledger = _add_elapsed_time(transition, before, ledger, now_ns)
    ledger = ledgers.preserve(ledger, after.budget.saved_step)
    if trained and (new_world or not in_world):
        reason = after.cause.reason
        ledger = ledgers.stop(ledger, _LAST_STEP_KINDS.get(reason, TimeKind.WASTED))
        ledger = replace(ledger, pause=_RESIZE_KINDS.get(reason, TimeKind.RECOVERY))
        if after.phase not in _END_PHASES:
            log_totals(transition, ledger)
    if new_world and after.world is not None:
        ledger = ledgers.form(ledger, after.world.ranks)
    if before.ending.exit is None and after.ending.exit is not None:
        ledger = ledgers.finish(ledger, success=after.ending.exit is Exit.DONE)
        log_totals(transition, ledger)
    transition.state = replace(after, ledger=ledger)


def log_totals(transition: Transition, ledger: Ledger) -> None:
    """Log the totals of the job's time as the event "goodput"."""
    fields = ledgers.record_of(ledger).log_fields()
    transition.log_event("goodput", transition.state.cause.reason, round=transition.state.round, **fields)


def _add_elapsed_time(transition: Transition, before: State, ledger: Ledger, now_ns: int) -> Ledger:
    """Return the ledger with the time since its last entry added, up to `now_ns` (monotonic, nanoseconds).

    The phase of `before` decides the kind: end, pause or training. In training, also a hang that `before` has recorded,
    and the step report of rank 0 (transition.state.rank_zero) if it is of the same round.
    """
    if before.phase in _END_PHASES:
        return ledgers.count_pause(ledger, now_ns, TimeKind.OTHER)
    if before.phase not in TRAINING_PHASES or before.world is None:
        gpus = 0 if ledger.gpus else sum(member_state.member.processes for member_state in before.members.values())
        return ledgers.count_pause(ledger, now_ns, ledger.pause, gpus)
    report, hung = transition.state.rank_zero, bool(before.hanging.hanging)
    if report is None or report.round != before.world.round:  # a report of an earlier round says nothing of this one
        return ledgers.count_training(ledger, now_ns, hung=hung)
    ledger = ledgers.count_training(ledger, now_ns, report, hung=hung)
    ledger = ledgers.begin_steps(ledger, report.first, report.since_first_ns)
    return ledgers.advance(ledger, report.step, report.since_step_ns)
