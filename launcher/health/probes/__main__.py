"""Runs one probe, which writes a Report to stdout at each stage: `python -m turnout.launcher.health.probes PLAN AGENT`.

PLAN is as in launcher/health/probe_messages.py. AGENT is the pid of its parent, with which the probe ends.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from turnout.launcher.errors import BadFrame, LauncherError
from turnout.launcher.health.model import ProbeStage
from turnout.launcher.health.probe_messages import MAX_FAULT, ProbePlan, Report, encode, read_plan
from turnout.launcher.linux import die_with


class ReportWriter:
    """Writes the reports of one probe to the original stdout, which nothing else uses. Each report has all that is
    known.
    """

    def __init__(self) -> None:
        self.report = Report()
        self._to = os.dup(1)
        os.dup2(2, 1)

    def write(self, **values: object) -> None:
        """Set these fields of the report, and write it as one line."""
        self.report = msgspec.structs.replace(self.report, **values)
        os.write(self._to, encode(self.report) + b"\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one probe: the stages of the plan until one fails. Exits with 0 if all passed, else 1.

    argv: PLAN and AGENT, None for those of this process.
    """
    plan_text, agent = sys.argv[1:] if argv is None else argv
    if not die_with(int(agent), signal.SIGKILL):
        return 1
    reports = ReportWriter()
    try:
        plan = read_plan(plan_text.encode())
    except BadFrame as error:
        reports.write(fault=str(error)[:MAX_FAULT])
        return 1
    sys.stdout.flush()
    code = _measure(plan, reports)
    os._exit(code)  # do not let torch's teardown wait for other processes


def _measure(plan: ProbePlan, reports: ReportWriter) -> int:
    """Run the stages of a plan in order and report each. Stop at the first that fails, and report its error as `fault`.

    Return the exit code: 0 if all stages passed, else 1. After a failure the other members of the group are told, so
    that they do not wait until their time limit.
    """
    from turnout.launcher.health.probes import measure

    collective: measure.CollectiveProbe | None = None
    before_group = True
    try:
        reports.write(stage=ProbeStage.ROOM)
        reports.write(disk_bytes=measure.room_bytes(plan.disk), memory_bytes=measure.room_bytes(plan.memory))
        device, sizes = measure.device_of(plan)
        reports.write(device_used=measure.device_used(device))
        if plan.box_pairs:
            reports.write(stage=ProbeStage.SWITCHBOX)
            reports.write(boxes=measure.bandwidths(plan.box_pairs, measure.PeerCopy()))
        reports.write(stage=ProbeStage.COMPUTE)
        reports.write(stage=ProbeStage.MEETING, compute_s=measure.product_s(device, sizes))
        before_group = False
        if plan.members > 1:
            collective = measure.CollectiveProbe(plan)
            collective.meet(device, sizes)
            reports.write(stage=ProbeStage.COLLECTIVE)
            reports.write(
                stage=ProbeStage.BANDWIDTH, collective_s=collective.reduce_s(), reduce_bytes=sizes.reduce_bytes
            )
            reports.write(stage=ProbeStage.CLOCK, bandwidth_bytes_s=collective.bandwidth_bytes_s())
            ahead_s, within_s = collective.clock_s()
            reports.write(clock_ahead_s=ahead_s, clock_within_s=within_s)
        reports.write(stage=ProbeStage.DONE)
    except (LauncherError, RuntimeError, OSError, ValueError) as error:
        reports.write(fault=f"{type(error).__name__}: {error}"[:MAX_FAULT])
    is_done = reports.report.stage is ProbeStage.DONE
    if plan.members > 1:
        with suppress(RuntimeError, LauncherError):  # no other process may be there to receive it
            if before_group:
                collective = measure.CollectiveProbe(plan)  # the other members wait for this process
            if collective is not None:
                if not is_done:
                    collective.report_broken()
                collective.leave_group()
    return 0 if is_done else 1


if __name__ == "__main__":
    sys.exit(main())
