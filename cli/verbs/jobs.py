"""The verb `turnout jobs`: the jobs that the job controllers manage, and the number of others."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from turnout.cli.verb_support.cluster_flags import Verbs, add_cluster, add_verb
from turnout.cli.verb_support.listing_output import add_namespace, add_output, add_selector, namespace_of, show
from turnout.cli.verb_support.run_verb import print_now, run_verb

if TYPE_CHECKING:
    from turnout.cli.jobs import JobRow
    from turnout.cli.views.listing import Listing
    from turnout.kube.client.api_client import Client

COLUMNS = ("NAMESPACE", "KIND", "NAME", "STATE", "PODS", "RESTARTS", "AGE")
_EXAMPLES = (
    ("jobs -n team-a", "the jobs of one namespace"),
    ("jobs -A --sort-by restarts", "of all, those that were started again most last"),
    ("jobs -l team=vision -o name", "names that describe, logs, why and pause take"),
)


def add(commands: Verbs) -> None:
    """Add the verb `jobs` to the command line."""
    jobs = add_verb(
        commands,
        "jobs",
        "list the jobs that the job controllers run, with state and pods",
        _EXAMPLES,
        "Jobs of kinds that other controllers run are counted in a line under the table.",
    )
    add_namespace(jobs, "jobs")
    add_selector(jobs, "jobs")
    add_output(jobs, COLUMNS)
    add_cluster(jobs)
    jobs.set_defaults(run=_jobs)


def _jobs(args: argparse.Namespace) -> int:
    """Print the jobs of our controllers. Return the exit code."""
    from turnout.kube.client.clock import RealClock

    async def work(client: Client) -> None:
        """Print the jobs, repeatedly with --watch."""
        namespace = namespace_of(args)

        async def look() -> Listing[JobRow]:
            """Read the jobs and return the listing."""
            return await jobs_of(client, namespace, args.selector)

        await show(args, look, print_now, RealClock())

    return run_verb("jobs", args, work)


async def jobs_of(client: Client, namespace: str, selector: str) -> Listing[JobRow]:
    """Return the listing of our controllers' jobs, with a note that counts those of other controllers.

    A kind that is not served has no jobs. namespace: "" for all. selector: of labels, "" for all. Raises Forbidden if
    the user may not list a kind of our controllers; other kinds that may not be listed count as 0.
    """
    import asyncio

    from turnout.cli.jobs import listing, rows
    from turnout.cli.verb_support.find_jobs import jobs_of_kind
    from turnout.controllers.kinds.registry import KINDS

    now_s = time.time()
    requests = (jobs_of_kind(client, kind, namespace, selector) for kind in KINDS.values())
    job_rows = [
        row
        for kind, found in zip(KINDS.values(), await asyncio.gather(*requests), strict=True)
        for row in rows(kind, found, now_s)
    ]
    others = await _others(client, namespace, selector)
    return listing(job_rows, (others,) if others else ())


async def _others(client: Client, namespace: str, selector: str) -> str:
    """Return a sentence that counts the jobs of other controllers; "" if there are none.

    namespace, selector: "" for all.
    """
    import asyncio

    from turnout.cli.job_names import JOB_KINDS
    from turnout.jobs.kinds.registry import KINDS

    kinds = [kind for kind in KINDS.values() if (kind.object_kind or kind.kind) not in JOB_KINDS]
    kinds = [kind for kind in kinds if kind.kind not in JOB_KINDS]
    counts = await asyncio.gather(*(_count(client, kind.path, namespace, selector) for kind in kinds))
    words = [f"{count} {kind.kind}" for kind, count in zip(kinds, counts, strict=True) if count]
    if not words:
        return ""
    return f"not shown, since other controllers run them: {', '.join(words)}; `turnout why` and `turnout top` know them"


async def _count(client: Client, path: str, namespace: str, selector: str) -> int:
    """Return the number of objects of a kind, as the API server estimates it; 0 if it may not be listed or is not
    served.

    path: of the kind's objects in the whole cluster. namespace, selector: "" for all.
    """
    from urllib.parse import quote

    from turnout.cli.verb_support.find_jobs import labels
    from turnout.kube.errors import Forbidden, NotFound
    from turnout.kube.status import decode_json_object

    group, _, plural = path.rpartition("/")
    place = f"{group}/namespaces/{quote(namespace, safe='')}/{plural}" if namespace else path
    try:
        count = 0
        async for page in client.pages(place, labels(selector), limit=500):
            read = decode_json_object(place, page)
            count += len(read.get("items") or ())
            if left := (read.get("metadata") or {}).get("remainingItemCount"):
                return count + int(left)
        return count
    except (Forbidden, NotFound):
        return 0
