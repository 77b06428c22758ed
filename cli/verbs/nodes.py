"""`turnout nodes` and `turnout nodes untaint NODE`, as a person types them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Coroutine
from typing import Any
from urllib.parse import quote

from turnout.cli.commands.listing_output import add_output, show
from turnout.cli.commands.run_verb import say
from turnout.cli.exit_codes import Exit

_MANAGER = "turnout-cli"
_TRIES = 5  # a node is written by its kubelet, too
_NODES = "/api/v1/nodes"


def add(commands: Any) -> None:
    """Add them to the parser's commands."""
    nodes = commands.add_parser("nodes", help="which nodes are tainted as faulty, since when, until when and why")
    _where(nodes)
    add_output(nodes)
    nodes.add_argument("--all", action="store_true", help="also nodes that were cleared lately")
    nodes.set_defaults(run=_list)
    more = nodes.add_subparsers(metavar="COMMAND")
    untaint = more.add_parser("untaint", help="free a node: it is tainted again when a check finds it faulty anew")
    untaint.add_argument("node", metavar="NODE")
    _where(untaint)
    untaint.set_defaults(run=_untaint)


def _where(parser: argparse.ArgumentParser) -> None:
    hidden = argparse.SUPPRESS  # a subcommand's default would hide what stands before it
    parser.add_argument("--taint-key", default=hidden, help="as the autoscaler's (turnout.dev/faulty)")
    parser.add_argument("--kubeconfig", default=hidden, help="path; else in-cluster, else the user's own")
    parser.add_argument("--context", default=hidden, help="of the kubeconfig")


def _key(args: argparse.Namespace) -> str:
    from turnout.kube.labels import FAULTY

    return getattr(args, "taint_key", FAULTY)


def _list(args: argparse.Namespace) -> int:
    from turnout.cli.nodes import listing, rows
    from turnout.kube.client.clock import RealClock

    async def work() -> None:
        import msgspec

        async with await _client(args) as client:

            async def look() -> Any:
                found: list[dict[str, Any]] = []
                async for page in client.pages(_NODES):
                    found += msgspec.json.decode(page).get("items") or []
                return listing(rows(found, _key(args), args.all))

            await show(args, look, say, RealClock())

    return _done("nodes", work(), "list nodes")


def _untaint(args: argparse.Namespace) -> int:
    from turnout.cli.nodes import freed
    from turnout.kube.client.apply import MERGE
    from turnout.kube.errors import Conflict

    async def free() -> None:
        import msgspec

        path = f"{_NODES}/{quote(args.node, safe='')}"
        async with await _client(args) as client:
            for left in reversed(range(_TRIES)):
                change = freed(msgspec.json.decode(await client.get(path)), _key(args), time.time())
                try:
                    await client.patch(path, change, MERGE, _MANAGER)
                    break
                except Conflict:
                    if not left:
                        raise
        print(f"node {args.node} is free: what pods have said of it until now is dealt with")

    return _done("nodes untaint", free(), "get and patch nodes", args.node)


async def _client(args: argparse.Namespace) -> Any:
    from turnout.kube.client.api_client import Client

    return await Client.open(getattr(args, "kubeconfig", None), getattr(args, "context", None), brief=True)


def _done(command: str, work: Coroutine[Any, Any, None], right: str, node: str = "") -> int:
    import asyncio

    from turnout.cli.nodes import NotTainted
    from turnout.kube.errors import BadKubeconfig, Forbidden, KubeError, NotFound

    try:
        asyncio.run(work)
    except NotFound:
        why = f"there is no node {node!r}; `turnout nodes` lists those that are tainted"
    except Forbidden as error:
        why = f"you may not {right}: {error.message}"
    except (NotTainted, KubeError, BadKubeconfig) as error:
        why = str(error)
    else:
        return 0
    print(f"turnout {command}: {why}", file=sys.stderr)
    return Exit.FAILED
