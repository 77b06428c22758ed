"""The play itself: everything is started, every act is shown as it happens, everything is ended."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from console.demo.board import Score, score
from console.demo.objects import MAP_NAME, MAP_NAMESPACE, map_text
from console.demo.rival import Rival
from console.demo.scene import Act, DemoGang, Scene, Word, scene
from console.demo.shell.extender import own_extender, running
from console.demo.shell.screen import Screen
from console.demo.shell.stage import Stage
from console.demo.tally import Asking, Pair, Tally
from simulator.api.shell.serve import serve
from simulator.yard.scheduler import Extender
from simulator.yard.shell.loop import Scheduler, Settings
from simulator.yard.shell.wire import ApiDoor, ExtenderDoor
from topology.fabric import Fabric, build
from topology.parse import TEXT_KEY, read


@dataclass(frozen=True, slots=True)
class Show:
    """How the demo is played. pause_s: between two acts, for the eye. extender: the command of the one to ask."""

    seed: int = 1
    gangs: int = 10
    pause_s: float = 0.8
    patience_s: float = 6.0  # how long a gang may take to be placed before the play goes on
    weight: int = 20  # a full extender score outweighs all of kube-scheduler's own, which add up to 1200 at most
    extender: Sequence[str] = field(default_factory=own_extender)


@dataclass(slots=True)
class _Cast:
    """Who is on the stage."""

    stage: Stage
    door: ExtenderDoor


async def perform(show: Show, screen: Screen) -> Tally:
    """Play it. Raises ExtenderFailed when the extender does not come up."""
    logging.getLogger("simulator").setLevel(logging.ERROR)
    play = scene(show.seed, show.gangs)
    fabric = build(read({TEXT_KEY: map_text(play.places)}).entries)
    screen.open(play)
    async with _cast(show, play, screen) as cast:
        tally = await _acts(show, play, fabric, cast, screen)
    screen.close(tally)
    return tally


@asynccontextmanager
async def _cast(show: Show, play: Scene, screen: Screen) -> AsyncIterator[_Cast]:
    """Start the API, the extender and the scheduler; end them in the other order."""
    with tempfile.TemporaryDirectory(prefix="turnout-demo-") as name:
        folder = Path(name)
        async with serve(folder / "kubeconfig") as served, aiohttp.ClientSession() as session:
            api = ApiDoor(session, served.url)
            stage = Stage(api)
            await stage.set_up(play)
            screen.say(f"A Kubernetes API is up at {served.url}; the extender is starting ...")
            configmap = f"{MAP_NAMESPACE}/{MAP_NAME}"
            async with running(show.extender, folder / "kubeconfig", configmap, folder, session) as url:
                screen.say(f"The extender is ready at {url} and is asked over HTTP, as kube-scheduler would ask it.")
                door = ExtenderDoor(session, url)
                settings = Settings(extender=Extender(weight=show.weight), seed=show.seed)
                scheduler = asyncio.create_task(Scheduler(api, settings, door, stage.told).run())
                try:
                    yield _Cast(stage, door)
                finally:
                    scheduler.cancel()
                    with suppress(asyncio.CancelledError):
                        await scheduler


async def _acts(show: Show, play: Scene, fabric: Fabric, cast: _Cast, screen: Screen) -> Tally:
    rival = Rival(play, show.seed)
    here: list[DemoGang] = []
    ours: dict[str, Score] = {}
    theirs: dict[str, Score] = {}
    with screen.acts():
        for act in play.acts:
            await _happen(act, cast, rival, show.patience_s)
            here = [g for g in here if g != act.gang] + ([act.gang] if act.word is Word.ARRIVES else [])
            for gang in here:
                _note(ours, gang, score(fabric, play, gang, cast.stage.placed.get(gang.name, {})))
                _note(theirs, gang, score(fabric, play, gang, rival.placed.get(gang.name, {})))
            screen.act(play, act, here, cast.stage.placed, rival.placed, Pair(ours, theirs))
            await asyncio.sleep(show.pause_s)
    gangs = tuple(act.gang for act in play.acts if act.word is Word.ARRIVES)
    asked = [Asking(a.verb.value, a.names, a.took_s, a.failed) for a in cast.door.asked]
    return Tally(gangs, Pair(ours, theirs), tuple(asked))


async def _happen(act: Act, cast: _Cast, rival: Rival, patience_s: float) -> None:
    if act.word is Word.ARRIVES:
        await cast.stage.arrive(act.gang, patience_s)
    else:
        await cast.stage.leave(act.gang)
    rival.play(act)


def _note(scores: dict[str, Score], gang: DemoGang, seen: Score | None) -> None:
    """A gang's cost counts from the moment it is whole."""
    if seen is not None:
        scores.setdefault(gang.letter, seen)
