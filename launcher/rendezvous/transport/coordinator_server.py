"""Runs the rendezvous state machine: turns messages of members into events, and carries out effects. No policy.

All events of one turn of the event loop are handled together, so a thousand joins copy the state only once.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine

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
from turnout.launcher.goodput.job_time import JobTime
from turnout.launcher.goodput.ledger import record_of
from turnout.launcher.model import Reason
from turnout.launcher.rendezvous.arbiter import HeldRound
from turnout.launcher.rendezvous.locks.round_lock import RoundLock
from turnout.launcher.rendezvous.state import (
    MAX_SUCCESSORS,
    AskEndpoint,
    Claim,
    Disconnect,
    Effect,
    EndpointAnswered,
    Event,
    JobOver,
    Joined,
    Logged,
    Lost,
    MergeStacks,
    MessageSent,
    SendMessage,
    StacksMerged,
    State,
    StepDown,
    Ticked,
    Wake,
    could_grow_by,
)
from turnout.launcher.rendezvous.state_machine import excuse_silence, heartbeat_period_s, silent_members, steps
from turnout.launcher.rendezvous.transport.listener import MemberConnection
from turnout.launcher.rendezvous.transport.round_holder import RoundHolder

LOG_TOTALS_PERIOD_S = 300.0  # seconds between two lines of the log with the job's totals, while nothing ends


def _redirect_of(end: StepDown) -> Redirect:
    return Redirect(end.to.coordinator, end.to.address, end.to.port, end.size)


class EventQueue:
    """The events that the state machine has not handled yet. All events of one turn of the event loop are handled
    together.

    handle: called with them in the next turn. Only the newest heartbeat of each member is kept; heartbeats come before
    all other events. `beats`: these heartbeats by member id, which wait for another event.
    """

    def __init__(self, handle: Callable[[list[Event]], None]) -> None:
        self._loop, self._handle = asyncio.get_running_loop(), handle
        self.beats: dict[str, Heartbeat] = {}
        self._events: list[Event] = []
        self._pending_call: asyncio.Handle | None = None
        self._wake_timer: asyncio.TimerHandle | None = None

    def put(self, event: Event) -> None:
        """Queue an event."""
        self._events.append(event)
        if self._pending_call is None:
            self._pending_call = self._loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        """Let all queued events be handled."""
        self._pending_call = None
        beats: list[Event] = [MessageSent(id_, beat) for id_, beat in self.beats.items()]
        self.beats.clear()
        events, self._events = self._events, []
        self._handle(beats + events)

    def wake(self, at_s: float) -> None:
        """Set the timer that queues Ticked to this time of the loop's clock, unless it is set to an earlier time."""
        if self._wake_timer is None or self._wake_timer.cancelled() or at_s < self._wake_timer.when():
            if self._wake_timer is not None:
                self._wake_timer.cancel()
            self._wake_timer = self._loop.call_at(at_s, self._on_wake)

    def _on_wake(self) -> None:
        """Queue Ticked, since the timer has expired."""
        self._wake_timer = None
        self.put(Ticked())

    def close(self) -> None:
        """Handle no more events."""
        for handle in (self._pending_call, self._wake_timer):
            if handle is not None:
                handle.cancel()


class TotalsLog:
    """Publishes the job's totals of time as events, and at intervals as lines of the log."""

    def __init__(self, log_event: EventLog) -> None:
        self._log_event = log_event
        self._logged_s = asyncio.get_running_loop().time()  # when the totals were last logged

    def publish(self, state: State, now_s: float) -> JobTime | None:
        """Return the job's totals of time, and publish them as an event; every LOG_TOTALS_PERIOD_S also as a line of
        the log.

        None if the time is not measured. state: of the coordinator.
        """
        if state.ledger is None:
            return None
        record = record_of(state.ledger)
        self._log_event("job_time_measured", {"record": record})
        if now_s >= self._logged_s + LOG_TOTALS_PERIOD_S:
            self._logged_s = now_s
            self._log_event("goodput", {"round": state.round, **record.log_fields()})
        return record


