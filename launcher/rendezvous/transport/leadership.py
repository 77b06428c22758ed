"""Makes a member the coordinator: checks that it may lead, starts the coordinator and ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from turnout.launcher.addresses import resolve_host
from turnout.launcher.coordinator_messages import LastWorld, Redirect
from turnout.launcher.event_log import EventLog
from turnout.launcher.goodput import ledger as ledgers
from turnout.launcher.goodput.job_time import NS, BadTotals, JobTime, TimeKind, read_totals, write_totals
from turnout.launcher.health.hang_detector import HangPolicy
from turnout.launcher.health.model import NodeCheckState
from turnout.launcher.model import ElasticSpec, Member, RestartBudget, RoundRecord
from turnout.launcher.rendezvous.arbiter import HOLD_S, HeldRound, LockRefused, may_claim, next_round
from turnout.launcher.rendezvous.find_coordinator import Address, Search
from turnout.launcher.rendezvous.locks.round_lock import RoundLock
from turnout.launcher.rendezvous.state import EndpointAnswered, HangState, JobOver, State, StepDown
from turnout.launcher.rendezvous.state_machine import begin, heartbeat_period_s, replace_coordinator
from turnout.launcher.rendezvous.transport.coordinator_link import is_agent_listening
from turnout.launcher.rendezvous.transport.coordinator_server import Coordinator
from turnout.launcher.rendezvous.transport.listener import Listener
from turnout.launcher.rendezvous.transport.merge_stacks import StackMerge
from turnout.launcher.rendezvous.transport.round_holder import FENCE_S, RENEW_S
from turnout.launcher.settings import Timing

# The holder is silent but may live. Its world cannot train without one of its members, so a member takes over soon.
# A stranger waits until that holder has fenced itself (FENCE_S in round_holder.py), even without an API server.
STRANGER_S = 600.0
# Times the silence limit: how long a lost member may still train. It checks the limit at its heartbeats, and needs time
# to kill its processes.
FENCE_FACTOR = 1.5
ASK_S, MAX_ASK_S = 1.0, 30.0  # seconds between two requests that ask the endpoint for another coordinator
GOODBYE_S = 6.0  # seconds for all members to hear that the job is over


class Leadership:
    """Starts and ends the coordinator of one agent.

    budget: set by the agent; returns the newest restart budget that the agent knows.

    job_time: set by the agent; returns the newest totals of the job's time that the agent knows, None for none. on_end:
    set by the agent; called when the coordinator here has ended.

    is_member: True if this agent also trains. Otherwise it only coordinates, and never searches for another
    coordinator.
    """

    def __init__(
        self,
        me: Member,
        run: str,
        elastic_spec: ElasticSpec,
        timing: Timing,
        listener: Listener,
        log_event: EventLog,
        *,
        arbiter: RoundLock | None = None,
        worker_count: int = 0,
        sole_coordinator: bool = False,
        node_checks: NodeCheckState | None = None,
        hangs: HangPolicy | None = None,
        is_member: bool = True,
    ) -> None:
        self.member, self.arbiter = me, arbiter
        self._run, self._elastic_spec, self._timing, self._listener, self._log_event = (
            run,
            elastic_spec,
            timing,
            listener,
            log_event,
        )
        self._worker_count, self._sole_coordinator, self._node_checks, self._is_member = (
            worker_count,
            sole_coordinator,
            node_checks,
            is_member,
        )
        self._hanging, self._merging = (
            HangState((hangs or HangPolicy()).act),
            StackMerge(hangs or HangPolicy(), log_event),
        )
        self.budget: Callable[[], RestartBudget] = RestartBudget
        self.job_time: Callable[[], JobTime | None] = lambda: None
        self.on_end: Callable[[JobOver | StepDown], None] = lambda end: None
        self.coordinator: Coordinator | None = None
        self.last_totals: JobTime | None = None  # of the coordinator that ended here; None before
        self._ask_s = ASK_S  # longer after each time that the endpoint has led nowhere

    def set_redirect(self, to: Redirect | None) -> None:
        """Set the coordinator to which this agent's listener redirects members. None: it is unknown."""
        self._listener.redirect_target = lambda: to
        if to is not None and to.id != self.member.id:
            self._ask_s = ASK_S

    async def lead(self, search: Search) -> tuple[bool, Address | None]:
        """Become the coordinator if this is allowed, by claiming the next round from the arbiter if there is one.

        Returns (True, None), also if this member leads already; else (False, address of the round's holder), with None
        for an unknown address. search: what the member knows of the last world. Raises LockUnreachable if the arbiter
        does not answer, and LockRefused if it cannot be used, or if nobody may succeed the lost coordinator.
        """
        if self.coordinator is not None:
            return True, None
        if self._sole_coordinator and search.base.round:
            raise LockRefused("nobody", "the coordinator is lost, and none may succeed it", "see --arbiter")
        if self.arbiter is not None:
            return await self._claim_round(self.arbiter, search)
        self._begin(search, self.budget(), self.job_time(), None, None, 0, 0.0)
        return True, None

    async def _claim_round(self, arbiter: RoundLock, search: Search) -> tuple[bool, Address | None]:
        """Claim the next round from the arbiter and lead it. Return and raise the same as `lead`."""
        held_round, budget, totals = await arbiter.look(), self.budget(), self.job_time()
        granted_before, left_s = 0, 0.0  # an earlier holder's round, and how long it may train without the arbiter
        if (record := held_round.record) is not None:
            dead = self._is_dead(record, search)
            hold_s = HOLD_S if search.base.inside and search.base.round >= record.round else STRANGER_S
            if not may_claim(held_round, self._run, self.member.id, dead=dead, hold_s=hold_s).allowed:
                return False, (record.address, record.port) if record.port else None
            if record.run == self._run:
                budget, totals = (
                    budget.newer_of(record.budget),
                    ledgers.later_totals(totals, _stored_totals(self._log_event, record)),
                )
                granted_before = 0 if record.coordinator == self.member.id else record.round
                left_s = 0.0 if dead else max(FENCE_S - held_round.unrenewed_s, 0.0) + RENEW_S
        granted = next_round(held_round, search.base.round)
        record = RoundRecord(self._run, granted, self.member.id, self.member.address, self.member.port, budget)
        if totals is not None:
            record = replace(record, totals=write_totals(totals))
        if (claimed := await arbiter.claim(record, held_round)) is None:
            return False, None
        self._begin(search, budget, totals, claimed, granted, granted_before, left_s)
        return True, None

    def _is_dead(self, record: RoundRecord, search: Search) -> bool:
        """Return True if the holder of this round is known to be dead.

        That is so if it was an earlier process of this worker, if its port refused a connection during this search, or
        if its address and port are those of this member, since no other process can listen there.
        """
        holder = (record.address, record.port)
        is_own_address = holder == (self.member.address, self.member.port)
        return is_own_address or holder in search.lap.refused or _worker_name(record.coordinator) == self.member.name

    def _begin(
        self,
        search: Search,
        budget: RestartBudget,
        totals: JobTime | None,
        held_round: HeldRound | None,
        granted: int | None,
        granted_before: int,
        left_s: float,
    ) -> None:
        """Create the coordinator on this worker, and let the listener pass members to it.

        held_round, granted: the claim and the number of the round that the arbiter granted; None without an arbiter.
        totals: the job's newest totals, None for none. granted_before: the round of an earlier holder, 0 for none.
        left_s: seconds for which that holder may still train without the arbiter.
        """
        state = self._first_state(search, budget, totals, granted, granted_before, left_s)
        self._log_event(
            "coordinator_begun",
            {"round": state.round + 1, "reason": state.cause.reason.value, "arbiter": bool(held_round)},
        )
        self.coordinator = Coordinator(
            state,
            self._log_event,
            beat_s=self._timing.heartbeat_s,
            silence_s=self._timing.silence_s,
            merge=self._merging.merge,
            endpoint=partial(self._ask_endpoint, search.endpoint),
            arbiter=self.arbiter,
            held_round=held_round,
        )
        self.coordinator.ended.add_done_callback(lambda ended: self._on_coordinator_end(ended.result()))
        self._listener.lead(self.coordinator)

    def _first_state(
        self,
        search: Search,
        budget: RestartBudget,
        totals: JobTime | None,
        granted: int | None,
        granted_before: int,
        left_s: float,
    ) -> State:
        """Make the state with which this member begins to lead. The arguments are those of `_begin`."""
        now_s = asyncio.get_running_loop().time()
        state = begin(
            self.member,
            self._run,
            self._elastic_spec,
            now_s,
            worker_count=self._worker_count,
            granted=granted,
            sole_coordinator=self._sole_coordinator,
        )
        # As the coordinator stretches the silence limit.
        crowd_s = 5 * heartbeat_period_s(search.base.size, self._timing.heartbeat_s)
        fence_s = FENCE_FACTOR * max(self._timing.silence_s, crowd_s)
        ask_s = 0.0 if search.host or search.endpoint is None else self._ask_s
        job = replace(state.job, fence_s=fence_s, search_period_s=max(self._timing.silence_s, crowd_s), ask_s=ask_s)
        pause = TimeKind.RECOVERY if search.base.round else TimeKind.RENDEZVOUS
        ledger = ledgers.new_ledger(self.member.id, time.time_ns(), round(now_s * NS), totals, pause)
        state = replace(state, job=job, checking=self._node_checks, hanging=self._hanging, ledger=ledger)
        search_began_s = (
            None if not self._is_member else 0.0 if search.host and not search.base.round else search.since_s
        )
        old_world_until_s = now_s + left_s + state.job.fence_s if granted_before else 0.0
        return replace_coordinator(
            state,
            search.base,
            budget,
            handed_over=search.handed_over,
            granted_before=granted_before,
            old_world_until_s=old_world_until_s,
            search_began_s=search_began_s,
        )

    async def _ask_endpoint(self, endpoint: Address | None) -> EndpointAnswered | None:
        """Return the IP address and port of the endpoint if another agent listens there, else None."""
        address = await resolve_host(endpoint[0]) if endpoint is not None else None
        if endpoint is None or address is None or (address, endpoint[1]) == (self.member.address, self.member.port):
            return None
        return EndpointAnswered(address, endpoint[1]) if await is_agent_listening(address, endpoint[1]) else None

    def _on_coordinator_end(self, end: JobOver | StepDown) -> None:
        if isinstance(end, StepDown) and end.to.port and not end.to.coordinator:
            self._ask_s = min(2 * self._ask_s, MAX_ASK_S)  # until another coordinator is found
        self.on_end(end)

    async def wait_finished(self, *, wait: bool) -> None:
        """Wait until the coordinator here has ended, GOODBYE_S at most, so that all members learn the job's end.

        wait: False to wait 1 s at most. Returns at once if no coordinator runs here.
        """
        if self.coordinator is not None and wait:
            await asyncio.wait([self.coordinator.ended], timeout=GOODBYE_S)
        elif self.coordinator is not None:
            await asyncio.wait([self.coordinator.ended], timeout=1.0)

    async def end(self) -> LastWorld:
        """Stop leading, and store the job's totals in `last_totals`.

        Return the newest world that the coordinator formed or heard of; round 0 for none, and if no coordinator runs
        here. This member must not accept an earlier round, even if it was not in that world.
        """
        coordinator, self.coordinator = self.coordinator, None
        self._listener.lead(None)
        if coordinator is None:
            return LastWorld()
        await coordinator.close()
        ledger = coordinator.state.ledger
        self.last_totals = None if ledger is None else ledgers.record_of(ledger)
        return LastWorld(coordinator.state.fencing.newest_round, coordinator.state.fencing.newest_size)

    async def close(self) -> None:
        """Stop leading and listening."""
        await self.end()
        await self._listener.close()
        if self.arbiter is not None:
            await self.arbiter.close()


def _stored_totals(log_event: EventLog, record: RoundRecord) -> JobTime | None:
    """Return the job totals in an arbiter's record, None for none. Unreadable totals are logged and count as
    none.
    """
    try:
        return read_totals(record.totals, time.time_ns())
    except BadTotals as error:
        log_event("totals_unreadable", {"detail": str(error)})
        return None


def _worker_name(id_: str) -> str:
    """Return the worker's name in a member id, which is NAME/INCARNATION."""
    return id_.rsplit("/", 1)[0]
