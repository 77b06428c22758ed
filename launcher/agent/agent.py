"""The agent: one member of a job, from its first contact to its exit code. It obeys the coordinator, and may be the
coordinator.

All events go into one inbox and are handled in order. Which coordinator a member may believe is decided in
rendezvous/fencing.py, and where it looks for one in rendezvous/find_coordinator.py.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection
from dataclasses import replace

from turnout.launcher.addresses import free_port
from turnout.launcher.agent.coordinator_session import CoordinatorSession
from turnout.launcher.agent.events import CoordinatorFound, MessageReceived, SignalReceived, TimerFired, WorkersExited
from turnout.launcher.agent.member_tasks import TASKS, MemberTasks
from turnout.launcher.agent.switch_path import SwitchPath
from turnout.launcher.checkpoint.daemon.agent_client import FetchFailed
from turnout.launcher.errors import LauncherError
from turnout.launcher.event_log import EventLog
from turnout.launcher.model import Exit, Member, Reason, RestartBudget
from turnout.launcher.rendezvous.checkpoint_messages import ShardsAdopted
from turnout.launcher.rendezvous.fencing import accepts
from turnout.launcher.rendezvous.find_coordinator import Address, GiveUp, Seek
from turnout.launcher.rendezvous.messages import (
    VERSION,
    Ask,
    Failed,
    Finish,
    Formed,
    Handover,
    Heartbeat,
    HeldStep,
    Join,
    LastWorld,
    Leaving,
    Message,
    Reached,
    Ready,
    Redirect,
    Refused,
    Stop,
    StopAt,
    Succeeded,
    Waiting,
)
from turnout.launcher.rendezvous.state import Over, StepDown
from turnout.launcher.rendezvous.transport.coordinator_client import CoordinatorClient
from turnout.launcher.rendezvous.transport.coordinator_search import CoordinatorSearch
from turnout.launcher.rendezvous.transport.leadership import Leadership
from turnout.launcher.settings import Settings
from turnout.launcher.workers.worker_backend import WorkerBackend
from turnout.launcher.workers.worker_group import told


class Agent:
    """One member of a job. run() returns its exit code."""

    def __init__(
        self,
        settings: Settings,
        me: Member,
        token: bytes,
        training: WorkerBackend,
        leading: Leadership,
        seek: Seek,
        say: EventLog,
        where: Callable[[], SwitchPath],
    ) -> None:
        self._settings, self.me, self._token, self._say, self._where = settings, me, token, say, where
        self._inbox: asyncio.Queue[object] = asyncio.Queue()
        self._base, self._budget, self._training, self._leading = LastWorld(), RestartBudget(), training, leading
        self._held: tuple[HeldStep, ...] = ()
        self._report: Failed | Succeeded | None = None
        self._leave: float | None = None  # deadline for the agent's exit, by the loop's clock
        finder = CoordinatorSearch(self._new_link, leading.lead, (me.address, me.port), leading.arbiter, say)
        self._contact = CoordinatorSession(seek, finder, leading, self._inbox.put_nowait, say)
        self._tasks = MemberTasks(settings.checks, training, self._contact.send, say)
        self._watch: asyncio.Task[None] | None = None  # starts the processes, and waits for their end
        self._exit: tuple[Exit, Reason, str] | None = None

    def leave(self) -> None:
        """Ask the agent to leave the job, as SIGTERM does."""
        self._inbox.put_nowait(SignalReceived(signal.SIGTERM))

    async def run(self, signals: Collection[signal.Signals] = ()) -> Exit:
        """Take part in the job until it is over; nothing is left running. signals: those that this agent handles."""
        loop, ours = asyncio.get_running_loop(), tuple(signals)
        for sig in ours:
            loop.add_signal_handler(sig, self._inbox.put_nowait, SignalReceived(sig))
        self._leading.budget = lambda: self._budget
        self._leading.on_end = lambda how: self._inbox.put_nowait(how)
        try:
            await self._training.warm()
            self._held = await self._training.held()
            self._contact.search(self._base)
            while self._exit is None:
                await self._take(await self._inbox.get())
            exit_, reason, detail = self._exit
            self._say("agent_ended", {"exit": int(exit_), "reason": reason.value, "detail": detail})
            return exit_
        finally:
            for sig in ours:
                loop.remove_signal_handler(sig)
            if self._watch is not None:
                self._watch.cancel()
            await self._tasks.end()
            await self._training.close(done=(self._exit or [None])[0] is Exit.DONE, by_s=self._leave)
            self._contact.close()
            await self._leading.close()

    def _new_link(self) -> CoordinatorClient:
        run, wanted, terms = self._settings.meeting.run, self._settings.meeting.wanted or 0, self._settings.terms

        def join(nonce: bytes, proof: bytes) -> Join:
            own, left_s = (self._base, self._budget, wanted, self._held), self._training.importing_s()
            return Join(VERSION, run, nonce, proof, self.me, terms, *own, left_s)

        put = self._inbox.put_nowait
        return CoordinatorClient(
            join,
            self._token,
            run,
            lambda *on: put(MessageReceived(*on)),
            lambda link, why: put(MessageReceived(link, None, why)),
        )

    async def _take(self, item: object) -> None:
        match item:
            case CoordinatorFound(found=GiveUp(reason=reason, detail=detail)):
                await self._training.stop()
                self._exit = (Exit.DRAINED if self._leave is not None else Exit.FAILED, reason, detail)
            case CoordinatorFound(found=(link, address)):
                await self._linked(link, address)
            case MessageReceived(message=None):
                await self._lost(item)
            case MessageReceived(link=link) if link is not self._contact.link:
                self._contact.early(item)
            case MessageReceived(message=message):
                await self._obey(self._contact.heard(message))
            case WorkersExited(unfetched=True, round=round_) if round_ == self._base.round:
                # Act as on a Stop message: Ready ends the round.
                await self._obey(Stop(round_, Reason.MEMBER_LOST.value, 0.0))
            case WorkersExited():
                await self._processes_ended(item)
            case SignalReceived(signal=number):
                await self._asked_to_go(number)
            case TimerFired():
                await self._late(item)
            case StepDown() | Over():
                await self._led(item)

    async def _linked(self, link: CoordinatorClient, address: Address) -> None:
        early = self._contact.made(link, address)
        if self._leave is not None:
            link.say(Leaving(max(self._leave - asyncio.get_running_loop().time(), 0.0)))
        if self._report is not None:
            link.say(self._report)
        if link.claimed.busy and not self._base.busy:  # the member was fenced while its Join was on its way
            link.say(Ready(self._base.round, self.me.master_port, self.me.path, self._held))
        self._tell_steps()
        for came in early:
            await self._take(came)

    async def _lost(self, came: MessageReceived) -> None:
        if came.link is self._contact.link:
            self._contact.lost(came)
            if came.reason is Reason.MEMBER_SILENT:
                await self._fence()
            self._contact.search(self._base)

    async def _fence(self) -> None:
        """Stop the processes, since others may train without this member once it has been without a coordinator for too
        long.
        """
        if self._base.busy:
            self._say("processes_fenced", {"round": self._base.round})
            await self._stop(0.0)

    def _trains(self) -> bool:
        return self._base.busy and not isinstance(self._report, Succeeded)

    async def _stop(self, grace_s: float) -> None:
        if self._watch is not None and self._watch.cancel():
            await asyncio.wait([self._watch])  # it starts no more processes
        await self._training.stop(min(grace_s, self._settings.timing.shutdown_s))
        self._held = await self._training.held()
        self._report, self._base = None, self._base.idle()

    async def _obey(self, message: Message | None) -> None:
        match message:
            case Formed():
                await self._start(message)
            case Stop(round=round_, grace_s=grace_s):
                await self._stop(grace_s)
                path = (await asyncio.to_thread(self._where)).path or self.me.path  # the map may have changed
                port = self._settings.meeting.store_port or free_port(self.me.address)
                self.me = replace(self.me, master_port=port, path=path)
                self._contact.send(Ready(max(round_, self._base.round), self.me.master_port, self.me.path, self._held))
            case StopAt(round=round_, step=step, sure=sure) if round_ == self._base.round:
                farthest = self._training.stop_at(step, sure=sure)
                if not sure:
                    self._contact.send(Reached(round_, max(farthest, 0)))
            case Waiting(round=new, size=size) if new >= self._base.round + self._base.busy and not self._trains():
                self._base, self._report = LastWorld(new, size, False), None
                self._contact.succeed(message.successors)
                self._say("spare", {"round": new, "reason": message.reason, "detail": message.detail})
            case Finish(exit=code, reason=reason, detail=detail):
                await self._stop(self._settings.timing.shutdown_s)
                await self._training.carry(message.carry)
                await self._leading.finished(wait=code != Exit.DRAINED)
                self._exit = (Exit(code), Reason(reason), detail)
            case Redirect():
                self._moved(message)
            case _ if isinstance(message, TASKS):
                self._tasks.begin(self.me, message)
            case Handover(round=round_) if not self._trains():
                await self._training.hand_over(message)
                if message.take:
                    self._held = await self._training.held()
                    self._contact.send(ShardsAdopted(round_, self._held))
            case Refused(reason=reason, detail=detail):
                await self._stop(self._settings.timing.shutdown_s)
                self._exit = (Exit.FAILED, Reason(reason), detail)

    def _moved(self, to: Redirect) -> None:
        if handed := (to.size > 0 and to.id == self.me.id):
            self._base = LastWorld(self._base.round, to.size, self._base.inside, self._base.busy)
        self._contact.moved(to, handed)
        self._contact.search(self._base)

    async def _start(self, formed: Formed) -> None:
        if not accepts(self._base, formed):
            self._say("round_refused", {"round": formed.round, "base": formed.base, "ours": self._base.round})
            self._moved(Redirect("", self.me.address, 0))
            return
        if self._base.busy:
            await self._stop(0.0)
        self._base, self._budget = LastWorld(formed.round, formed.group_size, True, True), formed.budget
        self._contact.formed(formed.successors)
        await self._tasks.close()  # a probe may still wait for a peer that failed
        self._report = None
        self._say(
            "processes_started",
            {
                "round": formed.round,
                "reason": formed.reason,
                "group_rank": formed.group_rank,
                "ranks": f"{formed.first_rank}..{formed.first_rank + self.me.processes - 1} of {formed.ranks}",
                "master": f"{formed.master_address}:{formed.master_port}",
                "restarts": formed.budget.total,
            },
        )
        self._watch = asyncio.get_running_loop().create_task(self._train(formed))

    async def _train(self, formed: Formed) -> None:
        """Start the processes and wait for their end, as a background task."""
        try:
            await self._training.start(formed, self._contact.named)
        except (LauncherError, OSError) as error:
            self._inbox.put_nowait(
                WorkersExited(formed.round, fault=str(error), unfetched=isinstance(error, FetchFailed))
            )
            return
        self._inbox.put_nowait(WorkersExited(formed.round, await self._training.ended()))

    async def _processes_ended(self, ended: WorkersExited) -> None:
        if ended.round != self._base.round:
            return
        self._tell_steps(again=False)
        if ended.fault or any(each.failed for each in ended.exited):
            rank, how = (0, ended.fault) if ended.fault else told(ended.exited)
            self._say("process_failed", {"round": ended.round, "local_rank": rank, "detail": how})
            self._report = Failed(ended.round, rank, how[:1_000])
        else:
            self._say("processes_done", {"round": ended.round})
            self._held = await self._training.held(if_stopped=True)
            # After a reconnect the coordinator finds this rank unchanged, until all are done.
            self._report = Succeeded(ended.round, self._held)
        self._contact.send(self._report)

    def _tell_steps(self, again: bool = True) -> None:
        """Pass the steps and reports for the next heartbeat to the link."""
        if (link := self._contact.link) is not None:
            link.tells(*self._training.steps(), self._training.importing_s())
            self._tasks.tell(link, self._base.round)
        if again:
            asyncio.get_running_loop().call_later(0.2, self._inbox.put_nowait, TimerFired("steps", self._contact.link))

    async def _asked_to_go(self, number: int) -> None:
        loop, grace_s = asyncio.get_running_loop(), self._settings.timing.drain_grace_s
        if number == signal.SIGUSR1:
            self._contact.send(Ask())
            return
        if number != signal.SIGTERM or self._leave is not None:
            await self._training.stop(0.0 if self._leave is not None else None)
            leaves = number == signal.SIGTERM or self._leave is not None
            self._exit = (Exit.DRAINED, Reason.DRAINED, "") if leaves else (Exit.INTERRUPTED, Reason.MEMBER_LEFT, "")
            return
        self._leave = loop.time() + grace_s
        self._say("leave_asked", {"grace_s": grace_s})
        loop.call_later(grace_s, self._inbox.put_nowait, TimerFired("leave"))
        if self._contact.link is not None:
            self._contact.send(Heartbeat(*self._training.steps()))  # the stop step lies ahead of where we are now
            self._contact.send(Leaving(grace_s))
        elif not self._trains():
            self._exit = (Exit.DRAINED, Reason.DRAINED, "")

    async def _late(self, late: TimerFired) -> None:
        if late.what == "leave":
            await self._training.stop(0.0)
            self._exit = (Exit.DRAINED, Reason.DRAINED, "the time to leave was up")
        elif late.what == "coordinator" and self._contact.misses(late.link):
            await self._fence()
        elif late.what == "steps" and late.link is self._contact.link:
            self._tell_steps()

    async def _led(self, how: Over | StepDown) -> None:
        """Handle the end of the coordinator in this agent."""
        if (newest := await self._leading.end()).round > self._base.round:
            self._base = LastWorld(newest.round, newest.size, False, self._base.busy)
        if isinstance(how, StepDown) and self._contact.link:
            self._contact.roam(not how.to.coordinator)
            self._moved(Redirect(how.to.coordinator, how.to.address, how.to.port))
