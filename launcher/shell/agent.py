"""The agent: one member of a job, from its first knock to its exit code. It obeys the coordinator, and may be it.

Everything that happens is put into one inbox and dealt with in turn. What a member may believe of a coordinator is in
rendezvous/follow.py, where it looks for one in rendezvous/seek.py.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection
from dataclasses import replace

from turnout.launcher.errors import LauncherError
from turnout.launcher.keeping import Taken
from turnout.launcher.model import Budget, Exit, Member, Reason
from turnout.launcher.rendezvous.follow import accepts
from turnout.launcher.rendezvous.seek import Address, GiveUp, Seek
from turnout.launcher.rendezvous.state import Over, StepDown
from turnout.launcher.settings import Settings
from turnout.launcher.shell.contact import Contact
from turnout.launcher.shell.hands import Hands
from turnout.launcher.shell.happened import Came, Ended, Found, Late, Signalled
from turnout.launcher.shell.identity import free_port
from turnout.launcher.shell.meeting.errands import ERRANDS, Errands
from turnout.launcher.shell.meeting.finding import Finder
from turnout.launcher.shell.meeting.leading import Leading
from turnout.launcher.shell.meeting.link import Link
from turnout.launcher.shell.memory.beside import Unfetched
from turnout.launcher.shell.say import Say
from turnout.launcher.shell.training import told
from turnout.launcher.whereabouts import Sighting
from turnout.launcher.wire import (
    VERSION,
    Ask,
    Base,
    Beat,
    Failed,
    Finish,
    Formed,
    Handover,
    Held,
    Join,
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


class Agent:
    """One member. run() gives its exit."""

    def __init__(
        self, settings: Settings, me: Member, token: bytes, training: Hands, leading: Leading, seek: Seek, say: Say,
        where: Callable[[], Sighting],
    ) -> None:  # fmt: skip
        self._settings, self.me, self._token, self._say, self._where = settings, me, token, say, where
        self._inbox: asyncio.Queue[object] = asyncio.Queue()
        self._base, self._budget, self._training, self._leading = Base(), Budget(), training, leading
        self._held: tuple[Held, ...] = ()
        self._report: Failed | Succeeded | None = None
        self._leave: float | None = None  # when to be gone, by the loop's clock
        finder = Finder(self._new_link, leading.lead, (me.address, me.port), leading.arbiter, say)
        self._contact = Contact(seek, finder, leading, self._inbox.put_nowait, say)
        self._errands = Errands(settings.checks, training, self._contact.send, say)
        self._watch: asyncio.Task[None] | None = None  # starts the processes, and waits for their end
        self._exit: tuple[Exit, Reason, str] | None = None

    def leave(self) -> None:
        """Ask it to go, as SIGTERM does."""
        self._inbox.put_nowait(Signalled(signal.SIGTERM))

    async def run(self, signals: Collection[signal.Signals] = ()) -> Exit:
        """Take part until it is over. Nothing is left running. signals: those that are for us to act on."""
        loop, ours = asyncio.get_running_loop(), tuple(signals)
        for sig in ours:
            loop.add_signal_handler(sig, self._inbox.put_nowait, Signalled(sig))
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
            await self._errands.end()
            await self._training.close(done=(self._exit or [None])[0] is Exit.DONE, by_s=self._leave)
            self._contact.close()
            await self._leading.close()

    def _new_link(self) -> Link:
        run, wanted, terms = self._settings.meeting.run, self._settings.meeting.wanted or 0, self._settings.terms

        def join(nonce: bytes, proof: bytes) -> Join:
            own, left_s = (self._base, self._budget, wanted, self._held), self._training.importing_s()
            return Join(VERSION, run, nonce, proof, self.me, terms, *own, left_s)

        put = self._inbox.put_nowait
        return Link(join, self._token, run, lambda *on: put(Came(*on)), lambda link, why: put(Came(link, None, why)))

    async def _take(self, item: object) -> None:
        match item:
            case Found(found=GiveUp(reason=reason, detail=detail)):
                await self._training.stop()
                self._exit = (Exit.DRAINED if self._leave is not None else Exit.FAILED, reason, detail)
            case Found(found=(link, address)):
                await self._linked(link, address)
            case Came(message=None):
                await self._lost(item)
            case Came(link=link) if link is not self._contact.link:
                self._contact.early(item)
            case Came(message=message):
                await self._obey(self._contact.heard(message))
            case Ended(unfetched=True, round=round_) if round_ == self._base.round:
                await self._obey(Stop(round_, Reason.MEMBER_LOST.value, 0.0))  # as if told: Ready ends the round
            case Ended():
                await self._processes_ended(item)
            case Signalled(signal=number):
                await self._asked_to_go(number)
            case Late():
                await self._late(item)
            case StepDown() | Over():
                await self._led(item)

    async def _linked(self, link: Link, address: Address) -> None:
        early = self._contact.made(link, address)
        if self._leave is not None:
            link.say(Leaving(max(self._leave - asyncio.get_running_loop().time(), 0.0)))
        if self._report is not None:
            link.say(self._report)
        if link.claimed.busy and not self._base.busy:  # fenced while the Join was on its way
            link.say(Ready(self._base.round, self.me.master_port, self.me.path, self._held))
        self._tell_steps()
        for came in early:
            await self._take(came)

    async def _lost(self, came: Came) -> None:
        if came.link is self._contact.link:
            self._contact.lost(came)
            if came.reason is Reason.MEMBER_SILENT:
                await self._fence()
            self._contact.search(self._base)

    async def _fence(self) -> None:
        """Without a coordinator for so long, others may train without us: we must not."""
        if self._base.busy:
            self._say("processes_fenced", {"round": self._base.round})
            await self._stop(0.0)

    def _trains(self) -> bool:
        return self._base.busy and not isinstance(self._report, Succeeded)

    async def _stop(self, grace_s: float) -> None:
        if self._watch is not None and self._watch.cancel():
            await asyncio.wait([self._watch])  # it starts nothing any more
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
                self._base, self._report = Base(new, size, False), None
                self._contact.succeed(message.successors)
                self._say("spare", {"round": new, "reason": message.reason, "detail": message.detail})
            case Finish(exit=code, reason=reason, detail=detail):
                await self._stop(self._settings.timing.shutdown_s)
                await self._training.carry(message.carry)
                await self._leading.finished(wait=code != Exit.DRAINED)
                self._exit = (Exit(code), Reason(reason), detail)
            case Redirect():
                self._moved(message)
            case _ if isinstance(message, ERRANDS):
                self._errands.begin(self.me, message)
            case Handover(round=round_) if not self._trains():
                await self._training.hand_over(message)
                if message.take:
                    self._held = await self._training.held()
                    self._contact.send(Taken(round_, self._held))
            case Refused(reason=reason, detail=detail):
                await self._stop(self._settings.timing.shutdown_s)
                self._exit = (Exit.FAILED, Reason(reason), detail)

    def _moved(self, to: Redirect) -> None:
        if handed := (to.size > 0 and to.id == self.me.id):
            self._base = Base(self._base.round, to.size, self._base.inside, self._base.busy)
        self._contact.moved(to, handed)
        self._contact.search(self._base)

    async def _start(self, formed: Formed) -> None:
        if not accepts(self._base, formed):
            self._say("round_refused", {"round": formed.round, "base": formed.base, "ours": self._base.round})
            self._moved(Redirect("", self.me.address, 0))
            return
        if self._base.busy:
            await self._stop(0.0)
        self._base, self._budget = Base(formed.round, formed.group_size, True, True), formed.budget
        self._contact.formed(formed.successors)
        await self._errands.close()  # a probe may still wait for a broken one
        self._report = None
        self._say("processes_started", {
            "round": formed.round, "reason": formed.reason, "group_rank": formed.group_rank,
            "ranks": f"{formed.first_rank}..{formed.first_rank + self.me.processes - 1} of {formed.ranks}",
            "master": f"{formed.master_address}:{formed.master_port}", "restarts": formed.budget.total,
        })  # fmt: skip
        self._watch = asyncio.get_running_loop().create_task(self._train(formed))

    async def _train(self, formed: Formed) -> None:
        """Start the processes and wait for their end, beside everything else that happens."""
        try:
            await self._training.start(formed, self._contact.named)
        except (LauncherError, OSError) as error:
            self._inbox.put_nowait(Ended(formed.round, fault=str(error), unfetched=isinstance(error, Unfetched)))
            return
        self._inbox.put_nowait(Ended(formed.round, await self._training.ended()))

    async def _processes_ended(self, ended: Ended) -> None:
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
            self._report = Succeeded(ended.round, self._held)  # a new link finds us in our seat, until all are done
        self._contact.send(self._report)

    def _tell_steps(self, again: bool = True) -> None:
        """Give the link what its next heartbeat tells."""
        if (link := self._contact.link) is not None:
            link.tells(*self._training.steps(), self._training.importing_s())
            self._errands.tell(link, self._base.round)
        if again:
            asyncio.get_running_loop().call_later(0.2, self._inbox.put_nowait, Late("steps", self._contact.link))

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
        loop.call_later(grace_s, self._inbox.put_nowait, Late("leave"))
        if self._contact.link is not None:
            self._contact.send(Beat(*self._training.steps()))  # the stop step lies ahead of where we are now
            self._contact.send(Leaving(grace_s))
        elif not self._trains():
            self._exit = (Exit.DRAINED, Reason.DRAINED, "")

    async def _late(self, late: Late) -> None:
        if late.what == "leave":
            await self._training.stop(0.0)
            self._exit = (Exit.DRAINED, Reason.DRAINED, "the time to leave was up")
        elif late.what == "coordinator" and self._contact.misses(late.link):
            await self._fence()
        elif late.what == "steps" and late.link is self._contact.link:
            self._tell_steps()

    async def _led(self, how: Over | StepDown) -> None:
        """Our own coordinator has ended."""
        if (newest := await self._leading.end()).round > self._base.round:
            self._base = Base(newest.round, newest.size, False, self._base.busy)
        if isinstance(how, StepDown) and self._contact.link:
            self._contact.roam(not how.to.coordinator)
            self._moved(Redirect(how.to.coordinator, how.to.address, how.to.port))
