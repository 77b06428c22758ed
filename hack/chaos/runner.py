"""One job under one schedule: faults are injected, the job ends, its history is checked."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hack.chaos.fault_schedule import HARMLESS, Fault, FaultEvent
from hack.chaos.history import JobPlan, Record, read
from hack.chaos.invariants import Violation, find_violations
from hack.chaos.testbed.fault_injectors import FaultInjectors
from hack.chaos.testbed.manifests import JOB, MAX_WORKERS, MIN_WORKERS, ROOT, TRAIN_SCRIPT, Plan
from hack.chaos.testbed.testbed import NoProgress, Testbed, stage

PATIENCE_S = 90.0  # for the next step after whatever was done
_QUIET = 3  # steps of one round: then it trains again


@dataclass(frozen=True, slots=True)
class ChaosOutcome:
    """The outcome of one job."""

    records: tuple[Record, ...]
    violations: tuple[Violation, ...]
    took_s: float  # from its submission to its end


async def run(events: Sequence[FaultEvent], home: Path, plan: Plan) -> ChaosOutcome:
    """Run the job under a schedule of faults. home: must not exist; history and logs stay there.

    Returns the outcome, with violations of invariants. No progress within PATIENCE_S counts as a violation.
    Raises ChildFailed if a program does not start. events: the faults, in order.
    """
    began_s = time.monotonic()
    async with stage(home, plan) as found:
        undisturbed_run = asyncio.create_task(asyncio.to_thread(train_undisturbed, home / "alone", plan))
        injectors = FaultInjectors(found)
        try:
            await _play(found, injectors, events)
            found.note(Record("over", time.monotonic(), code=0))
        except NoProgress as error:
            found.note(Record("over", time.monotonic(), code=1, why=str(error)))
        finally:
            await injectors.stop()
        model = await undisturbed_run
        records = tuple(found.records)
    harmless = frozenset(fault.name for fault in HARMLESS)
    job_plan = JobPlan(MIN_WORKERS, MAX_WORKERS, plan.samples, plan.batch, plan.epochs, model, harmless)
    return ChaosOutcome(records, find_violations(records, job_plan), time.monotonic() - began_s)


async def _play(found: Testbed, injectors: FaultInjectors, events: Sequence[FaultEvent]) -> None:
    """Inject each fault in turn, then let the job complete.

    After each fault wait until the job trains again, unless the next fault comes during the recovery. Raises NoProgress
    if this or another wait takes longer than PATIENCE_S, or if the job does not complete.
    """
    await found.until(lambda: found.steps_since(0.0) >= _QUIET, "the job trains", PATIENCE_S)
    for number, event in enumerate(events):
        await asyncio.sleep(event.after_s)
        record = await injectors.do(event)
        if number + 1 == len(events) or not events[number + 1].during_recovery:
            await wait_until_trains_again(found, injectors, record)
    await injectors.settle()
    quiet_s = time.monotonic()
    # A worker that starts after the end of the job would start the job again.
    await found.until(
        lambda: found.is_complete and found.steps_since(quiet_s) >= _QUIET, "all workers train", PATIENCE_S
    )
    (found.home / "finish").touch()
    if (phase := await found.wait_for_end(JOB, PATIENCE_S)) != "Completed":
        raise NoProgress(f"the job is {phase or 'gone'}")


async def wait_until_trains_again(found: Testbed, injectors: FaultInjectors, record: Record) -> None:
    """Wait until the job trains after a fault: for _QUIET steps, in a round that began after it.

    record: of the fault. After a fault that hit nothing or ends no process, any round counts. If the fault lasts for a
    time, wait for its end first. Raises NoProgress after PATIENCE_S.
    """
    newer_than = -1 if not record.who or Fault[record.kind] in {*HARMLESS, Fault.RIVAL} else record.round
    if record.kind in (Fault.RIVAL.name, Fault.CUT.name, Fault.FULL.name, Fault.STOPPED.name):
        await injectors.settle()
        record = Record("", time.monotonic(), kind=Fault.API.name)
    what = f"the job trains again after {record.kind} of {record.who} in round {record.round}"
    await found.until(lambda: found.steps_since(record.at_s, newer_than) >= _QUIET, what, PATIENCE_S)


def train_undisturbed(home: Path, plan: Plan) -> tuple[float, ...]:
    """Train the same job in one process without faults; return the weights of its final model. home: must not exist.

    Raises CalledProcessError if the process fails.
    """
    home.mkdir(parents=True)
    (home / "plan.json").write_text(json.dumps(asdict(plan)))
    env = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, str(TRAIN_SCRIPT), str(home)]
    subprocess.run(command, env={**env, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, check=True)
    lines = (home / "history" / "alone.1.0.jsonl").read_text()
    return next(record.model for record in read(lines) if record.event == "ended")
