"""Runs the processes of one agent, round by round: makes their orders from the world, and tracks progress and end."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from turnout.launcher.checkpoint.arena.socket_dir import memory_folder, private_folder
from turnout.launcher.checkpoint.daemon.agent_client import AgentClient, FetchFailed
from turnout.launcher.checkpoint.format.daemon_messages import RestorePlace
from turnout.launcher.env import STORED, STORED_IN
from turnout.launcher.event_log import EventLog
from turnout.launcher.health.hang_monitor.monitor import HangMonitor, RunningWorkers
from turnout.launcher.health.hang_monitor.shared_counters import PROGRESS
from turnout.launcher.health.hang_monitor.stack_capture import CapturedStack
from turnout.launcher.health.hang_monitor.step_counters import StepCounters
from turnout.launcher.rendezvous.checkpoint_messages import FETCH_DISABLED
from turnout.launcher.rendezvous.messages import Formed, Handover, HeldStep, Stored
from turnout.launcher.settings import Kind, Settings
from turnout.launcher.workers.environment import Job, common, of_process
from turnout.launcher.workers.forkserver.preload import DEFAULT
from turnout.launcher.workers.log_redirects import Outputs, error_file, streams_of
from turnout.launcher.workers.logs import make_attempt, make_run_folder
from turnout.launcher.workers.numa import binding as numa
from turnout.launcher.workers.numa.cpu_topology import look
from turnout.launcher.workers.spawn_spec import CommandKind, Exited, SpawnSpec, of_rank
from turnout.launcher.workers.worker_backend import Naming
from turnout.launcher.workers.worker_processes import WorkerProcesses

_HOW = {
    Kind.SCRIPT: CommandKind.SCRIPT,
    Kind.MODULE: CommandKind.MODULE,
    Kind.PROGRAM: CommandKind.BARE,
    Kind.RUN_PATH: CommandKind.RUN_PATH,
}


class WorkerGroup:
    """Runs this agent's training processes. processes: how many.

    endpoint: listens for other workers' daemons. token: the job's secret.
    """

    def __init__(
        self,
        settings: Settings,
        processes: int,
        env: Mapping[str, str],
        say: EventLog,
        hostname: str,
        endpoint: socket.socket | None = None,
        token: bytes = b"",
    ) -> None:
        self._settings, self.processes, self._say, self._hostname = settings, processes, say, hostname
        self._env = common(env, processes)
        self._job = Job(
            settings.meeting.run,
            settings.command.role,
            settings.terms.max_restarts,
            settings.start.one_device,
            settings.terms.most,
        )
        self._outputs = _outputs(settings)
        self._run_folder = ""
        memory = memory_folder(env)
        self._folder = private_folder(memory)
        self._watched: StepCounters | None = None
        self._stored: dict[str, str] = {}
        self._stops = False
        self._barred = False  # a fetch failed: do not try it again
        self._watching = HangMonitor(settings.hangs, say)
        self._daemon = AgentClient(Path(self._folder.name), memory, *_whose(settings, hostname), say, endpoint, token)
        self._backend = WorkerProcesses(
            fork=settings.start.fork and settings.command.kind in (Kind.SCRIPT, Kind.MODULE),
            preload=(*DEFAULT, *settings.start.preload),
            shutdown_timeout_s=settings.timing.shutdown_s,
            say=say,
            env=self._env,
        )

    async def warm(self) -> None:
        """Import modules ahead while other members are still joining."""
        await self._daemon.listen()
        await self._backend.warm()

    def importing_s(self) -> float:
        """Return the longest time in seconds until processes can be forked; 0 if they can be now, or are started
        otherwise.
        """
        return self._backend.importing_s()

    async def start(self, formed: Formed, named: Naming) -> None:
        """Start all processes of a round, once it is known which step they restore."""
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
        self._watched, self._stops = StepCounters(Path(self._folder.name), self.processes), False
        one = await self._named(formed, named) if formed.look else Stored(formed.round)
        if one.step > formed.restore:
            self._say("memory_outdated", {"step": formed.restore, "stored": one.step, "target": one.target})
            formed = _from_storage(formed, one.step)
        await self._agree(formed)
        if formed.restore < 0 and not formed.look:
            one = await self._named(formed, named)
        known = formed.restore < 0 and one.target
        self._stored = {STORED: str(one.step), STORED_IN: one.target} if known else {}
        await self._backend.start([self._order(formed, rank, attempt) for rank in range(self.processes)])
        self._watching.begin(RunningWorkers(self._watched, self._backend.pids, formed.first_rank, formed.ranks))

    async def _agree(self, formed: Formed) -> None:
        """Fetch into memory the step that the world restores. Raises FetchFailed."""
        seat = RestorePlace(
            formed.round,
            formed.first_rank,
            self.processes,
            formed.ranks,
            formed.origin,
            formed.alike,
            formed.fetch,
            formed.replica_group,
            formed.saved_by,
            formed.locations,
        )
        try:
            await self._daemon.agreed(formed.restore, seat, formed.carry)
        except FetchFailed as error:
            self._barred = True
            self._say("fetch_failed", {"step": formed.restore, "round": formed.round, "detail": str(error)})
            raise
        self._barred = False

    async def _named(self, formed: Formed, named: Naming) -> Stored:
        """Return the one stored step that all ranks read."""
        seen = await self._daemon.stored()
        return await named(Stored(formed.round, seen.target, seen.step))

    def _order(self, formed: Formed, local_rank: int, attempt: str) -> SpawnSpec:
        assert self._watched is not None
        command, rank = self._settings.command, formed.first_rank + local_rank
        errors = error_file(attempt, local_rank)
        env = of_process(self._env, self._job, formed, self.processes, local_rank, error_file=errors)
        env |= {PROGRESS: str(self._watched.paths[local_rank]), **self._daemon.env, **self._stored}
        out, err = streams_of(self._outputs, attempt, local_rank, rank=rank, hostname=self._hostname)
        argv = of_rank((command.program, *command.arguments), local_rank)
        return SpawnSpec(
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
        """Wait for the first failure, or for all processes to succeed."""
        return await self._backend.ended()

    async def stop(self, grace_s: float | None = None, sig: int = signal.SIGTERM) -> tuple[Exited, ...]:
        """Signal all training processes, and kill those that remain after `grace_s` seconds. None: the default time."""
        await self._watching.end()
        return await self._backend.stop(sig, grace_s)

    def steps(self) -> tuple[int, int]:
        """Return the newest step that all processes have done, and the newest saved one; -1 for none."""
        return (-1, -1) if self._watched is None else (self._watched.done(), self._watched.saved())

    def stop_at(self, step: int, *, sure: bool) -> int:
        """Make all processes stop after this step. Return the farthest step that one may have begun."""
        self._stops = True
        return -1 if self._watched is None else self._watched.stop_at(step, sure=sure)

    def hung(self) -> Mapping[int, str]:
        """Return the reasons of processes that hang now, by local rank."""
        return self._watching.hung

    async def show(self) -> Mapping[int, CapturedStack]:
        """Take the stack traces of all running processes, by local rank."""
        return await self._watching.show()

    async def held(self, *, if_stopped: bool = False) -> tuple[HeldStep, ...]:
        """List what all processes of this member hold in memory, hashed, and the replicas kept for others.

        if_stopped: return nothing unless they were told to stop for another world.
        """
        if if_stopped and not self._stops:
            return ()
        held = await self._daemon.held(self.processes)
        return (*held, FETCH_DISABLED) if self._barred else held

    async def hand_over(self, order: Handover) -> None:
        """Adopt the shards that the order names, or store what other members will keep."""
        await (self._daemon.inherit(order) if order.take else self._daemon.carry(order.step))

    async def carry(self, step: int) -> None:
        """Store this step at the end of the job: the newest that all members hold, -1 for none."""
        if step >= 0:
            await self._daemon.carry(step)

    async def close(self, *, done: bool = False, by_s: float | None = None) -> None:
        """End everything. done: nobody will restore what is held. by_s: the deadline on the event loop's clock."""
        await self._watching.end()
        await self._backend.stop(signal.SIGTERM, 0.0)
        await self._daemon.close(done=done, by_s=by_s)  # before the last leftover processes are killed
        await self._backend.close()
        if self._watched is not None:
            self._watched.close()
        self._folder.cleanup()


def told(ended: Sequence[Exited]) -> tuple[int, str]:
    """Return the local rank of the first failed process, and how it failed."""
    first = next(each for each in ended if each.failed)
    return first.local_rank, str(first)[:1_000]


def _from_storage(formed: Formed, step: int) -> Formed:
    """Return the same world, but restoring nothing from memory. step: the stored step to read, which needs no write
    first.
    """
    return msgspec.structs.replace(
        formed, restore=-1, origin=0, alike=False, fetch=(), carry=step, saved_by=0, locations=()
    )


def _whose(settings: Settings, hostname: str) -> tuple[str, str]:
    """Return the run and worker name that identify this worker's memory.

    Jobs without a name are told apart by their command, so that one job never uses another one's memory.
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
        output.redirects,
        output.tee,
        output.local_ranks,
        settings.command.role,
        output.prefix,
        output.stdout_filters,
        output.stderr_filters,
    )
