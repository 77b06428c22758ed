"""Verbs for somebody who may see only a part of the cluster: what they tell all the same, and what they name."""

import asyncio
import json

import pytest

from tests.cli.verbs.why_world import Drawn, Served
from turnout.autoscaler.settings import Settings
from turnout.cli.verb_support import autoscaler_view, scheduler_view
from turnout.cli.verb_support.gang_landing import explain_gang
from turnout.cli.verb_support.listing import VIEWER, CannotSee
from turnout.cli.verbs.queues import queues_of
from turnout.cli.verbs.topology import topology_listing, topology_svg
from turnout.cli.views.explain import gang_of

STATUS = {"mode": "act", "gpus": {"used": 6, "deserved": 4}, "jobs": {"running": 1, "waiting": 2}, "elasticGpus": 3}
SETTINGS = Settings()


class Written(Served):
    """An API server that lets one see pods of a namespace, and what the autoscaler has written of its queues."""

    def __init__(self, pages=()):
        super().__init__({}, lambda path, params: "/namespaces/team-a/" in path)
        self._pages = [{"metadata": {"name": "turnout-queue-q"}, "data": page} for page in pages]

    async def pages(self, path, params=None, *, limit=500):
        if "labelSelector" in (params or {}) or path == "/api/v1/namespaces/team-a/pods":
            items = self._pages if "labelSelector" in (params or {}) else []
            yield json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()
            return
        async for page in super().pages(path, params, limit=limit):
            yield page


async def queues(source):
    return await queues_of(source, SETTINGS, await autoscaler_view.look(source, SETTINGS, "team-a"), "")


def test_queues_are_told_as_the_autoscaler_wrote_them_down():
    listing = asyncio.run(queues(Written([{"queue": "q", "status": json.dumps(STATUS)}])))
    (row,) = listing.rows
    assert (row.queue, row.used_gpus, row.share_gpus, row.borrowed_gpus, row.waiting) == ("q", 6, 4, 2, 2)
    (note,) = listing.notes
    assert note.startswith("as the autoscaler wrote in turnout-system: you may not list ")


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda source: queues(source), id="queues, where nothing is written down either"),
        pytest.param(
            lambda source: explain_gang(source, SETTINGS, gang_of("2x8", "team-a", "nvidia.com/gpu")), id="explain"
        ),
    ],
)
def test_where_nothing_can_be_told_the_missing_rights_are_named(ask):
    with pytest.raises(CannotSee) as error:
        asyncio.run(ask(Written()))
    assert "nodes" in str(error.value)
    assert VIEWER in str(error.value)


def test_a_topology_without_the_right_to_nodes_names_it():
    view = asyncio.run(scheduler_view.look(Written(), SETTINGS, "team-a"))
    with pytest.raises(CannotSee, match="you may not list nodes, pods in the whole cluster"):
        topology_listing(view, SETTINGS, with_nodes=False)
    with pytest.raises(CannotSee, match="you may not list nodes, pods in the whole cluster"):
        topology_svg(view, SETTINGS)


def test_without_the_right_to_the_map_the_nodes_are_told_off_it():
    drawn = Drawn(1)
    source = Served(drawn.items, lambda path, params: not path.endswith("/configmaps"))
    listing = topology_listing(
        asyncio.run(scheduler_view.look(source, SETTINGS, "default")), SETTINGS, with_nodes=False
    )
    assert [row.path for row in listing.rows] == ["(not on the map)"]
    assert listing.notes == ("you may not read the ConfigMap turnout-system/node-topology-config, the map of switches",)


def test_the_picture_says_why_there_is_no_map():
    source = Served(Drawn(1).items, lambda path, params: not path.endswith("/configmaps"))
    assert "you may not read the ConfigMap" in topology_svg(
        asyncio.run(scheduler_view.look(source, SETTINGS, "default")), SETTINGS
    )
