"""The verbs `turnout pause` and `turnout resume`."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Literal

from turnout.cli.job_names import FORMS, JobName
from turnout.cli.verb_support.cluster_flags import Verbs, add_cluster, add_verb, check_object, job_of
from turnout.cli.verb_support.run_verb import BadArgument, NoSuch, run_verb

if TYPE_CHECKING:
    from turnout.cli.pause import PendingPatch
    from turnout.jobs.model import JobKey
    from turnout.kube.client.api_client import Client

_MANAGER = "turnout-cli"
ORDERS = "turnout-system/turnout-autoscaler"
_RESUME_ONE = ("resume bert -n team-a", "the autoscaler resizes it again")
_RESUME_ALL = ("resume --all", "every job is")
_PAUSE = (
    ("pause bert -n team-a", "its size stays until `turnout resume`"),
    ("pause pytorchjob/bert --for 2h", "for two hours"),
    ("pause bert --only shrink", "it may grow, and gives nothing back"),
    ("pause --all --release", "before an uninstall: every job back to its min, then none changes"),
    _RESUME_ONE,
)


def add(commands: Verbs) -> None:
    """Add the verbs `pause` and `resume` to the command line."""
    pause = add_verb(commands, "pause", "leave the size of a job, or of all, as it is", _PAUSE)
    _target(pause)
    pause.add_argument("--only", choices=("grow", "shrink"), help="forbid this direction only, of one job")
    ends = pause.add_mutually_exclusive_group()
    ends.add_argument("--until", metavar="MOMENT", help="when it ends by itself, as in 2026-01-31T18:00:00Z")
    ends.add_argument("--for", dest="for_", metavar="TIME", help="how long, as in 30m or 2h")
    pause.add_argument("--release", action="store_true", help="with --all: shrink every elastic job to its min first")
    add_cluster(pause)
    pause.set_defaults(run=_pause)
    resume = add_verb(commands, "resume", "end a pause", (_RESUME_ONE, _RESUME_ALL))
    _target(resume)
    add_cluster(resume)
    resume.set_defaults(run=_resume)


def _target(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name one job, or all jobs."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("job", nargs="?", metavar="JOB", help=f"one job: {FORMS}")
    what.add_argument("--all", action="store_true", help="every job that the autoscaler sees")
    parser.add_argument(
        "-n", "--namespace", default="", help="namespace of the job, where its name has none (that of your context)"
    )
    parser.add_argument("--orders", default=ORDERS, help="the autoscaler's --orders, for --all (%(default)s)")


def _pause(args: argparse.Namespace) -> int:
    """Pause the autoscaler for a job or for all jobs. Return the exit code.

    Raises BadArgument if options are invalid or contradict each other.
    """
    from turnout.autoscaler.model import AdminOverride
    from turnout.cli.pause import BadOptions, override_patch, pause_end

    try:
        ends = pause_end(args.until, args.for_, time.time())
    except BadOptions as error:
        raise BadArgument(str(error)) from error
    if not args.all:
        if args.release:
            raise BadArgument("--release goes with --all: a single job is shrunk with kubectl scale or patch")
        return _one("pause", args, args.only or "true", ends)
    if args.only:
        raise BadArgument("--only goes with one job, not with --all")
    return _all(
        "pause", args, override_patch(args.orders, AdminOverride.RELEASE if args.release else AdminOverride.PAUSE, ends)
    )


def _resume(args: argparse.Namespace) -> int:
    """Remove the pause of a job, or of all jobs. Return the exit code."""
    from turnout.autoscaler.model import AdminOverride
    from turnout.cli.pause import override_patch

    return (
        _all("resume", args, override_patch(args.orders, AdminOverride.RUN))
        if args.all
        else _one("resume", args, None, "")
    )


def _one(verb: str, args: argparse.Namespace, paused: Literal["true", "grow", "shrink"] | None, ends: str) -> int:
    """Pause or resume the autoscaler for one job. Return the exit code: FAILED if there is no such job.

    verb: for messages. paused: what stops, "true" for both directions; None to resume. ends: RFC 3339; "" for no end,
    and to resume. Raises BadArgument if the name is invalid.
    """
    from turnout.cli.job_names import words_of
    from turnout.jobs.kinds.registry import KINDS

    job_name = job_of(args, words_of(KINDS, {name: kind.path for name, kind in KINDS.items()}))

    async def write(client: Client) -> None:
        """Write the override to the job and print what changed.

        Raises NoSuch if the job does not exist, or if several have a name without a kind.
        """
        from turnout.cli.pause import pause_patch
        from turnout.kube.client.apply import MERGE
        from turnout.kube.errors import NotFound

        key = await _resolve_job(client, job_name)
        change = pause_patch(key, paused, ends)
        try:
            await client.patch(change.path, change.body, MERGE, _MANAGER)
        except NotFound as error:
            raise NoSuch(_missing(job_name)) from error
        print(change.message)

    return run_verb(verb, args, write)


async def _resolve_job(client: Client, job_name: JobName) -> JobKey:
    """Return the key of the job with this name. If the name has a kind, nothing is looked up.

    Otherwise every known kind is tried; one that is missing or forbidden counts as no job. Raises NoSuch if no job or
    several have the name.
    """
    import asyncio

    from turnout.cli.pause import path_of
    from turnout.jobs.kinds.registry import KINDS
    from turnout.jobs.model import JobKey
    from turnout.kube.errors import Forbidden, NotFound

    if job_name.kind:
        return JobKey(*job_name)

    async def read_key(key: JobKey) -> JobKey | None:
        """Return the key if an object exists there and may be read, else None."""
        try:
            await client.get(path_of(key))
        except (NotFound, Forbidden):  # no such kind here, or no right to read it
            return None
        return key

    keys = (JobKey(kind, job_name.namespace, job_name.name) for kind in KINDS)
    found = [key for key in await asyncio.gather(*map(read_key, keys)) if key is not None]
    if len(found) > 1:
        raise NoSuch(f"{job_name.name!r} may be {' or '.join(map(str, found))}: say which")
    if not found:
        raise NoSuch(_missing(job_name))
    return found[0]


def _missing(job_name: JobName) -> str:
    what = f"{job_name.kind or 'job'} {job_name.name!r} in namespace {job_name.namespace}"
    return f"there is no {what}; `turnout top -n {job_name.namespace}` lists jobs that hold GPUs or wait for them"


def _all(verb: str, args: argparse.Namespace, change: PendingPatch) -> int:
    """Write an override for all jobs. Return the exit code. verb: for messages. change: the patch of its ConfigMap.

    Raises BadArgument if --orders is not NAMESPACE/NAME.
    """
    check_object(args.orders, "--orders")

    async def write(client: Client) -> None:
        """Write the override for all jobs and print what changed.

        Raises NoSuch if the namespace of its ConfigMap does not exist.
        """
        from turnout.kube.client.apply import apply_object
        from turnout.kube.errors import NotFound

        try:
            await apply_object(client, change.path, change.body, _MANAGER)
        except NotFound as error:
            namespace = args.orders.partition("/")[0]
            raise NoSuch(f"{args.orders} cannot be written: there is no namespace {namespace}") from error
        print(change.message)

    return run_verb(verb, args, write)
