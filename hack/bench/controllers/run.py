"""Measure what PyTorchJobs cost: our job controllers beside the Training Operator 1.8.1, in turn on one API server.

The same jobs for both, kwok for kubelets, the garbage collector of Kubernetes for what a deleted job leaves. How long
until all run, CPU time, memory and requests of the controller; how soon a lost pod is replaced; then ours, and after it
the other one, beside ten times as many jobs that need nothing.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path
from statistics import median

from hack.bench.controllers.audit import Audit
from hack.bench.controllers.results import ControllerResults
from hack.bench.controllers.scene import FULL, QUICK, SMALLEST, WorkloadSize
from hack.bench.controllers.sides import Controller
from hack.bench.controllers.trials import (
    ControllerTrial,
    IdleMeasurement,
    measure_idle,
    open_cluster,
    run_trial,
    time_deletions,
)
from hack.bench.support.measure import progress
from hack.bench.support.outcome import Outcome, Scale
from hack.controlplane.api import Api
from hack.controlplane.plane import ControlPlane


def run(scale: Scale) -> Outcome:
    """Measure both controllers. Only FULL has all jobs and runs each controller more than once."""
    return asyncio.run(measure(scale.pick(FULL, QUICK, SMALLEST))).outcome(scale is not Scale.FULL)


async def measure(size: WorkloadSize) -> ControllerResults:
    """Run the benchmark on a new control plane, which is stopped afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        audit = Audit(Path(folder))
        plane = await asyncio.to_thread(ControlPlane(apiserver_flags=audit.flags()).start)
        try:
            return await compare_controllers(plane, audit, size)
        finally:
            await asyncio.to_thread(plane.stop)


async def compare_controllers(plane: ControlPlane, audit: Audit, size: WorkloadSize) -> ControllerResults:
    """Measure both controllers on an empty control plane, one after the other; in each repetition another is first.

    Raises TimeoutError if a step takes too long.
    """
    theirs: list[ControllerTrial] = []
    ours: list[ControllerTrial] = []
    async with open_cluster(plane) as (api, their_side, our_side):
        for turn in range(size.times):
            turns: list[tuple[Controller, list[ControllerTrial]]] = [(their_side, theirs), (our_side, ours)]
            for side, found in turns if turn % 2 == 0 else reversed(turns):
                found.append(await run_trial(side, api, audit, size, random.Random(turn)))
                _progress(side, found[-1])
        deleted = [await _time_both_deletions(api, (their_side, our_side), size, turn) for turn in range(size.turns)]
        at_rest = await measure_idle(our_side, their_side, api, audit, size)
        for side, each in zip((our_side, their_side), at_rest, strict=True):
            _progress_at_rest(side, each)
    return ControllerResults(size, tuple(theirs), tuple(ours), at_rest[1], at_rest[0], tuple(deleted))


async def _time_both_deletions(
    api: Api, sides: tuple[Controller, Controller], size: WorkloadSize, turn: int
) -> tuple[float, float]:
    """Return, for both controllers, the median seconds until a deleted job's children are gone: (theirs, ours).

    turn: number of the repetition; it decides which controller is first. sides: the two controllers, theirs first.
    """
    found = {}
    for side in sides if turn % 2 == 0 else reversed(sides):
        found[side.name] = median(await time_deletions(side, api, size))
        progress(f"{side.name}: a deleted job's children gone after {found[side.name] * 1e3:.0f} ms")
    theirs, ours = (found[side.name] for side in sides)
    return theirs, ours


def _progress(side: Controller, found: ControllerTrial) -> None:
    text = f"all running after {found.running_s:.1f} s, CPU {found.used.cpu_s:.1f} s, {found.used.peak_mib:.0f} MiB"
    requests = ", ".join(f"{name} {count}" for name, count in found.requests.most_common())
    progress(f"{side.name}: {text}; {requests}")


def _progress_at_rest(side: Controller, found: IdleMeasurement) -> None:
    text = f"at rest {found.cores:.2%} of a core, {found.peak_mib:.0f} MiB, caught up after {found.caught_up_s:.1f} s"
    progress(f"{side.name}: {text}")
