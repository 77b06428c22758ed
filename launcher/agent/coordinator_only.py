"""Runs a coordinator that trains nothing itself, as the master pod of an ElasticJob does.

Its terms are those of the first worker that comes, so it needs no --nnodes. If it is lost, a worker succeeds it as it
would succeed another worker. Then an arbiter names that worker to the workers that come here.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from turnout.launcher.addresses import resolved
from turnout.launcher.agent.bootstrap import arbiter_of, node_checks
from turnout.launcher.agent.identity import CannotListen, member_of, token_of
from turnout.launcher.errors import BadSettings
from turnout.launcher.event_log import EventLog
from turnout.launcher.model import ElasticSpec, Exit, Member, Reason
from turnout.launcher.rendezvous.find_coordinator import Seek
from turnout.launcher.rendezvous.locks.protocol import RoundLock
from turnout.launcher.rendezvous.messages import Join, Redirect, ToCoordinator
from turnout.launcher.rendezvous.round_lock import LockRefused, LockUnreachable
from turnout.launcher.rendezvous.state import Over, StepDown
from turnout.launcher.rendezvous.transport.leadership import Leadership
from turnout.launcher.rendezvous.transport.listener import Listener, PeerConnection
from turnout.launcher.settings import Settings


async def run_coordinator(settings: Settings, say: EventLog) -> Exit:
    """Serve the rendezvous until the job is over; return how it ended. SIGTERM ends it with Exit.DRAINED.

    Raises BadSettings, CannotListen and LockRefused.
    """
    meeting = settings.meeting
    if (address := await resolved(meeting.host)) is None:
        raise BadSettings(f"--coordinator-only cannot listen at {meeting.host}: the name is not known")
    token = token_of(meeting, address)
    arbiter = await arbiter_of(settings)
    listener = Listener(token, meeting.run, say)
    try:
        port = await listener.open(address, meeting.port)
    except OSError as error:
        raise CannotListen(f"cannot listen at {address}:{meeting.port}: {error.strerror}") from error
    me = member_of(settings.place, address, port, 1, ())
    say("coordinator_waits", {"at": f"{address}:{port}", "run": meeting.run})
    reception = Reception(settings, me, listener, arbiter, say)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, reception.leave)
    try:
        return await reception.ended
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        await reception.close()


class Reception:
    """Receives workers before there is a coordinator here, and begins one with the terms of the first.

    ended: the exit code, once the job is over.
    """

    def __init__(
        self, settings: Settings, me: Member, listener: Listener, arbiter: RoundLock | None, say: EventLog
    ) -> None:
        self._settings, self._me, self._listener, self._arbiter, self._say = settings, me, listener, arbiter, say
        self._leading: Leadership | None = None
        self._waiting: list[tuple[PeerConnection, Join]] = []
        self._beginning: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        listener.lead(self)

    def admit(self, peer: PeerConnection, join: Join) -> None:
        """Keep a worker until the coordinator has begun."""
        self._waiting.append((peer, join))
        if self._beginning is None:
            self._beginning = asyncio.get_running_loop().create_task(self._begin(join.terms))

    def heard(self, peer: PeerConnection, message: ToCoordinator) -> None:
        """A worker says nothing before it is welcomed."""

    def gone(self, peer: PeerConnection) -> None:
        """Forget a worker that has closed its connection."""
        self._waiting = [each for each in self._waiting if each[0] is not peer]

    def leave(self) -> None:
        """End before the job has, since the pod is deleted."""
        self._end(Exit.DRAINED)

    async def _begin(self, terms: ElasticSpec) -> None:
        """Lead if the arbiter allows it; else send the workers to the member that leads."""
        leading = self._leading or self._leadership(terms)
        self._leading = leading
        seek = Seek(self._me.id, None, True, self._arbiter is not None, terms.join_timeout_s)
        leads, holder = False, None
        try:
            leads, holder = await leading.lead(seek)
        except LockUnreachable as error:
            self._say("arbiter_unreachable", {"detail": error.why})
        except LockRefused as error:
            self._say("arbiter_refused", {"detail": str(error)})
        self._beginning = None
        waiting, self._waiting = self._waiting, []
        self._listener.elsewhere = _always(Redirect("", *holder) if holder is not None else None)
        for peer, join in waiting:
            if leads and leading.coordinator is not None:
                leading.coordinator.admit(peer, join)
            else:
                self._listener.send_on(peer)

    def _leadership(self, terms: ElasticSpec) -> Leadership:
        settings = self._settings
        made = Leadership(
            self._me,
            settings.meeting.run,
            terms,
            settings.timing,
            self._listener,
            self._say,
            arbiter=self._arbiter,
            hangs=settings.hangs,
            wanted=settings.meeting.wanted or 0,
            checking=node_checks(settings),
            member=False,
        )
        made.on_end = self._over
        return made

    def _over(self, how: Over | StepDown) -> None:
        if isinstance(how, StepDown):
            at = f"{how.to.address}:{how.to.port}"
            self._say("coordinator_moved", {"coordinator": how.to.coordinator, "at": at})
        elif how.exit is Exit.DONE or (how.exit is Exit.FAILED and how.reason is not Reason.JOIN_TIMEOUT):
            self._end(how.exit)
            return
        # Else all workers have left: the job may be suspended, and who controls their pods knows.
        self._beginning = asyncio.get_running_loop().create_task(self._step_down())

    async def _step_down(self) -> None:
        assert self._leading is not None
        await self._leading.end()
        self._leading = self._beginning = None
        self._listener.lead(self)  # the next worker that comes makes it ask the arbiter who leads now

    def _end(self, how: Exit) -> None:
        if not self.ended.done():
            self.ended.set_result(how)

    async def close(self) -> None:
        """End the coordinator after what is pending was sent, and stop listening."""
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.wait([self._beginning])
        for peer, _ in self._waiting:
            peer.abort()
        if self._leading is not None:
            await self._leading.close()
        else:
            await self._listener.close()
            if self._arbiter is not None:
                await self._arbiter.close()


def _always(to: Redirect | None) -> Callable[[], Redirect | None]:
    return lambda: to
