"""`turnout pause` and `turnout resume`, as a person types them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from turnout.cli.exit_codes import Exit

if TYPE_CHECKING:
    from turnout.cli.pause import Write

_MANAGER = "turnout-cli"
ORDERS = "turnout-system/turnout-autoscaler"


def add(commands: Any) -> None:
    """Add both to the parser's commands."""
    pause = commands.add_parser("pause", help="leave the size of a job, or of all, as it is")
    _target(pause)
    pause.add_argument("--only", choices=("grow", "shrink"), help="forbid this direction only, of one job")
    ends = pause.add_mutually_exclusive_group()
    ends.add_argument("--until", metavar="MOMENT", help="when it ends by itself, as in 2026-01-31T18:00:00Z")
    ends.add_argument("--for", dest="for_", metavar="TIME", help="how long, as in 30m or 2h")
    pause.add_argument("--release", action="store_true", help="with --all: shrink every elastic job to its min first")
    pause.set_defaults(run=_pause)
    resume = commands.add_parser("resume", help="end a pause")
    _target(resume)
    resume.set_defaults(run=_resume)


def _target(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("job", nargs="?", metavar="KIND/NAMESPACE/NAME", help="one job")
    what.add_argument("--all", action="store_true", help="every job that the autoscaler sees")
    parser.add_argument("--orders", default=ORDERS, help="the autoscaler's --orders, for --all (%(default)s)")
    parser.add_argument("--kubeconfig", help="path; else in-cluster, else the user's own")
    parser.add_argument("--context", help="of the kubeconfig")


def _pause(args: argparse.Namespace) -> int:
    from turnout.autoscaler.model import AdminOverride
    from turnout.cli.pause import BadWish, job_key, of_all, of_job, until

    def wanted() -> Write:
        ends = until(args.until, args.for_, time.time())
        if not args.all:
            if args.release:
                raise BadWish("--release goes with --all: a single job is shrunk with kubectl scale or patch")
            return of_job(job_key(args.job), args.only or "true", ends)
        if args.only:
            raise BadWish("--only goes with one job, not with --all")
        return of_all(args.orders, AdminOverride.RELEASE if args.release else AdminOverride.PAUSE, ends)

    return _done("pause", args, wanted)


def _resume(args: argparse.Namespace) -> int:
    from turnout.autoscaler.model import AdminOverride
    from turnout.cli.pause import job_key, of_all, of_job

    return _done(
        "resume", args, lambda: of_all(args.orders, AdminOverride.RUN) if args.all else of_job(job_key(args.job), None)
    )


def _done(command: str, args: argparse.Namespace, wanted: Callable[[], Write]) -> int:
    import asyncio

    from turnout.cli.pause import BadWish
    from turnout.kube.errors import BadKubeconfig, KubeError, NotFound

    try:
        write = wanted()
    except BadWish as error:
        print(f"turnout {command}: {error}", file=sys.stderr)
        return Exit.USAGE
    try:
        asyncio.run(_write(args, write))
    except NotFound as error:
        print(f"turnout {command}: {args.job or args.orders} is not there: {error.message}", file=sys.stderr)
        return Exit.FAILED
    except (KubeError, BadKubeconfig) as error:
        print(f"turnout {command}: {error}", file=sys.stderr)
        return Exit.FAILED
    print(write.said)
    return 0


async def _write(args: argparse.Namespace, write: Write) -> None:
    from turnout.kube.client.api_client import Client
    from turnout.kube.client.apply import MERGE, put

    async with await Client.open(args.kubeconfig, args.context, brief=True) as client:
        if write.makes:
            await put(client, write.path, write.body, _MANAGER)
        else:
            await client.patch(write.path, write.body, MERGE, _MANAGER)
