"""Carries out the search for the coordinator: connect, ask the arbiter, lead. find_coordinator.py decides where to go
next.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from turnout.launcher.addresses import resolved
from turnout.launcher.event_log import EventLog
from turnout.launcher.model import Reason
from turnout.launcher.rendezvous.find_coordinator import (
    Address,
    AskArbiter,
    ConnectTo,
    GiveUp,
    Lead,
    Move,
    Pause,
    Search,
    next_lap,
    next_move,
    record_arbiter,
    record_failure,
    record_other_holder,
    record_redirect,
)
from turnout.launcher.rendezvous.locks.protocol import RoundLock
from turnout.launcher.rendezvous.messages import Redirect, Refused, Welcome
from turnout.launcher.rendezvous.round_lock import LockRefused, LockUnreachable
from turnout.launcher.rendezvous.transport.coordinator_client import CoordinatorClient, NoAnswer, NobodyListens, connect

NOTICE_S = 5.0  # seconds for other members to notice a lost coordinator: their heartbeats are not in phase
TELL_S = 10.0  # seconds between two log lines about one address


class CoordinatorSearch:
    """Finds the coordinator, or makes this member the coordinator.

    make: makes a new client. here: the address of this agent's listener.
    lead: coordinate here if possible; returns True, or False with the holder's address if known.
    """

    def __init__(
        self,
        make: Callable[[], CoordinatorClient],
        lead: Callable[[Search], Awaitable[tuple[bool, Address | None]]],
        own_address: Address,
        arbiter: RoundLock | None,
        log_event: EventLog,
    ) -> None:
        self._make, self._lead, self._own_address, self._arbiter, self._log_event = (
            make,
            lead,
            own_address,
            arbiter,
            log_event,
        )
        self._logged_s: dict[Address, float] = {}

    async def find(self, seek: Search) -> tuple[CoordinatorClient, Address] | GiveUp:
        """Search until a coordinator is connected or the time is up."""
        loop = asyncio.get_running_loop()
        while True:
            move = next_move(seek, loop.time())
            if isinstance(move, GiveUp):
                return move
            found = await self._do_move(seek, move)
            if isinstance(found, Search):
                seek = found
            else:
                return found

    async def _do_move(self, seek: Search, move: Move) -> Search | tuple[CoordinatorClient, Address] | GiveUp:
        match move:
            case ConnectTo(to=to) if to == self._own_address:
                return await self._lead_here(seek)
            case ConnectTo(to=to):
                return await self._connect(seek, to)
            case Lead():
                return await self._lead_here(seek)
            case AskArbiter():
                return await self._ask_arbiter(seek)
            case Pause(for_s=for_s):
                # Random, so that members do not return all at once.
                await asyncio.sleep(for_s * (0.5 + random.random()))
        return next_lap(seek)

    async def _connect(self, seek: Search, to: Address) -> Search | tuple[CoordinatorClient, Address] | GiveUp:
        if (address := await resolved(to[0])) is None:
            self._log_no_answer(seek, to, "the name is not known, or not yet")
            return record_failure(seek, to, refused=False)
        link, answer = await connect(self._make, address, to[1])
        if link is not None and isinstance(answer, Welcome):
            return link, (address, to[1])
        match answer:
            case Refused(reason=reason, detail=detail):
                return GiveUp(Reason(reason) if reason in set(Reason) else Reason.REFUSED, detail)
            case Redirect() if answer.port:
                lost = (answer.address, answer.port) in seek.refused | seek.silent
                if lost and asyncio.get_running_loop().time() < seek.since_s + NOTICE_S:
                    await asyncio.sleep(0.1)
                    return seek  # ask it again: of two coordinators, neither may have enough members
                return record_redirect(record_failure(seek, to, refused=False), answer)
            case NobodyListens():
                self._log_no_answer(seek, to, "nobody listens there")
                return record_failure(seek, to, refused=True)
            case NoAnswer(why=why):
                self._log_no_answer(seek, to, why)
        return record_failure(seek, to, refused=False)

    def _log_no_answer(self, seek: Search, to: Address, why: str) -> None:
        """Log that an address does not answer, and how much longer it is tried; at most every TELL_S seconds."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._logged_s.get(to, -TELL_S) + TELL_S:
            return
        self._logged_s[to] = now_s
        left_s = max(round(seek.since_s + seek.join_timeout_s - now_s), 0)
        self._log_event("coordinator_sought", {"at": f"{to[0]}:{to[1]}", "detail": why, "gives_up_in_s": left_s})

    async def _lead_here(self, seek: Search) -> Search | tuple[CoordinatorClient, Address] | GiveUp:
        try:
            leads, holder = await self._lead(seek)
        except LockUnreachable as error:
            self._log_event("arbiter_unreachable", {"detail": error.why})
            await asyncio.sleep(0.5)
            return next_lap(seek)
        except LockRefused as error:
            return GiveUp(Reason.NO_ARBITER, str(error))
        if not leads:
            await asyncio.sleep(0.1)
            return record_other_holder(seek, holder)
        return await self._connect(seek, self._own_address)

    async def _ask_arbiter(self, seek: Search) -> Search | GiveUp:
        assert self._arbiter is not None
        try:
            held_round = await self._arbiter.look()
        except LockUnreachable as error:
            self._log_event("arbiter_unreachable", {"detail": error.why})
            return record_arbiter(seek, None)
        except LockRefused as error:
            return GiveUp(Reason.NO_ARBITER, str(error))
        record = held_round.record
        return record_arbiter(seek, (record.address, record.port) if record is not None and record.port else None)
