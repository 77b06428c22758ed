"""The verb `turnout release`: lists the pods with the scheduling gate, removes it, and prints their number."""

from __future__ import annotations

import argparse
import socket
import sys
from typing import TYPE_CHECKING

from turnout.cli.verb_support.cluster_flags import Verbs, add_cluster, add_verb, check_object

if TYPE_CHECKING:
    from turnout.kube.client.api_client import Client

_EXAMPLES = (
    ("release -n team-a", "let the pods of one namespace go, unplaced"),
    ("release --all", "before an uninstallation"),
    ("release --all --if-unplaced --older-than 300", "only if no nominator has been at work for so long"),
)
_FAULTS_TOLD = 5
MIN_S = 60  # of --older-than, where the Lease decides: another replica has it long before


def add(commands: Verbs) -> None:
    """Add the verb `release` to the command line."""
    release = add_verb(commands, "release", "take the scheduling gate turnout.dev/placement from pods", _EXAMPLES)
    where = release.add_mutually_exclusive_group(required=True)
    where.add_argument("--all", action="store_true", help="in every namespace, as before an uninstallation")
    where.add_argument("-n", "--namespace", help="in this one")
    release.add_argument(
        "--older-than",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="only pods that were created at least this many seconds ago, for a CronJob that releases pods that nobody"
        " places (%(default)g)",
    )
    release.add_argument(
        "--if-unplaced",
        action="store_true",
        help="release only if the nominator's Lease had no holder for longer than --older-than; before that, report the"
        " state on each gang",
    )
    release.add_argument(
        "--lease", default="turnout-system/turnout-nominator", help="namespace/name of that Lease (%(default)s)"
    )
    release.add_argument("--docs-base-url", default="", metavar="URL", help="of the docs site, for links in Events")
    add_cluster(release)
    release.set_defaults(run=_release)


def _seconds(text: str) -> float:
    if not 0 <= (seconds := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more")
    return seconds


def _release(args: argparse.Namespace) -> int:
    """Remove the scheduling gates and print their number.

    Returns the exit code: USAGE for --if-unplaced without a sufficient --older-than, FAILED if a removal failed. Raises
    BadArgument for an invalid --lease.
    """
    from turnout.cli.exit_codes import ExitCode
    from turnout.cli.verb_support.run_verb import run_verb

    if args.if_unplaced and args.older_than < MIN_S:
        print(f"turnout release: --if-unplaced needs --older-than, at least {MIN_S}", file=sys.stderr)
        return ExitCode.USAGE

    check_object(args.lease, "--lease")

    async def work(client: Client) -> ExitCode:
        """Remove the gates, with --if-unplaced only if no nominator works. Return FAILED if a removal failed."""
        from turnout.kube.client.clock import RealClock
        from turnout.scheduler_ext.writers.release_all import release_all, release_unplaced

        namespace, clock = args.namespace or "", RealClock()
        if args.if_unplaced:
            unplaced = await release_unplaced(
                client,
                client,
                args.lease,
                namespace,
                args.older_than,
                clock,
                socket.gethostname(),
                args.docs_base_url,
            )
            print(f"{args.lease}: {unplaced.placer.value}; {unplaced.notified_gangs} gangs got an Event")
            found = unplaced.result
        else:
            found = await release_all(client, namespace, args.older_than, clock.wall())
        print(f"{len(found.released_pods)} gates lifted")
        for name, why in found.failures[:_FAULTS_TOLD]:
            print(f"turnout release: {name}: {why}", file=sys.stderr)
        if len(found.failures) > _FAULTS_TOLD:
            print(f"turnout release: and {len(found.failures) - _FAULTS_TOLD} more", file=sys.stderr)
        return ExitCode.FAILED if found.failures else ExitCode.DONE

    return run_verb("release", args, work)
