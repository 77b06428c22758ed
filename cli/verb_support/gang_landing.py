"""Computes where a gang would be placed if it arrived now.

Lists the cluster once, as extender and autoscaler see it.
"""

from __future__ import annotations

import asyncio
import time

from turnout.autoscaler.settings import Settings
from turnout.cli.verb_support import autoscaler_view, scheduler_view
from turnout.cli.verb_support.listing import CannotSee, may_not
from turnout.cli.views.explain import AskedGang, Explained, explain
from turnout.kube.client.api_client import Client


async def explain_gang(client: Client, settings: Settings, gang: AskedGang) -> Explained:
    """List the cluster, and return where the gang would be placed now and what the autoscaler would decide about it.

    Raises CannotSee if a required list may not be read in the whole cluster, fails, or takes longer than LIST_S
    seconds. Raises BadGang if an amount of the gang is invalid.
    """
    now_s = time.time()
    scheduler, autoscaler = await asyncio.gather(
        scheduler_view.look(client, settings, gang.namespace), autoscaler_view.look(client, settings, gang.namespace)
    )
    if missing := scheduler.missing or autoscaler.missing:
        raise CannotSee(may_not(missing))
    return explain(
        gang,
        scheduler.gangs,
        scheduler.nodes,
        scheduler.map_fault,
        autoscaler.view,
        settings.policy(),
        settings.gpu_resource,
        now_s,
    )
