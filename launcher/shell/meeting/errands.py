"""What a coordinator has a member do besides training: measure itself, show where all stand."""

from __future__ import annotations

from collections.abc import Callable

from turnout.launcher.health.checks import Checks
from turnout.launcher.health.frames import Judged, Probe, ShowStacks
from turnout.launcher.model import Member
from turnout.launcher.shell.hands import Hands
from turnout.launcher.shell.probes.ordered import Ordered
from turnout.launcher.shell.say import Say
from turnout.launcher.shell.watching.showing import Showing
from turnout.launcher.wire import ToCoordinator

ERRANDS = Probe | Judged | ShowStacks


class Errands:
    """Of one agent. send: to the coordinator that there is by then."""

    def __init__(self, checks: Checks, hands: Hands, send: Callable[[ToCoordinator], None], say: Say) -> None:
        self._checks, self._showing = Ordered(checks, send, say), Showing(hands, send)

    def begin(self, me: Member, order: Probe | Judged | ShowStacks) -> None:
        """Do this, and no longer what was ordered of its kind before."""
        match order:
            case Probe() | Judged():
                self._checks.obey(me, order)
            case ShowStacks():
                self._showing.begin(order)

    def tell(self, link: object, round_: int) -> None:
        """Say what is new of hangs. Called now and then, and with each new link."""
        self._showing.tell(link, round_)

    async def close(self) -> None:
        """Nothing of it runs, until there is another order."""
        await self._checks.close()
        await self._showing.close()

    async def end(self) -> None:
        """This member leaves: what is being written of its node is written first."""
        await self._checks.end()
        await self._showing.close()
