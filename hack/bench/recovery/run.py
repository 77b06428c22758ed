"""The time for which a job stands still when it is resized, a process is killed or a node is lost.

Both train the model of hack/chaos, three workers of a thread each, a step each 0.1 s. Ours are pods of the embedded
local cluster, which schedules and restarts them, and save to memory after each step. torchrun's are agents on loopback
that are there at once, and save to disk every 20 steps. Each is measured with default timeouts and with short ones.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import metadata

from hack.bench.recovery import ours, torchrun
from hack.bench.recovery.driver import PLAN, Begin, Trial, told
from hack.bench.recovery.recovery import Act
from hack.bench.recovery.results import OURS, Results
from hack.bench.support.outcome import Outcome, Scale
from hack.chaos.testbed.manifests import LEAST, MOST, SHORT, USUAL
from hack.chaos.train_script import DISK_EVERY
from turnout.cli.commands.terminal import ended_by_sigterm

LIMIT_S, TIMES = 120.0, 5
KEEP_ALIVE = 3  # of torch's: so many of its intervals are a silence
TORCH_SHORT = (
    f"last_call_timeout={SHORT.last_call_s:g},keep_alive_interval={SHORT.silence_s / KEEP_ALIVE:g},"
    f"keep_alive_max_attempt={KEEP_ALIVE}"
)
QUICK: Mapping[str, Begin] = {
    OURS[0]: partial(ours.begun, clocks=SHORT),
    "torchrun": partial(torchrun.begun, conf=TORCH_SHORT),
}
SMALLEST: Mapping[str, Begin] = {OURS[0]: QUICK[OURS[0]]}
FULL: Mapping[str, Begin] = {
    **QUICK,
    OURS[1]: partial(ours.begun, clocks=USUAL),
    "torchrun, usual": partial(torchrun.begun, conf=""),
}


def run(scale: Scale) -> Outcome:
    """All acts, with each launcher in turn; unless in full once, with short clocks; the smallest: ours alone."""
    logging.getLogger("turnout.simulator").setLevel(logging.ERROR)
    played = _played(scale.pick(FULL, QUICK, SMALLEST), scale.pick(TIMES, 1, 1))
    found = asyncio.run(ended_by_sigterm(played))
    title = "recovery: a job is resized, a process of it killed, a node lost"
    return Outcome(title, [found.table()], found.figures(), found.targets(), [*_notes(), *found.notes()])


async def _played(sides: Mapping[str, Begin], times: int) -> Results:
    trials: dict[str, dict[Act, list[Trial]]] = {side: {act: [] for act in Act} for side in sides}
    for _ in range(times):
        for side, begin in sides.items():
            for act, trial in (await told(begin, tuple(Act), LIMIT_S)).items():
                trials[side][act].append(trial)
    return Results(trials, LIMIT_S)


def _notes() -> Sequence[str]:
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    return (
        f"{LEAST} to {MOST} workers of one thread, steps of {PLAN.pace_s:g} s, torch {metadata.version('torch')}; "
        f"torchrun's checkpoint is made every {DISK_EVERY} steps, and each event falls in the middle of two.",
        "A new step is one that nobody had made before. Told to go: ours by the size of its job, torchrun by SIGTERM.",
        "Ours waits for its pod to be made, placed and started; torchrun's agent is started at once.",
        f"Short clocks of both: silence {SHORT.silence_s:g} s, last call {SHORT.last_call_s:g} s; usual ones of ours: "
        f"{USUAL.silence_s:g} s and {USUAL.last_call_s:g} s, of torch: 5 s x 3 and 30 s.",
        f"Load of the machine over the last 1, 5 and 15 minutes: {load} on {os.cpu_count()} cores.",
    )
