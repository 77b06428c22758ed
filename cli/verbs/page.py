"""The verb `turnout page`: the cluster in a browser."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from turnout.cli.verb_support.cluster_flags import DECIDING, Verbs, add_cluster, add_flags, add_verb, settings_of
from turnout.cli.verb_support.run_verb import print_now, run_verb

if TYPE_CHECKING:
    from turnout.cli.exit_codes import ExitCode
    from turnout.kube.client.api_client import Client

_EXAMPLES = (
    ("page", "print an address on this machine, and serve until Ctrl-C"),
    ("page --port 0", "on any free port"),
    ("page --serve --listen 0.0.0.0:8080", "in a Deployment: viewers log in with tokens of the cluster"),
)


def add(commands: Verbs) -> None:
    """Add the verb `page` to the command line."""
    page = add_verb(
        commands, "page", "GPUs and their holders, jobs that wait and why, and decisions, in a browser", _EXAMPLES
    )
    page.add_argument("--port", type=int, default=8765, help="on this machine (%(default)s); 0 for any that is free")
    page.add_argument(
        "--serve", action="store_true", help="for many viewers: each logs in, and sees what the cluster lets them list"
    )
    page.add_argument("--listen", default="127.0.0.1:8080", metavar="HOST:PORT", help="of --serve (%(default)s)")
    page.add_argument("--cluster", default="", help="the name that the page shows (that of the context)")
    page.add_argument("--docs-base-url", default="", metavar="URL", help="of the docs site, for runbooks and reasons")
    page.add_argument("--grafana-url", default="", metavar="URL", help="for links to the boards")
    _add_past(page)
    page.add_argument("--allowed-host", action="append", default=[], help="of the Host header; repeatable (any)")
    page.add_argument("--user-header", default="", help="in which an authenticating proxy names the user")
    page.add_argument("--group-header", default="", help="in which it names the groups, separated by commas")
    page.add_argument("--secure-cookie", action="store_true", help="viewers reach the page over TLS")
    page.add_argument(
        "--metrics-bind",
        default="127.0.0.1:9095",
        metavar="HOST:PORT",
        help="of --serve: where probes and metrics are served (%(default)s)",
    )
    page.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="of --serve: what is logged (%(default)s)",
    )
    add_cluster(page)
    add_flags(page, DECIDING)
    page.set_defaults(run=_page)


def _add_past(page: argparse.ArgumentParser) -> None:
    """Add the options that name the sources of data older than the page's start."""
    page.add_argument(
        "--decision-log",
        type=Path,
        metavar="PATH",
        help="of the autoscaler, for GPU-hours: a file, or a folder with the files of all pods",
    )
    page.add_argument(
        "--prometheus-url", default="", metavar="URL", help="of a Prometheus, for the time before the page started"
    )
    page.add_argument("--prometheus-cluster", default="", metavar="NAME", help="the label cluster of its series (none)")


def _page(args: argparse.Namespace) -> int:
    """Serve the page until interrupted. Return the exit code: FAILED if it cannot listen or a URL is invalid."""
    from turnout.cli.page.serve import BadAddress, serve, serve_locally
    from turnout.kube.cli_flags import BadSetting

    settings = settings_of(args, DECIDING)
    if args.serve:
        from turnout.kube.client import logs
        from turnout.kube.client.run_until_signal import CANNOT_START, run_program

        logs.setup(args.log_level)
        return run_program(
            "turnout page", lambda: serve(settings, args, print_now), (*CANNOT_START, BadAddress, BadSetting)
        )

    async def work(client: Client) -> ExitCode:
        return await serve_locally(client, settings, args, print_now)

    return run_verb("page", args, work, BadAddress, BadSetting)