class HeartbeatIntervals:
    """The intervals of heartbeats that members of one coordinator use, and the silence limit that fits all of them.

    beat_s, silence_s: as in Timing, for a small world.
    """

    def __init__(self, beat_s: float, silence_s: float) -> None:
        self._beat_s, self._silence_s = beat_s, silence_s
        self._announced_s = beat_s
        self._longest_s = beat_s  # interval that was announced last, or given to a new member since then
        self._former_s, self._former_until_s = 0.0, 0.0  # a longer interval that members may use until this time

    def welcome(self, members: int) -> HeartbeatInterval:
        """Return the intervals for a new member. members: with it."""
        interval = self._interval(members)
        self._longest_s = max(self._longest_s, interval.beat_s)
        return interval

    def change(self, members: int, now_s: float) -> HeartbeatInterval | None:
        """Return the intervals to announce to all members; None while the right interval is at most 1.5 times the one
        that was announced last, and the longest one in use is at most 1.5 times the right one.

        With far more members, those that joined a smaller world would count this coordinator as silent. With far fewer,
        the silence limit of the larger world would stay.
        """
        interval = self._interval(members)
        if self._longest_s / 1.5 <= interval.beat_s <= self._announced_s * 1.5:
            return None
        if now_s >= self._former_until_s or self._longest_s > self._former_s:
            self._former_s = self._longest_s
        self._former_until_s = now_s + 5 * self._former_s
        self._announced_s = self._longest_s = interval.beat_s
        return interval

    def limit_s(self, now_s: float) -> float:
        """Return the seconds after which a member that is not heard counts as silent: 5 of the longest intervals."""
        former_s = self._former_s if now_s < self._former_until_s else 0.0
        return max(self._silence_s, 5 * max(self._longest_s, former_s))

    def _interval(self, members: int) -> HeartbeatInterval:
        """Return the intervals of a coordinator with this many members."""
        beat_s = heartbeat_period_s(members, self._beat_s)
        return HeartbeatInterval(beat_s, max(self._silence_s, 5 * beat_s))


