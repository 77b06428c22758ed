"""The stage: an embedded API, a scheduler that asks the extender over HTTP, and the demo's objects in it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from turnout.cli.demo import manifests
from turnout.cli.demo.manifests import MAP_NAME, MAP_NAMESPACE, NAMESPACE, OTHERS, Raw
from turnout.cli.demo.scenario import DemoGang, Place, Scene
from turnout.simulator.cluster.runtime.clients import ApiClient
from turnout.simulator.cluster.scheduler import Chosen, Outcome

_GROUPS = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{NAMESPACE}/podgroups"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_MAPS = f"/api/v1/namespaces/{MAP_NAMESPACE}/configmaps"
_MERGE = "application/merge-patch+json"


class Testbed:
    """The cluster with Turnout. placed: gang name -> index -> node, as the scheduler bound them."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._news = asyncio.Event()
        self.placements: dict[str, dict[int, str]] = {}
        self.refusals: dict[str, str] = {}  # pod name -> why it waits

    def on_outcome(self, namespace: str, name: str, outcome: Outcome) -> None:
        """The scheduler tells what became of a pod."""
        gang, _, index = name.rpartition("-")
        if isinstance(outcome, Chosen):
            self.placements.setdefault(gang, {})[int(index)] = outcome.node
            self.refusals.pop(name, None)
        else:
            self.refusals[name] = outcome.message
        self._news.set()

    async def set_up(self, play: Scene) -> None:
        """Make the namespaces, the nodes, the map, and who stands there already."""
        for name in (NAMESPACE, OTHERS, MAP_NAMESPACE):
            await self._api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        for place in sorted(play.places, key=lambda place: place.name):
            await self._api.call("POST", "/api/v1/nodes", manifests.node(place))
        for number, (name, gpus) in enumerate(play.busy):
            pod = manifests.busy_pod(number, name, gpus)
            await self._api.call("POST", f"/api/v1/namespaces/{OTHERS}/pods", pod)
        await self._api.call("POST", _MAPS, manifests.topology_map(play.places))

    async def redraw(self, places: tuple[Place, ...]) -> None:
        """Edit the map, as `kubectl edit configmap` would."""
        wish = {"data": manifests.topology_map(places)["data"]}
        await self._api.call("PATCH", f"{_MAPS}/{MAP_NAME}", wish, _MERGE)

    async def arrive(self, gang: DemoGang, within_s: float) -> Mapping[int, str]:
        """Submit a gang and wait until it is placed whole, or the time is up. Gives who has a node."""
        self.placements[gang.name] = {}
        await self._api.call("POST", _GROUPS, manifests.pod_group(gang))
        for pod in manifests.members(gang):
            await self._api.call("POST", _PODS, pod)
        with suppress(TimeoutError):  # then it waits for room; whoever has a node is shown
            async with asyncio.timeout(within_s):
                await self._all_placed(gang)
        return self.placements[gang.name]

    async def _all_placed(self, gang: DemoGang) -> None:
        while len(self.placements[gang.name]) < gang.pods:
            self._news.clear()
            await self._news.wait()

    async def leave(self, gang: DemoGang) -> None:
        """The gang's job is done: its pods and its group are deleted at once."""
        members: list[Raw] = list(manifests.members(gang))
        for pod in members:
            await self._api.call("DELETE", f"{_PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0")
        await self._api.call("DELETE", f"{_GROUPS}/{gang.name}")
        self.placements.pop(gang.name, None)
