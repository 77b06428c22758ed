"""The options of all verbs that list, and how a listing is printed: once, or again whenever something has changed."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from turnout.cli.views.listing import FORMS, Listing, changes, text

if TYPE_CHECKING:
    from turnout.kube.client.clock import Clock

EACH_S = 2.0  # between two looks of -w
Look = Callable[[], Awaitable[Listing[Any]]]


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add -o and -w, and --json as an older word for -o json."""
    add_form(parser)
    parser.add_argument("-w", "--watch", action="store_true", help="go on, and print what changes, until Ctrl-C")


def add_form(parser: argparse.ArgumentParser) -> None:
    """Add -o alone, for a verb whose answer is not watched."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("-o", "--output", choices=FORMS, default="table", help="how it is written (%(default)s)")
    form.add_argument("--json", dest="output", action="store_const", const="json", default="table", help="-o json")


def add_namespace(parser: argparse.ArgumentParser, of: str, *, everywhere: bool = False) -> None:
    """Add -n and -A. of: what is listed, as in "jobs". everywhere: all namespaces unless one is named."""
    where = parser.add_mutually_exclusive_group()
    usual = "all" if everywhere else "that of your context"
    where.add_argument("-n", "--namespace", default="", help=f"{of} of this namespace ({usual})")
    where.add_argument(
        "-A", "--all-namespaces", action="store_true", default=everywhere, help=f"{of} of all namespaces"
    )


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add which cluster is asked."""
    parser.add_argument("--kubeconfig", help="path; else in-cluster, else the user's own")
    parser.add_argument("--context", help="of the kubeconfig")


def namespace_of(args: argparse.Namespace) -> str:
    """Return the namespace that is listed, "" for all of them."""
    return str(args.namespace) or ("" if args.all_namespaces else context_namespace(args))


def context_namespace(args: argparse.Namespace) -> str:
    """Return the namespace of the context in use; inside a pod without one, `default`."""
    from turnout.kube.client import plain_kubeconfig

    path = plain_kubeconfig.path_of(args.kubeconfig)
    found = None if path is None else plain_kubeconfig.namespace_in(plain_kubeconfig.read(path), args.context)
    return found or _namespace_by_library(args)


def _namespace_by_library(args: argparse.Namespace) -> str:
    """Return the same for several kubeconfigs that are merged, or one with a fault."""
    from kubernetes.aio.config import ConfigException, list_kube_config_contexts

    from turnout.kube.client.api_client import find_kubeconfig
    from turnout.kube.errors import NoCluster

    try:
        find_kubeconfig(args.kubeconfig)
        contexts, active = list_kube_config_contexts(args.kubeconfig)
    except (ConfigException, OSError, NoCluster):  # opening a client reports it
        return "default"
    chosen = next((each for each in contexts if each["name"] == args.context), active)
    return str(chosen.get("context", {}).get("namespace") or "default")


async def show(args: argparse.Namespace, look: Look, say: Callable[[str], None], clock: Clock) -> None:
    """Print a listing; with -w look again every EACH_S seconds, and print the rows that changed, until cancelled.

    A watch goes on when a look fails for a moment: the API server may be restarting.
    """
    from turnout.kube.errors import Unreachable

    listing = await look()
    say(text(listing, args.output))
    while args.watch:
        before = listing.steady()
        await clock.sleep(EACH_S)
        try:
            listing = await look()
        except Unreachable:
            continue
        if told := changes(listing, args.output, before):
            say(told)
