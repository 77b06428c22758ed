"""The verbs `turnout nodes` and `turnout nodes untaint NODE`."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from turnout.cli.verb_support.cluster_flags import Verbs, add_cluster, add_no_namespace, add_verb
from turnout.cli.verb_support.listing_output import add_output, add_selector, show
from turnout.cli.verb_support.run_verb import BadArgument, NoSuch, print_now, run_verb

if TYPE_CHECKING:
    from turnout.cli.nodes import NodeRow
    from turnout.cli.views.listing import Listing
    from turnout.kube.client.api_client import Client

COLUMNS = ("NODE", "STATE", "SINCE", "UNTIL", "TIMES", "WHY")
_MANAGER = "turnout-cli"
_TRIES = 5  # a node is written by its kubelet, too
_NODES = "/api/v1/nodes"
_UNTAINT = (("nodes untaint gpu-7", "pods may be placed on gpu-7 again"),)
_EXAMPLES = (
    ("nodes", "nodes that are tainted, suspected or on trial"),
    ("nodes --show-cleared -l zone=a", "nodes of one zone, with those that were cleared lately"),
    *_UNTAINT,
)


def add(commands: Verbs) -> None:
    """Add the verb `nodes`, with its command `untaint`, to the command line."""
    nodes = add_verb(commands, "nodes", "which nodes are tainted as faulty, since when, until when and why", _EXAMPLES)
    nodes.add_argument("--show-cleared", action="store_true", help="also nodes that were cleared lately")
    add_no_namespace(nodes, "nodes")
    add_selector(nodes, "nodes")
    add_output(nodes, COLUMNS)
    _add_taint_key(nodes)
    add_cluster(nodes)
    nodes.set_defaults(run=_list)
    more = nodes.add_subparsers(metavar="[COMMAND]")
    untaint = add_verb(
        more, "untaint", "remove the taint from a node, also one set by hand; a failed check sets it again", _UNTAINT
    )
    untaint.add_argument("node", metavar="NODE", help="name of the node")
    _add_taint_key(untaint)
    add_cluster(untaint, inner=True)
    untaint.set_defaults(run=_untaint)


def _add_taint_key(parser: argparse.ArgumentParser) -> None:
    """Add the option --taint-key, without a default: `_taint_key` supplies it."""
    # A subcommand's default would hide what stands before it.
    parser.add_argument(
        "--taint-key", default=argparse.SUPPRESS, help="key of the taint, as the autoscaler has it (turnout.dev/faulty)"
    )


def _taint_key(args: argparse.Namespace) -> str:
    """Return the value of --taint-key, turnout.dev/faulty by default."""
    from turnout.kube.labels import FAULTY

    return getattr(args, "taint_key", FAULTY)


def _list(args: argparse.Namespace) -> int:
    """Print the nodes that are tainted, suspected or on trial, and cleared ones if asked for. Return the exit code."""
    from turnout.kube.client.clock import RealClock

    async def work(client: Client) -> None:
        """Print the nodes, repeatedly with --watch. Raises NoSuch if the user may not list nodes."""
        from turnout.cli.nodes import listing, rows
        from turnout.kube.errors import Forbidden
        from turnout.kube.status import decode_json_object

        async def look() -> Listing[NodeRow]:
            """Read the nodes and return the listing. Raises NoSuch if the user may not list nodes."""
            found: list[dict[str, Any]] = []
            try:
                async for page in client.pages(_NODES, {"labelSelector": args.selector} if args.selector else {}):
                    found += decode_json_object(_NODES, page).get("items") or []
            except Forbidden as error:
                raise NoSuch(f"you may not list nodes: {error.message}") from error
            return listing(rows(found, _taint_key(args), args.show_cleared))

        await show(args, look, print_now, RealClock())

    return run_verb("nodes", args, work)


def _untaint(args: argparse.Namespace) -> int:
    """Remove the taint of faulty nodes (--taint-key) from a node, also one that was set by hand.

    Returns the exit code: FAILED if the node does not exist or does not have the taint. Raises BadArgument if no node
    can have the given name.
    """
    from turnout.cli.job_names import can_be_name
    from turnout.cli.nodes import NotTainted

    if not can_be_name(args.node):
        raise BadArgument(f"{args.node!r:.90} cannot be the name of a node")

    async def remove(client: Client) -> None:
        """Remove the taint from the node and print a line about it.

        Raises NoSuch if the node does not exist or may not be changed, NotTainted if it does not have the taint, and
        Conflict if other writers changed it at each of _TRIES attempts.
        """
        from turnout.kube.errors import Forbidden, NotFound

        try:
            await _remove_taint(client, args.node, _taint_key(args))
        except NotFound as error:
            raise NoSuch(f"there is no node {args.node!r}; `turnout nodes` lists those that are tainted") from error
        except Forbidden as error:
            raise NoSuch(f"you may not get and patch nodes: {error.message}") from error
        print(f"the taint is removed from node {args.node}; reports that its pods made until now no longer count")

    return run_verb("nodes untaint", args, remove, NotTainted)


async def _remove_taint(client: Client, node: str, key: str) -> None:
    """Remove the taint `key` from a node, whoever set it, and record that all reports until now are handled.

    If another writer changes the node at the same time, try again, _TRIES times in all; then raise Conflict. Raises
    NotTainted if the node does not have the taint, NotFound if there is no such node, and Forbidden if the user may
    not read or patch it.
    """
    from turnout.cli.nodes import without_taint
    from turnout.kube.client.apply import MERGE
    from turnout.kube.errors import Conflict
    from turnout.kube.status import decode_json_object

    path = f"{_NODES}/{quote(node, safe='')}"
    for left in reversed(range(_TRIES)):
        change = without_taint(decode_json_object(path, await client.get(path)), key, time.time())
        try:
            await client.patch(path, change, MERGE, _MANAGER)
            return
        except Conflict:
            if not left:
                raise
