"""Reads the time of a job by kind, and its saves, from the logs of its pods, to which turnout-run writes them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from turnout.autoscaler.settings import Settings
from turnout.cli.job_names import JOB_KINDS, JobName
from turnout.cli.verb_support.autoscaler_view import look
from turnout.cli.verb_support.find_jobs import FoundJob, found_job, objects
from turnout.cli.verb_support.listing import CannotSee, may_not
from turnout.cli.verb_support.run_verb import NoSuch
from turnout.cli.views.goodput import GoodputRow, Totals, listing, period, read_totals, sum_listing
from turnout.cli.views.listing import Listing
from turnout.cli.views.saves import LoggedSave, read_saves
from turnout.kube.client.api_client import Client
from turnout.kube.errors import NotFound, Rejected

MAX_PODS = 16  # logs that are read: the coordinator is one of the oldest workers
MAX_LINES = 100_000  # of one log
MAX_JOBS = 200  # of a queue whose logs are read, those that hold most GPUs first
PARALLEL_JOBS = 8  # whose logs are read at once
PERIOD_S = 600.0  # two lines of totals are closer in time


async def goodput_of(client: Client, job: FoundJob, since_s: float | None, now_s: float) -> Listing[GoodputRow]:
    """Return a job's time by kind, from its pods' logs.

    since_s: length of the period before now, in seconds; None for the whole life of the job. now_s: since 1970. Raises
    NoSuch if the logs have no totals.
    """
    begin_s = None if since_s is None else now_s - since_s
    newest, base = period(await totals_of(client, job, since_s), begin_s)
    return listing(job.full_name, newest, base)


async def totals_of(client: Client, job: FoundJob, since_s: float | None = None) -> list[Totals]:
    """Return the totals in the logs of the job's MAX_PODS oldest pods, pod by pod.

    since_s: length of the period before now, in seconds; None for the whole life of the job. Raises NoSuch if the logs
    have no totals.
    """
    return (await totals_and_saves_of(client, job, since_s))[0]


async def totals_and_saves_of(
    client: Client, job: FoundJob, since_s: float | None = None
) -> tuple[list[Totals], list[LoggedSave]]:
    """Return the totals and the saves in the logs of the job's MAX_PODS oldest pods, pod by pod; [] of saves if none.

    since_s: length of the period before now, in seconds; the lines of PERIOD_S seconds before it are read, too. None
    for the whole life of the job. Only the last MAX_LINES lines of a log are read, and a pod without a log has none.
    Raises NoSuch if the logs have no totals, and Forbidden if the user may not list the pods or read their logs.
    """
    selector = {"labelSelector": f"{job.kind.children.label_keys.job}={job.name}"}
    pods = await objects(client, f"{job.core}/pods", selector)
    oldest = sorted(pods, key=lambda pod: (str(pod["metadata"].get("creationTimestamp")), pod["metadata"]["name"]))
    window = {} if since_s is None else {"sinceSeconds": str(round(since_s + PERIOD_S))}

    async def read(pod: Any) -> tuple[list[Totals], list[LoggedSave]]:
        """Return the totals and the saves in the log of one pod; none if it has no log."""
        names = [str(each["name"]) for each in pod["spec"]["containers"]]
        container = job.kind.container if job.kind.container in names else names[0]
        query = {"container": container, "tailLines": str(MAX_LINES), **window}
        try:
            text = await client.get(f"{job.core}/pods/{pod['metadata']['name']}/log", query)
        except (NotFound, Rejected):  # its container has not begun
            return [], []
        return await asyncio.to_thread(lambda: _read(text.decode(errors="replace").splitlines()))

    logs = await asyncio.gather(*map(read, oldest[:MAX_PODS]))
    totals = [each for found, _ in logs for each in found]
    if not totals:
        raise NoSuch(
            f"the logs of {job.full_name} have no totals"
            f"{'' if since_s is None else ' of that time'}: "
            "turnout-run writes a line `goodput` at the end of each round and every 5 minutes"
        )
    return totals, [each for _, found in logs for each in found]


def _read(lines: Sequence[str]) -> tuple[list[Totals], list[LoggedSave]]:
    return read_totals(lines), read_saves(lines)


async def jobs_of_queue(client: Client, settings: Settings, queue: str) -> list[JobName]:
    """Return the jobs of a queue, those that hold most GPUs first.

    Only kinds of the job controllers are returned: workers of other kinds cannot be recognised by their labels. Raises
    NoSuch if there is no such queue, and CannotSee if the user may not see the whole cluster or a list fails.
    """
    snapshot = await look(client, settings, "default")
    if snapshot.missing:
        raise CannotSee(may_not(snapshot.missing))
    jobs = [state.job for state in snapshot.observation.jobs if state.job.queue == queue]
    if not jobs and queue not in snapshot.observation.queues:
        raise NoSuch(f"there is no queue {queue!r}; `turnout queues` lists those that are there")
    gpus = Counter[str]()
    for pod in snapshot.view.gpu_pods():
        if pod.node:
            gpus[str(pod.owner)] += pod.gpus
    keys = sorted((job.key for job in jobs if job.key.kind in JOB_KINDS), key=lambda key: (-gpus[str(key)], str(key)))
    return [JobName(key.kind, key.namespace, key.name) for key in keys]


async def goodput_of_jobs(
    client: Client, owner: str, names: Sequence[JobName], since_s: float | None, now_s: float
) -> Listing[GoodputRow]:
    """Return the GPU time of several jobs by kind. The first MAX_JOBS of `names` are read; a note counts the others.

    owner: of the jobs, for the title, as in "queue research". A job that no longer exists or whose logs have no totals
    is named in a note. since_s: length of the period before now, in seconds; None for the whole life of each job.
    now_s: since 1970.
    """
    begin_s = None if since_s is None else now_s - since_s
    slots = asyncio.Semaphore(PARALLEL_JOBS)

    async def read(name: JobName) -> list[Totals]:
        """Return the totals of one job; [] if the job does not exist or its logs have no totals."""
        async with slots:
            try:
                return await totals_of(client, await found_job(client, name), since_s)
            except NoSuch:
                return []

    chosen = names[:MAX_JOBS]
    found = await asyncio.gather(*map(read, chosen))
    periods = [period(totals, begin_s) for totals in found if totals]
    silent = [str(name) for name, totals in zip(chosen, found, strict=True) if not totals]
    return sum_listing(owner, periods, silent, len(names) - len(chosen))
