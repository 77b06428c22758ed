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
    GiveUp,
    Go,
    Lead,
    Look,
    Move,
    Pause,
    Seek,
    failed,
    looked,
    next_move,
    not_ours,
    paused,
    redirected,
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
        lead: Callable[[Seek], Awaitable[tuple[bool, Address | None]]],
        here: Address,
        arbiter: RoundLock | None,
        say: EventLog,
    ) -> None:
        self._make, self._lead, self._here, self._arbiter, self._say = make, lead, here, arbiter, say
        self._told_s: dict[Address, float] = {}

    async def find(self, seek: Seek) -> tuple[CoordinatorClient, Address] | GiveUp:
        """Search until a coordinator is connected or the time is up."""
        loop = asyncio.get_running_loop()
        while True:
            move = next_move(seek, loop.time())
            if isinstance(move, GiveUp):
                return move
            found = await self._try(seek, move)
            if isinstance(found, Seek):
                seek = found
            else:
                return found

    async def _try(self, seek: Seek, move: Move) -> Seek | tuple[CoordinatorClient, Address] | GiveUp:
        match move:
            case Go(to=to) if to == self._here:
                return await self._lead_here(seek)
            case Go(to=to):
                return await self._knock(seek, to)
            case Lead():
                return await self._lead_here(seek)
            case Look():
                return await self._look(seek)
            case Pause(for_s=for_s):
                # Random, so that members do not return all at once.
                await asyncio.sleep(for_s * (0.5 + random.random()))
        return paused(seek)

    async def _knock(self, seek: Seek, to: Address) -> Seek | tuple[CoordinatorClient, Address] | GiveUp:
        if (address := await resolved(to[0])) is None:
            self._tell(seek, to, "the name is not known, or not yet")
            return failed(seek, to, refused=False)
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
                return redirected(failed(seek, to, refused=False), answer)
            case NobodyListens():
                self._tell(seek, to, "nobody listens there")
                return failed(seek, to, refused=True)
            case NoAnswer(why=why):
                self._tell(seek, to, why)
        return failed(seek, to, refused=False)

    def _tell(self, seek: Seek, to: Address, why: str) -> None:
        """Log that an address does not answer, and how much longer it is tried; at most every TELL_S seconds."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._told_s.get(to, -TELL_S) + TELL_S:
            return
        self._told_s[to] = now_s
        left_s = max(round(seek.since_s + seek.join_timeout_s - now_s), 0)
        self._say("coordinator_sought", {"at": f"{to[0]}:{to[1]}", "detail": why, "gives_up_in_s": left_s})

    async def _lead_here(self, seek: Seek) -> Seek | tuple[CoordinatorClient, Address] | GiveUp:
        try:
            leads, holder = await self._lead(seek)
        except LockUnreachable as error:
            self._say("arbiter_unreachable", {"detail": error.why})
            await asyncio.sleep(0.5)
            return paused(seek)
        except LockRefused as error:
            return GiveUp(Reason.NO_ARBITER, str(error))
        if not leads:
            await asyncio.sleep(0.1)
            return not_ours(seek, holder)
        return await self._knock(seek, self._here)

    async def _look(self, seek: Seek) -> Seek | GiveUp:
        assert self._arbiter is not None
        try:
            held = await self._arbiter.look()
        except LockUnreachable as error:
            self._say("arbiter_unreachable", {"detail": error.why})
            return looked(seek, None)
        except LockRefused as error:
            return GiveUp(Reason.NO_ARBITER, str(error))
        record = held.record
        return looked(seek, (record.address, record.port) if record is not None and record.port else None)
