"""The agent: one member of a job, from its first contact to its exit code.

It obeys the coordinator, and may be the coordinator.

All events go into one inbox and are handled in order. Which coordinator a member may believe is decided in
rendezvous/form_world.py, and where it looks for one in rendezvous/find_coordinator.py.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from turnout.launcher.addresses import free_port
from turnout.launcher.agent.coordinator_session import (
    CoordinatorFound,
    CoordinatorSession,
    MessageReceived,
    SignalReceived,
    TimerFired,
    WorkersExited,
    put_unexpected,
)
from turnout.launcher.agent.switch_path import SwitchPath
from turnout.launcher.checkpoint.daemon.agent_client import FetchFailed
from turnout.launcher.coordinator_messages import (
    VERSION,
    Finish,
    Formed,
    GetRoster,
    Handover,
    Heartbeat,
    HeldStep,
    Hung,
    Join,
    Judged,
    LastWorld,
    Leaving,
    Message,
    Probe,
    ProcessFailed,
    Reached,
    Ready,
    Redirect,
    Refused,
    ShardsAdopted,
    ShowStacks,
    Stacks,
    Stop,
    StopAt,
    Succeeded,
    ToCoordinator,
    Waiting,
)
from turnout.launcher.errors import LauncherError
from turnout.launcher.event_log import EventLog
from turnout.launcher.goodput.job_time import JobTime
from turnout.launcher.health.hang_monitor.monitor import HangMonitor
from turnout.launcher.health.hang_monitor.stack_capture import CapturedStack
from turnout.launcher.health.model import NodeChecks
from turnout.launcher.health.probes.runner import ProbeRunner
from turnout.launcher.model import Exit, Member, Reason, RestartBudget
from turnout.launcher.rendezvous.find_coordinator import Address, GiveUp, Search
from turnout.launcher.rendezvous.form_world import may_train
from turnout.launcher.rendezvous.state import JobOver, StepDown
from turnout.launcher.rendezvous.transport.coordinator_link import CoordinatorClient, CoordinatorSearch
from turnout.launcher.rendezvous.transport.leadership import Leadership
from turnout.launcher.rendezvous.transport.merge_stacks import pack
from turnout.launcher.settings import Settings
from turnout.launcher.workers.worker_group import WorkerBackend, first_failure

MAX_WHY = 1_000  # characters


class StackResponder:
    """Reports the hangs of one agent's processes.

    monitor: watches them, None if nobody does. send: sends a message to the current coordinator.
    """

    def __init__(self, monitor: HangMonitor | None, send: Callable[[Hung | Stacks], None]) -> None:
        self._monitor, self._send = monitor, send
        self._reported: tuple[object, int, dict[int, str]] = (None, 0, {})
        self._task: asyncio.Task[None] | None = None

    def report(self, link: object, round_: int) -> None:
        """Send the coordinator a Hung message for each process that hangs newly, and a Hung message without a reason
        for each process that has resumed.

        link: the present connection. round_: the training round. If either changed since the last call, all hangs are
        sent.
        """
        hung = {} if self._monitor is None else dict(self._monitor.hanging)
        reported = self._reported[2] if self._reported[:2] == (link, round_) else {}
        for local_rank in sorted(hung.keys() - reported.keys()):
            self._send(Hung(round_, local_rank, hung[local_rank][:MAX_WHY]))
        for local_rank in sorted(reported.keys() - hung.keys()):
            self._send(Hung(round_, local_rank))
        self._reported = (link, round_, hung)

    def begin(self, order: ShowStacks) -> None:
        """Start a task that captures the stacks of all local processes and sends them. Cancel the task of an earlier
        order.
        """
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.get_running_loop().create_task(self._show(order))

    async def _show(self, order: ShowStacks) -> None:
        """Capture the stack traces of all local processes and send them, rank by rank, as answers to this order."""
        stacks = {} if self._monitor is None else await self._monitor.capture_stacks()
        for local_rank, stack in sorted(stacks.items()):
            self._send(await asyncio.to_thread(partial(_answer, order, local_rank, stack)))

    async def close(self) -> None:
        """Cancel the task that sends stack traces, and wait for its end."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])


def _answer(order: ShowStacks, local_rank: int, stack: CapturedStack) -> Stacks:
    """Return the message with the captured stacks of a process.

    If the compressed stacks exceed order.max_bytes, the message only has the reason why they are missing.
    """
    packed = pack(stack.file)
    if len(packed) > order.max_bytes:
        why = f"its stacks have {len(packed)} bytes packed, {order.max_bytes} may be sent: they are in its own folder"
        return Stacks(order.number, local_rank, b"", why)
    return Stacks(order.number, local_rank, packed)


