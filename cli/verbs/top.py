"""The verb `turnout top`: who uses the GPUs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from turnout.cli.verb_support.cluster_flags import SEEING, Verbs, add_cluster, add_flags, add_verb, settings_of
from turnout.cli.verb_support.listing_output import add_namespace, add_output, namespace_of, show
from turnout.cli.verb_support.run_verb import BadArgument, print_now, run_verb

if TYPE_CHECKING:
    from rich.console import Console

    from turnout.cli.views.listing import Listing
    from turnout.cli.views.top import TopRow
    from turnout.kube.client.api_client import Client

BY = ("job", "queue", "namespace", "node")  # views.top.BY, which is not imported before it is needed
COLUMNS = ("GPUS", "SHARE", "PODS", "NODES", "WAITING", "QUEUE")
_EXAMPLES = (
    ("top", "jobs, most GPUs first"),
    ("top --by queue", "what each queue holds"),
    ("top --by queue --live", "the same on the whole terminal, new every 2 s"),
    ("top --by node --no-headers", "nodes with their free GPUs, for a script"),
    ("top -n team-a --sort-by waiting", "one namespace, sorted by waiting GPUs, most at the end"),
)


def add(commands: Verbs) -> None:
    """Add the verb `top` to the command line."""
    top = add_verb(commands, "top", "who holds the GPUs: jobs, queues, namespaces or nodes, most first", _EXAMPLES)
    top.add_argument("--by", choices=BY, default="job", help="what each row is (%(default)s)")
    add_namespace(top, "pods", everywhere=True)
    add_output(top, COLUMNS)
    top.add_argument(
        "--live", action="store_true", help="show the rows on the whole terminal, new every 2 s, until Ctrl-C"
    )
    add_cluster(top)
    add_flags(top, SEEING)
    top.set_defaults(run=_top)


def _top(args: argparse.Namespace) -> int:
    """Print who holds the GPUs: once, or until Ctrl-C with --watch or --live. Return the exit code."""
    from turnout.cli.verb_support.autoscaler_view import look
    from turnout.cli.verb_support.listing import may_not
    from turnout.cli.verb_support.live_listing import show_live
    from turnout.cli.views.top import PodGpus, listing, offers, rows, summary
    from turnout.kube.client.clock import RealClock

    settings, namespace = settings_of(args, SEEING), namespace_of(args)
    console = _live_console(args) if args.live else None

    async def work(client: Client) -> None:
        """Print who uses the GPUs, repeatedly with --watch or --live."""

        async def observe() -> Listing[TopRow]:
            """Read the cluster once. Return its GPU use as rows (--by), and a note on sums or on missing rights."""
            cluster_view = await look(client, settings, namespace or "default")
            holdings = [
                PodGpus(str(each.owner), each.owner.namespace, each.queue, each.node, each.gpus)
                for each in cluster_view.view.gpu_pods()
                if not namespace or each.owner.namespace == namespace
            ]
            offered = offers(cluster_view.nodes, settings.gpu_resource)
            missing = cluster_view.missing
            return listing(
                args.by,
                rows(args.by, holdings, offered),
                (may_not(missing) if missing else summary(holdings, offered),),
            )

        if console is None:
            await show(args, observe, print_now, RealClock())
        else:
            heading = f"GPUs by {args.by}{f' in {namespace}' if namespace else ''}"
            await show_live(observe, heading, RealClock(), console, args.sort_by)

    return run_verb("top", args, work)


def _live_console(args: argparse.Namespace) -> Console:
    """Return the terminal for --live.

    Raises BadArgument if stdout is no terminal, or if an option contradicts --live.
    """
    from turnout.cli.verb_support.terminal import terminal

    console = terminal(plain=False)
    if not console.is_terminal:
        raise BadArgument("--live draws on a terminal, and stdout is none; use --watch")
    if args.watch or args.output != "table":
        raise BadArgument("--live shows a table: it does not go with --watch or another --output")
    return console
