"""A member as the coordinator: whether it may be, and its beginning and end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from turnout.launcher.health.checks import Checking
from turnout.launcher.health.hangs import Hangs
from turnout.launcher.health.stacks.hanging import Hanging
from turnout.launcher.model import Budget, Member, Record, Terms
from turnout.launcher.rendezvous.arbiter import HOLD_S, ArbiterRefused, Held, may_claim, next_round
from turnout.launcher.rendezvous.liveness import beat_of
from turnout.launcher.rendezvous.seek import Address, Seek
from turnout.launcher.rendezvous.state import Over, StepDown
from turnout.launcher.rendezvous.step import begin, succeed
from turnout.launcher.settings import Timing
from turnout.launcher.shell.arbiters import Arbiter
from turnout.launcher.shell.meeting.coordinator import FENCE_S, RENEW_S, Coordinator
from turnout.launcher.shell.meeting.door import Door
from turnout.launcher.shell.say import Say
from turnout.launcher.shell.watching.merging import Merging
from turnout.launcher.wire import Base, Redirect

# A holder that is silent, and may live. Its world cannot train without one of its members, so that one takes over soon.
# A stranger waits until that holder has fenced itself (coordinator.FENCE_S), however long its API server was away.
STRANGER_S = 600.0
FENCE = 1.5  # of the silence after which a member ends its processes: it looks at each heartbeat only, and has to kill
GOODBYE_S = 6.0  # for everybody to hear that the job is over


class Leading:
    """Of one agent. budget: the newest one that it knows."""

    def __init__(
        self,
        me: Member,
        run: str,
        terms: Terms,
        timing: Timing,
        door: Door,
        say: Say,
        *,
        arbiter: Arbiter | None = None,
        wanted: int = 0,
        only: bool = False,
        checking: Checking | None = None,
        hangs: Hangs | None = None,
    ) -> None:
        self.me, self.arbiter = me, arbiter
        self._run, self._terms, self._timing, self._door, self._say = run, terms, timing, door, say
        self._wanted, self._only, self._checking = wanted, only, checking
        self._hanging, self._merging = Hanging((hangs or Hangs()).act), Merging(hangs or Hangs(), say)
        self.budget: Callable[[], Budget] = Budget
        self.on_end: Callable[[Over | StepDown], None] = lambda how: None
        self.coordinator: Coordinator | None = None

    def elsewhere(self, to: Redirect | None) -> None:
        """Who coordinates, as far as this member knows: what the door tells those who knock here."""
        self._door.elsewhere = lambda: to

    async def lead(self, seek: Seek) -> tuple[bool, Address | None]:
        """Coordinate, if we may. (False, holder's address) if somebody else does. Raises as an Arbiter does."""
        if self.coordinator is not None:
            return True, None
        if self._only and seek.base.round:
            raise ArbiterRefused("nobody", "the coordinator is lost, and none may succeed it", "see --arbiter")
        held, granted, budget = None, None, self.budget()
        before, left_s = 0, 0.0  # the round of a holder before us, and how long it may train on without the arbiter
        if self.arbiter is not None:
            held = await self.arbiter.look()
            if (record := held.record) is not None:
                holder = (record.address, record.port)
                here = holder == (self.me.address, self.me.port)  # where we listen ourselves: it listens no longer
                dead = here or holder in seek.refused or _name(record.coordinator) == self.me.name
                ours = seek.base.inside and seek.base.round >= record.round
                if not may_claim(held, self._run, self.me.id, dead=dead, hold_s=HOLD_S if ours else STRANGER_S).may:
                    return False, holder if record.port else None
                if record.run == self._run:
                    budget = budget.newer(record.budget)
                    before = 0 if record.coordinator == self.me.id else record.round
                    left_s = 0.0 if dead else max(FENCE_S - held.quiet_s, 0.0) + RENEW_S
            granted = next_round(held, seek.base.round)
            record = Record(self._run, granted, self.me.id, self.me.address, self.me.port, budget)
            if (held := await self.arbiter.claim(record, held)) is None:
                return False, None
        self._begin(seek, budget, held, granted, before, left_s)
        return True, None

    def _begin(
        self, seek: Seek, budget: Budget, held: Held | None, granted: int | None, before: int, left_s: float
    ) -> None:
        now_s = asyncio.get_running_loop().time()
        state = begin(self.me, self._run, self._terms, now_s, wanted=self._wanted, granted=granted, only=self._only)
        crowd_s = 5 * beat_of(seek.base.size, self._timing.heartbeat_s)  # as the coordinator itself stretches silence
        fence_s = FENCE * max(self._timing.silence_s, crowd_s)
        job = replace(state.job, fence_s=fence_s, roam_s=max(self._timing.silence_s, crowd_s))
        state = replace(state, job=job, checking=self._checking, hanging=self._hanging)
        sought_s = 0.0 if seek.host and not seek.base.round else seek.since_s
        fenced_s = now_s + left_s + state.job.fence_s if before else 0.0
        state = succeed(
            state, seek.base, budget, handed=seek.handed, before=before, fenced_s=fenced_s, sought_s=sought_s
        )
        self._say(
            "coordinator_begun", {"round": state.round + 1, "reason": state.cause.why.value, "arbiter": bool(held)}
        )
        self.coordinator = Coordinator(
            state, self._say, beat_s=self._timing.heartbeat_s, silence_s=self._timing.silence_s,
            merge=self._merging.merge, arbiter=self.arbiter, held=held,
        )  # fmt: skip
        self.coordinator.ended.add_done_callback(lambda ended: self.on_end(ended.result()))
        self._door.lead(self.coordinator)

    async def finished(self, *, wait: bool) -> None:
        """The job is over for us: the others have to hear it before their coordinator goes."""
        if self.coordinator is not None and wait:
            await asyncio.wait([self.coordinator.ended], timeout=GOODBYE_S)
        elif self.coordinator is not None:
            await asyncio.wait([self.coordinator.ended], timeout=1.0)

    async def end(self) -> Base:
        """Coordinate no longer. Gives the newest world that we formed or heard of: it binds us, in it or not."""
        coordinator, self.coordinator = self.coordinator, None
        self._door.lead(None)
        if coordinator is None:
            return Base()
        await coordinator.close()
        return Base(coordinator.state.fencing.base, coordinator.state.fencing.base_size)

    async def close(self) -> None:
        """Nobody comes in any more."""
        await self.end()
        await self._door.close()
        if self.arbiter is not None:
            await self.arbiter.close()


def _name(id_: str) -> str:
    return id_.rsplit("/", 1)[0]
