"""What an agent needs of whoever has its processes: training.py, or torch's own agent through torchrun/."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeAlias

from turnout.launcher.process.orders import Exited
from turnout.launcher.shell.watching.stacks import Taken
from turnout.launcher.wire import Formed, Handover, Held, Stored

Naming: TypeAlias = Callable[[Stored], Awaitable[Stored]]  # what a member sees in storage in, what all of them read out


class Hands(Protocol):
    """Who starts and stops the processes of this member: training.py, or torch's own agent."""

    async def warm(self) -> None:
        """Import ahead."""

    def importing_s(self) -> float:
        """For how long at most they cannot be started yet, since what they need is being imported; 0: they can."""

    async def start(self, formed: Formed, named: Naming) -> None:
        """Start all processes of a round. named: asked where they are to read storage, or perhaps are."""

    async def ended(self) -> tuple[Exited, ...]:
        """Wait for the first failure, or for all to end well."""

    async def stop(self, grace_s: float | None = None) -> tuple[Exited, ...]:
        """End all processes."""

    def steps(self) -> tuple[int, int]:
        """The newest step that all have done, and the newest that is saved; -1 for none."""

    def stop_at(self, step: int, *, sure: bool) -> int:
        """Have all stop after this step. Gives the farthest that one may have begun."""

    def hung(self) -> Mapping[int, str]:
        """The processes that hang now, and why, by local rank."""

    async def show(self) -> Mapping[int, Taken]:
        """The stacks of all processes that run, by local rank."""

    async def held(self, *, if_stopped: bool = False) -> tuple[Held, ...]:
        """What all processes of this member hold in memory. Asked while none of them runs.

        if_stopped: nothing, unless they were to stop for another world.
        """

    async def hand_over(self, order: Handover) -> None:
        """Some leave: keep what it names, or have in storage what others keep from now on. No process runs."""

    async def carry(self, step: int) -> None:
        """The job ends, and this is the newest step that all members hold, -1 for none: it is to be in storage."""

    async def close(self, *, done: bool = False, by_s: float | None = None) -> None:
        """Nothing is left. done: of the whole job, so that nobody will restore what is held.

        by_s: when to be gone, by the loop's clock; None where nobody waits.
        """
