"""Measure how long `turnout why` takes at 1,000 jobs on a real API server, as a person types it; and each `--help`.

Beside it, in the same run: the same lists fetched by a client that does nothing with them, one after the other and at
once, and a Python process that only starts. The lists at once are the lower bound of anything that looks afresh.
Targets are of CPU time, which other people's load moves least. Modules are compiled beforehand, as pip installs them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from hack.bench.autoscaler import scene
from hack.bench.autoscaler.scene import ClusterSize
from hack.bench.support.outcome import Outcome, Scale, Table, Target
from hack.bench.support.percentiles import nearest_rank
from hack.controlplane.api import Api
from hack.controlplane.plane import ControlPlane
from turnout.autoscaler.controller.informers import AutoscalerInformers
from turnout.autoscaler.settings import Settings
from turnout.cli.__main__ import COMMANDS
from turnout.cli.verb_support.autoscaler_view import AutoscalerView, look
from turnout.cli.verbs.why import explanation_of
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import JobKey
from turnout.kube.client.api_client import Client
from turnout.kube.client.clock import RealClock
from turnout.kube.errors import NotFound

SIZE, QUICK = ClusterSize(jobs=1000, workers=4, gpus=1), ClusterSize(jobs=200, workers=4, gpus=1)
SMALLEST = ClusterSize(jobs=8, workers=4, gpus=1)
TIMES = 10
GANG = "needs"
TARGETS_S = {SMALLEST.jobs: 0.5, QUICK.jobs: 0.5, SIZE.jobs: 1.0}  # of CPU
HELP_S, HELPS = 0.15, 3
ASKED = {"a job that runs": "Job/default/job-00007", "a gang that waits": f"Pod/default/{GANG}"}
Times = dict[str, list[float]]


def measure(scale: Scale) -> Outcome:
    """Measure `turnout why` and all --help texts on a cluster whose size follows from the scale."""
    size = scale.pick(SIZE, QUICK, SMALLEST)
    plane = ControlPlane().start()
    try:
        with tempfile.TemporaryDirectory() as compiled:
            return _outcome(size, asyncio.run(time_questions(plane, size, compiled)), asyncio.run(help_cpu_s(compiled)))
    finally:
        plane.stop()


async def help_cpu_s(compiled: str) -> Times:
    """Return the CPU seconds of each command's --help, HELPS times, after one run that does not count.

    compiled: folder of the bytecode cache.
    """
    cpu_s: Times = {}
    for command in sorted(COMMANDS):
        for turn in range(HELPS + 1):
            before_s = _cpu_s()
            await _time_process(compiled, "-m", "turnout.cli", command, "--help")
            if turn:
                cpu_s.setdefault(command, []).append(_cpu_s() - before_s)
    return cpu_s


async def time_questions(plane: ControlPlane, size: ClusterSize, compiled: str) -> Times:
    """Fill a cluster and time each question TIMES times, in turn, after one run of each that does not count.

    Return the wall seconds of each question, and the CPU seconds of each `why` under "CPU of " and its name. compiled:
    folder of the bytecode cache.
    """
    async with plane.api() as api:
        await _fill(api, size)
    kubeconfig = str(plane.kubeconfig)
    async with await Client.open(kubeconfig, minimal=True) as client:
        works: dict[str, Callable[[], Awaitable[float]]] = {
            "lists, at once": lambda: _time_lists(client, together=True),
            "lists, one by one": lambda: _time_lists(client, together=False),
            "look and decide, in a process that runs": lambda: _time_explanation(client, ASKED["a gang that waits"]),
            "python starts": lambda: _time_process(compiled, "-c", "pass"),
            "turnout --version": lambda: _time_process(compiled, "-m", "turnout.cli", "--version"),
            **{
                f"why, of {what}": lambda job=job: _time_process(  # type: ignore[misc]
                    compiled, "-m", "turnout.cli", "why", job, "-o", "json", "--kubeconfig", kubeconfig
                )
                for what, job in ASKED.items()
            },
        }
        times_s: Times = {name: [] for name in works}
        for turn in range(TIMES + 1):
            for name, work in works.items():
                before_s = _cpu_s()
                took_s = await work()
                if turn:
                    times_s[name].append(took_s)
                if turn and name.startswith("why"):
                    times_s.setdefault(f"CPU of {name}", []).append(_cpu_s() - before_s)
    return times_s


def _cpu_s() -> float:
    """Return the CPU time of all children that have ended, in seconds: other people's load moves it least."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def _fill(api: Api, size: ClusterSize) -> None:
    """Create nodes, jobs with their pods, and a gang that waits."""
    await api.create_all(scene.nodes(size))
    jobs = await api.create_all(scene.jobs(size))
    await api.create_all(scene.pods(size, jobs))
    await api.create_all(scene.gang(GANG, size))


