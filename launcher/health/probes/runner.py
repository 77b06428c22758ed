"""Runs the measurements that a coordinator orders, one order at a time, and reports their results."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable

from turnout.launcher.addresses import free_port
from turnout.launcher.event_log import EventLog
from turnout.launcher.health.gpu_links import judge
from turnout.launcher.health.messages import Judged, Probe, Probed
from turnout.launcher.health.node_check import NodeChecks
from turnout.launcher.health.probe_messages import ProbePlan, Report, of_member
from turnout.launcher.health.probes.pod_annotation import OwnPod, own_pod
from turnout.launcher.health.probes.subprocess import probe
from turnout.launcher.model import Member

_MEMORY = "/dev/shm"


class ProbeRunner:
    """Runs the probes of one agent. send: sends a message to the current coordinator."""

    def __init__(self, checks: NodeChecks, send: Callable[[Probed], None], log_event: EventLog) -> None:
        self._checks, self._send, self._log_event = checks, send, log_event
        self._task: asyncio.Task[None] | None = None
        self._pod = OwnPod(own_pod(os.environ), os.environ.get("NODE_NAME", ""), log_event) if checks.verdicts else None
        self._report = Report()

    def obey(self, me: Member, message: Probe | Judged) -> None:
        """Measure for a Probe. Write the finding of a Judged message on the pod, if that is wanted."""
        if isinstance(message, Probe):
            self.begin(me, message)
        elif self._pod is not None:
            self._pod.write_finding(message, self._report)

    def begin(self, me: Member, order: Probe) -> None:
        """Start this measurement; it replaces an earlier one."""
        before, self._task = self._task, None
        if before is not None:
            before.cancel()
        self._task = asyncio.get_running_loop().create_task(self._measure(me, order, before))

    async def _measure(self, me: Member, order: Probe, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])  # until its probes are killed
        self._report = report = of_member(await probe(self._plans(order), os.environ))
        box = judge(report.boxes, self._checks.min_bandwidth_mb_per_s, self._checks.min_channels)
        results = {
            name: value for name in Report.__struct_fields__ if (value := getattr(report, name)) not in (None, (), "")
        }
        self._log_event("node_checked", {"number": order.number, **results, "switchbox": box.why})
        port, unfit = free_port(me.address), box.why if box.faulty else ""
        self._send(
            Probed(order.number, port, report.compute_s, report.collective_s, unfit, report.fault, report.reduce_bytes)
        )

    def _plans(self, order: Probe) -> list[ProbePlan]:
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
        """Stop measuring, until there is another order."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def end(self) -> None:
        """Stop measuring as this member leaves, but first finish writing its pod annotation."""
        await self.close()
        if self._pod is not None:
            await self._pod.close()
