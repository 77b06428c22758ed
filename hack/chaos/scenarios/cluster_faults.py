"""Faults of a cluster's objects and programs, kinds 8 to 13 and 21, on the local cluster without a training job.

The real extender and two replicas of the autoscaler run on it, with an elastic job whose pods run nothing. While each
fault lasts and after it, a rigid job comes and needs GPUs that the elastic one has.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from hack.chaos.fault_kinds import Kind
from hack.chaos.strike_table import Check, Strike
from hack.chaos.testbed import manifests
from hack.chaos.testbed.manifests import JOB, LEASE_S, LEAST, MAP_NAME, MAP_NAMESPACE, MOST, Plan, Raw
from hack.chaos.testbed.testbed import JOBS, Stood, Testbed, stage
from turnout.kube import labels
from turnout.simulator.cluster.runtime.clients import ApiError
from turnout.topology.names import TEXT_KEY

PATIENCE_S = 30.0  # of a rigid job that waits, and of the elastic one to grow back
EXTENDER_S = 1.0  # for which the scheduler waits for the extender: httpTimeout of deploy/
HOT_JOBS = 40
JUMP_S = 3600.0
_MAPS = f"/api/v1/namespaces/{MAP_NAMESPACE}/configmaps"
_QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"
_HOT_QUEUE = "hot"

STARTS = "a rigid job gets its GPUs"
GROWS = "the elastic job is back at its max afterwards"
BOUNDS = "the elastic job never leaves its min and max"
TERMS = "sizes are written by one leader after the other"
PROGRAMS = "no program ends by it"
LAST_GOOD = "the extender stays ready with the last good map, and takes the next good one"
UNREADY = "nobody leaves or comes while most nodes are unready"
FENCED = "a leader that was paused leads no more when another one does"
STEADY = "a jump of the clock changes no size, and taints no node"


@dataclass(slots=True)
class Scene:
    """The cluster under one fault after the other. sizes: time, workers and term of each version of the elastic job."""

    found: Testbed
    dice: random.Random
    sizes: list[tuple[float, int, int]] = field(default_factory=list)
    rigid: int = 0

    async def watch(self) -> None:
        """See the sizes of the elastic job for ever."""
        async for word, seen in self.found.made.api.changes(JOBS):
            if word in ("ADDED", "MODIFIED") and seen.obj["metadata"]["name"] == JOB:
                term = int((seen.obj["metadata"].get("annotations") or {}).get(labels.TERM) or 0)
                self.sizes.append((time.monotonic(), seen.obj["spec"]["tasks"][0]["replicas"], term))

    @property
    def workers(self) -> int:
        """The size of the elastic job now."""
        return self.sizes[-1][1] if self.sizes else 0

    def since(self, at_s: float) -> list[int]:
        """The sizes that it was given since then."""
        return [workers for when_s, workers, _ in self.sizes if when_s >= at_s]

    async def rigid_job(self) -> tuple[str, ...]:
        """Submit a rigid job and see it start; then it goes. Returns what was wrong."""
        self.rigid += 1
        job = manifests.rival(self.rigid, self.dice.randint(1, 2), PATIENCE_S)
        name = str(job["metadata"]["name"])
        await self.found.made.api.call("POST", JOBS, job)

        def started() -> bool:
            pods = [pod for at, pod in self.found.pods.items() if at.startswith(f"{name}-worker-")]
            return bool(pods) and all((pod.get("status") or {}).get("phase") == "Running" for pod in pods)

        try:
            await self.found.until(started, f"{name} starts", PATIENCE_S)
        except Stood as error:
            return (str(error),)
        finally:
            with suppress(ApiError):
                await self.found.made.api.call("DELETE", f"{JOBS}/{name}")
        return ()

    async def grown(self) -> tuple[str, ...]:
        """Wait until the elastic job has all its workers. Returns what was wrong."""
        try:
            await self.found.until(lambda: len(self.found.workers) == MOST, f"{MOST} workers run", PATIENCE_S)
        except Stood as error:
            return (f"{error}: {len(self.found.workers)} run",)
        return ()


Seen = TypeVar("Seen")
Injector = Callable[[Scene], Awaitable[tuple[int, list[Check]]]]


async def play(seed: int, folder: Path, kinds: Sequence[Kind]) -> list[Strike]:
    """Strike each of these kinds once, in a drawn order, on one cluster."""
    dice, order = random.Random(f"cluster/{seed}"), list(kinds)
    dice.shuffle(order)
    async with _scene(folder, dice) as scene:
        return [await _play(scene, kind, seed) for kind in order]


async def _play(scene: Scene, kind: Kind, seed: int) -> Strike:
    began_s, alive = time.monotonic(), set(scene.found.programs.alive)
    if not await _settled(scene.found.programs.ready, bool):
        raise Stood("the extender never became ready")
    times, more = await INJECTORS[kind](scene)
    starts, grows = await scene.rigid_job(), await scene.grown()
    sizes = [workers for workers in scene.since(began_s) if not LEAST <= workers <= MOST]
    terms = [term for _, _, term in scene.sizes]
    back = [f"{b} after {a}" for a, b in pairwise(terms) if b < a]
    ended = alive - set(scene.found.programs.alive) if kind is not Kind.EXTENDER_KILLED else set[int]()
    checks = [
        Check(STARTS, starts),
        Check(GROWS, grows),
        Check(BOUNDS, tuple(f"{workers} workers" for workers in sizes)),
        Check(TERMS, tuple(back)),
        Check(PROGRAMS, tuple(f"process {pid} has ended" for pid in ended)),
    ]
    return Strike(kind, seed, times, (*checks, *more))


@asynccontextmanager
async def _scene(folder: Path, dice: random.Random) -> AsyncIterator[Scene]:
    async with stage(folder, Plan(), trainer=lambda home: _elastic(), extender_s=EXTENDER_S) as found:
        scene = Scene(found, dice)
        found.made.background.start(scene.watch())
        if wrong := await scene.grown():
            raise Stood(wrong[0])
        yield scene


def _elastic() -> Raw:
    """The elastic job, whose pods run nothing."""
    return manifests.idle(JOB, LEAST, {labels.MAX_WORKERS: str(MOST)})


# The faults.


async def _map(scene: Scene) -> tuple[int, list[Check]]:
    """Write maps that cannot be used, delete and rename the map, and let it flap; then a good one comes."""
    api, programs, good = scene.found.made.api, scene.found.programs, manifests.topology_map()
    wrong, at = list[str](), f"{_MAPS}/{MAP_NAME}"
    texts = {
        "invalid": "one two three four\nx",
        "empty": "",
        "1 MiB": "a b 10.0.0.1\n" * 80_000,
        "binary": "\x00\x01 ☃",
    }
    for name in scene.dice.sample(sorted(texts), 3):
        await api.call("PUT", at, {**good, "data": {TEXT_KEY: texts[name]}})
        await asyncio.sleep(scene.dice.uniform(0.1, 0.4))
        wrong += [f"{name}: it is not ready"] * (not await programs.ready())
    await api.call("DELETE", at)
    await api.call("POST", _MAPS, {**good, "metadata": {"name": "renamed"}})
    wrong += [f"deleted: {each}" for each in await scene.rigid_job()]
    wrong += ["deleted: it is not ready"] * (not await programs.ready())
    await api.call("POST", _MAPS, good)
    for _ in range(5):
        await api.call("PUT", at, {**good, "data": {TEXT_KEY: "?"}})
        await api.call("PUT", at, good)
    await api.call("DELETE", f"{_MAPS}/renamed")
    if (faults := await _settled(programs.map_faults, lambda faults: faults == 0)) != 0:
        wrong.append(f"it tells {faults:g} faults of a good map")
    return 10, [Check(LAST_GOOD, tuple(wrong))]


async def _nodes(scene: Scene) -> tuple[int, list[Check]]:
    """Let three of four nodes become unready together, again and again; one is cordoned meanwhile."""
    api, names = scene.found.made.api, [place.name for place in manifests.places()]
    flapping, flaps = scene.dice.sample(names, 3), scene.dice.randint(3, 5)
    await _ready(scene, flapping, False)
    await asyncio.sleep(1.0)  # a look may have been under way
    began_s = time.monotonic()
    for _ in range(flaps):
        await asyncio.sleep(scene.dice.uniform(0.2, 0.6))
        await _ready(scene, flapping[:1], True)
        await _ready(scene, flapping[:1], False)
    await api.call("PATCH", f"/api/v1/nodes/{flapping[0]}", {"spec": {"unschedulable": True}}, _MERGE)
    await asyncio.sleep(1.0)
    changed = scene.since(began_s)
    await api.call("PATCH", f"/api/v1/nodes/{flapping[0]}", {"spec": {"unschedulable": None}}, _MERGE)
    await _ready(scene, flapping, True)
    moved = [f"to {workers} workers" for workers in changed if workers != MOST]
    return flaps + len(flapping) + 1, [Check(UNREADY, tuple(moved))]


_MERGE = "application/merge-patch+json"


async def _ready(scene: Scene, names: Sequence[str], ready: bool) -> None:
    for name in names:
        path = f"/api/v1/nodes/{name}"
        node = await scene.found.made.api.call("GET", path)
        conditions = [
            {**each, "status": "True" if ready else "False"} if each["type"] == "Ready" else each
            for each in node["status"]["conditions"]
        ]
        await scene.found.made.api.call("PATCH", f"{path}/status", {"status": {"conditions": conditions}}, _MERGE)


async def _settled(ask: Callable[[], Awaitable[Seen]], enough: Callable[[Seen], bool]) -> Seen:
    """Ask again and again until the answer is enough, or patience is over. Returns the last answer."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        answer = await ask()
        if enough(answer) or time.monotonic() > end_s:
            return answer
        await asyncio.sleep(0.1)


