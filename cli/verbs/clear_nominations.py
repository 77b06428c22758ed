"""The verb `turnout clear-nominations`: removes what turnout-nominator has written."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from turnout.cli.verb_support.cluster_flags import Verbs, add_cluster, add_verb
from turnout.cli.verb_support.run_verb import run_verb

if TYPE_CHECKING:
    from turnout.kube.client.api_client import Client

_EXAMPLES = (("clear-nominations", "after turnout-nominator was uninstalled"),)


def add(commands: Verbs) -> None:
    """Add the verb `clear-nominations` to the command line."""
    clear = add_verb(commands, "clear-nominations", "take every nomination of turnout-nominator back", _EXAMPLES)
    add_cluster(clear)
    clear.set_defaults(run=_clear)


def _clear(args: argparse.Namespace) -> int:
    """Clear all nominations that turnout-nominator wrote, in the whole cluster, and print their number.

    Return the exit code.
    """

    async def work(client: Client) -> None:
        from turnout.scheduler_ext.nominator import clear

        print(f"{await clear(client)} nominations taken back")

    return run_verb("clear-nominations", args, work)
