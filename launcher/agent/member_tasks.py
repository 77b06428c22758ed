"""Runs a member's tasks for the coordinator besides training: node checks and stack traces."""

from __future__ import annotations

from collections.abc import Callable

from turnout.launcher.agent.stack_responder import StackResponder
from turnout.launcher.event_log import EventLog
from turnout.launcher.health.messages import Judged, Probe, ShowStacks
from turnout.launcher.health.node_check import NodeChecks
from turnout.launcher.health.probes.runner import ProbeRunner
from turnout.launcher.model import Member
from turnout.launcher.rendezvous.messages import ToCoordinator
from turnout.launcher.workers.worker_backend import WorkerBackend

TASKS = Probe | Judged | ShowStacks


class MemberTasks:
    """Runs the tasks of one agent. send: sends a message to the current coordinator."""

    def __init__(
        self, checks: NodeChecks, backend: WorkerBackend, send: Callable[[ToCoordinator], None], log_event: EventLog
    ) -> None:
        self._checks, self._showing = ProbeRunner(checks, send, log_event), StackResponder(backend, send)

    def begin(self, me: Member, order: Probe | Judged | ShowStacks) -> None:
        """Start this task; it replaces an earlier one of its kind."""
        match order:
            case Probe() | Judged():
                self._checks.obey(me, order)
            case ShowStacks():
                self._showing.begin(order)

    def report_hangs(self, link: object, round_: int) -> None:
        """Report new hangs. Called at intervals and for each new link."""
        self._showing.report(link, round_)

    async def close(self) -> None:
        """Stop all tasks, until there is another order."""
        await self._checks.close()
        await self._showing.close()

    async def end(self) -> None:
        """Stop all tasks as this member leaves, but first finish writing its pod annotation."""
        await self._checks.end()
        await self._showing.close()