def list_paths() -> list[str]:
    """Return the API paths that `why` lists."""
    settings = Settings()
    maps = settings.configmaps()
    informers = AutoscalerInformers(AutoscalerView(()), _Nobody(), KINDS, RealClock(), random.Random(), maps)  # type: ignore[arg-type]
    return sorted({each.path for each in informers.reflectors.values()})


class _Nobody:
    """Stands for an API server that is never asked."""


async def _time_lists(client: Client, *, together: bool) -> float:
    """Fetch the lists of all `list_paths()`, and return the seconds. together: all at once, else one after another."""

    async def fetch(path: str) -> None:
        with suppress(NotFound):
            async for _ in client.pages(path):
                pass

    began_s = time.perf_counter()
    if together:
        await asyncio.gather(*(fetch(path) for path in list_paths()))
    else:
        for path in list_paths():
            await fetch(path)
    return time.perf_counter() - began_s


async def _time_explanation(client: Client, job: str) -> float:
    """Explain one job inside this process, and return the seconds. job: as kind/namespace/name.

    Raises RuntimeError if no explanation is found, only a text.
    """
    began_s = time.perf_counter()
    settings = Settings()
    view = await look(client, settings, "default")
    kind, namespace, name = job.split("/")
    explanation = explanation_of(settings, view, JobKey(kind, namespace, name))
    if isinstance(explanation, str):
        raise RuntimeError(f"{job} is not explained: {explanation}")
    return time.perf_counter() - began_s


async def _time_process(compiled: str, *argv: str) -> float:
    """Run Python with these arguments, and return the wall time in seconds.

    compiled: folder of the bytecode cache, which the process may write. Raises RuntimeError if the process fails, or if
    "json" is an argument and the printed explanation names no job.
    """
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
    began_s = time.perf_counter()
    child = await asyncio.create_subprocess_exec(
        sys.executable, *argv, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, complaint = await child.communicate()
    took_s = time.perf_counter() - began_s
    if child.returncode:
        raise RuntimeError(f"{argv}: {complaint.decode()}")
    if "json" in argv and not json.loads(out)["job"]:
        raise RuntimeError(f"{argv}: nothing was decided: {out.decode()}")
    return took_s


def _outcome(size: ClusterSize, times_s: Times, help_s: Times) -> Outcome:
    """Return the tables and targets.

    times_s: seconds by what was timed. help_s: CPU seconds of --help, by command.
    """
    columns = {"milliseconds": "", "median": ".0f", "p90": ".0f", "most": ".0f"}
    rows = [
        (name, *(1e3 * nearest_rank(times, share) for share in (0.5, 0.9, 1.0)))
        for name, times in {
            **times_s,
            **{f"CPU of {command} --help": times for command, times in help_s.items()},
        }.items()
    ]
    medians = {name: nearest_rank(times, 0.5) for name, times in (times_s | help_s).items()}
    worst_s = max(medians[f"CPU of why, of {what}"] for what in ASKED)
    slowest = max(help_s, key=lambda command: medians[command])
    words = f"CPU of why at {size.jobs:,} jobs, median of the slower question, s"
    return Outcome(
        "why",
        [Table(f"turnout why: {size.jobs:,} jobs, {size.pods:,} pods, {size.nodes:,} nodes", columns, rows)],
        [
            Target(words, worst_s, "<=", TARGETS_S[size.jobs]),
            Target(f"CPU of the slowest help ({slowest}), median, s", medians[slowest], "<=", HELP_S),
        ],
        _notes(medians),
    )


def _notes(medians: dict[str, float]) -> Sequence[str]:
    """Return the note that compares `why` with a process that only starts and lists."""
    bound_s = medians["lists, at once"] + medians["python starts"]
    why_s = max(medians[f"why, of {what}"] for what in ASKED)
    bound = f"Lower bound, a process that starts and lists at once: {bound_s * 1000:.0f} ms"
    return (f"{bound}; why takes {why_s / bound_s:.1f} times that.",)
