"""Runs the demo: starts every program, shows each act as it happens, and ends every program."""

from __future__ import annotations

import asyncio
import logging
import random
import string
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
from rich.console import Console

from turnout.cli.demo import scenario
from turnout.cli.demo.lending.driver import LendingDemoSettings, run_lending_demo
from turnout.cli.demo.lending.screen import LendingScreen
from turnout.cli.demo.page import DemoPage, in_browser
from turnout.cli.demo.scenario import (
    MAP_NAME,
    MAP_NAMESPACE,
    NAMESPACE,
    OTHERS,
    Act,
    ActKind,
    DemoGang,
    DemoNode,
    Raw,
    Scene,
    busy_pod,
    map_text,
    members,
    node,
    recable,
    scene,
)
from turnout.cli.demo.screen import ExtenderCall, Pair, Score, Screen, Tally, score
from turnout.cli.verb_support.child_programs import RunningExtender, extender_command, running_extender
from turnout.kube.objects import Node, Pod
from turnout.simulator.cluster.cluster import Cluster, PodInfo, pod_info_of
from turnout.simulator.cluster.kubelet import Pace
from turnout.simulator.cluster.runtime.clients import ApiClient, ExtenderClient
from turnout.simulator.cluster.runtime.scheduler_loop import SchedulerSettings
from turnout.simulator.cluster.scheduler import Chosen, Cursor, ExtenderSettings, Outcome, schedule_without_extender
from turnout.simulator.local_cluster import local_cluster
from turnout.topology.fabric import Fabric, build
from turnout.topology.map_formats import read_map
from turnout.topology.names import TEXT_KEY

_PACE = Pace(pull_s=0.02, stop_s=0.02)  # short: a demo does not wait for images
_RELOAD_S = 10.0  # twice what the extender promises for a changed map


@dataclass(frozen=True, slots=True)
class Show:
    """Settings of the demo: `pause_s` seconds between two acts, and the command line that starts the extender."""

    seed: int = 1
    gangs: int = 14  # 1 to scenario.MAX_GANGS
    pause_s: float = 0.8
    patience_s: float = 6.0  # how long a gang may take to be placed before the play goes on
    weight: int = 121  # as deploy/scheduler/kube-scheduler-config.yaml has it
    extender: Sequence[str] = field(default_factory=extender_command)


async def perform(show: Show, screen: Screen, page: DemoPage | None = None) -> Tally:
    """Run the whole demo of placement and return its totals.

    show: the user's choices. screen: shows each act. page: shows the cluster in a browser. Raises ExtenderFailed if the
    extender does not start.
    """
    logging.getLogger("turnout.simulator").setLevel(logging.ERROR)
    play = scene(show.seed, show.gangs)
    screen.open(play)
    async with _stage(show, play, screen, page) as (stage, asked_extender, extender):
        performance = _Performance(show, play, stage, extender, screen)
        with screen.acts():
            for act in play.acts:
                await performance.play_act(act)
            await performance.finale()
        calls = tuple(ExtenderCall(a.verb.value, a.nodes, a.took_s, a.failed) for a in asked_extender.requests)
        tally = performance.tally(calls, await extender.neutral_answers())
        screen.close(tally)
    return tally


@asynccontextmanager
async def _stage(
    show: Show, play: Scene, screen: Screen, page: DemoPage | None
) -> AsyncIterator[tuple[Testbed, ExtenderClient, RunningExtender]]:
    """Start the API, the extender and the scheduler for the block, and end them in reverse order.

    page: None serves no page. Raises ExtenderFailed if the extender exits or is not ready in time.
    """
    async with AsyncExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="turnout-demo-")))
        kubeconfig = folder / "kubeconfig"
        cluster = await ends.enter_async_context(local_cluster(kubeconfig, pace=_PACE))
        stage = Testbed(cluster.api)
        cluster.addresses.update({place.name: place.ip for place in play.places})
        await stage.set_up(play)
        if page is not None:
            screen.print_now(in_browser(await ends.enter_async_context(page.serve(kubeconfig))))
        screen.print_now(f"A Kubernetes API is up at {cluster.address}; the extender is starting ...")
        configmap = f"{MAP_NAMESPACE}/{MAP_NAME}"
        extending = running_extender(show.extender, kubeconfig, configmap, folder, cluster.session)
        up = await ends.enter_async_context(extending)
        screen.print_now(f"The extender is ready at {up.url} and is asked over HTTP, as kube-scheduler would ask it.")
        settings = SchedulerSettings(extender=ExtenderSettings(weight=show.weight), seed=show.seed)
        asked_extender = ExtenderClient(cluster.session, up.url)
        cluster.schedule(settings, asked_extender, stage.on_outcome)
        yield stage, asked_extender, up


