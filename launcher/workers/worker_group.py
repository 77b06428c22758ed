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
from turnout.launcher.checkpoint.daemon.agent_client import AgentClient, FetchFailed
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
from turnout.launcher.health.hang_monitor.stack_capture import CapturedStack
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
    common,
    of_process,
    of_rank,
)

_COMMAND_KINDS = {
    ScriptKind.SCRIPT: CommandKind.SCRIPT,
    ScriptKind.MODULE: CommandKind.MODULE,
    ScriptKind.PROGRAM: CommandKind.BARE,
    ScriptKind.RUN_PATH: CommandKind.RUN_PATH,
}


class WorkerBackend(Protocol):
    """Starts and stops the processes of this member: a WorkerGroup, or torch's own agent.

    The methods with a body here are the defaults of a back-end without preloading, progress reports and memory
    checkpoints.
    """

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

    async def ended(self) -> tuple[Exited, ...]:
        """Wait for the first failure, or for all processes to succeed. Return the ended ones, the first one first."""

    async def stop(self, grace_s: float | None = None, sig: int = signal.SIGTERM) -> tuple[Exited, ...]:
        """Stop all training processes; kill those that remain after `grace_s` seconds. None: the default time.

        sig: sent first. Returns the processes of the round that have ended, the first one first.
        """

    def steps(self) -> tuple[int, int]:
        """Return the newest step that all processes have done, and the newest saved one; -1 for none."""
        return -1, -1

    def rank_zero(self) -> RankZero | None:
        """Return the progress of the process of rank 0, None if it does not run here."""
        return None

    def stop_at(self, step: int, *, sure: bool) -> int:
        """Make all processes stop after this step. Return the farthest step that one may have begun, -1 if unknown."""
        return -1

    def hanging(self) -> Mapping[int, str]:
        """Return the reasons of processes that hang now, by local rank."""
        return {}

    async def capture_stacks(self) -> Mapping[int, CapturedStack]:
        """Take the stack traces of all running processes, by local rank."""
        return {}

    async def held_steps(self, *, if_stopped: bool = False) -> tuple[HeldStep, ...]:
        """List what all processes of this member hold in memory. Call it while none of them runs.

        if_stopped: return nothing unless they were told to stop for another world.
        """
        return ()

    async def hand_over(self, order: Handover) -> None:
        """Adopt the shards that the order names, or store what other members will keep. No process runs."""
        return

    async def persist(self, step: int) -> None:
        """Store this step at the end of the job: the newest that all members hold, -1 for none."""
        return

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
        self._env = common(env, processes)
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
        self._counters: StepCounters | None = None
        self._measured_round = 0  # the round in which rank 0 runs here, 0 if it does not
        self._stored: dict[str, str] = {}
        self._stop_ordered = False
        self._fetch_failed = False  # a fetch failed: do not try it again
        self._hang_monitor = HangMonitor(settings.hangs, log_event)
        self._daemon = AgentClient(
            Path(self._folder.name), memory, *_memory_owner(settings, hostname), log_event, endpoint, token
        )
        self._backend = WorkerProcesses(
            fork=settings.start.fork and settings.command.kind in (ScriptKind.SCRIPT, ScriptKind.MODULE),
            preload=(*DEFAULT, *settings.start.preload),
            shutdown_timeout_s=settings.timing.shutdown_s,
            log_event=log_event,
            env=self._env,
        )

    async def warm(self) -> None:
        """Import modules ahead while other members are still joining."""
        await self._daemon.listen()
        await self._backend.warm()

    def importing_s(self) -> float:
        """Return an upper bound of the seconds until processes can be forked; 0 if they can be forked now, or if they
        are not forked.
        """
        return self._backend.importing_s()

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
        await self._hang_monitor.end()
        if self._counters is not None:
            self._counters.close()
        self._counters, self._stop_ordered = StepCounters(Path(self._folder.name), self.processes), False
        self._measured_round = formed.round if formed.first_rank == 0 else 0
        stored = (
            await self._agreed_stored(formed, agree_stored) if formed.check_storage else StoredStepReport(formed.round)
        )
        if stored.step > formed.restore_step:
            self._log_event(
                "memory_outdated", {"step": formed.restore_step, "stored": stored.step, "target": stored.target}
            )
            formed = _from_storage(formed, stored.step)
        await self._restore_memory(formed)
        if formed.restore_step < 0 and not formed.check_storage:
            stored = await self._agreed_stored(formed, agree_stored)
        reads_storage = formed.restore_step < 0 and stored.target
        self._stored = {STORED: str(stored.step), STORED_IN: stored.target} if reads_storage else {}
        await self._backend.start([self._order(formed, rank, attempt) for rank in range(self.processes)])
        self._hang_monitor.begin(RunningWorkers(self._counters, self._backend.pids, formed.first_rank, formed.ranks))

    async def _restore_memory(self, formed: Formed) -> None:
        """Let the daemon prepare the step that the world restores: fetch missing shards into memory.

        Raises FetchFailed if one of them cannot be fetched. After a failed fetch, this member reports FETCH_DISABLED
        until a fetch is not needed.
        """
        restore_place = RestorePlace(
            formed.round,
            formed.first_rank,
            self.processes,
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

    async def _agreed_stored(self, formed: Formed, agree_stored: AgreeStored) -> StoredStepReport:
        """Report the step that this member sees in storage, and return the one that all ranks read."""
        stored = await self._daemon.stored_step()
        return await agree_stored(StoredStepReport(formed.round, stored.target, stored.step))

    def _order(self, formed: Formed, local_rank: int, attempt: str) -> SpawnSpec:
        """Return how one worker process is started: command, environment, output files and CPUs.

        attempt: folder of this attempt's logs, "" for none.
        """
        assert self._counters is not None
        command, rank = self._settings.command, formed.first_rank + local_rank
        errors = error_file(attempt, local_rank)
        env = of_process(self._env, self._job, formed, self.processes, local_rank, error_file=errors)
        env |= {PROGRESS: str(self._counters.paths[local_rank]), **self._daemon.environment, **self._stored}
        out, err = streams_of(self._outputs, attempt, local_rank, rank=rank, hostname=self._hostname)
        argv = of_rank((command.program, *command.arguments), local_rank)
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

        A binding that is not possible is logged once per host.
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

    async def ended(self) -> tuple[Exited, ...]:
        """Wait for the first failure, or for all processes to succeed."""
        return await self._backend.ended()

    async def stop(self, grace_s: float | None = None, sig: int = signal.SIGTERM) -> tuple[Exited, ...]:
        """Signal all training processes, and kill those that remain after `grace_s` seconds. None: the default time.

        Returns the processes of the round that have ended, the first one first.
        """
        await self._hang_monitor.end()
        return await self._backend.stop(sig, grace_s)

    def steps(self) -> tuple[int, int]:
        """Return the newest step that all processes have done, and the newest saved one; -1 for none."""
        return (-1, -1) if self._counters is None else (self._counters.done(), self._counters.saved())

    def rank_zero(self) -> RankZero | None:
        """Return the progress of the process of rank 0, None if it does not run here."""
        if self._counters is None or not self._measured_round:
            return None
        return self._counters.rank_zero(self._measured_round)

    def stop_at(self, step: int, *, sure: bool) -> int:
        """Make all processes stop after this step. Return the farthest step that one may have begun.

        -1 before the first round. sure: the step is confirmed; otherwise a process that reaches it waits.
        """
        self._stop_ordered = True
        return -1 if self._counters is None else self._counters.stop_at(step, sure=sure)

    def hanging(self) -> Mapping[int, str]:
        """Return the reasons of processes that hang now, by local rank."""
        return self._hang_monitor.hanging

    async def capture_stacks(self) -> Mapping[int, CapturedStack]:
        """Take the stack traces of all running processes, by local rank."""
        return await self._hang_monitor.capture_stacks()

    async def held_steps(self, *, if_stopped: bool = False) -> tuple[HeldStep, ...]:
        """List what all processes of this member hold in memory, hashed, and the replicas kept for others.

        After a failed fetch FETCH_DISABLED comes last. if_stopped: return () unless they were told to stop for another
        world.
        """
        if if_stopped and not self._stop_ordered:
            return ()
        steps = await self._daemon.held_steps(self.processes)
        return (*steps, FETCH_DISABLED) if self._fetch_failed else steps

    async def hand_over(self, order: Handover) -> None:
        """Adopt the shards that the order names, or store what other members will keep."""
        await (self._daemon.adopt_shards(order) if order.shards else self._daemon.persist(order.step))

    async def persist(self, step: int) -> None:
        """Store this step at the end of the job: the newest that all members hold, -1 for none."""
        if step >= 0:
            await self._daemon.persist(step)

    async def close(self, *, done: bool = False, by_s: float | None = None) -> None:
        """End everything. done: nobody will restore what is held. by_s: the deadline on the event loop's clock."""
        await self._hang_monitor.end()
        await self._backend.stop(signal.SIGTERM, 0.0)
        await self._daemon.close(done=done, by_s=by_s)  # before the last leftover processes are killed
        await self._backend.close()
        if self._counters is not None:
            self._counters.close()
        self._folder.cleanup()


def first_failure(ended: Sequence[Exited]) -> tuple[int, str]:
    """Return the local rank of the first failed process, and how it failed in words. ended: at least one failed."""
    first = next(each for each in ended if each.failed)
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