async def _extender_killed(scene: Scene) -> tuple[int, list[Check]]:
    """Kill it while a job's pods are asked about, more than once; each time it has come up before."""
    times = scene.dice.randint(2, 3)
    for _ in range(times):
        await _settled(scene.found.programs.ready, bool)
        waits = asyncio.create_task(scene.rigid_job())
        await asyncio.sleep(scene.dice.uniform(0.0, 0.3))
        scene.found.programs.kill_extender()
        wrong = await waits
        scene.found.programs.start_extender()
        if wrong:
            return times, [Check(STARTS, wrong)]
        await scene.grown()
    return times, []


async def _extender_slow(scene: Scene) -> tuple[int, list[Check]]:
    """Stop it for longer than the scheduler waits."""
    scene.found.programs.signal_extender(signal.SIGSTOP)
    try:
        wrong = await scene.rigid_job()
    finally:
        scene.found.programs.signal_extender(signal.SIGCONT)
    return 1, [Check(STARTS, wrong)]


async def _leader_paused(scene: Scene) -> tuple[int, list[Check]]:
    """Stop the leader until another one leads and has written; then it goes on."""
    programs, wrong = scene.found.programs, list[str]()
    paused = await programs.leader()
    if not paused:
        return 0, []
    os.kill(paused, signal.SIGSTOP)
    try:
        leader = await _settled(programs.leader, lambda pid: pid not in (0, paused))
        wrong += ["nobody else leads"] * (leader in (0, paused))
        wrong += list(await scene.rigid_job())
    finally:
        os.kill(paused, signal.SIGCONT)
    end_s = time.monotonic() + 2 * LEASE_S
    while time.monotonic() < end_s:
        wrong += ["it leads again, though another one was there"] * (await programs.leader() == paused)
        await asyncio.sleep(0.3)
    return 1, [Check(FENCED, tuple(dict.fromkeys(wrong)))]