class BackgroundTasks:
    """Coroutines that run until they end or are cancelled together."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Coordinator:
    """Runs one job's coordinator until `ended` resolves to JobOver or StepDown.

    state: the first state. beat_s, silence_s: as in Timing, for a small world. merge: merges stack traces and writes
    them. endpoint: returns the endpoint's address if another agent listens there; None: there is no endpoint.
    arbiter: None for none. held_round: the round that this coordinator has claimed there, None for none.
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
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.state, self._log_event = state, log_event
        self._intervals, self._merge = HeartbeatIntervals(beat_s, silence_s), merge
        self._endpoint = endpoint
        self._last_check_s = self._loop.time()
        self._peers: dict[str, MemberConnection] = {}
        # Successors by member id, in order of arrival, this member first: so all agree until a world is formed.
        self._first_members = {
            state.job.member.id: Successor(state.job.member.id, state.job.member.address, state.job.member.port)
        }
        self._heard_s: dict[str, float] = {}
        self.events = EventQueue(self._handle_events)
        self.ended: asyncio.Future[JobOver | StepDown] = self._loop.create_future()
        self._tasks, self._totals = BackgroundTasks(), TotalsLog(log_event)
        gc.freeze()  # thousands of members are many long-lived objects, which the collector may skip
        gc.set_threshold(50_000, 20, 50)
        self._beat_timer = self._loop.call_later(beat_s, self._beat)
        self._holder: RoundHolder | None = None
        if arbiter is not None:
            self._holder = RoundHolder(arbiter, held_round, lambda: self.state, self.events.put, log_event)
            self._tasks.start(self._holder.renew_periodically())

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
        interval = self._intervals.welcome(len(self._peers))
        member = join.member
        if member.id not in self._first_members and len(self._first_members) < MAX_SUCCESSORS:
            self._first_members[member.id] = Successor(member.id, member.address, member.port)
        first = tuple(self._first_members.values())
        own_id, beat_s, silence_s = self.state.job.member.id, interval.beat_s, interval.silence_s
        peer.welcome(self, lambda proof: Welcome(proof, own_id, beat_s, silence_s, first))
        self.events.put(
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
                self.events.beats[peer.id] = message
                if message.rank_zero is not None:
                    self.events.put(Ticked())  # handle it now, since it has times relative to this moment
                elif not message.importing_s and could_grow_by(self.state, peer.id, self._loop.time()):
                    self.events.put(Ticked())  # the world may grow now; all other heartbeats wait for the next tick
            case GetRoster():
                world = self.state.world
                peer.send_message(Roster(world.round if world else 0, world.members if world else ()))
            case _:
                self.events.put(MessageSent(peer.id, message))

    def on_closed(self, peer: MemberConnection) -> None:
        """Handle the end of a peer's connection."""
        if self._peers.get(peer.id) is peer:
            self._forget(peer.id, Reason.MEMBER_LOST)

    def _forget(self, id_: str, reason: Reason) -> None:
        """Remove a member's connection, and queue the event that the member is lost."""
        self._remove(id_)
        self.events.put(Lost(id_, reason))

    def _remove(self, id_: str) -> MemberConnection | None:
        """Remove a member's connection, with everything that depends on it, and return it; None if there is none."""
        self._first_members.pop(id_, None)
        self._heard_s.pop(id_, None)
        self.events.beats.pop(id_, None)
        return self._peers.pop(id_, None)

    def _handle_events(self, events: list[Event]) -> None:
        """Apply events to the state and carry out the effects."""
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
                self.events.wake(at_s)
            case Claim(record=record) if self._holder is not None:
                self._tasks.start(self._holder.claim(record))
            case AskEndpoint() if self._endpoint is not None:
                self._tasks.start(self._put_result(self._endpoint()))
            case Disconnect(id=id_):
                if (peer := self._remove(id_)) is not None:
                    peer.close()
            case MergeStacks():
                self._tasks.start(self._put_result(self._merge(effect)))
            case StepDown() | JobOver():
                self._end(effect)

    def _beat(self) -> None:
        """Send a heartbeat to all members, drop those that were silent for too long, and schedule the next call.

        If the number of members has changed much, first announce other intervals.
        """
        now_s = self._loop.time()
        limit_s = self._intervals.limit_s(now_s)
        if not excuse_silence(self._heard_s, self._last_check_s, now_s, limit_s):
            for id_ in silent_members(self._heard_s, now_s, limit_s):
                self._peers[id_].abort()
                self._forget(id_, Reason.MEMBER_SILENT)
        self._last_check_s = now_s
        bodies = [encode(Heartbeat(job_time=self._totals.publish(self.state, now_s)))]
        if (interval := self._intervals.change(len(self._peers), now_s)) is not None:
            bodies.insert(0, encode(interval))
        for peer in self._peers.values():
            peer.send(*bodies)
        if self.events.beats:
            self.events.put(Ticked())
        self._beat_timer = self._loop.call_later(self._intervals.welcome(len(self._peers)).beat_s, self._beat)

    async def _put_result(self, work: Awaitable[Event | None]) -> None:
        """Queue the event that work for an effect results in, if any."""
        if (event := await work) is not None:
            self.events.put(event)

    def _end(self, end: JobOver | StepDown) -> None:
        """Resolve `ended`; for a StepDown, redirect the members first."""
        if isinstance(end, StepDown):
            self._tasks.start(self._step_down(end))
        elif not self.ended.done():
            self.ended.set_result(end)

    async def _step_down(self, end: StepDown) -> None:
        """Redirect all members to the new coordinator, and set `ended`.

        If this coordinator chose the new one (`handover`), tell the arbiter first; a failure of that is only logged.
        """
        if end.handover and self._holder is not None:
            await self._holder.hand_over(end.to)
        bodies = (
            encode(Heartbeat(job_time=self._totals.publish(self.state, self._loop.time()))),
            encode(_redirect_of(end)),
        )
        for peer in self._peers.values():
            peer.send(*bodies)
        if not self.ended.done():
            self.ended.set_result(end)

    async def close(self) -> None:
        """Stop all timers and tasks, and close all connections after sending their pending messages.

        The totals are stored at the arbiter first, unless this coordinator has stepped down.
        """
        self._beat_timer.cancel()
        self.events.close()
        await self._tasks.cancel()
        has_moved = self.ended.done() and isinstance(self.ended.result(), StepDown)
        if self._holder is not None and not has_moved:
            await self._holder.store_totals()
        for peer in list(self._peers.values()):
            peer.close()
        self._peers.clear()
