"""The play itself: everything is started, every act is shown as it happens, everything is ended."""

from __future__ import annotations

import asyncio
import logging
import string
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from turnout.cli.commands.extender_process import Up, own_extender, running
from turnout.cli.demo import manifests
from turnout.cli.demo.baseline import Baseline
from turnout.cli.demo.heatmap import Score, score
from turnout.cli.demo.manifests import MAP_NAME, MAP_NAMESPACE, NAMESPACE, OTHERS, Raw, map_text
from turnout.cli.demo.rewire import recable
from turnout.cli.demo.scenario import Act, ActKind, DemoGang, DemoNode, Scene, scene
from turnout.cli.demo.screen import Screen
from turnout.cli.demo.summary import ExtenderCall, Pair, Tally
from turnout.simulator.cluster.kubelet import Pace
from turnout.simulator.cluster.runtime.clients import ApiClient, ExtenderClient
from turnout.simulator.cluster.runtime.scheduler_loop import SchedulerSettings
from turnout.simulator.cluster.scheduler import Chosen, ExtenderSettings, Outcome
from turnout.simulator.local_cluster import local_cluster
from turnout.topology.fabric import Fabric, build
from turnout.topology.map_yaml import read_map
from turnout.topology.names import TEXT_KEY

_PACE = Pace(pull_s=0.02, stop_s=0.02)  # nobody came to see images pulled
_RELOAD_S = 10.0  # twice what the extender promises for a changed map


@dataclass(frozen=True, slots=True)
class Show:
    """Settings of the demo: `pause_s` seconds between two acts, and the command line that starts the extender."""

    seed: int = 1
    gangs: int = 14
    pause_s: float = 0.8
    patience_s: float = 6.0  # how long a gang may take to be placed before the play goes on
    weight: int = 121  # as deploy/scheduler/kube-scheduler-config.yaml has it
    extender: Sequence[str] = field(default_factory=own_extender)


async def perform(show: Show, screen: Screen) -> Tally:
    """Play it. Raises ExtenderFailed when the extender does not come up."""
    logging.getLogger("turnout.simulator").setLevel(logging.ERROR)
    play = scene(show.seed, show.gangs)
    screen.open(play)
    async with _stage(show, play, screen) as (stage, asked_extender, extender):
        performance = _Performance(show, play, stage, extender, screen)
        with screen.acts():
            for act in play.acts:
                await performance.happen(act)
            await performance.finale()
        calls = tuple(ExtenderCall(a.verb.value, a.names, a.took_s, a.failed) for a in asked_extender.requests)
        tally = performance.tally(calls, await extender.neutral_answers())
        screen.close(tally)
    return tally


@asynccontextmanager
async def _stage(show: Show, play: Scene, screen: Screen) -> AsyncIterator[tuple[Testbed, ExtenderClient, Up]]:
    """Start the API, the extender and the scheduler; end them in the other order."""
    with tempfile.TemporaryDirectory(prefix="turnout-demo-") as name:
        folder = Path(name)
        async with local_cluster(folder / "kubeconfig", pace=_PACE) as cluster:
            stage = Testbed(cluster.api)
            cluster.addresses.update({place.name: place.ip for place in play.places})
            await stage.set_up(play)
            screen.say(f"A Kubernetes API is up at {cluster.address}; the extender is starting ...")
            configmap = f"{MAP_NAMESPACE}/{MAP_NAME}"
            async with running(show.extender, folder / "kubeconfig", configmap, folder, cluster.session) as up:
                screen.say(f"The extender is ready at {up.url} and is asked over HTTP, as kube-scheduler would ask it.")
                settings = SchedulerSettings(extender=ExtenderSettings(weight=show.weight), seed=show.seed)
                asked_extender = ExtenderClient(cluster.session, up.url)
                cluster.schedule(settings, asked_extender, stage.on_outcome)
                yield stage, asked_extender, up


class _Performance:
    """One play in progress, on both clusters."""

    def __init__(self, show: Show, play: Scene, stage: Testbed, extender: Up, screen: Screen) -> None:
        self._show, self._play, self._stage, self._extender, self._screen = show, play, stage, extender, screen
        self._rival = Baseline(play, show.seed)
        self._fabric = _fabric(play)
        self._present_gangs: list[DemoGang] = []
        self._ours: dict[str, Score] = {}
        self._theirs: dict[str, Score] = {}

    async def happen(self, act: Act) -> None:
        """Let one thing happen in both clusters and show it."""
        known = self._ours.keys() & self._theirs.keys()
        if act.word is ActKind.ARRIVES:
            await self._stage.arrive(act.gang, self._show.patience_s)
            self._present_gangs.append(act.gang)
        else:
            await self._stage.leave(act.gang)
            self._present_gangs.remove(act.gang)
        self._rival.play(act)
        for gang in self._present_gangs:
            self._note(self._ours, gang, self._stage)
            self._note(self._theirs, gang, self._rival)
        now = self._ours.keys() & self._theirs.keys()
        late = [gang for gang in self._present_gangs if gang.letter in now - known and gang != act.gang]
        self._screen.act(
            self._play, act, self._present_gangs, self._stage.placements, self._rival.placements, self._scores(), late
        )
        await asyncio.sleep(self._show.pause_s)

    def _note(self, scores: dict[str, Score], gang: DemoGang, where: Testbed | Baseline) -> None:
        """A gang's cost counts from the moment it is whole."""
        gang_score = score(self._fabric, self._play, gang, where.placements.get(gang.name, {}))
        if gang_score is not None:
            scores.setdefault(gang.letter, gang_score)

    async def finale(self) -> None:
        """Move cables, edit the map, and see the next gang land by the new one."""
        nodes = [n for gang in self._present_gangs for n in self._stage.placements.get(gang.name, {}).values()]
        busy = {*nodes, *(name for name, _ in self._play.busy)}
        change = recable(self._play.places, busy, string.ascii_uppercase[self._show.gangs])
        if change is None:
            return
        clock = asyncio.get_running_loop()
        before = await self._extender.map_taken_at()
        began = clock.time()
        await self._stage.redraw(change.places)
        try:
            async with asyncio.timeout(_RELOAD_S):
                await self._extender.took_another_map(before)
        except TimeoutError:
            self._screen.say(f"The ConfigMap was edited; the extender has not told of it within {_RELOAD_S:g} s.")
            return
        self._play = replace(self._play, places=change.places)
        self._fabric = _fabric(self._play)
        self._screen.recabled(change, clock.time() - began)
        await self.happen(Act(ActKind.ARRIVES, change.gang))

    def _scores(self) -> Pair:
        return Pair(self._ours, self._theirs)

    def tally(self, calls: tuple[ExtenderCall, ...], neutral: int) -> Tally:
        """Add up the acts of the play; the finale shows one thing and is not counted."""
        gangs = tuple(act.gang for act in self._play.acts if act.word is ActKind.ARRIVES)
        letters = {gang.letter for gang in gangs}
        ours = {letter: gang_score for letter, gang_score in self._ours.items() if letter in letters}
        theirs = {letter: gang_score for letter, gang_score in self._theirs.items() if letter in letters}
        return Tally(gangs, Pair(ours, theirs), calls, neutral)


def _fabric(play: Scene) -> Fabric:
    return build(read_map({TEXT_KEY: map_text(play.places)}).entries)


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

    async def redraw(self, places: tuple[DemoNode, ...]) -> None:
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
