"""Runs probes for the agent: starts them, reads their reports, and kills those that are stuck."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence

import msgspec

from turnout.launcher.errors import BadFrame
from turnout.launcher.health.probe_messages import (
    GRACE_S,
    MOST_BYTES,
    MOST_FAULT,
    ProbePlan,
    ProbeStage,
    Report,
    encode,
    read_report,
)

COMMAND = (sys.executable, "-m", "turnout.launcher.health.probes")
_MOST_REPORTS = 64


async def probe(
    plans: Sequence[ProbePlan], env: Mapping[str, str], command: Sequence[str] = COMMAND
) -> tuple[Report, ...]:
    """Run a probe for each of these plans at once. Return the last report of each, with the reason if it did not
    finish.

    No probe is left running, even if this call is cancelled.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_one(plan, env, command)) for plan in plans]
    return tuple(task.result() for task in tasks)


async def _one(plan: ProbePlan, env: Mapping[str, str], command: Sequence[str]) -> Report:
    read_end, write_end = os.pipe()
    words, reader = (*command, encode(plan).decode(), str(os.getpid())), asyncio.StreamReader(MOST_BYTES)
    try:
        process = await asyncio.create_subprocess_exec(
            *words, env=dict(env), stdin=DEVNULL, stdout=write_end, stderr=DEVNULL, process_group=0
        )
    except OSError as error:
        os.close(read_end)
        return _failed(Report(), f"it could not be started: {error}")
    finally:
        os.close(write_end)
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", 0)
    )
    try:
        return await _last_report(process, reader, plan)
    finally:
        pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _last_report(process: Process, reader: asyncio.StreamReader, plan: ProbePlan) -> Report:
    report = Report()
    for _ in range(_MOST_REPORTS):
        try:
            async with asyncio.timeout(plan.within_s(report.stage) + GRACE_S):
                if line := await reader.readline():
                    report = read_report(line)
                    continue
                code = await process.wait()
        except TimeoutError:
            return _failed(report, f"stuck in {report.stage.value}, killed")
        except (BadFrame, ValueError) as error:
            return _failed(report, f"it told what is no report: {error}")
        return _failed(report, f"ended in {report.stage.value} with {code}")
    return _failed(report, "it told too much")


def _failed(report: Report, why: str) -> Report:
    done = report.stage is ProbeStage.DONE
    return report if done or report.fault else msgspec.structs.replace(report, fault=why[:MOST_FAULT])
