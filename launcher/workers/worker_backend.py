"""Defines what an agent needs of the holder of its processes: worker_group.py, or torch's own agent through
torchrun/.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeAlias

from turnout.launcher.health.hang_monitor.stack_capture import CapturedStack
from turnout.launcher.rendezvous.messages import Formed, Handover, HeldStep, StoredStepReport
from turnout.launcher.workers.spawn_spec import Exited

# From what this member sees in storage to what all members read.
AgreeStored: TypeAlias = Callable[[StoredStepReport], Awaitable[StoredStepReport]]


class WorkerBackend(Protocol):
    """Starts and stops the processes of this member: worker_group.py, or torch's own agent."""

    async def warm(self) -> None:
        """Import modules ahead, so that the first processes start quickly."""

    def importing_s(self) -> float:
        """Return the longest time in seconds until processes can be started, while imports run; 0 if they can
        be now.
        """

    async def start(self, formed: Formed, named: AgreeStored) -> None:
        """Start all processes of a round. named: awaited for the stored step to read, if storage may be read."""

    async def ended(self) -> tuple[Exited, ...]:
        """Wait for the first failure, or for all processes to succeed."""

    async def stop(self, grace_s: float | None = None) -> tuple[Exited, ...]:
        """Stop all training processes; kill those that remain after `grace_s` seconds. None: the default time."""

    def steps(self) -> tuple[int, int]:
        """Return the newest step that all processes have done, and the newest saved one; -1 for none."""

    def stop_at(self, step: int, *, sure: bool) -> int:
        """Make all processes stop after this step. Return the farthest step that one may have begun."""

    def hanging(self) -> Mapping[int, str]:
        """Return the reasons of processes that hang now, by local rank."""

    async def capture_stacks(self) -> Mapping[int, CapturedStack]:
        """Take the stack traces of all running processes, by local rank."""

    async def held_steps(self, *, if_stopped: bool = False) -> tuple[HeldStep, ...]:
        """List what all processes of this member hold in memory. Call it while none of them runs.

        if_stopped: return nothing unless they were told to stop for another world.
        """

    async def hand_over(self, order: Handover) -> None:
        """Adopt the shards that the order names, or store what other members will keep. No process runs."""

    async def persist(self, step: int) -> None:
        """Store this step at the end of the job: the newest that all members hold, -1 for none."""

    async def close(self, *, done: bool = False, by_s: float | None = None) -> None:
        """End everything. done: the whole job is over, so nobody will restore what is held.

        by_s: the deadline on the event loop's clock; None for no deadline.
        """
