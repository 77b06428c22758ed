"""The time for which a job stands still when it is resized, a process is killed or a node is lost.

Both train the model of hack/chaos, three workers of a thread each, a step each 0.1 s. Ours are pods of the embedded
local cluster, which schedules and restarts them, and save to memory after each step. torchrun's are agents on loopback
that are there at once, and save to disk every 20 steps. Each is measured with default timeouts and with short ones.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import metadata
from statistics import median

from hack.bench.recovery import ours, torchrun
from hack.bench.recovery.acts import PLAN, Begin, RecoveryEvent, RecoveryTrial, run_acts
from hack.bench.support.outcome import Outcome, Scale, Table, Target
from hack.chaos.testbed.manifests import MAX_WORKERS, MIN_WORKERS, SHORT, USUAL
from hack.chaos.train_script import DISK_EVERY
from turnout.cli.verb_support.terminal import cancel_on_sigterm

LIMIT_S, TIMES = 120.0, 5
MAX_AGAIN = 1  # the step that was in flight
KEEP_ALIVE = 3  # of torch's: so many of its intervals are a silence
TORCH_SHORT = (
    f"last_call_timeout={SHORT.last_call_s:g},keep_alive_interval={SHORT.silence_s / KEEP_ALIVE:g},"
    f"keep_alive_max_attempt={KEEP_ALIVE}"
)
OURS = ("turnout-run", "turnout-run, usual")
QUICK: Mapping[str, Begin] = {
    OURS[0]: partial(ours.start_job, clocks=SHORT),
    "torchrun": partial(torchrun.start_job, conf=TORCH_SHORT),
}
SMALLEST: Mapping[str, Begin] = {OURS[0]: QUICK[OURS[0]]}
FULL: Mapping[str, Begin] = {
    **QUICK,
    OURS[1]: partial(ours.start_job, clocks=USUAL),
    "torchrun, usual": partial(torchrun.start_job, conf=""),
}
Trials = Mapping[str, Mapping[RecoveryEvent, Sequence[RecoveryTrial]]]  # of each side, by its name, of each act
COLUMNS = {"what happens, launcher": "", "next new step s": ".2f", "stood still s": ".2f", "steps again": "g"}
COLUMNS |= {"from": "", "timed out": "d", "times": "d"}


def measure(scale: Scale) -> Outcome:
    """Cause all events, with each launcher in turn. Return the table and the targets.

    With Scale.FULL each event is caused TIMES times, and with usual clocks too. The smallest scale runs ours alone.
    """
    logging.getLogger("turnout.simulator").setLevel(logging.ERROR)
    return outcome(
        asyncio.run(cancel_on_sigterm(_run_trials(scale.pick(FULL, QUICK, SMALLEST), scale.pick(TIMES, 1, 1))))
    )


async def _run_trials(sides: Mapping[str, Begin], times: int) -> Trials:
    """Run all acts on each side in turn, `times` times. Return the trials by (side, act)."""
    trials: dict[str, dict[RecoveryEvent, list[RecoveryTrial]]] = {
        side: {act: [] for act in RecoveryEvent} for side in sides
    }
    for _ in range(times):
        for side, begin in sides.items():
            for act, trial in (await run_acts(begin, tuple(RecoveryEvent), LIMIT_S)).items():
                trials[side][act].append(trial)
    return trials


def outcome(trials: Trials) -> Outcome:
    """Return the table of medians for each event, the targets and the notes.

    A trial without a recovery counts as infinitely long.
    """
    of_ours = [trial for side in OURS for some in trials.get(side, {}).values() for trial in some]
    repeated = [trial.recovery.repeated_steps if trial.recovery else math.inf for trial in of_ours]
    disk = [trial for trial in of_ours if trial.recovery and {*trial.recovery.sources} - {"memory", "buddy"}]
    return Outcome(
        "events",
        [
            Table(
                "median of what each event took",
                COLUMNS,
                [_row(act, side, trials[side][act]) for act in RecoveryEvent for side in trials],
            )
        ],
        [
            Target(
                "steps that ours made again after any event, at most", max(repeated, default=math.nan), "<=", MAX_AGAIN
            ),
            Target("events after which ours read its state from disk", len(disk) if of_ours else math.nan, "<=", 0),
        ],
        [*_notes(), *_notes_on_unstarted_acts(trials)],
    )


def _row(act: RecoveryEvent, side: str, trials: Sequence[RecoveryTrial]) -> tuple[object, ...]:
    """Return the row of one act on one side: medians in seconds and in steps, sources of the state, timeouts, number
    of trials.
    """
    recoveries = [trial.recovery for trial in trials if trial.recovery]
    late = len(trials) - len(recoveries)
    values = [(each.new_s, each.still_s, each.repeated_steps) for each in recoveries] + [(math.inf,) * 3] * late
    medians = (median(each) for each in zip(*values, strict=True)) if values else (math.nan,) * 3
    whence = ", ".join(sorted({" and ".join(each.sources) for each in recoveries})) or "-"
    return (f"{act.what}, {side}", *medians, whence, late, len(trials))


def _notes_on_unstarted_acts(trials: Trials) -> list[str]:
    """Return a line for each trial whose act never began, with the reason."""
    return [
        f"{side}, {act.what}: {trial.why}"
        for side, acts in trials.items()
        for act, some in acts.items()
        for trial in some
        if trial.why
    ]


def _notes() -> Sequence[str]:
    """Return the notes about workers, clocks and the sources of events."""
    return (
        f"{MIN_WORKERS} to {MAX_WORKERS} workers of one thread, steps of {PLAN.pace_s:g} s, "
        f"torch {metadata.version('torch')}; "
        f"torchrun's checkpoint is made every {DISK_EVERY} steps, and each event falls in the middle of two.",
        "A new step is one that nobody had made before. Told to go: ours by the size of its job, torchrun by SIGTERM. "
        f"An event without a new step within {LIMIT_S:g} s is a time-out: never.",
        "Ours waits for its pod to be made, placed and started; torchrun's agent is started at once.",
        f"Short clocks of both: silence {SHORT.silence_s:g} s, last call {SHORT.last_call_s:g} s; usual ones of ours: "
        f"{USUAL.silence_s:g} s and {USUAL.last_call_s:g} s, of torch: 5 s x 3 and 30 s.",
    )
