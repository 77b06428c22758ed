"""`turnout goodput JOB`, as a person types it: what the time of a job was spent on."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from turnout.cli.commands.cluster_flags import add_cluster, add_job, add_verb, duration_s
from turnout.cli.commands.listing_output import add_output, show
from turnout.cli.commands.run_verb import NoSuch, run_verb, say
from turnout.cli.job_names import JOB_KINDS

if TYPE_CHECKING:
    from turnout.cli.commands.jobs_of_controllers import FoundJob
    from turnout.cli.views.goodput import GoodputRow, Totals
    from turnout.cli.views.listing import Listing
    from turnout.kube.client.api_client import Client

MOST_PODS = 16  # logs that are read: the coordinator is one of the oldest workers
MOST_LINES = 100_000  # of one log
PERIOD_S = 600.0  # two lines of totals are closer in time
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
    from turnout.cli.commands.jobs_of_controllers import found_job, named_job
    from turnout.kube.client.clock import RealClock

    job_name, clock = named_job(args), RealClock()

    async def work(client: Client) -> None:
        async def look() -> Listing[GoodputRow]:
            return await goodput_of(client, await found_job(client, job_name), args.since, clock.wall())

        await show(args, look, say, clock)

    return run_verb("goodput", args, work)


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
