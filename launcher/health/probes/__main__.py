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
from turnout.launcher.health.probe_messages import MOST_FAULT, Plan, Report, Stage, encode, read_plan
from turnout.launcher.linux import die_with


class ReportWriter:
    """Writes the reports of one probe to the original stdout, which nothing else uses. Each report has all that is
    known.
    """

    def __init__(self) -> None:
        self.report = Report()
        self._to = os.dup(1)
        os.dup2(2, 1)

    def tell(self, **known: object) -> None:
        """Write a report with these new values."""
        self.report = msgspec.structs.replace(self.report, **known)
        os.write(self._to, encode(self.report) + b"\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything in the plan, as far as possible. Returns 0 if all succeeded."""
    plan_text, agent = sys.argv[1:] if argv is None else argv
    if not die_with(int(agent), signal.SIGKILL):
        return 1
    telling = ReportWriter()
    try:
        plan = read_plan(plan_text.encode())
    except BadFrame as error:
        telling.tell(fault=str(error)[:MOST_FAULT])
        return 1
    sys.stdout.flush()
    code = _measure(plan, telling)
    os._exit(code)  # do not let torch's teardown wait for other processes


def _measure(plan: Plan, telling: ReportWriter) -> int:
    from turnout.launcher.health.probes.collective import CollectiveProbe
    from turnout.launcher.health.probes.gpu_links import PeerCopy, bandwidths
    from turnout.launcher.health.probes.local import device_of, device_used, product_s, room_bytes

    together: CollectiveProbe | None = None
    alone = True
    try:
        telling.tell(stage=Stage.ROOM)
        telling.tell(disk_bytes=room_bytes(plan.disk), memory_bytes=room_bytes(plan.memory))
        where, sizes = device_of(plan)
        telling.tell(device_used=device_used(where))
        if plan.box_pairs:
            telling.tell(stage=Stage.SWITCHBOX)
            telling.tell(boxes=bandwidths(plan.box_pairs, PeerCopy()))
        telling.tell(stage=Stage.COMPUTE)
        telling.tell(stage=Stage.MEETING, compute_s=product_s(where, sizes))
        alone = False
        if plan.members > 1:
            together = CollectiveProbe(plan)
            together.meet(where, sizes)
            telling.tell(stage=Stage.COLLECTIVE)
            telling.tell(stage=Stage.BANDWIDTH, collective_s=together.reduce_s(), reduce_bytes=sizes.reduce_bytes)
            telling.tell(stage=Stage.CLOCK, bandwidth_bytes_s=together.bandwidth_bytes_s())
            ahead_s, within_s = together.clock_s()
            telling.tell(clock_ahead_s=ahead_s, clock_within_s=within_s)
        telling.tell(stage=Stage.DONE)
    except (LauncherError, RuntimeError, OSError, ValueError) as error:
        telling.tell(fault=f"{type(error).__name__}: {error}"[:MOST_FAULT])
    well = telling.report.stage is Stage.DONE
    if plan.members > 1:
        with suppress(RuntimeError, LauncherError):  # no other process may be there to receive it
            if alone:
                together = CollectiveProbe(plan)  # the other members wait for this process
            if together is not None:
                if not well:
                    together.broken()
                together.part()
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
