"""`turnout queues` and `turnout top`, as a person types them: who may have GPUs, and who holds them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from turnout.cli.commands.listing_output import add_cluster, add_namespace, add_output, namespace_of, show
from turnout.cli.commands.run_verb import run_verb, say
from turnout.cli.commands.settings_flags import SEEING, add_flags, settings_of

if TYPE_CHECKING:
    from turnout.autoscaler.settings import Settings
    from turnout.cli.commands.autoscaler_view import ClusterView
    from turnout.cli.views.listing import Listing
    from turnout.cli.views.queues import QueueRow
    from turnout.kube.client.api_client import Client

BY = ("job", "queue", "namespace", "node")  # views.top.BY, which is not imported before it is needed


def add(commands: Any) -> None:
    """Add both to the parser's commands."""
    queues = commands.add_parser("queues", help="what each queue has, uses, lends and borrows, and how many wait in it")
    add_namespace(queues, "queues with jobs", everywhere=True)
    _add_common(queues)
    queues.set_defaults(run=_queues)
    top = commands.add_parser("top", help="who holds the GPUs: jobs, queues, namespaces or nodes, most first")
    top.add_argument("--by", choices=BY, default="job", help="what is told of (%(default)s)")
    add_namespace(top, "pods", everywhere=True)
    _add_common(top)
    top.set_defaults(run=_top)


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_output(parser)
    add_cluster(parser)
    add_flags(parser, SEEING)


def _queues(args: argparse.Namespace) -> int:
    from turnout.cli.commands.autoscaler_view import look
    from turnout.kube.client.clock import RealClock

    wanted, namespace = settings_of(args, SEEING), namespace_of(args)

    async def work(client: Client) -> None:

        async def seen() -> Listing[QueueRow]:
            return await queues_of(client, wanted, await look(client, wanted, namespace or "default"), namespace)

        await show(args, seen, say, RealClock())

    return run_verb("queues", args, work)


async def queues_of(client: Client, wanted: Settings, cluster_view: ClusterView, namespace: str) -> Listing[QueueRow]:
    """Return the queues; for who may not see the whole cluster, as the autoscaler has written them down.

    Raises CannotSee where neither may be read. namespace: only queues with jobs of it, "" for all.
    """
    from turnout.autoscaler.reporting.queue_status import LABEL
    from turnout.cli.commands.listing import CannotSee, items, may_not
    from turnout.cli.views.queues import listing, rows, written

    if not cluster_view.missing:
        found = rows(cluster_view.seen, cluster_view.gangs, wanted.gpu_resource)
        return listing([row for row in found if not namespace or namespace in row.namespaces])
    where = wanted.orders.partition("/")[0]
    pages = await items(client, f"/api/v1/namespaces/{where}/configmaps", {"labelSelector": f"{LABEL}=true"})
    if not pages:
        raise CannotSee(may_not(cluster_view.missing))
    return listing(written(pages), (f"as the autoscaler wrote in {where}: {may_not(cluster_view.missing)}",))


def _top(args: argparse.Namespace) -> int:
    from turnout.cli.commands.autoscaler_view import look
    from turnout.cli.commands.listing import may_not
    from turnout.cli.views.top import Held, listing, offers, rows, summary
    from turnout.kube.client.clock import RealClock

    wanted, namespace = settings_of(args, SEEING), namespace_of(args)

    async def work(client: Client) -> None:

        async def seen() -> Any:
            cluster_view = await look(client, wanted, namespace or "default")
            held = [
                Held(str(each.owner), each.owner.namespace, each.queue, each.node, each.gpus)
                for each in cluster_view.view.gpu_pods()
                if not namespace or each.owner.namespace == namespace
            ]
            there = offers(cluster_view.nodes, wanted.gpu_resource)
            missing = cluster_view.missing
            return listing(
                args.by, rows(args.by, held, there), (may_not(missing) if missing else summary(held, there),)
            )

        await show(args, seen, say, RealClock())

    return run_verb("top", args, work)
