"""Runs the processes of one agent, round by round: derives what to start from the world, and tracks how it goes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from turnout.launcher.checkpoint.arena.arena_files import memory_folder, private_folder
from turnout.launcher.checkpoint.daemon.agent_client import AgentClient, ChildDaemon, FetchFailed
from turnout.launcher.coordinator_messages import (
    FETCH_DISABLED,
    Formed,
    Handover,
    HeldStep,
    RestorePlace,
    StoredStepReport,
)
from turnout.launcher.env import STORED, STORED_IN
from turnout.launcher.event_log import EventLog
from turnout.launcher.goodput.job_time import RankZero
from turnout.launcher.health.hang_monitor.monitor import HangMonitor, RunningWorkers
from turnout.launcher.health.hang_monitor.progress import PROGRESS, StepCounters
from turnout.launcher.settings import ScriptKind, Settings
from turnout.launcher.workers import numa as numa
from turnout.launcher.workers.forkserver.server import DEFAULT
from turnout.launcher.workers.numa import read_machine
from turnout.launcher.workers.worker_output import Outputs, error_file, make_attempt, make_run_folder, streams_of
from turnout.launcher.workers.worker_processes import WorkerProcesses
from turnout.launcher.workers.worker_spec import (
    AgreeStored,
    CommandKind,
    Exited,
    JobVariables,
    SpawnSpec,
    arguments_of_rank,
    common_environment,
    process_environment,
)

_COMMAND_KINDS = {
    ScriptKind.SCRIPT: CommandKind.SCRIPT,
    ScriptKind.MODULE: CommandKind.MODULE,
    ScriptKind.PROGRAM: CommandKind.BARE,
    ScriptKind.RUN_PATH: CommandKind.RUN_PATH,
}


class WorkerProgress:
    """The steps of this member's processes, as the agent reads and stops them. Here: of processes that report none."""

    stop_ordered = False  # the processes of this round were told to stop for another world

    def steps(self) -> tuple[int, int]:
        """Return the newest step that all processes have done, and the newest saved one; -1 for none."""
        return -1, -1

    def rank_zero(self) -> RankZero | None:
        """Return the progress of the process of rank 0, None if it does not run here."""
        return None

    def stop_at(self, step: int, *, sure: bool) -> int:
        """Make all processes stop after this step. Return the farthest step that one may have begun, -1 if unknown.

        sure: the step is confirmed; otherwise a process that reaches it waits.
        """
        return -1


