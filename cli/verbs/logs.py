"""The verb `turnout logs JOB`: the output of a worker of a job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from turnout.cli.job_names import JOB_KINDS
from turnout.cli.verb_support.cluster_flags import Verbs, add_cluster, add_job, add_verb, duration_s
from turnout.cli.verb_support.run_verb import BadArgument, NoSuch, run_verb

if TYPE_CHECKING:
    from turnout.cli.verb_support.find_jobs import FoundJob
    from turnout.kube.client.api_client import Client

_EXAMPLES = (
    ("logs bert", "of worker 0"),
    ("logs bert -n team-a --rank 3 -f", "of worker 3, across restarts, until the job ends"),
    ("logs bert --tail 100 --since 10m", "the last lines of the last ten minutes"),
    ("logs bert --previous", "of the run before the last restart of its container"),
    ("logs bert -c sidecar", "of another container than the one that trains"),
)


def add(commands: Verbs) -> None:
    """Add the verb `logs` to the command line."""
    logs = add_verb(commands, "logs", "print what a worker of a job has written", _EXAMPLES)
    add_job(logs, ", ".join(JOB_KINDS))
    logs.add_argument("--rank", type=int, default=0, help="rank of the worker in its job (%(default)s)")
    logs.add_argument(
        "-c", "--container", default="", metavar="NAME", help="container of its pod (the one that trains)"
    )
    logs.add_argument("-f", "--follow", action="store_true", help="continue, across restarts, until the job ends")
    logs.add_argument("-p", "--previous", action="store_true", help="the log of the container before its last restart")
    logs.add_argument("--tail", type=int, metavar="LINES", help="how many of the last lines are printed (all)")
    logs.add_argument(
        "--since", type=duration_s, metavar="TIME", help="only lines that are newer than this, as in 5s, 10m or 2h"
    )
    add_cluster(logs)
    logs.set_defaults(run=_logs)


def _logs(args: argparse.Namespace) -> int:
    """Print or follow the log of one rank. Return the exit code: FAILED if there is no such job, rank or container.

    Raises BadArgument for --follow with --previous, for a negative rank, and for an invalid name.
    """
    from turnout.cli.log_runs import NoSuchContainer
    from turnout.cli.verb_support.find_jobs import found_job, named_job

    job_name = named_job(args)
    if args.follow and args.previous:
        raise BadArgument("-f and --previous: a run that is over is not followed")
    if args.rank < 0:
        raise BadArgument(f"--rank is {args.rank}: it must not be negative")

    async def look(client: Client) -> None:
        job = await found_job(client, job_name)
        await (_follow(args, client, job) if args.follow else _print(args, client, job))

    return run_verb("logs", args, look, NoSuchContainer)


def _parameters(args: argparse.Namespace) -> Mapping[str, str]:
    """Return the parameters of the API server's log call that the options ask for. A negative --tail is ignored."""
    found = {"tailLines": str(args.tail)} if args.tail is not None and args.tail >= 0 else {}
    found |= {"sinceSeconds": str(max(1, round(args.since)))} if args.since else {}
    return found | ({"previous": "true"} if args.previous else {})


async def _print(args: argparse.Namespace, client: Client, job: FoundJob) -> None:
    """Print the log of the newest run of a rank.

    Raises NoSuch if the job has no worker of this rank, NoSuchContainer if its pod does not have the container of
    --container, and CallError if there is no such log yet, as while the container waits.
    """
    from turnout.cli.log_runs import newest, selector
    from turnout.cli.verb_support.find_jobs import objects

    pods = await objects(client, f"{job.core}/pods", {"labelSelector": selector(job.kind, job.name, args.rank)})
    run = newest(job.kind, pods, args.container)
    if run is None:
        raise NoSuch(f"{job.full_name} has no worker of rank {args.rank}")
    container = {"container": run.container}
    text = await client.get(f"{job.core}/pods/{run.pod}/log", {**container, **_parameters(args)})
    sys.stdout.write(text.decode(errors="replace"))


async def _follow(args: argparse.Namespace, client: Client, job: FoundJob) -> None:
    """Print the log of a rank as it grows, over restarts and new pods, until the job has ended or was deleted.

    Raises NoSuchContainer if the pod does not have the container of --container.
    """
    from turnout.cli.verbs.follow_log import LogFollower
    from turnout.kube.client.clock import RealClock

    def show(text: bytes) -> None:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()

    def tell(text: str) -> None:
        print(f"turnout logs: {text}", file=sys.stderr)

    follower = LogFollower(
        client,
        RealClock(),
        job.kind,
        job.path,
        f"{job.core}/pods",
        args.rank,
        show,
        tell,
        container=args.container,
        first=_parameters(args),
    )
    await follower.run()
