"""Reads the time of a job by kind from the logs of its pods, to which turnout-run writes totals."""

from __future__ import annotations

import asyncio
from typing import Any

from turnout.cli.commands.jobs_of_controllers import FoundJob, objects
from turnout.cli.commands.run_verb import NoSuch
from turnout.cli.views.goodput import GoodputRow, Totals, listing, period, read_totals
from turnout.cli.views.listing import Listing
from turnout.kube.client.api_client import Client
from turnout.kube.errors import NotFound, Rejected

MOST_PODS = 16  # logs that are read: the coordinator is one of the oldest workers
MOST_LINES = 100_000  # of one log
PERIOD_S = 600.0  # two lines of totals are closer in time


async def goodput_of(client: Client, job: FoundJob, since_s: float | None, now_s: float) -> Listing[GoodputRow]:
    """Return the time of a job by kind. since_s: the length of the period, None for the whole job. Raises NoSuch.

    now_s: in seconds since 1970.
    """
    begin_s = None if since_s is None else now_s - since_s
    newest, base = period(await totals_of(client, job, since_s), begin_s)
    return listing(job.full_name, newest, base)


async def totals_of(client: Client, job: FoundJob, since_s: float | None = None) -> list[Totals]:
    """Read the totals in the logs of the job's oldest pods, of the whole job or a period. Raises NoSuch without any."""
    selector = {"labelSelector": f"{job.kind.child_labels.job}={job.name}"}
    pods = await objects(client, f"{job.core}/pods", selector)
    oldest = sorted(pods, key=lambda pod: (str(pod["metadata"].get("creationTimestamp")), pod["metadata"]["name"]))
    window = {} if since_s is None else {"sinceSeconds": str(round(since_s + PERIOD_S))}

    async def read(pod: Any) -> list[Totals]:
        """Return the totals in the log of one pod; none if it has no log."""
        names = [str(each["name"]) for each in pod["spec"]["containers"]]
        container = job.kind.container if job.kind.container in names else names[0]
        query = {"container": container, "tailLines": str(MOST_LINES), **window}
        try:
            text = await client.get(f"{job.core}/pods/{pod['metadata']['name']}/log", query)
        except (NotFound, Rejected):  # its container has not begun
            return []
        return await asyncio.to_thread(lambda: read_totals(text.decode(errors="replace").splitlines()))

    found = [totals for each in await asyncio.gather(*map(read, oldest[:MOST_PODS])) for totals in each]
    if not found:
        raise NoSuch(
            f"the logs of {job.full_name} have no totals"
            f"{'' if since_s is None else ' of that time'}: "
            "turnout-run writes a line `goodput` at the end of each round and every 5 minutes"
        )
    return found