class _Performance:
    """A run of the demo: the same gangs on a cluster with Turnout and on a baseline without it."""

    def __init__(self, show: Show, play: Scene, stage: Testbed, extender: RunningExtender, screen: Screen) -> None:
        """Begin with no gang, and make the baseline. stage: the cluster with Turnout. extender: runs there."""
        self._show, self._play, self._stage, self._extender, self._screen = show, play, stage, extender, screen
        self._rival = Baseline(play, show.seed)
        self._fabric = _fabric(play)
        self._present_gangs: list[DemoGang] = []
        self._ours: dict[str, Score] = {}
        self._theirs: dict[str, Score] = {}

    async def play_act(self, act: Act) -> None:
        """Carry out one arrival or departure of a gang in both clusters, and show the result."""
        known = self._ours.keys() & self._theirs.keys()
        if act.kind is ActKind.ARRIVES:
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
        """Store the cost of a gang, unless it is stored already or not all of its pods have a node.

        scores: gang letter -> cost, changed. where: the cluster of which the placement is taken.
        """
        gang_score = score(self._fabric, self._play, gang, where.placements.get(gang.name, {}))
        if gang_score is not None:
            scores.setdefault(gang.letter, gang_score)

    async def finale(self) -> None:
        """Change the cables and the map, wait until the extender has read the new map, and place one more gang.

        Does nothing if no change of cables would help a gang. If the extender does not read the map in time, a
        message is shown and no gang is placed; cables and map stay changed.
        """
        nodes = [n for gang in self._present_gangs for n in self._stage.placements.get(gang.name, {}).values()]
        busy = {*nodes, *(name for name, _ in self._play.busy)}
        change = recable(self._play.places, busy, string.ascii_uppercase[self._show.gangs])
        if change is None:
            return
        clock = asyncio.get_running_loop()
        before = await self._extender.map_reloaded_at()
        began = clock.time()
        await self._stage.redraw(change.places)
        try:
            async with asyncio.timeout(_RELOAD_S):
                await self._extender.wait_for_another_map(before)
        except TimeoutError:
            self._screen.print_now(f"The ConfigMap was edited; the extender has not told of it within {_RELOAD_S:g} s.")
            return
        self._play = replace(self._play, places=change.places)
        self._fabric = _fabric(self._play)
        self._screen.recabled(change, clock.time() - began)
        await self.play_act(Act(ActKind.ARRIVES, change.gang))

    def _scores(self) -> Pair:
        return Pair(self._ours, self._theirs)

    def tally(self, calls: tuple[ExtenderCall, ...], neutral: int) -> Tally:
        """Return the totals of the acts; the gang of the finale is not counted.

        calls: to the extender. neutral: responses without advice.
        """
        gangs = tuple(act.gang for act in self._play.acts if act.kind is ActKind.ARRIVES)
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
    """The cluster with Turnout. placements: gang name -> index -> node. refusals: pod name -> why it waits."""

    def __init__(self, api: ApiClient) -> None:
        """Begin with an empty cluster. api: of the cluster."""
        self._api = api
        self._news = asyncio.Event()
        self.placements: dict[str, dict[int, str]] = {}
        self.refusals: dict[str, str] = {}  # pod name -> why it waits

    def on_outcome(self, namespace: str, name: str, outcome: Outcome) -> None:
        """Store the scheduler's outcome for the pod `name`, whose name is GANG-INDEX. The namespace is ignored."""
        gang, _, index = name.rpartition("-")
        if isinstance(outcome, Chosen):
            self.placements.setdefault(gang, {})[int(index)] = outcome.node
            self.refusals.pop(name, None)
        else:
            self.refusals[name] = outcome.message
        self._news.set()

    async def set_up(self, play: Scene) -> None:
        """Create the namespaces, the nodes, the map, and the pods that run from the beginning."""
        for name in (NAMESPACE, OTHERS, MAP_NAMESPACE):
            await self._api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        for place in sorted(play.places, key=lambda place: place.name):
            await self._api.call("POST", "/api/v1/nodes", scenario.node(place))
        for number, (name, gpus) in enumerate(play.busy):
            pod = scenario.busy_pod(number, name, gpus)
            await self._api.call("POST", f"/api/v1/namespaces/{OTHERS}/pods", pod)
        await self._api.call("POST", _MAPS, scenario.topology_map(play.places))

    async def redraw(self, places: tuple[DemoNode, ...]) -> None:
        """Write the map of these nodes into the cluster's ConfigMap, as `kubectl edit configmap` would."""
        wish = {"data": scenario.topology_map(places)["data"]}
        await self._api.call("PATCH", f"{_MAPS}/{MAP_NAME}", wish, _MERGE)

    async def arrive(self, gang: DemoGang, within_s: float) -> Mapping[int, str]:
        """Submit a gang, and wait until all its pods have a node, at most `within_s` seconds.

        Returns index -> node of the placed pods.
        """
        self.placements[gang.name] = {}
        await self._api.call("POST", _GROUPS, scenario.pod_group(gang))
        for pod in scenario.members(gang):
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
        """Delete the pods and the group of a gang whose job is done."""
        members: list[Raw] = list(scenario.members(gang))
        for pod in members:
            await self._api.call("DELETE", f"{_PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0")
        await self._api.call("DELETE", f"{_GROUPS}/{gang.name}")
        self.placements.pop(gang.name, None)


