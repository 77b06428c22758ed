"""The verb `turnout describe JOB`: a job in detail."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from turnout.cli.job_names import JOB_KINDS
from turnout.cli.verb_support.cluster_flags import Verbs, add_cluster, add_job, add_verb
from turnout.cli.verb_support.run_verb import run_verb

if TYPE_CHECKING:
    from turnout.kube.client.api_client import Client

_EXAMPLES = (
    ("describe bert", "a job of the namespace of your context"),
    ("describe pytorchjob/bert -n team-a", "where several kinds have a job of that name"),
    ("describe PyTorchJob/team-a/bert", "as `turnout jobs -o name` writes it"),
)


def add(commands: Verbs) -> None:
    """Add the verb `describe` to the command line."""
    describe = add_verb(commands, "describe", "tell of a job at length: conditions, pods, Events", _EXAMPLES)
    add_job(describe, ", ".join(JOB_KINDS))
    add_cluster(describe)
    describe.set_defaults(run=_describe)


def _describe(args: argparse.Namespace) -> int:
    """Print a job, its pods and its Events. Return the exit code: FAILED if there is no such job."""
    from turnout.cli.verb_support.find_jobs import found_job, named_job, objects

    job_name = named_job(args)

    async def look(client: Client) -> None:
        """Print a job with its pods and Events. Raises NoSuch if no job or several have the name."""
        from turnout.cli.jobs import describe_job

        job = await found_job(client, job_name)
        pods = await objects(
            client, f"{job.core}/pods", {"labelSelector": f"{job.kind.children.label_keys.job}={job.name}"}
        )
        selector = f"involvedObject.name={job.name},involvedObject.kind={job.kind.kind}"
        events = await objects(client, f"{job.core}/events", {"fieldSelector": selector})
        print("\n".join(describe_job(job.kind, job.raw, pods, events, time.time())))

    return run_verb("describe", args, look)
