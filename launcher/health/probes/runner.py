"""Runs the measurements that a coordinator orders: starts probes, reads reports, and kills stuck probes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from turnout.launcher.addresses import free_port
from turnout.launcher.coordinator_messages import Judged, Probe, Probed
from turnout.launcher.errors import BadFrame
from turnout.launcher.event_log import EventLog
from turnout.launcher.health.model import GRACE_S, NodeChecks, ProbeStage, judge_links
from turnout.launcher.health.probe_messages import (
    MAX_BYTES,
    MAX_FAULT,
    ProbePlan,
    Report,
    combine_reports,
    encode,
    read_report,
)
from turnout.launcher.health.probes.pod_annotation import OwnPod, own_pod
from turnout.launcher.model import Member

COMMAND = (sys.executable, "-m", "turnout.launcher.health.probes")

_MAX_REPORTS = 64  # of one probe


async def probe(
    plans: Sequence[ProbePlan], env: Mapping[str, str], command: Sequence[str] = COMMAND
) -> tuple[Report, ...]:
    """Run a probe for each of these plans at the same time. Return the last report of each, with a fault if the probe
    did not finish. All probes have ended at the return, even if this call is cancelled.

    env: environment of the probes. command: words before the arguments PLAN and AGENT.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_run_probe(plan, env, command)) for plan in plans]
    return tuple(task.result() for task in tasks)


async def _run_probe(plan: ProbePlan, env: Mapping[str, str], command: Sequence[str]) -> Report:
    """Run one probe process and return its last report. It is killed when its time is over."""
    words, reader = (*command, encode(plan).decode(), str(os.getpid())), asyncio.StreamReader(MAX_BYTES)
    with contextlib.ExitStack() as files:
        read_end, write_end = (
            files.enter_context(os.fdopen(end, mode, 0)) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True)
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *words, env=dict(env), stdin=DEVNULL, stdout=write_end, stderr=DEVNULL, process_group=0
            )
        except OSError as error:
            return _with_fault(Report(), f"it could not be started: {error}")
        # No await may come between the start and this: a call that is cancelled there would leave the process behind.
        try:
            write_end.close()  # so that the pipe ends with the process
            pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), read_end
            )
            with contextlib.closing(pipe):
                return await _last_report(process, reader, plan)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _last_report(process: Process, reader: asyncio.StreamReader, plan: ProbePlan) -> Report:
    """Return the last report of a probe process.

    It has a fault if the process was stuck in a stage, wrote no valid report, or ended early.
    """
    report = Report()
    for _ in range(_MAX_REPORTS):
        try:
            async with asyncio.timeout(plan.within_s(report.stage) + GRACE_S):
                if line := await reader.readline():
                    report = read_report(line)
                    continue
                code = await process.wait()
        except TimeoutError:
            return _with_fault(report, f"stuck in {report.stage.value}, killed")
        except (BadFrame, ValueError) as error:
            return _with_fault(report, f"invalid report: {error}")
        return _with_fault(report, f"ended in {report.stage.value} with {code}")
    return _with_fault(report, f"more than {_MAX_REPORTS} reports")


def _with_fault(report: Report, why: str) -> Report:
    """Return the report with a fault, unless it has one or the probe has finished."""
    is_done = report.stage is ProbeStage.DONE
    return report if is_done or report.fault else msgspec.structs.replace(report, fault=why[:MAX_FAULT])


_MEMORY = "/dev/shm"  # whose free bytes are reported


RunProbes = Callable[[Sequence[ProbePlan], Mapping[str, str]], Awaitable[tuple[Report, ...]]]


class ProbeRunner:
    """Runs the probes of one agent, one order at a time."""

    def __init__(
        self,
        checks: NodeChecks,
        send: Callable[[Probed], None],
        log_event: EventLog,
        run_probes: RunProbes = probe,
    ) -> None:
        """Make a runner without an order.

        send: sends a message to the current coordinator. run_probes: takes plans and environment, as probe() does.
        """
        self._checks, self._send, self._log_event, self._run_probes = checks, send, log_event, run_probes
        self._tasks: list[asyncio.Task[None]] = []  # measurements whose probes may run; all but the last are cancelled
        self._pod = OwnPod(own_pod(os.environ), os.environ.get("NODE_NAME", ""), log_event) if checks.verdicts else None
        self._report = Report()

    def obey(self, me: Member, message: Probe | Judged) -> None:
        """Start the measurement that a Probe orders; write the result in a Judged message on the pod, if that is set.

        me: this agent's member.
        """
        if isinstance(message, Probe):
            self.begin(me, message)
        elif self._pod is not None:
            self._pod.write_finding(message, self._report)

    def begin(self, me: Member, order: Probe) -> None:
        """Start the measurement that the coordinator ordered, after earlier ones are cancelled and have ended."""
        self._cancel()
        earlier_tasks = tuple(self._tasks)
        self._tasks.append(asyncio.get_running_loop().create_task(self._measure(me, order, earlier_tasks)))

    def _cancel(self) -> None:
        """Cancel all measurements, and forget those that have ended."""
        self._tasks = [task for task in self._tasks if not task.done()]
        for task in self._tasks:
            if not task.cancelling():  # a second cancellation would end the wait for its killed probes
                task.cancel()

    async def _measure(self, me: Member, order: Probe, earlier_tasks: Sequence[asyncio.Task[None]]) -> None:
        """Probe this node as the coordinator ordered, log the results and send them.

        earlier_tasks: cancelled measurements, which have to end first.
        """
        if earlier_tasks:
            await asyncio.wait(earlier_tasks)  # until their probes are killed
        self._report = report = combine_reports(await self._run_probes(self._plans(order), os.environ))
        box = judge_links(report.boxes, self._checks.min_bandwidth_mb_per_s, self._checks.min_channels)
        results = {
            name: value for name in Report.__struct_fields__ if (value := getattr(report, name)) not in (None, (), "")
        }
        self._log_event("node_checked", {"number": order.number, **results, "switchbox": box.why})
        port, unfit = free_port(me.address), box.why if box.faulty else ""
        self._send(
            Probed(order.number, port, report.compute_s, report.collective_s, unfit, report.fault, report.reduce_bytes)
        )

    def _plans(self, order: Probe) -> list[ProbePlan]:
        """Return one plan per local process of the ordered probe. Only the first one checks the switchbox."""
        memory, local = _MEMORY if os.path.isdir(_MEMORY) else "", order.processes // order.members
        probing = self._checks.probing
        return [
            ProbePlan(
                order.rank + at,
                order.processes,
                order.members,
                order.address,
                order.port,
                disk=tempfile.gettempdir(),
                memory=memory,
                meet_s=probing.meet_s,
                stage_s=probing.stage_s,
                matmul=probing.matmul,
                reduce_bytes=probing.reduce_bytes,
                box_pairs=self._checks.box_pairs if self._checks.switchbox and at == 0 else (),
            )
            for at in range(local)
        ]

    async def close(self) -> None:
        """Cancel the present measurement, and wait until its probes are killed. A later order starts a new one."""
        self._cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def end(self) -> None:
        """Stop measuring as this member leaves, but first finish writing its pod annotation."""
        await self.close()
        if self._pod is not None:
            await self._pod.close()