TASKS = Probe | Judged | ShowStacks


class MemberTasks:
    """Runs the tasks of one agent. send: sends a message to the current coordinator."""

    def __init__(
        self, checks: NodeChecks, backend: WorkerBackend, send: Callable[[ToCoordinator], None], log_event: EventLog
    ) -> None:
        self._checks, self._showing = ProbeRunner(checks, send, log_event), StackResponder(backend.hangs, send)

    def begin(self, me: Member, order: Probe | Judged | ShowStacks) -> None:
        """Start the task that the coordinator ordered: a probe, its result, or stack traces. It replaces an earlier one
        of its kind.
        """
        match order:
            case Probe() | Judged():
                self._checks.obey(me, order)
            case ShowStacks():
                self._showing.begin(order)

    def report_hangs(self, link: object, round_: int) -> None:
        """Report hangs that were not reported yet. Called at intervals and for each new connection (`link`)."""
        self._showing.report(link, round_)

    async def close(self) -> None:
        """Stop all tasks, until there is another order."""
        await self._checks.close()
        await self._showing.close()

    async def end(self) -> None:
        """Stop all tasks as this member leaves, but first finish writing its pod annotation."""
        await self._checks.end()
        await self._showing.close()


class Agent:
    """One member of a job. run() returns its exit code.

    token: of the job. workers: runs the training processes. leadership: starts a coordinator here. seek: the state in
    which the search for a coordinator begins. where: reads this worker's switch path.
    """

    def __init__(
        self,
        settings: Settings,
        member: Member,
        token: bytes,
        workers: WorkerBackend,
        leadership: Leadership,
        seek: Search,
        log_event: EventLog,
        where: Callable[[], SwitchPath],
    ) -> None:
        self._settings, self.member, self._token, self._log_event, self._read_switch_path = (
            settings,
            member,
            token,
            log_event,
            where,
        )
        self._inbox: asyncio.Queue[object] = asyncio.Queue()
        self._base, self._budget, self._workers, self._leadership = LastWorld(), RestartBudget(), workers, leadership
        self._held_steps: tuple[HeldStep, ...] = ()
        self._job_time: JobTime | None = None  # the newest totals that a coordinator has sent
        self._report: ProcessFailed | Succeeded | None = None
        self._leave_by_s: float | None = None  # deadline for the agent's exit, by the loop's clock
        finder = CoordinatorSearch(
            self._new_link, leadership.lead, (member.address, member.port), leadership.arbiter, log_event
        )
        self._session = CoordinatorSession(seek, finder, leadership, self._inbox.put_nowait, log_event)
        self._tasks = MemberTasks(settings.checks, workers, self._session.send, log_event)
        self._watch: asyncio.Task[None] | None = None  # starts the processes, and waits for their end
        self._exit: tuple[Exit, Reason, str] | None = None

    def leave(self) -> None:
        """Ask the agent to leave the job, as SIGTERM does."""
        self._inbox.put_nowait(SignalReceived(signal.SIGTERM))

    async def run(self, signals: Collection[signal.Signals] = ()) -> Exit:
        """Take part in the job until it is over, and return how it ended.

        signals: those that this agent handles. At the return all processes have ended and all connections are closed.
        An unexpected error of a background task ends the agent in the same way, and is raised.
        """
        loop, handled = asyncio.get_running_loop(), tuple(signals)
        for sig in handled:
            loop.add_signal_handler(sig, self._inbox.put_nowait, SignalReceived(sig))
        self._leadership.budget = lambda: self._budget
        self._leadership.job_time = lambda: self._job_time
        self._leadership.on_end = lambda how: self._inbox.put_nowait(how)
        try:
            await self._workers.warm()
            self._held_steps = await self._workers.memory.held_steps()
            self._session.search.begin(self._base)
            while self._exit is None:
                await self._handle(await self._inbox.get())
            exit_, reason, detail = self._exit
            self._log_event("agent_ended", {"exit": int(exit_), "reason": reason.value, "detail": detail})
            return exit_
        finally:
            for sig in handled:
                loop.remove_signal_handler(sig)
            if self._watch is not None:
                self._watch.cancel()
            await self._tasks.end()
            await self._workers.close(done=(self._exit or [None])[0] is Exit.DONE, by_s=self._leave_by_s)
            self._session.close()
            await self._leadership.close()

    def _new_link(self) -> CoordinatorClient:
        """Create a client that will join a coordinator with this member's present state.

        Its messages and its loss come to the inbox.
        """
        run, worker_count, elastic_spec = (
            self._settings.rendezvous.run,
            self._settings.rendezvous.worker_count or 0,
            self._settings.elastic_spec,
        )

        def join(nonce: bytes, proof: bytes) -> Join:
            """Return the message that joins the coordinator, with this member's state at the time of the call."""
            own, left_s = (self._base, self._budget, worker_count, self._held_steps), self._workers.importing_s()
            return Join(VERSION, run, nonce, proof, self.member, elastic_spec, *own, left_s, self._job_time)

        put = self._inbox.put_nowait
        return CoordinatorClient(
            join,
            self._token,
            run,
            lambda *on: put(MessageReceived(*on)),
            lambda link, why: put(MessageReceived(link, None, why)),
        )

    async def _handle(self, item: object) -> None:
        """Handle one item of the inbox. An exception of a background task is raised again."""
        match item:
            case CoordinatorFound(found=GiveUp() as found):
                await self._give_up(found)
            case CoordinatorFound(found=(link, address)):
                await self._on_coordinator(link, address)
            case MessageReceived(message=None):
                await self._on_link_lost(item)
            case MessageReceived(link=link) if link is not self._session.link:
                self._session.keep_early(item)
            case MessageReceived(message=message):
                await self._obey(self._session.handle(message))
            case WorkersExited(unfetched=True, round=round_) if round_ == self._base.round:
                # Act as on a Stop message: Ready ends the round.
                await self._obey(Stop(round_, Reason.MEMBER_LOST.value, 0.0))
            case WorkersExited():
                await self._processes_ended(item)
            case SignalReceived(signal=number):
                await self._on_signal(number)
            case TimerFired():
                await self._on_timer(item)
            case StepDown() | JobOver():
                await self._on_coordinator_ended(item)
            case BaseException():
                raise item

    async def _give_up(self, found: GiveUp) -> None:
        """Stop the processes and end without a coordinator: exit DRAINED if this member was leaving, else FAILED."""
        await self._workers.stop()
        self._exit = (Exit.DRAINED if self._leave_by_s is not None else Exit.FAILED, found.reason, found.detail)

    async def _on_coordinator(self, link: CoordinatorClient, address: Address) -> None:
        """Adopt the connection to a coordinator, and send it what happened while there was none.

        link: the new connection, already welcomed. address: of the coordinator. Messages that arrived on the link
        before this call are handled at the end.
        """
        early = self._session.adopt_link(link, address)
        if self._leave_by_s is not None:
            link.send_message(Leaving(max(self._leave_by_s - asyncio.get_running_loop().time(), 0.0)))
        if self._report is not None:
            link.send_message(self._report)
        if link.reported_world.busy and not self._base.busy:  # the member was fenced while its Join was on its way
            link.send_message(Ready(self._base.round, self.member.master_port, self.member.path, self._held_steps))
        self._report_steps()
        for received in early:
            await self._handle(received)

    async def _on_link_lost(self, received: MessageReceived) -> None:
        """Search for a coordinator, since the connection to the last one has ended. The loss of an older connection is
        ignored.

        If the last coordinator was silent too long, also stop the processes.
        """
        if received.link is self._session.link:
            self._session.handle_loss(received)
            if received.reason is Reason.MEMBER_SILENT:
                await self._fence()
            self._session.search.begin(self._base)

    async def _fence(self) -> None:
        """Stop the processes, since others may train without this member once it has been without a coordinator for too
        long.
        """
        if self._base.busy:
            self._log_event("processes_fenced", {"round": self._base.round})
            await self._stop(0.0)

    def _is_training(self) -> bool:
        """Return True from the start of a round until all processes of this worker have succeeded or were stopped."""
        return self._base.busy and not isinstance(self._report, Succeeded)

    async def _stop(self, grace_s: float) -> None:
        """Stop the worker processes, record which steps are in memory, and become idle.

        grace_s: seconds between SIGTERM and SIGKILL; at most the setting shutdown_s is used.
        """
        if self._watch is not None and self._watch.cancel():
            await asyncio.wait([self._watch])  # it starts no more processes
        await self._workers.stop(min(grace_s, self._settings.timing.shutdown_s))
        self._held_steps = await self._workers.memory.held_steps()
        self._report, self._base = None, self._base.as_idle()

    async def _obey(self, message: Message | None) -> None:
        """Carry out an order of the coordinator.

        Ignores None, a StopAt of another round, a Waiting of an older round, and Waiting or Handover during training.
        """
        match message:
            case Formed():
                await self._start(message)
            case Stop(round=round_, grace_s=grace_s):
                await self._stop(grace_s)
                await self._report_ready(round_)
            case StopAt(round=round_, step=step, confirmed=sure) if round_ == self._base.round:
                farthest = self._workers.progress.stop_at(step, sure=sure)
                if not sure:
                    self._session.send(Reached(round_, max(farthest, 0)))
            case Waiting(round=new, size=size) if new >= self._base.round + self._base.busy and not self._is_training():
                self._base, self._report = LastWorld(new, size, False), None
                self._session.search.set_successors(message.successors)
                self._log_event("spare", {"round": new, "reason": message.reason, "detail": message.detail})
            case Finish(exit=code, reason=reason, detail=detail):
                await self._stop(self._settings.timing.shutdown_s)
                await self._workers.memory.persist(message.persist_step)
                await self._leadership.wait_finished(wait=code != Exit.DRAINED)
                self._exit = (Exit(code), Reason(reason), detail)
            case Redirect():
                self._move_to(message)
            case Heartbeat(job_time=job_time):
                self._job_time = job_time
            case _ if isinstance(message, TASKS):
                self._tasks.begin(self.member, message)
            case Handover(round=round_) if not self._is_training():
                await self._workers.memory.hand_over(message)
                if message.shards:
                    self._held_steps = await self._workers.memory.held_steps()
                    self._session.send(ShardsAdopted(round_, self._held_steps))
            case Refused(reason=reason, detail=detail):
                await self._stop(self._settings.timing.shutdown_s)
                self._exit = (Exit.FAILED, Reason(reason), detail)

    async def _report_ready(self, round_: int) -> None:
        """Tell the coordinator that no process of this round runs here, with a store port and the current switch path.

        The port is the setting store_port, else a free port. The path is read again, since the map may have changed.
        """
        path = (await asyncio.to_thread(self._read_switch_path)).path or self.member.path
        port = self._settings.rendezvous.store_port or free_port(self.member.address)
        self.member = replace(self.member, master_port=port, path=path)
        self._session.send(Ready(max(round_, self._base.round), port, path, self._held_steps))

    def _move_to(self, to: Redirect) -> None:
        """Leave the coordinator and search for the one that a redirect names.

        A handover to this member itself makes it take over.
        """
        if handed := (to.size > 0 and to.id == self.member.id):
            self._base = LastWorld(self._base.round, to.size, self._base.inside, self._base.busy)
        self._session.move_to(to, handed)
        self._session.search.begin(self._base)

    async def _start(self, formed: Formed) -> None:
        """Start the worker processes of a formed round.

        The round is refused, and the search begins again, if it does not follow the round of this member.
        """
        if not may_train(self._base, formed):
            self._log_event("round_refused", {"round": formed.round, "base": formed.base, "ours": self._base.round})
            self._move_to(Redirect("", self.member.address, 0))
            return
        if self._base.busy:
            await self._stop(0.0)
        self._base, self._budget = LastWorld(formed.round, formed.group_size, True, True), formed.budget
        self._session.search.set_formed(formed.successors)
        await self._tasks.close()  # a probe may still wait for a peer that failed
        self._report = None
        self._log_event(
            "processes_started",
            {
                "round": formed.round,
                "reason": formed.reason,
                "group_rank": formed.group_rank,
                "ranks": f"{formed.first_rank}..{formed.first_rank + self.member.processes - 1} of {formed.ranks}",
                "master": f"{formed.master_address}:{formed.master_port}",
                "restarts": formed.budget.total,
            },
        )
        self._watch = asyncio.get_running_loop().create_task(self._train(formed))
        self._watch.add_done_callback(put_unexpected(self._inbox.put_nowait))

    async def _train(self, formed: Formed) -> None:
        """Start the processes and wait for their end, as a background task.

        The result comes to the inbox as WorkersExited. A LauncherError or OSError of the start is its `fault`.
        """
        try:
            await self._workers.start(formed, self._session.agree_stored)
        except (LauncherError, OSError) as error:
            self._inbox.put_nowait(
                WorkersExited(formed.round, fault=str(error), unfetched=isinstance(error, FetchFailed))
            )
            return
        self._inbox.put_nowait(WorkersExited(formed.round, await self._workers.wait_ended()))

    async def _processes_ended(self, ended: WorkersExited) -> None:
        """Tell the coordinator how the training processes of this round ended, and log it. Ignore the end of another
        round. Without a coordinator, the report is kept for the next one.
        """
        if ended.round != self._base.round:
            return
        self._report_steps(repeat=False)
        self._send_progress()  # a save that was reported since the last heartbeat counts
        if ended.fault or any(each.has_failed for each in ended.exited):
            rank, how = (0, ended.fault) if ended.fault else first_failure(ended.exited)
            self._log_event("process_failed", {"round": ended.round, "local_rank": rank, "detail": how})
            self._report = ProcessFailed(ended.round, rank, how[:1_000])
        else:
            self._log_event("processes_done", {"round": ended.round})
            self._held_steps = await self._workers.memory.held_steps() if self._workers.progress.stop_ordered else ()
            # After a reconnect the coordinator finds this rank unchanged, until all are done.
            self._report = Succeeded(ended.round, self._held_steps)
        self._session.send(self._report)

    def _send_progress(self) -> None:
        """Send the newest steps at once, without waiting for the next heartbeat."""
        self._session.send(Heartbeat(*self._workers.progress.steps(), rank_zero=self._workers.progress.rank_zero()))

    def _report_steps(self, repeat: bool = True) -> None:
        """Pass the step counters to the link for the next heartbeat, and report new hangs. Without a link, skip both.

        repeat: schedule the next call in 0.2 s, with or without a link.
        """
        if (link := self._session.link) is not None:
            link.report(
                *self._workers.progress.steps(), self._workers.importing_s(), self._workers.progress.rank_zero()
            )
            self._tasks.report_hangs(link, self._base.round)
        if repeat:
            asyncio.get_running_loop().call_later(0.2, self._inbox.put_nowait, TimerFired("steps", self._session.link))

    async def _on_signal(self, number: int) -> None:
        """Request the roster on SIGUSR1. On a first SIGTERM leave within drain_grace_s seconds; leave at once if this
        agent has no coordinator and trains nothing. Stop the processes and end on another signal.

        After a first SIGTERM, any further signal but SIGUSR1 kills the processes at once. number: of the signal. The
        exit is DRAINED if SIGTERM was among the signals, else INTERRUPTED.
        """
        loop, grace_s = asyncio.get_running_loop(), self._settings.timing.drain_grace_s
        if number == signal.SIGUSR1:
            self._session.send(GetRoster())
            return
        if number != signal.SIGTERM or self._leave_by_s is not None:
            await self._workers.stop(0.0 if self._leave_by_s is not None else None)
            leaves = number == signal.SIGTERM or self._leave_by_s is not None
            self._exit = (Exit.DRAINED, Reason.DRAINED, "") if leaves else (Exit.INTERRUPTED, Reason.MEMBER_LEFT, "")
            return
        self._leave_by_s = loop.time() + grace_s
        self._log_event("leave_asked", {"grace_s": grace_s})
        loop.call_later(grace_s, self._inbox.put_nowait, TimerFired("leave"))
        if self._session.link is not None:
            self._send_progress()  # the stop step lies ahead of where we are now
            self._session.send(Leaving(grace_s))
        elif not self._is_training():
            self._exit = (Exit.DRAINED, Reason.DRAINED, "")

    async def _on_timer(self, timer: TimerFired) -> None:
        """Act on a timer: end an overdue leave, fence a member without coordinator, or report steps.

        A timer of an older connection is ignored.
        """
        if timer.what == "leave":
            await self._workers.stop(0.0)
            self._exit = (Exit.DRAINED, Reason.DRAINED, "the time to leave was up")
        elif timer.what == "coordinator" and self._session.has_lost(timer.link):
            await self._fence()
        elif timer.what == "steps" and timer.link is self._session.link:
            self._report_steps()

    async def _on_coordinator_ended(self, ending: JobOver | StepDown) -> None:
        """Handle the end of the coordinator in this agent, and remember the newest world that the coordinator knew.

        ending: JobOver, or StepDown with the coordinator to which this agent then connects.
        """
        if (newest := await self._leadership.end()).round > self._base.round:
            self._base = LastWorld(newest.round, newest.size, False, self._base.busy)
        if isinstance(ending, StepDown) and self._session.link:
            self._session.search.set_periodic_search(not ending.to.coordinator)
            self._move_to(Redirect(ending.to.coordinator, ending.to.address, ending.to.port))
