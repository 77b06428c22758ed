"""Measures after a kill: jobs lost, split worlds, and restarts charged."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hack.bench.support.outcome import Outcome, Scale, Table, Target
from hack.chaos.testbed.agents import WORKERS, Job, split_worlds, until
from turnout.cli.verb_support.child_programs import free_port

AT_ONCE = 2
LIMIT_S = 30.0


class KilledProcess(Enum):
    """The process that is killed, and when."""

    COORDINATOR_IN_TRAINING = "coordinator killed in training"
    COORDINATOR_IN_JOIN = "coordinator killed in join"
    PROCESS = "training process killed"


@dataclass(frozen=True, slots=True)
class SurvivalResult:
    """The result of one job."""

    finished: bool  # the job recovered and came to its end without a violation
    split: bool  # two worlds trained at once
    charged: int  # restarts that were charged to the job; -1 if it did not recover in time
    back_s: float  # from the death until the next world had begun; LIMIT_S if it did not in time
    why: str = ""  # violations, or what did not come in time


COLUMNS = {"what happens": "", "jobs": "d", "lost": "d", "split": "d", "restarts charged": "", "back median s": ".2f"}
COLUMNS |= {"worst s": ".2f"}


def measure(scale: Scale) -> Outcome:
    """Run the trials of each kind of death. Return the table, the targets, and at most five notes on lost jobs."""
    times = scale.pick(200, 5, 1)
    found = {death: _trials(death, times) for death in KilledProcess}
    coordinators = [*found[KilledProcess.COORDINATOR_IN_TRAINING], *found[KilledProcess.COORDINATOR_IN_JOIN]]
    every = [each for some in found.values() for each in some]
    once = sum(each.charged == 1 and each.finished for each in found[KilledProcess.PROCESS])
    faults = [each.why.splitlines()[0] for each in every if not each.finished]
    rows = [(death.value, *_row(some)) for death, some in found.items()]
    return Outcome(
        "survival",
        [Table(f"jobs of three agents, {times} of each kind", COLUMNS, rows)],
        [
            Target("jobs lost when the coordinator dies", sum(not each.finished for each in coordinators), "<=", 0),
            Target("worlds split", sum(each.split for each in every), "<=", 0),
            Target("faults that cost exactly one restart, of all", once / times, ">=", 1),
        ],
        [f"A job that is not done {LIMIT_S:g} s after it should be counts as lost.", *faults[:5]],
    )


def _row(some: Sequence[SurvivalResult]) -> tuple[object, ...]:
    """Return the row of one kind of death: trials, lost jobs, split worlds, range of charged restarts, median and
    longest time to the next world.

    some: the results of its trials, at least one.
    """
    lost, split_ = sum(not each.finished for each in some), sum(each.split for each in some)
    back_s, charged = [each.back_s for each in some], [each.charged for each in some]
    spread = f"{min(charged)}..{max(charged)}"
    return len(some), lost, split_, spread, statistics.median(back_s), max(back_s)


def _trials(death: KilledProcess, times: int) -> list[SurvivalResult]:
    """Run `times` trials of one kind of death, AT_ONCE of them at the same time."""

    def one(_: int) -> SurvivalResult:
        with tempfile.TemporaryDirectory(prefix="turnout-trial-") as folder:
            return trial(death, Path(folder))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, range(times)))


class _TimeLimitPassed(Exception):
    """A job did not reach the next state within its time."""


def trial(death: KilledProcess, folder: Path) -> SurvivalResult:
    """Start a job in this folder, cause this death, and wait for the job's end. No process is left.

    Returns the result; a job that does not recover in time counts as lost.
    """
    job = Job(folder, f"127.0.0.1:{free_port()}")
    (folder / "rounds").mkdir()
    try:
        died_s = _start_and_kill(death, job)
        left = WORKERS if death is KilledProcess.PROCESS else WORKERS - 1
        _require(until(lambda: job.trains(left, died_s), LIMIT_S), f"a world of {left}")
        begun = [record.at_s for record in job.records() if record.event == "begun" and record.at_s > died_s]
        ends, records = job.finish(), job.records()
        charged = max(record.restarts for record in records)
        return SurvivalResult(
            not ends.violations, bool(split_worlds(records)), charged, min(begun) - died_s, str(ends.violations)
        )
    except _TimeLimitPassed as error:
        return SurvivalResult(False, bool(split_worlds(job.records())), -1, LIMIT_S, str(error))
    finally:
        job.end()


def _start_and_kill(death: KilledProcess, job: Job) -> float:
    """Start three agents, wait for the situation that `death` names, and kill the process.

    Returns the time of the kill, monotonic seconds. Raises _TimeLimitPassed if the situation does not come.
    """
    _start(job, 0)
    _require(until(lambda: _has_logged(job, 0, "coordinator_begun"), LIMIT_S), "a coordinator")
    _start(job, 1)
    if death is KilledProcess.COORDINATOR_IN_JOIN:
        _require(until(lambda: _has_logged(job, 1, "coordinator_found"), LIMIT_S), "a second member")
    _start(job, 2)
    if death is not KilledProcess.COORDINATOR_IN_JOIN:
        _require(until(lambda: job.trains(WORKERS, 0.0), LIMIT_S), f"a world of {WORKERS}")
    died_s = time.monotonic()
    if death is KilledProcess.PROCESS:
        newest = max(record.round for record in job.records())
        os.kill(next(each.pid for each in job.records() if (each.round, each.rank) == (newest, 1)), signal.SIGKILL)
    else:
        coordinator = job.agents.pop(0)
        coordinator.kill()
        coordinator.wait()
    return died_s


def _start(job: Job, at: int) -> None:
    job.start(at, options=("--rdzv-id=trial", "--max-restarts=3", f"--round-dir={job.folder / 'rounds'}"))


def _require(did: bool, what: str) -> None:
    """Raise _TimeLimitPassed if `did` is false. what: what did not happen, for the message."""
    if not did:
        raise _TimeLimitPassed(f"{what} did not come within {LIMIT_S:g} s")


def _has_logged(job: Job, number: int, event: str) -> bool:
    """Return True if agent `number` has logged this event."""
    return f'"event": "{event}"' in (job.folder / "logs" / f"w{number}.log").read_text(errors="replace")
