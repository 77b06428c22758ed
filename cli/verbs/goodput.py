"""`turnout goodput JOB` or `queue/NAME`, as a person types it: what the time of a job or of a queue was spent on."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from turnout.cli.commands.cluster_flags import (
    SEEING,
    add_cluster,
    add_flags,
    add_job,
    add_verb,
    duration_s,
    settings_of,
)
from turnout.cli.commands.listing_output import add_output, show
from turnout.cli.commands.run_verb import NoSuch, run_verb, say
from turnout.cli.job_names import JOB_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnout.autoscaler.settings import Settings
    from turnout.cli.commands.jobs_of_controllers import FoundJob
    from turnout.cli.job_names import JobName
    from turnout.cli.views.goodput import GoodputRow, Totals
    from turnout.cli.views.listing import Listing
    from turnout.kube.client.api_client import Client

MOST_PODS = 16  # logs that are read: the coordinator is one of the oldest workers
MOST_LINES = 100_000  # of one log
MAX_JOBS = 200  # of a queue whose logs are read, those that hold most GPUs first
PARALLEL_JOBS = 8  # whose logs are read at once
PERIOD_S = 600.0  # two lines of totals are closer in time
_QUEUE = re.compile(r"queues?/(?P<name>.+)", re.IGNORECASE)
_EXAMPLES = (
    ("goodput bert -n team-a", "since the job began"),
    ("goodput bert --since 2h", "of the last two hours"),
    ("goodput queue/research --since 24h", "all jobs of a queue that are there now, in GPU hours"),
    ("goodput bert -o json", "for a program"),
)


def add(commands: Any) -> None:
    """Add it to the parser's commands."""
    goodput = add_verb(
        commands,
        "goodput",
        "what the time of a job or queue was spent on: steps that count, and each kind of loss",
        _EXAMPLES,
        "It reads the totals that turnout-run writes to the logs of the workers. JOB may be queue/NAME.",
    )
    add_job(goodput, ", ".join(JOB_KINDS))
    goodput.add_argument(
        "--since", type=duration_s, metavar="TIME", help="only the time since then, as in 30m or 2h (the whole job)"
    )
    add_output(goodput)
    add_cluster(goodput)
    add_flags(goodput, SEEING)
    goodput.set_defaults(run=_goodput)


def _goodput(args: argparse.Namespace) -> int:
    """Print the time of one job by kind. Return the exit code."""
    from turnout.cli.commands.jobs_of_controllers import found_job, named_job
    from turnout.kube.client.clock import RealClock

    if queue := _QUEUE.fullmatch(args.job):
        return _goodput_of_queue(args, queue["name"])
    job_name, clock = named_job(args), RealClock()

    async def work(client: Client) -> None:
        async def look() -> Listing[GoodputRow]:
            return await goodput_of(client, await found_job(client, job_name), args.since, clock.wall())

        await show(args, look, say, clock)

    return run_verb("goodput", args, work)


def _goodput_of_queue(args: argparse.Namespace, queue: str) -> int:
    """Print the GPU time of a queue's jobs by kind. Return the exit code."""
    from turnout.kube.client.clock import RealClock

    settings, clock = settings_of(args, SEEING), RealClock()

    async def work(client: Client) -> None:
        async def look() -> Listing[GoodputRow]:
            names = await jobs_of_queue(client, settings, queue)
            return await goodput_of_jobs(client, f"queue {queue}", names, args.since, clock.wall())

        await show(args, look, say, clock)

    return run_verb("goodput", args, work)


async def jobs_of_queue(client: Client, settings: Settings, queue: str) -> list[JobName]:
    """Return the jobs of a queue, those that hold most GPUs first. Raises NoSuch, CannotSee.

    Only kinds that the job controllers run: the workers of others are not known by their labels.
    """
    from collections import Counter

    from turnout.cli.commands.autoscaler_view import look
    from turnout.cli.commands.listing import CannotSee, may_not
    from turnout.cli.job_names import JobName

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
    """Return the GPU time of several jobs by kind; MAX_JOBS of them at most are read. owner: whose they are, in words.

    A job that has gone since, or whose logs have no totals, is named in a note. now_s: in seconds since 1970.
    """
    import asyncio

    from turnout.cli.commands.jobs_of_controllers import found_job
    from turnout.cli.views.goodput import period, sum_listing

    begin_s = None if since_s is None else now_s - since_s
    slots = asyncio.Semaphore(PARALLEL_JOBS)

    async def read(name: JobName) -> list[Totals]:
        async with slots:
            try:
                return await _totals(client, await found_job(client, name), since_s)
            except NoSuch:
                return []

    chosen = names[:MAX_JOBS]
    found = await asyncio.gather(*map(read, chosen))
    periods = [period(totals, begin_s) for totals in found if totals]
    silent = [str(name) for name, totals in zip(chosen, found, strict=True) if not totals]
    return sum_listing(owner, periods, silent, len(names) - len(chosen))


async def goodput_of(client: Client, job: FoundJob, since_s: float | None, now_s: float) -> Listing[GoodputRow]:
    """Return the time of a job by kind. since_s: the length of the period, None for the whole job. Raises NoSuch.

    now_s: in seconds since 1970.
    """
    from turnout.cli.views.goodput import listing, period

    begin_s = None if since_s is None else now_s - since_s
    totals = await _totals(client, job, since_s)
    if not totals:
        raise NoSuch(
            f"the logs of {job.full_name} have no totals"
            f"{'' if since_s is None else ' of that time'}: "
            "turnout-run writes a line `goodput` at the end of each round and every 5 minutes"
        )
    newest, base = period(totals, begin_s)
    return listing(job.full_name, newest, base)


async def _totals(client: Client, job: FoundJob, since_s: float | None) -> list[Totals]:
    """Read the totals in the logs of the job's oldest pods. A pod without a log has none."""
    import asyncio

    from turnout.cli.commands.jobs_of_controllers import objects
    from turnout.cli.views.goodput import read_totals
    from turnout.kube.errors import NotFound, Rejected

    selector = {"labelSelector": f"{job.kind.child_labels.job}={job.name}"}
    pods = await objects(client, f"{job.core}/pods", selector)
    oldest = sorted(pods, key=lambda pod: (str(pod["metadata"].get("creationTimestamp")), pod["metadata"]["name"]))
    window = {} if since_s is None else {"sinceSeconds": str(round(since_s + PERIOD_S))}

    async def read(pod: Any) -> list[Totals]:
        names = [str(each["name"]) for each in pod["spec"]["containers"]]
        container = job.kind.container if job.kind.container in names else names[0]
        query = {"container": container, "tailLines": str(MOST_LINES), **window}
        try:
            text = await client.get(f"{job.core}/pods/{pod['metadata']['name']}/log", query)
        except (NotFound, Rejected):  # its container has not begun
            return []
        return read_totals(text.decode(errors="replace").splitlines())

    found = await asyncio.gather(*(read(pod) for pod in oldest[:MOST_PODS]))
    return [totals for each in found for totals in each]
