"""The verb `turnout queues`: the quota and the use of each queue."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from turnout.cli.verb_support.cluster_flags import SEEING, Verbs, add_cluster, add_flags, add_verb, settings_of
from turnout.cli.verb_support.listing_output import add_namespace, add_output, namespace_of, show
from turnout.cli.verb_support.run_verb import print_now, run_verb

if TYPE_CHECKING:
    from turnout.autoscaler.settings import Settings
    from turnout.cli.verb_support.autoscaler_view import AutoscalerSnapshot
    from turnout.cli.views.listing import Listing
    from turnout.cli.views.queues import QueueRow
    from turnout.kube.client.api_client import Client

COLUMNS = ("QUEUE", "SHARE", "LIMIT", "USED", "LENT", "BORROWED", "FREE", "RUNNING", "WAITING")
_EXAMPLES = (
    ("queues", "all queues"),
    ("queues -n team-a -o wide", "those with jobs of a namespace, and what their jobs wait for"),
    ("queues --sort-by free", "the fullest first"),
    ("queues -w", "go on, and print what changes"),
)


def add(commands: Verbs) -> None:
    """Add the verb `queues` to the command line."""
    queues = add_verb(
        commands, "queues", "what each queue has, uses, lends and borrows, and how many wait in it", _EXAMPLES
    )
    add_namespace(queues, "queues with jobs", everywhere=True)
    add_output(queues, COLUMNS)
    add_cluster(queues)
    add_flags(queues, SEEING)
    queues.set_defaults(run=_queues)


def _queues(args: argparse.Namespace) -> int:
    """Print the queues. Return the exit code."""
    from turnout.cli.verb_support.autoscaler_view import look
    from turnout.kube.client.clock import RealClock

    settings, namespace = settings_of(args, SEEING), namespace_of(args)

    async def work(client: Client) -> None:
        """Print the queues, repeatedly with --watch."""

        async def observe() -> Listing[QueueRow]:
            return await queues_of(client, settings, await look(client, settings, namespace or "default"), namespace)

        await show(args, observe, print_now, RealClock())

    return run_verb("queues", args, work)


async def queues_of(
    client: Client, settings: Settings, cluster_view: AutoscalerSnapshot, namespace: str
) -> Listing[QueueRow]:
    """Return the listing of queues.

    If the user may not see the whole cluster, it is taken from the autoscaler's ConfigMaps, and a note says so.
    cluster_view: as `look` returns it. namespace: only queues with jobs in it, "" for all; ignored with the ConfigMaps.
    Raises CannotSee if these may not be read either, or there are none.
    """
    from turnout.autoscaler.reporting.queue_status import LABEL
    from turnout.cli.verb_support.listing import CannotSee, items, may_not
    from turnout.cli.views.queues import listing, rows, status_rows

    if not cluster_view.missing:
        found = rows(cluster_view.observation, cluster_view.gangs, settings.gpu_resource)
        return listing([row for row in found if not namespace or namespace in row.namespaces])
    where = settings.orders.partition("/")[0]
    pages = await items(client, f"/api/v1/namespaces/{where}/configmaps", {"labelSelector": f"{LABEL}=true"})
    if not pages:
        raise CannotSee(may_not(cluster_view.missing))
    return listing(status_rows(pages), (f"as the autoscaler wrote in {where}: {may_not(cluster_view.missing)}",))
