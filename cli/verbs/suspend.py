"""The verbs `turnout suspend JOB` and `turnout unsuspend JOB`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from turnout.cli.job_names import JOB_KINDS
from turnout.cli.verb_support.cluster_flags import Verbs, add_cluster, add_job, add_verb
from turnout.cli.verb_support.run_verb import run_verb

if TYPE_CHECKING:
    from turnout.kube.client.api_client import Client

_SUSPEND = (
    ("suspend bert -n team-a", "its pods go, its object stays"),
    ("unsuspend bert -n team-a", "its pods are made again"),
)
_UNSUSPEND = (("unsuspend bert -n team-a", "its pods are made again"),)


def add(commands: Verbs) -> None:
    """Add the verbs `suspend` and `unsuspend` to the command line."""
    suspend = add_verb(commands, "suspend", "take a job's pods away until `turnout unsuspend`", _SUSPEND)
    unsuspend = add_verb(commands, "unsuspend", "let a suspended job go on", _UNSUSPEND)
    for parser, on in ((suspend, True), (unsuspend, False)):
        add_job(parser, ", ".join(JOB_KINDS))
        add_cluster(parser)
        parser.set_defaults(run=_suspend, on=on)


def _suspend(args: argparse.Namespace) -> int:
    """Suspend a job, or resume it if `args.on` is False. Return the exit code: FAILED if there is no such job."""
    from turnout.cli.verb_support.find_jobs import MANAGER, found_job, named_job

    job_name = named_job(args)

    async def write(client: Client) -> None:
        """Suspend or resume the job and print which. Raises NoSuch if no job or several have the name."""
        from turnout.cli.jobs import suspend_patch
        from turnout.kube.client.apply import MERGE

        job = await found_job(client, job_name)
        await client.patch(job.path, suspend_patch(job.kind.full_name, on=args.on), MERGE, MANAGER)
        print(f"{job.full_name} {'is suspended' if args.on else 'goes on'}")

    return run_verb(args.verb, args, write)