class Baseline:
    """A cluster in which kube-scheduler decides. Nodes are added by name, as its cache gets them."""

    def __init__(self, play: Scene, seed: int) -> None:
        """Create the nodes and the busy pods of the scene. seed: of the scheduler's random choices."""
        self._cluster = Cluster()
        self._cursor, self._rng = Cursor(), random.Random(seed)
        self._waiting: dict[str, PodInfo] = {}
        self.placements: dict[str, dict[int, str]] = {}  # gang name -> index -> node
        for place in sorted(play.places, key=lambda place: place.name):
            self._cluster.put_node(msgspec.convert(node(place), Node))
        for number, (name, gpus) in enumerate(play.busy):
            self._cluster.place(_pod_info(busy_pod(number, name, gpus), OTHERS), name)

    def play(self, act: Act) -> Mapping[int, str]:
        """Apply one act, and let all waiting pods try again.

        Return index -> node of the placed pods of the act's gang.
        """
        gang = act.gang
        if act.kind is ActKind.LEAVES:
            for index in range(gang.pods):
                self._waiting.pop(_uid(gang, index), None)
                self._cluster.remove(_uid(gang, index))
            self.placements.pop(gang.name, None)
        else:
            self.placements[gang.name] = {}
            for raw in members(gang):
                want = _pod_info(raw, NAMESPACE)
                self._waiting[want.uid] = want
        for uid, want in list(self._waiting.items()):
            outcome = schedule_without_extender(self._cluster, want, self._cursor, self._rng)
            if isinstance(outcome, Chosen):
                self._cluster.place(want, outcome.node)
                del self._waiting[uid]
                gang_name, at = uid.rsplit("-", 1)
                self.placements[gang_name][int(at)] = outcome.node
        return self.placements.get(gang.name, {})


def _uid(gang: DemoGang, index: int) -> str:
    return f"{gang.name}-{index}"


def _pod_info(raw: Raw, namespace: str) -> PodInfo:
    """Return a pod as the extender reads it, with its name as its uid. namespace: of the pod."""
    pod = msgspec.convert(raw, Pod)
    pod.metadata.uid = pod.metadata.name
    pod.metadata.namespace = namespace
    return pod_info_of(pod)


GANGS, LENDING, BOTH = "gangs", "lending", "both"
_FAST_S = 0.4  # a state of the second part that is gone at once would not be in its picture
_NEXT = (
    ("turnout demo --seed 7", "another cluster, other gangs"),
    ("turnout demo --gangs 20 --fast", "a longer day, without pauses"),
    ("turnout demo --part lending", "the queue alone"),
    ("turnout topology check FILE", "every fault of your own topology text, with its line"),
)


async def play(part: str, show: Show, fast: bool, console: Console) -> None:
    """Run the demo of placement, of lending, or both, and print what to try next.

    part: GANGS, LENDING or BOTH. show: settings of the placement part. fast: no pauses in the placement part, short
    ones in the lending part. console: where all is printed. Raises ChildFailed if a program does not start, and
    StoryFailed if a step of the lending part does not happen.
    """
    page = DemoPage()
    if part != LENDING:
        await perform(replace(show, pause_s=0.0) if fast else show, Screen(console), page)
    if part != GANGS:
        settings = LendingDemoSettings()
        await run_lending_demo(replace(settings, pause_s=_FAST_S) if fast else settings, LendingScreen(console), page)
    console.print()
    console.print("Try next:")
    for command, what in _NEXT:
        console.print(f"  {command:<32} {what}", highlight=False)
