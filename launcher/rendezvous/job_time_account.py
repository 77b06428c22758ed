"""Tells the ledger of the job's time what the coordinator's state says of each interval. docs/goodput.md

The kinds are decided in launcher/goodput/ledger.py. Here the phases and causes of the rendezvous become its events.
"""

from __future__ import annotations

from dataclasses import replace

from turnout.launcher.goodput import ledger as ledgers
from turnout.launcher.goodput.job_time import NS, JobTime, TimeKind
from turnout.launcher.goodput.ledger import Ledger
from turnout.launcher.model import Exit, Reason
from turnout.launcher.rendezvous.state import Phase, State, Transition

TRAINS = (Phase.TRAINING, Phase.DRAINING)
_ENDS = (Phase.FINISHING, Phase.OVER)

_SIZES = {
    Reason.MEMBER_LEFT: TimeKind.ELASTIC_SHRINK,
    Reason.DRAINED: TimeKind.ELASTIC_SHRINK,
    Reason.MEMBER_JOINED: TimeKind.ELASTIC_GROW,
}
_TAILS = {**_SIZES, Reason.ALL_DONE: TimeKind.OTHER, Reason.PROCESS_HUNG: TimeKind.HANG}


def adopt(ledger: Ledger | None, record: JobTime | None) -> Ledger | None:
    """Adopt the totals that a member brings from an earlier coordinator, if they are newer."""
    return ledger if ledger is None or record is None else ledgers.inherit(ledger, record)


def account(transition: Transition, before: State) -> None:
    """Count the time since the last transition as what `before` says, then record what this transition has changed."""
    if (ledger := transition.state.ledger) is None:
        return
    after, now_ns = transition.state, round(transition.now_s * NS)
    trained, in_world = before.phase in TRAINS, after.phase in TRAINS
    new_world = in_world and transition.world_round != (before.world.round if before.world is not None else 0)
    ledger = _pass_time(transition, before, ledger, now_ns)
    ledger = ledgers.preserve(ledger, after.budget.saved_step)
    if trained and (new_world or not in_world):
        reason = after.cause.reason
        ledger = ledgers.stop(ledger, _TAILS.get(reason, TimeKind.WASTED))
        ledger = replace(ledger, pause=_SIZES.get(reason, TimeKind.RECOVERY))
        if after.phase not in _ENDS:
            log_totals(transition, ledger)
    if new_world and after.world is not None:
        ledger = ledgers.form(ledger, after.world.ranks)
    if before.ending.exit is None and after.ending.exit is not None:
        ledger = ledgers.finish(ledger, success=after.ending.exit is Exit.DONE)
        log_totals(transition, ledger)
    transition.state = replace(after, ledger=ledger)


def log_totals(transition: Transition, ledger: Ledger) -> None:
    """Write the totals to the log."""
    fields = ledgers.record_of(ledger).log_fields()
    transition.log_event("goodput", transition.state.cause.reason, round=transition.state.round, **fields)


def _pass_time(transition: Transition, before: State, ledger: Ledger, now_ns: int) -> Ledger:
    if before.phase in _ENDS:
        return ledgers.pause(ledger, now_ns, TimeKind.OTHER)
    if before.phase not in TRAINS or before.world is None:
        gpus = 0 if ledger.gpus else sum(known.member.processes for known in before.members.values())
        return ledgers.pause(ledger, now_ns, ledger.pause, gpus)
    report, hung = transition.state.rank_zero, bool(before.hanging.hanging)
    if report is None or report.round != before.world.round:  # a report of an earlier round says nothing of this one
        return ledgers.train(ledger, now_ns, hung=hung)
    ledger = ledgers.train(ledger, now_ns, report, hung=hung)
    ledger = ledgers.begin_steps(ledger, report.first, report.since_first_ns)
    return ledgers.advance(ledger, report.step, report.since_step_ns)
