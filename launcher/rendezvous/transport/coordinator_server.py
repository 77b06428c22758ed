"""Runs the rendezvous state machine: turns messages of members into events, and carries out effects. No policy.

All events of one turn of the event loop are handled together, so a thousand joins copy the state only once.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace

from turnout.launcher.coordinator_messages import (
    GetRoster,
    Heartbeat,
    HeartbeatInterval,
    Join,
    Redirect,
    Roster,
    Successor,
    ToCoordinator,
    Welcome,
    encode,
)
from turnout.launcher.event_log import EventLog
from turnout.launcher.goodput.job_time import JobTime, write_totals
from turnout.launcher.goodput.ledger import record_of
from turnout.launcher.model import Exit, Reason, RoundRecord
from turnout.launcher.rendezvous.arbiter import HeldRound, LockRefused, LockUnreachable, StaleRound
from turnout.launcher.rendezvous.locks.round_lock import RoundLock
from turnout.launcher.rendezvous.state import (
    MAX_SUCCESSORS,
    AskEndpoint,
    Claim,
    Denied,
    Disconnect,
    Effect,
    EndpointAnswered,
    Event,
    Granted,
    GrantExpired,
    JobOver,
    Joined,
    Logged,
    Lost,
    MergeStacks,
    MessageSent,
    Phase,
    SendMessage,
    StacksMerged,
    State,
    StepDown,
    Ticked,
    Unanswered,
    Wake,
    could_grow_by,
)
from turnout.launcher.rendezvous.state_machine import excuse_silence, heartbeat_period_s, silent_members, steps
from turnout.launcher.rendezvous.transport.listener import MemberConnection

RENEW_S = 5.0  # seconds between two renewals of the held round
LOG_TOTALS_PERIOD_S = 300.0  # seconds between two lines of the log with the job's totals, while nothing ends
STORE_TOTALS_TIMEOUT_S = 2.0  # the longest time that the end of a coordinator waits for the arbiter to store its totals
# Seconds without a renewal after which training stops: another member may take over after STRANGER_S (leadership.py).
FENCE_S = 400.0


def _redirect_of(end: StepDown) -> Redirect:
    return Redirect(end.to.coordinator, end.to.address, end.to.port, end.size)


class Coordinator:
    """Runs one job's coordinator until `ended` resolves to JobOver or StepDown.

    state: the first state. beat_s, silence_s: as in Timing, for a small world. merge: merges stack traces and writes
    them. endpoint: returns the endpoint's address if another agent listens there; None: there is no endpoint.
    arbiter: None for none. held_round: the round that this coordinator has claimed there, None for none.
    renew_s: seconds between two renewals. fence_s: seconds without a renewal after which training stops.
    """

    def __init__(
        self,
        state: State,
        log_event: EventLog,
        *,
        beat_s: float,
        silence_s: float,
        merge: Callable[[MergeStacks], Awaitable[StacksMerged]],
        endpoint: Callable[[], Awaitable[EndpointAnswered | None]] | None = None,
        arbiter: RoundLock | None = None,
        held_round: HeldRound | None = None,
        renew_s: float = RENEW_S,
        fence_s: float = FENCE_S,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.state, self._log_event = state, log_event
        self._beat_s, self._silence_s, self._merge = beat_s, silence_s, merge
        self._endpoint = endpoint
        self._arbiter, self._held_round, self._renew_s, self._fence_s = arbiter, held_round, renew_s, fence_s
        self._renewed_s = self._last_check_s = self._loop.time()
        self._peers: dict[str, MemberConnection] = {}
        # Successors by member id, in order of arrival, this member first: so all agree until a world is formed.
        self._first_members = {
            state.job.member.id: Successor(state.job.member.id, state.job.member.address, state.job.member.port)
        }
        self._heard_s: dict[str, float] = {}
        self._beats: dict[str, Heartbeat] = {}
        self._events: list[Event] = []
        self._pending_call: asyncio.Handle | None = None
        self._wake_timer: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[JobOver | StepDown] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._announced_beat_s = beat_s
        self._logged_s = self._loop.time()  # when the totals were last logged
        gc.freeze()  # thousands of members are many long-lived objects, which the collector may skip
        gc.set_threshold(50_000, 20, 50)
        self._beat_timer = self._loop.call_later(beat_s, self._beat)
        if arbiter is not None:
            self._start_task(self._renew_periodically())

    def admit(self, peer: MemberConnection, join: Join) -> None:
        """Accept a peer that has proved that it knows the token, welcome it, and queue the event Joined.

        If this coordinator has stepped down, the peer is redirected instead. A former connection of the member is
        aborted.
        """
        if self.ended.done() and isinstance(end := self.ended.result(), StepDown):
            peer.send_message(_redirect_of(end))
            peer.close()
            return
        old = self._peers.get(peer.id)
        self._peers[peer.id] = peer
        self._heard_s[peer.id] = self._loop.time()
        if old is not None and old is not peer:
            old.abort()
        beat_s = heartbeat_period_s(len(self._peers), self._beat_s)
        silence_s = max(self._silence_s, 5 * beat_s)
        member = join.member
        if member.id not in self._first_members and len(self._first_members) < MAX_SUCCESSORS:
            self._first_members[member.id] = Successor(member.id, member.address, member.port)
        first = tuple(self._first_members.values())
        peer.welcome(self, lambda proof: Welcome(proof, self.state.job.member.id, beat_s, silence_s, first))
        self.event(
            Joined(
                join.member,
                join.elastic_spec,
                join.base,
                join.budget,
                join.worker_count,
                join.held_steps,
                join.importing_s,
                join.job_time,
            )
        )

    def on_message(self, peer: MemberConnection, message: ToCoordinator) -> None:
        """Handle a peer's message: queue an event, or answer. Messages of a replaced connection are ignored."""
        if self._peers.get(peer.id) is not peer:
            return
        self._heard_s[peer.id] = self._loop.time()
        match message:
            case Heartbeat():
                self._beats[peer.id] = message
                if message.rank_zero is not None:
                    self.event(Ticked())  # handle it now, since it has times relative to this moment
                elif not message.importing_s and could_grow_by(self.state, peer.id, self._loop.time()):
                    self.event(Ticked())  # the world may grow now; all other heartbeats wait for the next tick
            case GetRoster():
                world = self.state.world
                peer.send_message(Roster(world.round if world else 0, world.members if world else ()))
            case _:
                self.event(MessageSent(peer.id, message))

    def on_closed(self, peer: MemberConnection) -> None:
        """Handle the end of a peer's connection."""
        if self._peers.get(peer.id) is peer:
            self._forget(peer.id, Reason.MEMBER_LOST)

    def _forget(self, id_: str, reason: Reason) -> None:
        """Remove a member's connection, and queue the event that the member is lost."""
        del self._peers[id_]
        self._first_members.pop(id_, None)
        self._heard_s.pop(id_, None)
        self._beats.pop(id_, None)
        self.event(Lost(id_, reason))

    def event(self, event: Event) -> None:
        """Queue an event for the state machine. All queued events are handled together in the next turn of the event
        loop.
        """
        self._events.append(event)
        if self._pending_call is None:
            self._pending_call = self._loop.call_soon(self._handle_events)

    def _handle_events(self) -> None:
        """Apply all queued events to the state and carry out the effects.

        The newest heartbeat of each member comes first.
        """
        self._pending_call = None
        if self._beats:
            beats: list[Event] = [MessageSent(id_, beat) for id_, beat in self._beats.items()]
            self._beats.clear()
            self._events[:0] = beats
        events, self._events = self._events, []
        self.state, effects = steps(self.state, events, self._loop.time())
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        """Carry out one effect of the state machine: send, log, set a timer, or start a task for work that waits for
        others.
        """
        match effect:
            case SendMessage(ids=ids, message=message):
                data = encode(message)
                for id_ in ids:
                    if (peer := self._peers.get(id_)) is not None:
                        peer.send(data)
            case Logged(event=event, reason=reason, fields=fields):
                self._log_event(event, {"reason": reason.value, **dict(fields)})
            case Wake(at_s=at_s):
                self._wake(at_s)
            case Claim(record=record):
                self._start_task(self._claim(record))
            case AskEndpoint():
                self._start_task(self._ask_endpoint())
            case Disconnect(id=id_):
                if (peer := self._peers.pop(id_, None)) is not None:
                    self._heard_s.pop(id_, None)
                    peer.close()
            case MergeStacks():
                self._start_task(self._merge_stacks(effect))
            case StepDown() | JobOver():
                self._end(effect)

    def _wake(self, at_s: float) -> None:
        """Set the timer that queues Ticked to this time of the loop's clock, unless it is set to an earlier time."""
        if self._wake_timer is None or self._wake_timer.cancelled() or at_s < self._wake_timer.when():
            if self._wake_timer is not None:
                self._wake_timer.cancel()
            self._wake_timer = self._loop.call_at(at_s, self._on_wake)

    def _on_wake(self) -> None:
        """Queue Ticked, since the timer has expired."""
        self._wake_timer = None
        self.event(Ticked())

    def _beat(self) -> None:
        """Send a heartbeat to all members, drop those that were silent for too long, and schedule the next call.

        If the world has grown, first announce longer intervals.
        """
        now_s = self._loop.time()
        beat_s = heartbeat_period_s(len(self._peers), self._beat_s)
        limit_s = max(self._silence_s, 5 * beat_s)
        if not excuse_silence(self._heard_s, self._last_check_s, now_s, limit_s):
            for id_ in silent_members(self._heard_s, now_s, limit_s):
                self._peers[id_].abort()
                self._forget(id_, Reason.MEMBER_SILENT)
        self._last_check_s = now_s
        bodies = [encode(Heartbeat(job_time=self._publish_totals(now_s)))]
        if (
            beat_s > self._announced_beat_s * 1.5
        ):  # members that joined a smaller world would count this coordinator as silent
            self._announced_beat_s = beat_s
            bodies.insert(0, encode(HeartbeatInterval(beat_s, limit_s)))
        for peer in self._peers.values():
            peer.send(*bodies)
        if self._beats:
            self.event(Ticked())
        self._beat_timer = self._loop.call_later(beat_s, self._beat)

    def _publish_totals(self, now_s: float) -> JobTime | None:
        """Return the job's totals of time, and publish them as an event; every LOG_TOTALS_PERIOD_S also as a line of
        the log.

        None if the time is not measured.
        """
        if self.state.ledger is None:
            return None
        record = record_of(self.state.ledger)
        self._log_event("job_time_measured", {"record": record})
        if now_s >= self._logged_s + LOG_TOTALS_PERIOD_S:
            self._logged_s = now_s
            self._log_event("goodput", {"round": self.state.round, **record.log_fields()})
        return record

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine in the background until `close`."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask_endpoint(self) -> None:
        """Queue EndpointAnswered if another agent listens at the endpoint."""
        if self._endpoint is not None and (answer := await self._endpoint()) is not None:
            self.event(answer)

    async def _merge_stacks(self, effect: MergeStacks) -> None:
        """Merge stack traces, and queue StacksMerged."""
        self.event(await self._merge(effect))

    async def _claim(self, record: RoundRecord) -> None:
        """Claim a round from the arbiter, and queue the answer as an event.

        Granted: this coordinator has the round. Denied: another coordinator has it. Unanswered: the result is unknown.
        """
        arbiter, held_round = self._arbiter, self._held_round
        assert arbiter is not None
        try:
            held_round = held_round or await arbiter.look()
            claimed = await arbiter.claim(self._with_totals(record), held_round)
            if claimed is not None:
                self._held_round, self._renewed_s = claimed, self._loop.time()
                self.event(Granted(record.round))
                return
            current = await arbiter.look()
            self._held_round = None if current.record is None else current
            holder = current.record
            if holder is not None and holder.coordinator != self.state.job.member.id:
                self.event(Denied(holder))
                return
            self.event(Unanswered(record.round, "the record has changed"))
        except LockUnreachable as error:
            self._log_event("arbiter_unreachable", {"detail": error.why})
            self.event(Unanswered(record.round, error.why))
        except (LockRefused, StaleRound) as error:
            self._log_event("arbiter_refused", {"detail": str(error)})
            self.event(Unanswered(record.round, str(error)))

    async def _renew_periodically(self) -> None:
        """Renew the granted round every `_renew_s` seconds, without end.

        If no renewal succeeds for `_fence_s` seconds, the event GrantExpired is queued.
        """
        assert self._arbiter is not None
        while True:
            await asyncio.sleep(self._renew_s)
            if self._held_round is None or self._held_round.record is None or self.state.phase is Phase.CLAIMING:
                continue
            sent_s = self._loop.time()
            try:
                renewed = await self._arbiter.renew(self._own_round(self._held_round, self._held_round.record))
            except (LockUnreachable, LockRefused) as error:
                self._log_event("arbiter_unreachable", {"detail": str(error)})
                if self._loop.time() - self._renewed_s > self._fence_s:
                    self.event(GrantExpired())
                continue
            if renewed is not None:
                self._held_round, self._renewed_s = renewed, sent_s
            else:
                await self._check_lost_round()

    def _with_totals(self, record: RoundRecord) -> RoundRecord:
        """Return the record with the job's totals of time, so that they outlive all agents; without any if the job is
        done, so that a next run starts from 0.
        """
        ledger, is_done = self.state.ledger, self.state.ending.exit is Exit.DONE
        return replace(record, totals="" if ledger is None or is_done else write_totals(record_of(ledger)))

    def _own_round(self, held_round: HeldRound, record: RoundRecord) -> HeldRound:
        """Return the held round with `record`, updated to the newest budget and totals, which a renewal stores."""
        return replace(held_round, record=self._with_totals(replace(record, budget=self.state.budget)))

    async def _store_totals(self) -> None:
        """Write the job's last totals of time (goodput) to the arbiter, unless another coordinator leads.

        Wait at most STORE_TOTALS_TIMEOUT_S. A failure is logged.
        """
        held_round, me = self._held_round, self.state.job.member.id
        if self._arbiter is None or held_round is None or (record := held_round.record) is None:
            return
        has_moved = self.ended.done() and isinstance(self.ended.result(), StepDown)
        if has_moved or record.coordinator != me:
            return
        try:
            async with asyncio.timeout(STORE_TOTALS_TIMEOUT_S):
                await self._arbiter.renew(self._own_round(held_round, record))
        except (LockUnreachable, LockRefused, TimeoutError) as error:
            self._log_event(
                "totals_not_stored", {"detail": str(error) or f"no answer within {STORE_TOTALS_TIMEOUT_S:g} s"}
            )

    async def _check_lost_round(self) -> None:
        """Ask the arbiter for the holder after a renewal failed.

        If there is another holder, or a newer round of an unknown holder, queue Denied. If the record was removed or
        still names this coordinator, the next round claims it again. If the arbiter does not answer, do nothing.
        """
        assert self._arbiter is not None
        try:
            current = await self._arbiter.look()
        except (LockUnreachable, LockRefused):
            return
        if current.record is not None and current.record.coordinator != self.state.job.member.id:
            self.event(Denied(current.record))
        elif current.record is None and current.newest_round > self.state.round:  # another run holds it
            self.event(Denied(RoundRecord(self.state.job.run, current.newest_round, "")))
        else:
            self._held_round = None  # the record was removed: the next round claims it afresh

    def _end(self, end: JobOver | StepDown) -> None:
        """Resolve `ended`; for a StepDown, redirect the members first."""
        if isinstance(end, StepDown):
            self._start_task(self._step_down(end))
        elif not self.ended.done():
            self.ended.set_result(end)

    async def _step_down(self, end: StepDown) -> None:
        """Redirect all members to the new coordinator, and set `ended`.

        If this coordinator chose the new one (`handover`), tell the arbiter first; a failure of that is only logged.
        """
        if end.handover and self._arbiter is not None and self._held_round is not None:
            try:
                await self._arbiter.claim(self._with_totals(end.to), self._held_round)
            except (LockUnreachable, LockRefused, StaleRound) as error:
                self._log_event("handover_untold", {"detail": str(error)})
        bodies = encode(Heartbeat(job_time=self._publish_totals(self._loop.time()))), encode(_redirect_of(end))
        for peer in self._peers.values():
            peer.send(*bodies)
        if not self.ended.done():
            self.ended.set_result(end)

    async def close(self) -> None:
        """Stop all timers and tasks, store the totals, and close all connections after sending what is pending."""
        self._beat_timer.cancel()
        for handle in (self._pending_call, self._wake_timer):
            if handle is not None:
                handle.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._store_totals()
        for peer in list(self._peers.values()):
            peer.close()
        self._peers.clear()
