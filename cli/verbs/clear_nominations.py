"""The verb `turnout clear-nominations`: removes what turnout-nominator has written."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from turnout.cli.commands.cluster_flags import add_cluster, add_verb
from turnout.cli.commands.run_verb import run_verb

if TYPE_CHECKING:
    from turnout.kube.client.api_client import Client

_EXAMPLES = (("clear-nominations", "after turnout-nominator was uninstalled"),)


def add(commands: Any) -> None:
    """Add the verb `clear-nominations` to the command line."""
    clear = add_verb(commands, "clear-nominations", "take every nomination of turnout-nominator back", _EXAMPLES)
    add_cluster(clear)
    clear.set_defaults(run=_clear)


def _clear(args: argparse.Namespace) -> int:
    """Remove all nominations from pods and print their number."""

    async def work(client: Client) -> None:
        from turnout.scheduler_ext.nominator import clear

        print(f"{await clear(client)} nominations taken back")

    return run_verb("clear-nominations", args, work)
