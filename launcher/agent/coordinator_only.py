"""Runs a coordinator that trains nothing itself, as the master pod of an ElasticJob does.

It uses the ElasticSpec of the first worker that comes, so it needs no --nnodes. If it is lost, a worker succeeds it.
When it starts again, it asks the arbiter for that worker, and redirects the workers that come here.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine

from turnout.launcher.addresses import resolve_host
from turnout.launcher.agent.coordinator_session import put_unexpected
from turnout.launcher.agent.start_agent import CannotListen, arbiter_of, member_of, node_checks, token_of
from turnout.launcher.coordinator_messages import Join, Redirect, ToCoordinator
from turnout.launcher.errors import BadSettings
from turnout.launcher.event_log import EventLog
from turnout.launcher.goodput.job_time import JobTime
from turnout.launcher.goodput.ledger import later_totals
from turnout.launcher.model import ElasticSpec, Exit, Member, Reason
from turnout.launcher.rendezvous.arbiter import LockRefused, LockUnreachable
from turnout.launcher.rendezvous.find_coordinator import Search
from turnout.launcher.rendezvous.locks.round_lock import RoundLock
from turnout.launcher.rendezvous.state import JobOver, StepDown
from turnout.launcher.rendezvous.transport.leadership import Leadership
from turnout.launcher.rendezvous.transport.listener import Listener, MemberConnection
from turnout.launcher.settings import Settings


async def run_coordinator(settings: Settings, log_event: EventLog) -> Exit:
    """Serve the rendezvous until the job is over; return how it ended. SIGTERM ends it with Exit.DRAINED.

    Raises BadSettings if the host's name is not known or the token cannot be used, CannotListen if the port cannot be
    used, and LockRefused if the arbiter cannot be used. An unexpected error of a background task is raised too.
    """
    rendezvous = settings.rendezvous
    if (address := await resolve_host(rendezvous.host)) is None:
        raise BadSettings(f"--coordinator-only cannot listen at {rendezvous.host}: the name is not known")
    token = token_of(rendezvous, address)
    arbiter = await arbiter_of(settings)
    listener = Listener(token, rendezvous.run, log_event)
    try:
        port = await listener.open(address, rendezvous.port)
    except OSError as error:
        raise CannotListen(f"cannot listen at {address}:{rendezvous.port}: {error.strerror}") from error
    me = member_of(settings.place, address, port, 1, ())
    log_event("coordinator_waits", {"at": f"{address}:{port}", "run": rendezvous.run})
    host = CoordinatorOnlyHost(settings, me, listener, arbiter, log_event)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, host.end, Exit.DRAINED)  # its pod is deleted
    try:
        return await host.ended
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        await host.close()


class CoordinatorOnlyHost:
    """Waits for the first worker, and starts a coordinator with that worker's settings (ElasticSpec). Does not train.

    ended: the exit code, once the job is over.
    """

    def __init__(
        self, settings: Settings, member: Member, listener: Listener, arbiter: RoundLock | None, log_event: EventLog
    ) -> None:
        self._settings, self._me, self._listener, self._arbiter, self._log_event = (
            settings,
            member,
            listener,
            arbiter,
            log_event,
        )
        self._current_leadership: Leadership | None = None
        self._totals: JobTime | None = None  # of the coordinator that ended here when all workers had left
        self._waiting: list[tuple[MemberConnection, Join]] = []
        self._beginning: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        listener.lead(self)

    def admit(self, peer: MemberConnection, join: Join) -> None:
        """Queue a worker that asks to join. The first one starts the coordinator, which then admits the queued
        workers.
        """
        self._waiting.append((peer, join))
        if self._beginning is None:
            self._start(self._begin(join.elastic_spec))

    def on_message(self, peer: MemberConnection, message: ToCoordinator) -> None:
        """Ignore a message: a worker sends none before it is welcomed."""

    def on_closed(self, peer: MemberConnection) -> None:
        """Forget a worker that has closed its connection."""
        self._waiting = [each for each in self._waiting if each[0] is not peer]

    async def _begin(self, elastic_spec: ElasticSpec) -> None:
        """Start the coordinator if the arbiter allows it, and pass it the queued workers. Else redirect them to the
        round's holder.

        An arbiter that refuses or does not answer is logged; then the workers are told that no coordinator is known.
        """
        leadership = self._current_leadership or self._leadership(elastic_spec)
        self._current_leadership = leadership
        seek = Search(self._me.id, None, True, self._arbiter is not None, elastic_spec.join_timeout_s)
        leads, holder = False, None
        try:
            leads, holder = await leadership.lead(seek)
        except LockUnreachable as error:
            self._log_event("arbiter_unreachable", {"detail": error.why})
        except LockRefused as error:
            self._log_event("arbiter_refused", {"detail": str(error)})
        self._beginning = None
        waiting, self._waiting = self._waiting, []
        target = Redirect("", *holder) if holder is not None else None
        self._listener.redirect_target = lambda: target
        for peer, join in waiting:
            if leads and leadership.coordinator is not None:
                leadership.coordinator.admit(peer, join)
            else:
                self._listener.redirect(peer)

    def _leadership(self, elastic_spec: ElasticSpec) -> Leadership:
        """Return a new Leadership for a coordinator that is not a member itself. elastic_spec: of the first worker."""
        settings = self._settings
        leadership = Leadership(
            self._me,
            settings.rendezvous.run,
            elastic_spec,
            settings.timing,
            self._listener,
            self._log_event,
            arbiter=self._arbiter,
            hangs=settings.hangs,
            worker_count=settings.rendezvous.worker_count or 0,
            node_checks=node_checks(settings),
            is_member=False,
        )
        leadership.on_end = self._on_coordinator_end
        leadership.job_time = lambda: self._totals
        return leadership

    def _on_coordinator_end(self, how: JobOver | StepDown) -> None:
        """End this program when the job is done or has failed.

        Otherwise continue: another coordinator leads, or all workers have left and may return.
        """
        if isinstance(how, StepDown):
            at = f"{how.to.address}:{how.to.port}"
            self._log_event("coordinator_moved", {"coordinator": how.to.coordinator, "at": at})
        elif how.exit is Exit.DONE or (how.exit is Exit.FAILED and how.reason is not Reason.JOIN_TIMEOUT):
            self.end(how.exit)
            return
        # Else all workers have left: the job may be suspended, and who controls their pods knows.
        self._start(self._step_down())

    def _start(self, work: Coroutine[None, None, None]) -> None:
        """Start a task. An error that nobody expects ends the program: workers would wait for ever."""
        self._beginning = asyncio.get_running_loop().create_task(work)
        self._beginning.add_done_callback(put_unexpected(self._fail))

    def _fail(self, error: object) -> None:
        """End the program with an unexpected error, unless it has ended."""
        if not self.ended.done() and isinstance(error, BaseException):
            self.ended.set_exception(error)

    async def _step_down(self) -> None:
        """End the present leadership. The next worker that comes makes this program ask the arbiter who leads."""
        assert self._current_leadership is not None
        await self._current_leadership.end()
        self._totals = later_totals(None, self._current_leadership.last_totals)
        self._current_leadership = self._beginning = None
        self._listener.lead(self)  # the next worker that comes makes it ask the arbiter who leads now

    def end(self, exit_code: Exit) -> None:
        """End the program with this exit code, unless it has ended."""
        if not self.ended.done():
            self.ended.set_result(exit_code)

    async def close(self) -> None:
        """End the coordinator after its pending messages were sent, and stop listening."""
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.wait([self._beginning])
        for peer, _ in self._waiting:
            peer.abort()
        if self._current_leadership is not None:
            await self._current_leadership.close()
        else:
            await self._listener.close()
            if self._arbiter is not None:
                await self._arbiter.close()
