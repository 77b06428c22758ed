"""The processes of one agent, round by round: their orders from what the world is, their progress, their end."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from turnout.launcher.checkpoint.wire import Seat
from turnout.launcher.keeping import BARRED
from turnout.launcher.process import numa
from turnout.launcher.process.environment import STORED, STORED_IN, Job, common, of_process
from turnout.launcher.process.orders import Exited, How, Order, of_rank
from turnout.launcher.process.streams import Outputs, error_file, streams_of
from turnout.launcher.settings import Kind, Settings
from turnout.launcher.shell.hands import Naming
from turnout.launcher.shell.memory.beside import KeeperBeside, Unfetched
from turnout.launcher.shell.memory.private import memory_folder, private_folder
from turnout.launcher.shell.processes.logs import make_attempt, make_run_folder
from turnout.launcher.shell.processes.machine import look
from turnout.launcher.shell.processes.processes import Processes
from turnout.launcher.shell.progress import Watched
from turnout.launcher.shell.say import Say
from turnout.launcher.shell.watching.stacks import Taken
from turnout.launcher.shell.watching.watch import Crew, Watching
from turnout.launcher.shell.watching.words import PROGRESS
from turnout.launcher.wire import Formed, Handover, Held, Stored

_HOW = {
    Kind.SCRIPT: How.SCRIPT,
    Kind.MODULE: How.MODULE,
    Kind.PROGRAM: How.BARE,
    Kind.RUN_PATH: How.RUN_PATH,
}


class Training:
    """What this agent's processes do. processes: how many. door: where other keepers come in; token: the job's."""

    def __init__(
        self,
        settings: Settings,
        processes: int,
        env: Mapping[str, str],
        say: Say,
        hostname: str,
        door: socket.socket | None = None,
        token: bytes = b"",
    ) -> None:
        self._settings, self.processes, self._say, self._hostname = settings, processes, say, hostname
        self._env = common(env, processes)
        self._job = Job(
            settings.meeting.run, settings.command.role, settings.terms.max_restarts, settings.start.one_device,
            settings.terms.most,
        )  # fmt: skip
        self._outputs = _outputs(settings)
        self._run_folder = ""
        memory = memory_folder(env)
        self._folder = private_folder(memory)
        self._watched: Watched | None = None
        self._stored: dict[str, str] = {}
        self._stops = False
        self._barred = False  # what was to be fetched did not come: not once more
        self._watching = Watching(settings.hangs, say)
        self._keeper = KeeperBeside(Path(self._folder.name), memory, *_whose(settings, hostname), say, door, token)
        self._hands = Processes(
            fork=settings.start.fork and settings.command.kind in (Kind.SCRIPT, Kind.MODULE),
            preload=settings.start.preload,
            shutdown_timeout_s=settings.timing.shutdown_s,
            say=say,
            env=self._env,
            learn=self._folder.name if settings.start.learn else "",
        )

    async def warm(self) -> None:
        """Import ahead while the others are still coming."""
        await self._keeper.listen()
        await self._hands.warm()

    def importing_s(self) -> float:
        """For how long at most processes cannot be forked yet; 0: they can, or will be started otherwise."""
        return self._hands.importing_s()

    async def start(self, formed: Formed, named: Naming) -> None:
        """Start all processes of a round, once it is known what they go on from."""
        if not self._run_folder:
            self._run_folder = await asyncio.to_thread(
                make_run_folder, self._settings.output.log_dir, self._settings.meeting.run
            )
        attempt = ""
        if self._run_folder:
            attempt = await asyncio.to_thread(make_attempt, self._run_folder, formed.budget.total, self.processes)
        await self._watching.end()
        if self._watched is not None:
            self._watched.close()
        self._watched, self._stops = Watched(Path(self._folder.name), self.processes), False
        one = await self._named(formed, named) if formed.look else Stored(formed.round)
        if one.step > formed.restore:
            self._say("memory_outdated", {"step": formed.restore, "stored": one.step, "target": one.target})
            formed = _from_storage(formed, one.step)
        await self._agree(formed)
        if formed.restore < 0 and not formed.look:
            one = await self._named(formed, named)
        known = formed.restore < 0 and one.target
        self._stored = {STORED: str(one.step), STORED_IN: one.target} if known else {}
        await self._hands.start([self._order(formed, rank, attempt) for rank in range(self.processes)])
        self._watching.begin(Crew(self._watched, self._hands.pids, formed.first_rank, formed.ranks))

    async def _agree(self, formed: Formed) -> None:
        """Have in memory what the world goes on from. Raises Unfetched."""
        seat = Seat(
            formed.round, formed.first_rank, self.processes, formed.ranks, formed.origin, formed.alike, formed.fetch,
            formed.circle, formed.saved_by, formed.lies,
        )  # fmt: skip
        try:
            await self._keeper.agreed(formed.restore, seat, formed.carry)
        except Unfetched as error:
            self._barred = True
            self._say("fetch_failed", {"step": formed.restore, "round": formed.round, "detail": str(error)})
            raise
        self._barred = False

    async def _named(self, formed: Formed, named: Naming) -> Stored:
        """The one step that all ranks read where they read storage."""
        seen = await self._keeper.stored()
        return await named(Stored(formed.round, seen.target, seen.step))

    def _order(self, formed: Formed, local_rank: int, attempt: str) -> Order:
        assert self._watched is not None
        command, rank = self._settings.command, formed.first_rank + local_rank
        errors = error_file(attempt, local_rank)
        env = of_process(self._env, self._job, formed, self.processes, local_rank, error_file=errors)
        env |= {PROGRESS: str(self._watched.paths[local_rank]), **self._keeper.env, **self._stored}
        out, err = streams_of(self._outputs, attempt, local_rank, rank=rank, hostname=self._hostname)
        argv = of_rank((command.program, *command.arguments), local_rank)
        return Order(
            local_rank, argv, env, _HOW[command.kind], command.python, "", out, err, errors, self._cpus(local_rank)
        )

    def _cpus(self, local_rank: int) -> tuple[int, ...]:
        binding = self._settings.start.numa
        if not binding:
            return ()
        found = look(chosen=self._env.get("CUDA_VISIBLE_DEVICES"))
        bound = (
            found
            if isinstance(found, numa.Refusal)
            else numa.bind(found, numa.Binding(binding), local_rank, self.processes)
        )
        if isinstance(bound, numa.Refusal):
            if local_rank == 0:
                self._say("numa_unbound", {"why": str(bound)})
            return ()
        return bound.cpus

    async def ended(self) -> tuple[Exited, ...]:
        """Wait for the first failure, or for all to end well."""
        return await self._hands.ended()

    async def stop(self, grace_s: float | None = None, sig: int = signal.SIGTERM) -> tuple[Exited, ...]:
        """End all processes."""
        await self._watching.end()
        return await self._hands.stop(sig, grace_s)

    def steps(self) -> tuple[int, int]:
        """The newest step that all have done, and the newest that is saved; -1 for none."""
        return (-1, -1) if self._watched is None else (self._watched.done(), self._watched.saved())

    def stop_at(self, step: int, *, sure: bool) -> int:
        """Have all stop after this step. Gives the farthest that one may have begun."""
        self._stops = True
        return -1 if self._watched is None else self._watched.stop_at(step, sure=sure)

    def hung(self) -> Mapping[int, str]:
        """The processes that hang now, and why, by local rank."""
        return self._watching.hung

    async def show(self) -> Mapping[int, Taken]:
        """The stacks of all processes that run, by local rank."""
        return await self._watching.show()

    async def held(self, *, if_stopped: bool = False) -> tuple[Held, ...]:
        """What all processes of this member hold in memory, hashed, and what is kept for others.

        if_stopped: nothing, unless they were to stop for another world.
        """
        if if_stopped and not self._stops:
            return ()
        held = await self._keeper.held(self.processes)
        return (*held, BARRED) if self._barred else held

    async def hand_over(self, order: Handover) -> None:
        """Some leave: keep what it names, or have in storage what others keep from now on."""
        await (self._keeper.inherit(order) if order.take else self._keeper.carry(order.step))

    async def carry(self, step: int) -> None:
        """The job ends, and this is the newest step that all members hold, -1 for none: it is to be in storage."""
        if step >= 0:
            await self._keeper.carry(step)

    async def close(self, *, done: bool = False, by_s: float | None = None) -> None:
        """Nothing is left. done: nobody will restore what is held. by_s: when to be gone, by the loop's clock."""
        await self._watching.end()
        await self._hands.stop(signal.SIGTERM, 0.0)
        await self._keeper.close(done=done, by_s=by_s)  # before the last of what processes have left behind is killed
        await self._hands.close()
        if self._watched is not None:
            self._watched.close()
        self._folder.cleanup()