async def _clock(scene: Scene) -> tuple[int, list[Check]]:
    """Move the wall clock of all programs an hour, on and back; it drifts meanwhile."""
    clock, wrong = scene.found.programs.clock, list[str]()
    jumps = [scene.dice.choice((-JUMP_S, JUMP_S)), 0.0]
    for ahead_s in jumps:
        began_s = time.monotonic()
        clock.set(ahead_s, drift=0.05 if ahead_s else 0.0)
        await asyncio.sleep(LEASE_S)
        wrong += [
            f"at {ahead_s:+g} s it went to {workers} workers" for workers in scene.since(began_s) if workers != MOST
        ]
        wrong += [f"at {ahead_s:+g} s: {each}" for each in await scene.rigid_job() + await scene.grown()]
    nodes = await scene.found.made.api.call("GET", "/api/v1/nodes")
    tainted = [node["metadata"]["name"] for node in nodes["items"] if node["spec"].get("taints")]
    seen = sum(
        each.read_text().count('"clock_jumped"') for each in (scene.found.home / "logs").glob("autoscaler-*.log")
    )
    return seen, [Check(STEADY, (*wrong, *(f"{name} is tainted" for name in tainted)))]


async def _hot_queue(scene: Scene) -> tuple[int, list[Check]]:
    """Fill one queue with jobs that can never start, change them all the time, and see another queue served."""
    api, changes = scene.found.made.api, 0
    queue = {**manifests.queue(), "metadata": {"name": _HOT_QUEUE}}
    with suppress(ApiError):
        await api.call("POST", _QUEUES, queue)
    names = [f"hot-{number}" for number in range(HOT_JOBS)]
    for name in names:
        job = manifests.idle(name, manifests.NODES + 1, {labels.MAX_WORKERS: str(manifests.NODES + 9)})
        job["spec"]["queue"] = _HOT_QUEUE
        await api.call("POST", JOBS, job)

    async def change() -> None:
        nonlocal changes
        while True:
            notes = {
                labels.PRIORITY: str(scene.dice.randrange(101)),
                labels.CURVE: f"1:1,2:{scene.dice.uniform(1, 2):.3f}",
            }
            path = f"{JOBS}/{scene.dice.choice(names)}"
            await api.call("PATCH", path, {"metadata": {"annotations": notes}}, _MERGE)
            changes += 1
            await asyncio.sleep(0.01)

    changing = asyncio.create_task(change())
    try:
        wrong = [*await scene.rigid_job(), *await scene.grown()]
    finally:
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
        for name in names:
            await api.call("DELETE", f"{JOBS}/{name}")
    return changes, [Check(STARTS, tuple(wrong))]


INJECTORS: Mapping[Kind, Injector] = {
    Kind.MAP: _map,
    Kind.NODES: _nodes,
    Kind.EXTENDER_KILLED: _extender_killed,
    Kind.EXTENDER_SLOW: _extender_slow,
    Kind.LEADER_PAUSED: _leader_paused,
    Kind.CLOCK: _clock,
    Kind.HOT_QUEUE: _hot_queue,
}
