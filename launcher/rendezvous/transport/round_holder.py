"""Holds a coordinator's round at the arbiter: claims it, renews it and hands it over.

coordinator_server.py decides nothing either; it passes the answers to the state machine as events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from turnout.launcher.event_log import EventLog
from turnout.launcher.goodput.job_time import write_totals
from turnout.launcher.goodput.ledger import record_of
from turnout.launcher.model import Exit, RoundRecord
from turnout.launcher.rendezvous.arbiter import HeldRound, LockRefused, LockUnreachable, StaleRound
from turnout.launcher.rendezvous.locks.round_lock import RoundLock
from turnout.launcher.rendezvous.state import Denied, Event, Granted, GrantExpired, Phase, State, Unanswered

RENEW_S = 5.0  # seconds between two renewals of the held round
STORE_TOTALS_TIMEOUT_S = 2.0  # the longest time that the end of a coordinator waits for the arbiter to store its totals
# Seconds without a renewal after which training stops: another member may take over after STRANGER_S (leadership.py).
FENCE_S = 400.0


class RoundHolder:
    """Claims and renews the round of one coordinator.

    held_round: the round that it has claimed already, None for none. state: returns the coordinator's state. put:
    queues an event for the state machine.
    """

    def __init__(
        self,
        arbiter: RoundLock,
        held_round: HeldRound | None,
        state: Callable[[], State],
        put: Callable[[Event], None],
        log_event: EventLog,
    ) -> None:
        self._arbiter, self._held_round, self._state, self._put = arbiter, held_round, state, put
        self._log_event, self._loop = log_event, asyncio.get_running_loop()
        self._renewed_s = self._loop.time()

    async def claim(self, record: RoundRecord) -> None:
        """Claim a round from the arbiter, and queue the answer as an event.

        Granted: this coordinator has the round. Denied: another coordinator has it. Unanswered: the result is unknown.
        """
        arbiter, held_round = self._arbiter, self._held_round
        try:
            held_round = held_round or await arbiter.look()
            claimed = await arbiter.claim(_with_totals(record, self._state()), held_round)
            if claimed is not None:
                self._held_round, self._renewed_s = claimed, self._loop.time()
                self._put(Granted(record.round))
                return
            current = await arbiter.look()
            self._held_round = None if current.record is None else current
            holder = current.record
            if holder is not None and holder.coordinator != self._state().job.member.id:
                self._put(Denied(holder))
                return
            self._put(Unanswered(record.round, "the record has changed"))
        except LockUnreachable as error:
            self._log_event("arbiter_unreachable", {"detail": error.why})
            self._put(Unanswered(record.round, error.why))
        except (LockRefused, StaleRound) as error:
            self._log_event("arbiter_refused", {"detail": str(error)})
            self._put(Unanswered(record.round, str(error)))

    async def renew_periodically(self) -> None:
        """Renew the granted round every RENEW_S seconds, without end. Skip a renewal while a round is being claimed.

        If no renewal succeeds for FENCE_S seconds, the event GrantExpired is queued. If another coordinator has the
        round, Denied is queued.
        """
        while True:
            await asyncio.sleep(RENEW_S)
            if self._held_round is None or self._held_round.record is None or self._state().phase is Phase.CLAIMING:
                continue
            sent_s = self._loop.time()
            try:
                renewed = await self._arbiter.renew(_renewal(self._held_round, self._held_round.record, self._state()))
            except (LockUnreachable, LockRefused) as error:
                self._log_event("arbiter_unreachable", {"detail": str(error)})
                if self._loop.time() - self._renewed_s > FENCE_S:
                    self._put(GrantExpired())
                continue
            if renewed is not None:
                self._held_round, self._renewed_s = renewed, sent_s
            else:
                await self._check_lost_round()

    async def _check_lost_round(self) -> None:
        """Ask the arbiter for the holder after a renewal failed.

        If there is another holder, or a newer round of an unknown holder, queue Denied. If the record was removed or
        still names this coordinator, the next round claims it again. If the arbiter does not answer, do nothing.
        """
        try:
            current = await self._arbiter.look()
        except (LockUnreachable, LockRefused):
            return
        if current.record is not None and current.record.coordinator != self._state().job.member.id:
            self._put(Denied(current.record))
        elif current.record is None and current.newest_round > self._state().round:  # another run holds it
            self._put(Denied(RoundRecord(self._state().job.run, current.newest_round, "")))
        else:
            self._held_round = None  # the record was removed: the next round claims it afresh

    async def hand_over(self, to: RoundRecord) -> None:
        """Claim the round for the coordinator that succeeds this one. A failure is only logged.

        Does nothing if this coordinator holds no round.
        """
        if self._held_round is not None:
            try:
                await self._arbiter.claim(_with_totals(to, self._state()), self._held_round)
            except (LockUnreachable, LockRefused, StaleRound) as error:
                self._log_event("handover_untold", {"detail": str(error)})

    async def store_totals(self) -> None:
        """Write the job's last totals of time (goodput) to the arbiter, unless another coordinator has the round.

        Wait at most STORE_TOTALS_TIMEOUT_S. A failure is logged.
        """
        held_round = self._held_round
        if held_round is None or (record := held_round.record) is None:
            return
        if record.coordinator != self._state().job.member.id:
            return
        try:
            async with asyncio.timeout(STORE_TOTALS_TIMEOUT_S):
                await self._arbiter.renew(_renewal(held_round, record, self._state()))
        except (LockUnreachable, LockRefused, TimeoutError) as error:
            self._log_event(
                "totals_not_stored", {"detail": str(error) or f"no answer within {STORE_TOTALS_TIMEOUT_S:g} s"}
            )


def _with_totals(record: RoundRecord, state: State) -> RoundRecord:
    """Return the record with the job's totals of time, so that they outlive all agents; without any if the job is
    done, so that a next run starts from 0. state: of the coordinator.
    """
    ledger, is_done = state.ledger, state.ending.exit is Exit.DONE
    return replace(record, totals="" if ledger is None or is_done else write_totals(record_of(ledger)))


def _renewal(held_round: HeldRound, record: RoundRecord, state: State) -> HeldRound:
    """Return the held round with `record`, updated to the newest budget and totals, which a renewal stores.

    state: of the coordinator.
    """
    return replace(held_round, record=_with_totals(replace(record, budget=state.budget), state))