class CountedProgress(WorkerProgress):
    """The steps of a round's processes by the counters that they write. folder: of the counters."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.counters: StepCounters | None = None  # None before the first round
        self._measured_round = 0  # the round in which rank 0 runs here, 0 if it does not

    def begin(self, formed: Formed, processes: int) -> StepCounters:
        """Make the counters of a round with this many processes, and return them. Raises OSError if they cannot be
        made.
        """
        self.close()
        self.counters, self.stop_ordered = StepCounters(self._folder, processes), False
        self._measured_round = formed.round if formed.first_rank == 0 else 0
        return self.counters

    def steps(self) -> tuple[int, int]:
        """Return the newest step that all processes have done, and the newest saved one; -1 for none."""
        return (-1, -1) if self.counters is None else (self.counters.done_step(), self.counters.saved_step())

    def rank_zero(self) -> RankZero | None:
        """Return the progress of the process of rank 0, None if it does not run here."""
        if self.counters is None or not self._measured_round:
            return None
        return self.counters.rank_zero(self._measured_round)

    def stop_at(self, step: int, *, sure: bool) -> int:
        """Make all processes stop after this step. Return the farthest step that one may have begun.

        -1 before the first round. sure: the step is confirmed; otherwise a process that reaches it waits.
        """
        self.stop_ordered = True
        return -1 if self.counters is None else self.counters.stop_at(step, sure=sure)

    def close(self) -> None:
        """Close the counters of the last round."""
        if self.counters is not None:
            self.counters.close()


class WorkerMemory:
    """The checkpoints that this member holds in memory. Here: of a member that holds none."""

    async def held_steps(self) -> tuple[HeldStep, ...]:
        """List what all processes of this member hold in memory. Call it while none of them runs."""
        return ()

    async def hand_over(self, order: Handover) -> None:
        """Adopt the shards that the order names, or store what other members will keep. No process runs."""

    async def persist(self, step: int) -> None:
        """Store this step at the end of the job: the newest that all members hold, -1 for none."""


class DaemonMemory(WorkerMemory):
    """The checkpoints that the checkpoint daemon holds for this many processes."""

    def __init__(self, daemon: AgentClient, processes: int, log_event: EventLog) -> None:
        self._daemon, self._processes, self._log_event = daemon, processes, log_event
        self._fetch_failed = False  # a fetch failed: do not try it again

    async def restore(self, formed: Formed) -> None:
        """Let the daemon prepare the step that the world restores: fetch missing shards into memory.

        Raises FetchFailed if one of them cannot be fetched. Then this member reports FETCH_DISABLED until a later call
        succeeds. Raises OSError if a daemon is needed and cannot be started.
        """
        restore_place = RestorePlace(
            formed.round,
            formed.first_rank,
            self._processes,
            formed.ranks,
            formed.saved_round,
            formed.replicated,
            formed.fetch_from,
            formed.replica_group,
            formed.saved_by,
            formed.locations,
        )
        try:
            await self._daemon.restore(formed.restore_step, restore_place, formed.persist_step)
        except FetchFailed as error:
            self._fetch_failed = True
            self._log_event("fetch_failed", {"step": formed.restore_step, "round": formed.round, "detail": str(error)})
            raise
        self._fetch_failed = False

    async def agree_stored(self, round_: int, agree: AgreeStored) -> StoredStepReport:
        """Report the step that this member sees in storage, and return the one that all ranks read.

        round_: the round that restores it. agree: reports it to the coordinator, and waits for the answer.
        """
        stored = await self._daemon.stored_step()
        return await agree(StoredStepReport(round_, stored.target, stored.step))

    async def held_steps(self) -> tuple[HeldStep, ...]:
        """List what all processes of this member hold in memory, hashed, and the replicas kept for others.

        After a failed fetch FETCH_DISABLED comes last.
        """
        steps = await self._daemon.held_steps(self._processes)
        return (*steps, FETCH_DISABLED) if self._fetch_failed else steps

    async def hand_over(self, order: Handover) -> None:
        """Adopt the shards that the order names, or store what other members will keep."""
        await (self._daemon.adopt_shards(order) if order.shards else self._daemon.persist(order.step))

    async def persist(self, step: int) -> None:
        """Store this step at the end of the job: the newest that all members hold, -1 for none."""
        if step >= 0:
            await self._daemon.persist(step)


class WorkerBackend(Protocol):
    """Starts and stops the processes of this member: a WorkerGroup, or torch's own agent.

    The methods with a body here are the defaults of a back-end without preloading, progress reports and memory
    checkpoints.
    """

    progress: WorkerProgress = WorkerProgress()
    memory: WorkerMemory = WorkerMemory()
    hangs: HangMonitor | None = None  # None if nobody watches the processes

    async def warm(self) -> None:
        """Import modules ahead, so that the first processes start quickly."""
        return

    def importing_s(self) -> float:
        """Return an upper bound of the seconds until processes can be started; 0 if they can be started now."""
        return 0.0

    async def start(self, formed: Formed, agree_stored: AgreeStored) -> None:
        """Start all processes of a round. formed: this worker's place in the new world.

        agree_stored: called if storage may be read, with the step that this member sees there; returns the step that
        all members read, after all have reported.
        """

    async def wait_ended(self) -> tuple[Exited, ...]:
        """Wait for the first failure, or for all processes to succeed. Return the ended ones, the first one first."""

    async def stop(self, grace_s: float | None = None, sig: int = signal.SIGTERM) -> tuple[Exited, ...]:
        """Stop all training processes; kill those that remain after `grace_s` seconds. None: the default time.

        sig: sent first. Returns the processes of the round that have ended, the first one first.
        """

    async def close(self, *, done: bool = False, by_s: float | None = None) -> None:
        """End everything. done: the whole job is over, so nobody will restore what is held.

        by_s: the deadline on the event loop's clock; None for no deadline.
        """


class WorkerGroup(WorkerBackend):
    """Runs this agent's training processes. processes: how many.

    endpoint: listens for other workers' daemons. token: the job's secret.
    """

    def __init__(
        self,
        settings: Settings,
        processes: int,
        env: Mapping[str, str],
        log_event: EventLog,
        hostname: str,
        endpoint: socket.socket | None = None,
        token: bytes = b"",
    ) -> None:
        self._settings, self.processes, self._log_event, self._hostname = settings, processes, log_event, hostname
        self._env = common_environment(env, processes)
        self._job = JobVariables(
            settings.rendezvous.run,
            settings.command.role,
            settings.elastic_spec.max_restarts,
            settings.start.one_device,
            settings.elastic_spec.max_nodes,
        )
        self._outputs = _outputs(settings)
        self._run_folder = ""
        memory = memory_folder(env)
        self._folder = private_folder(memory)
        self.progress: CountedProgress = CountedProgress(Path(self._folder.name))
        self._stored: dict[str, str] = {}
        self.hangs: HangMonitor = HangMonitor(settings.hangs, log_event)
        self._daemon = ChildDaemon(
            Path(self._folder.name), memory, *_memory_owner(settings, hostname), log_event, endpoint, token
        )
        self.memory: DaemonMemory = DaemonMemory(AgentClient(self._daemon, log_event), processes, log_event)
        self._backend = WorkerProcesses(
            fork=settings.start.fork and settings.command.kind in (ScriptKind.SCRIPT, ScriptKind.MODULE),
            preload=(*DEFAULT, *settings.start.preload),
            shutdown_timeout_s=settings.timing.shutdown_s,
            log_event=log_event,
            env=self._env,
        )

    async def warm(self) -> None:
        """Start to import modules ahead while other members are still joining, and listen for the checkpoint daemon.

        Raises OSError if the daemon's socket cannot be made, or if a daemon is needed now and cannot be started.
        """
        await self._daemon.listen()
        await self._backend.warm_parent.start()

    def importing_s(self) -> float:
        """Return an upper bound of the seconds until processes can be forked; 0 if they can be forked now, or if they
        are not forked.
        """
        return self._backend.warm_parent.importing_s()

    async def start(self, formed: Formed, agree_stored: AgreeStored) -> None:
        """Agree on the step to restore, fetch it into memory, and start all processes of a round.

        formed: this worker's place in the new world. agree_stored: called at most once, and only if the world may read
        storage, with the step that this worker sees there. It returns the step that all members read, after all have
        reported; cancel `start` if the round ends before. Raises FetchFailed if a missing shard cannot be fetched,
        StillRunning while processes of the last round are alive, BadElasticSpec if a process has no device of its own,
        and OSError if files or processes cannot be made.
        """
        if not self._run_folder:
            self._run_folder = await asyncio.to_thread(
                make_run_folder, self._settings.output.log_dir, self._settings.rendezvous.run
            )
        attempt = ""
        if self._run_folder:
            attempt = await asyncio.to_thread(make_attempt, self._run_folder, formed.budget.total, self.processes)
        await self.hangs.end()
        counters = self.progress.begin(formed, self.processes)
        stored = StoredStepReport(formed.round)
        if formed.check_storage:
            stored = await self.memory.agree_stored(formed.round, agree_stored)
        if stored.step > formed.restore_step:
            self._log_event(
                "memory_outdated", {"step": formed.restore_step, "stored": stored.step, "target": stored.target}
            )
            formed = _from_storage(formed, stored.step)
        await self.memory.restore(formed)
        if formed.restore_step < 0 and not formed.check_storage:
            stored = await self.memory.agree_stored(formed.round, agree_stored)
        reads_storage = formed.restore_step < 0 and stored.target
        self._stored = {STORED: str(stored.step), STORED_IN: stored.target} if reads_storage else {}
        await self._backend.start([self._order(formed, rank, attempt, counters) for rank in range(self.processes)])
        self.hangs.begin(RunningWorkers(counters, self._backend.pids, formed.first_rank, formed.ranks))

    def _order(self, formed: Formed, local_rank: int, attempt: str, counters: StepCounters) -> SpawnSpec:
        """Return how one worker process is started: command, environment, output files and CPUs.

        attempt: folder of this attempt's logs, "" for none. counters: of this round.
        """
        command, rank = self._settings.command, formed.first_rank + local_rank
        errors = error_file(attempt, local_rank)
        env = process_environment(self._env, self._job, formed, self.processes, local_rank, error_file=errors)
        env |= {PROGRESS: str(counters.paths[local_rank]), **self._daemon.environment, **self._stored}
        out, err = streams_of(self._outputs, attempt, local_rank, rank=rank, hostname=self._hostname)
        argv = arguments_of_rank((command.program, *command.arguments), local_rank)
        return SpawnSpec(
            local_rank,
            argv,
            env,
            _COMMAND_KINDS[command.kind],
            command.python,
            "",
            out,
            err,
            errors,
            self._cpus(local_rank),
        )

    def _cpus(self, local_rank: int) -> tuple[int, ...]:
        """Return the CPUs to which a process is bound; empty for all.

        A binding that is not possible is logged for local rank 0 only.
        """
        binding = self._settings.start.numa
        if not binding:
            return ()
        machine = read_machine(chosen=self._env.get("CUDA_VISIBLE_DEVICES"))
        bound = (
            machine
            if isinstance(machine, numa.NotBound)
            else numa.bind(machine, numa.Binding(binding), local_rank, self.processes)
        )
        if isinstance(bound, numa.NotBound):
            if local_rank == 0:
                self._log_event("numa_unbound", {"why": str(bound)})
            return ()
        return bound.cpus

    async def wait_ended(self) -> tuple[Exited, ...]:
        """Wait for the first failure, or for all processes to succeed."""
        return await self._backend.wait_ended()

    async def stop(self, grace_s: float | None = None, sig: int = signal.SIGTERM) -> tuple[Exited, ...]:
        """Signal all training processes, and kill those that remain after `grace_s` seconds. None: the default time.

        Returns the processes of the round that have ended, the first one first.
        """
        await self.hangs.end()
        return await self._backend.stop(sig, grace_s)

    async def close(self, *, done: bool = False, by_s: float | None = None) -> None:
        """End everything. done: nobody will restore what is held. by_s: the deadline on the event loop's clock."""
        await self.hangs.end()
        await self._backend.stop(signal.SIGTERM, 0.0)
        await self._daemon.close(done=done, by_s=by_s)  # before the last leftover processes are killed
        await self._backend.close()
        self.progress.close()
        self._folder.cleanup()


