"""The verb `turnout goodput JOB` or `queue/NAME`: what the time of a job or of a queue was spent on."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from turnout.cli.job_names import JOB_KINDS
from turnout.cli.verb_support.cluster_flags import (
    SEEING,
    Verbs,
    add_cluster,
    add_flags,
    add_job,
    add_verb,
    duration_s,
    settings_of,
)
from turnout.cli.verb_support.listing_output import add_output, show
from turnout.cli.verb_support.run_verb import print_now, run_verb

if TYPE_CHECKING:
    from turnout.cli.views.goodput import GoodputRow
    from turnout.cli.views.listing import Listing
    from turnout.kube.client.api_client import Client

_QUEUE = re.compile(r"queues?/(?P<name>.+)", re.IGNORECASE)
_EXAMPLES = (
    ("goodput bert -n team-a", "since the job began"),
    ("goodput bert --since 2h", "of the last two hours"),
    ("goodput queue/research --since 24h", "all jobs of a queue that are there now, in GPU hours"),
    ("goodput bert -o json", "for a program"),
)


def add(commands: Verbs) -> None:
    """Add the verb `goodput` to the command line."""
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
    """Print the time of one job, or of a queue's jobs, by kind.

    Returns the exit code: FAILED if there is no such job or queue, or the job's logs have no totals. Raises BadArgument
    for an invalid name.
    """
    from turnout.cli.verb_support.find_jobs import found_job, named_job
    from turnout.cli.verb_support.job_goodput import goodput_of
    from turnout.kube.client.clock import RealClock

    if queue := _QUEUE.fullmatch(args.job):
        return _goodput_of_queue(args, queue["name"])
    job_name, clock = named_job(args), RealClock()

    async def work(client: Client) -> None:
        """Print the job's time by kind, repeatedly with --watch."""

        async def look() -> Listing[GoodputRow]:
            return await goodput_of(client, await found_job(client, job_name), args.since, clock.wall())

        await show(args, look, print_now, clock)

    return run_verb("goodput", args, work)


def _goodput_of_queue(args: argparse.Namespace, queue: str) -> int:
    """Print the GPU time of a queue's jobs by kind. Return the exit code: FAILED if there is no such queue."""
    from turnout.cli.verb_support.job_goodput import goodput_of_jobs, jobs_of_queue
    from turnout.kube.client.clock import RealClock

    settings, clock = settings_of(args, SEEING), RealClock()

    async def work(client: Client) -> None:
        """Print the GPU time of the queue's jobs by kind, repeatedly with --watch."""

        async def look() -> Listing[GoodputRow]:
            names = await jobs_of_queue(client, settings, queue)
            return await goodput_of_jobs(client, f"queue {queue}", names, args.since, clock.wall())

        await show(args, look, print_now, clock)

    return run_verb("goodput", args, work)