def told(ended: Sequence[Exited]) -> tuple[int, str]:
    """The first that failed: its local rank, and how."""
    first = next(each for each in ended if each.failed)
    return first.local_rank, str(first)[:1_000]


def _from_storage(formed: Formed, step: int) -> Formed:
    """The same world, which takes nothing from memory. step: what it reads; nothing else has to get there first."""
    return msgspec.structs.replace(formed, restore=-1, origin=0, alike=False, fetch=(), carry=step, saved_by=0, lies=())


def _whose(settings: Settings, hostname: str) -> tuple[str, str]:
    """The run and the worker whose memory it is.

    Jobs without a name of their own are told apart by what they run: memory of another job is no memory of ours.
    """
    run, name, command = settings.meeting.run, settings.place.name or hostname, settings.command
    if run not in ("", "none"):
        return run, name
    line = "\0".join((command.kind.value, command.program, *command.arguments))
    what = hashlib.sha256(os.fsencode(line)).hexdigest()
    return "none", f"{name[:200]}/{what[:16]}"


def _outputs(settings: Settings) -> Outputs:
    output = settings.output
    return Outputs(
        output.redirects, output.tee, output.local_ranks, settings.command.role, output.prefix,
        output.stdout_filters, output.stderr_filters,
    )  # fmt: skip