def first_failure(ended: Sequence[Exited]) -> tuple[int, str]:
    """Return the local rank of the first failed process, and how it failed in words. ended: at least one failed."""
    first = next(each for each in ended if each.has_failed)
    return first.local_rank, str(first)[:1_000]


def _from_storage(formed: Formed, step: int) -> Formed:
    """Return the same world with nothing to restore from memory. step: in storage, which all ranks read instead."""
    return msgspec.structs.replace(
        formed,
        restore_step=-1,
        saved_round=0,
        replicated=False,
        fetch_from=(),
        persist_step=step,
        saved_by=0,
        locations=(),
    )


def _memory_owner(settings: Settings, hostname: str) -> tuple[str, str]:
    """Return (run id, worker name), which identify the owner of this worker's arenas.

    Without a run id: ("none", "NAME/DIGEST"), with a digest of the command, so that no job uses the memory of a job
    with another command. hostname: the worker's name if the settings have none.
    """
    run, name, command = settings.rendezvous.run, settings.place.name or hostname, settings.command
    if run not in ("", "none"):
        return run, name
    line = "\0".join((command.kind.value, command.program, *command.arguments))
    digest = hashlib.sha256(os.fsencode(line)).hexdigest()
    return "none", f"{name[:200]}/{digest[:16]}"


def _outputs(settings: Settings) -> Outputs:
    """Return the settings for the output of worker processes."""
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
