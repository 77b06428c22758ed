"""`turnout goodput JOB`, as a person types it: what the time of a job was spent on."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from turnout.cli.commands.cluster_flags import add_cluster, add_job, add_verb, duration_s
from turnout.cli.commands.listing_output import add_output, show
from turnout.cli.commands.run_verb import run_verb, say
from turnout.cli.job_names import JOB_KINDS

if TYPE_CHECKING:
    from turnout.cli.views.goodput import GoodputRow
    from turnout.cli.views.listing import Listing
    from turnout.kube.client.api_client import Client

_EXAMPLES = (
    ("goodput bert -n team-a", "since the job began"),
    ("goodput bert --since 2h", "of the last two hours"),
    ("goodput bert -o json", "for a program"),
)


def add(commands: Any) -> None:
    """Add it to the parser's commands."""
    goodput = add_verb(
        commands,
        "goodput",
        "what the time of a job was spent on: steps that count, and each kind of loss",
        _EXAMPLES,
        "It reads the totals that turnout-run writes to the logs of the job's workers.",
    )
    add_job(goodput, ", ".join(JOB_KINDS))
    goodput.add_argument(
        "--since", type=duration_s, metavar="TIME", help="only the time since then, as in 30m or 2h (the whole job)"
    )
    add_output(goodput)
    add_cluster(goodput)
    goodput.set_defaults(run=_goodput)


def _goodput(args: argparse.Namespace) -> int:
    """Print the time of one job by kind. Return the exit code."""
    from turnout.cli.commands.job_goodput import goodput_of
    from turnout.cli.commands.jobs_of_controllers import found_job, named_job
    from turnout.kube.client.clock import RealClock

    job_name, clock = named_job(args), RealClock()

    async def work(client: Client) -> None:
        async def look() -> Listing[GoodputRow]:
            return await goodput_of(client, await found_job(client, job_name), args.since, clock.wall())

        await show(args, look, say, clock)

    return run_verb("goodput", args, work)
