"""Faults between a program and its API server, kinds 1 to 7: a real client, reflector and two electors meet them.

The embedded API is asked through a proxy. Objects change all the time; one elector and the reflector go through the
proxy, the other elector does not. Waits of the reflector and the electors pass SPEED times as fast.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from aiohttp import web

from hack.chaos.fault_kinds import Kind
from hack.chaos.scenarios.fault_proxy import (
    PASS,
    Answer,
    FaultProxy,
    fault_proxy,
    kubeconfig_with_token,
    refusal,
)
from hack.chaos.scenarios.object_cache import ObjectCache
from hack.chaos.strike_table import Check, Strike
from hack.chaos.testbed.sped_clock import SpedClock
from turnout.kube.client.api_client import Client
from turnout.kube.client.lease import Elector
from turnout.kube.client.reflector import Reflector
from turnout.kube.errors import CallError
from turnout.kube.objects import ConfigMap
from turnout.simulator.api.server.serve import Served, serve
from turnout.simulator.cluster.runtime.clients import ApiError
from turnout.simulator.cluster.runtime.inprocess_client import Direct

SPEED, ELECTION_SPEED = 60.0, 10.0
OBJECTS, KEPT = 12, 40  # objects that change; changes that the API server keeps for watches
PATIENCE_S = 20.0  # until the cache is right again
PATH = "/api/v1/namespaces/default/configmaps"
_PAUSE_S, _DELETED = 0.01, 0.3  # between two changes; of which so many delete
_SILENCE_S, _SLACK_S = 120.0, 60.0  # of the reflector's clock: by when a silent watch is given up

SAME = "the cache ends equal to the server"
FORWARD = "no object goes back to an older state, none comes back from the dead"
STORM = "a watch asks at most once a second"
LEADERS = "two replicas never lead at once"
WRITES = "a write that was acknowledged is there"
NOTICED = "a silent watch is left within two bookmarks' time"
OBEYED = "nobody asks again before Retry-After is over"
ROTATED = "a rotated token is read again, without a restart"


@dataclass(slots=True)
class Scene:
    """One program before its API server. acknowledged: the last value of its own object that the server took."""

    served: Served
    proxy: FaultProxy
    client: Client
    reflector: Reflector[ConfigMap]
    seen: ObjectCache
    dice: random.Random
    token: Path
    valid: str = "first"
    acknowledged: int = 0
    paused: bool = False
    led: list[str] = field(default_factory=list)

    def judged(self, rule: Callable[[web.Request], Answer]) -> None:
        """Settle requests by this rule, after the token was looked at."""

        def judge(request: web.Request) -> Answer:
            if request.headers.get("Authorization") != f"Bearer {self.valid}":
                return refusal(401, "Unauthorized", "Unauthorized")
            return rule(request)

        self.proxy.judge = judge

    async def change(self) -> None:
        """Create, patch or delete one object at random, at the server itself."""
        name, dice = f"object-{self.dice.randrange(OBJECTS)}", self.dice
        store, at = Direct(self.served.store), f"{PATH}/{name}"
        body = {"metadata": {"name": name}, "data": {"value": str(dice.random())}}
        try:
            method = "DELETE" if dice.random() < _DELETED else "PATCH"
            await store.call(method, at, body, "application/merge-patch+json")
        except ApiError:  # it is not there
            await store.call("POST", PATH, body)

    def there(self) -> dict[tuple[str, str], tuple[str, int]]:
        """Give every object of the server, as the receiver keeps them."""
        kind = self.served.store.catalogue.named("", "v1", "configmaps")
        assert kind is not None
        metas = [stored.obj["metadata"] for stored in self.served.store.find(kind, "default", lambda obj: True)]
        return {(meta["namespace"], meta["name"]): (meta["uid"], int(meta["resourceVersion"])) for meta in metas}

    def asked(self, since: int, code: int = 0) -> list[float]:
        """Say when the reflector asked, of the event loop's clock, from this request of the proxy on.

        code: only what was answered so, 0 for all.
        """
        mine = [each for each in self.proxy.seen[since:] if each.path == PATH and each.method == "GET"]
        return [each.at_s for each in mine if code in (0, each.code)]


Injector = Callable[[Scene], Awaitable[tuple[int, list[Check]]]]


async def play(seed: int, kind: Kind) -> Strike:
    """Strike a kind in a scene of its own."""
    dice = random.Random(f"{kind.name}/{seed}")
    async with _scene(dice) as scene:
        begin = len(scene.proxy.seen)
        began_s = asyncio.get_running_loop().time()
        times, more = await INJECTORS[kind](scene)
        asked, took_s = scene.asked(begin), asyncio.get_running_loop().time() - began_s
        scene.proxy.heal()
        scene.judged(lambda request: PASS)
        same = await _settles(scene)
        most = 5 + took_s * SPEED
        storm = [f"{len(asked)} requests in {took_s * SPEED:.0f} s"] if len(asked) > most else []
        checks = [
            Check(SAME, same),
            Check(FORWARD, tuple(scene.seen.wrong[:3])),
            Check(STORM, tuple(storm)),
            Check(LEADERS, tuple(scene.led[:3])),
            Check(WRITES, await _written(scene)),
        ]
    return Strike(kind, seed, times, (*checks, *more))


@asynccontextmanager
async def _scene(dice: random.Random) -> AsyncIterator[Scene]:
    """Everything runs and is synced; it ends with the block."""
    with tempfile.TemporaryDirectory() as folder:
        token, config, direct = Path(folder, "token"), Path(folder, "kubeconfig"), Path(folder, "direct")
        await asyncio.to_thread(token.write_text, "first")
        async with serve(direct, bookmark_s=60 / SPEED, kept_changes=KEPT) as served, fault_proxy(served.url) as proxy:
            await asyncio.to_thread(config.write_text, kubeconfig_with_token(proxy.url, str(token)))
            async with await Client.open(str(config)) as client, await Client.open(str(direct)) as other:
                seen, clock = ObjectCache(), SpedClock(SPEED)
                reflector = Reflector(client, PATH, ConfigMap, seen, clock=clock, rng=dice)
                scene = Scene(served, proxy, client, reflector, seen, dice, token)
                scene.judged(lambda request: PASS)
                store = Direct(served.store)
                await store.call("POST", PATH, {"metadata": {"name": "own"}, "data": {"value": "0"}})
                electors = [_elector(each, name, dice) for each, name in ((client, "a"), (other, "b"))]
                async with asyncio.TaskGroup() as tasks:
                    running = [
                        tasks.create_task(each)
                        for each in (
                            reflector.run(),
                            *(elector.run(_lead) for elector in electors),
                            _changes(scene),
                            _writes(scene),
                            _watched(scene, electors),
                        )
                    ]
                    try:
                        await _until(lambda: reflector.has_synced and any(each.is_leading for each in electors))
                        yield scene
                    finally:
                        for task in running:
                            task.cancel()


def _elector(client: Client, name: str, dice: random.Random) -> Elector:
    return Elector(client, "default", "leader", name, clock=SpedClock(ELECTION_SPEED), rng=dice)


async def _lead(transitions: int) -> None:
    await asyncio.Event().wait()


async def _changes(scene: Scene) -> None:
    while True:
        if not scene.paused:
            await scene.change()
        await asyncio.sleep(_PAUSE_S)


async def _writes(scene: Scene) -> None:
    """Patch one object through the proxy, and list all, again and again, whatever comes of it."""
    number = 0
    while True:
        number += not scene.paused
        with suppress(CallError):
            await scene.client.patch(f"{PATH}/own", {"data": {"value": str(number)}}, deadline_s=2.0)
            scene.acknowledged = number
        await asyncio.sleep(_PAUSE_S)


async def _watched(scene: Scene, electors: Sequence[Elector]) -> None:
    while True:
        if sum(each.is_leading for each in electors) > 1:
            scene.led.append(f"both lead at {asyncio.get_running_loop().time():.3f} s")
        await asyncio.sleep(0.005)


async def _settles(scene: Scene) -> tuple[str, ...]:
    try:
        await _until(lambda: scene.seen.have == scene.there())
    except TimeoutError:
        have, there = set(scene.seen.have.items()), set(scene.there().items())
        return (f"{len(have - there)} objects too many or old, {len(there - have)} missing after {PATIENCE_S:g} s",)
    return ()


async def _written(scene: Scene) -> tuple[str, ...]:
    acknowledged = scene.acknowledged
    value = int((await Direct(scene.served.store).call("GET", f"{PATH}/own"))["data"]["value"])
    return () if value >= acknowledged else (f"{acknowledged} was acknowledged, {value} is there",)


async def _until(so: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(patience_s):
        while True:
            if so():
                return
            await asyncio.sleep(0.005)


async def _cut(scene: Scene) -> None:
    """Cut the reflector's watch until it is refused: one may have passed just before the rule in force."""
    begin = len(scene.proxy.seen)
    async with asyncio.timeout(PATIENCE_S):
        while not any(each.path == PATH and each.watch and each.code >= 400 for each in scene.proxy.seen[begin:]):
            scene.proxy.drop()
            await asyncio.sleep(0.01)


# The faults, each with how often it struck and what else is to hold of it.


async def _restarts(scene: Scene) -> tuple[int, list[Check]]:
    times = scene.dice.randint(2, 3)
    for _ in range(times):
        await asyncio.sleep(scene.dice.uniform(0.05, 0.3))
        await scene.served.restart(scene.dice.uniform(0.05, 0.3))
    return times, []


async def _gone(scene: Scene) -> tuple[int, list[Check]]:
    """End watches by a 410 line; then keep one away until the server has forgotten its version."""
    lists = scene.reflector.relist_count
    line = json.dumps({"type": "ERROR", "object": json.loads(refusal(410, "Expired", "too old").body)}).encode() + b"\n"
    scene.proxy.lines = lambda each: (line,)
    await _until(lambda: scene.reflector.relist_count > lists)
    scene.proxy.heal()
    away = True

    def late(request: web.Request) -> Answer:
        watch = request.query.get("watch") and request.path == PATH
        return refusal(503, "ServiceUnavailable", "try later") if watch and away else PASS

    scene.judged(late)
    await _cut(scene)
    lists, version = scene.reflector.relist_count, scene.served.store.version
    await _until(lambda: scene.served.store.version > version + 3 * KEPT)
    away = False
    await _until(lambda: scene.reflector.relist_count > lists)
    refused = [each for each in scene.proxy.seen if each.code == 410]
    return 1 + len(refused), []


async def _silent(scene: Scene) -> tuple[int, list[Check]]:
    """Hold every line of every watch: the connections stay."""
    before, loop = scene.reflector.reconnect_count, asyncio.get_running_loop()
    bookmarks = 0

    def counted(line: bytes) -> Sequence[bytes]:
        nonlocal bookmarks
        bookmarks += b'"BOOKMARK"' in line[:40]
        return (line,)

    scene.paused = True  # a server sends bookmarks when it has nothing else to say
    scene.proxy.lines = counted
    await _until(lambda: bookmarks > 0)
    scene.paused = False
    began_s = loop.time()
    scene.proxy.lines = lambda line: ()
    bound_s = (_SILENCE_S + _SLACK_S) / SPEED
    with suppress(TimeoutError):
        await _until(lambda: scene.reflector.reconnect_count > before, bound_s + 1)
    took_s = (loop.time() - began_s) * SPEED
    late = took_s > _SILENCE_S + _SLACK_S
    return int(scene.proxy.touched > 0), [Check(NOTICED, (f"it took {took_s:.0f} s",) if late else ())]


async def _etcd(scene: Scene) -> tuple[int, list[Check]]:
    """Refuse with 500 and 504 as without a leader, or answer late; watches end."""
    before = scene.proxy.touched
    refusals = (
        refusal(500, "InternalError", "etcdserver: leader changed"),
        refusal(504, "Timeout", "etcdserver: request timed out"),
        Answer(slow_s=scene.dice.uniform(0.1, 0.4)),
    )
    scene.judged(lambda request: scene.dice.choice(refusals))
    scene.proxy.drop()
    await asyncio.sleep(scene.dice.uniform(0.6, 1.2))
    return scene.proxy.touched - before, []


async def _throttled(scene: Scene) -> tuple[int, list[Check]]:
    before, wait_s = len(scene.proxy.seen), scene.dice.choice([20, 30, 40])
    scene.judged(lambda request: refusal(429, "TooManyRequests", "slow down", wait_s))
    await _cut(scene)
    await _until(lambda: len(scene.asked(before, 429)) >= 2)
    early = [b - a for a, b in pairwise(scene.asked(before, 429)) if (b - a) * SPEED < wait_s - 1]
    count = len([each for each in scene.proxy.seen[before:] if each.code == 429])
    return count, [Check(OBEYED, tuple(f"after {each * SPEED:.0f} s of {wait_s}" for each in early[:3]))]


async def _access(scene: Scene) -> tuple[int, list[Check]]:
    """Forbid everything for a while, then let the token that is shown be refused for good."""
    before = len(scene.proxy.seen)
    scene.judged(lambda request: refusal(403, "Forbidden", "RBAC says no"))
    await _cut(scene)
    await asyncio.sleep(scene.dice.uniform(0.2, 0.5))
    scene.judged(lambda request: PASS)
    scene.valid = "second"
    await _cut(scene)
    await asyncio.sleep(scene.dice.uniform(0.1, 0.3))
    await asyncio.to_thread(scene.token.write_text, "second")
    acknowledged, done = scene.acknowledged, True
    try:
        await _until(lambda: scene.acknowledged > acknowledged)
    except TimeoutError:
        done = False
    count = len([each for each in scene.proxy.seen[before:] if each.code in (401, 403)])
    return count, [Check(ROTATED, () if done else (f"no call got through in {PATIENCE_S:g} s",))]


async def _events(scene: Scene) -> tuple[int, list[Check]]:
    """Deliver lines twice and in another order, each object's own in theirs; cut watches with lines on their way."""
    held: dict[str, bytes] = {}
    dice, before = scene.dice, scene.proxy.touched

    def lines(line: bytes) -> Sequence[bytes]:
        event = json.loads(line)
        name = event["object"]["metadata"].get("name", "")
        if event["type"] == "BOOKMARK" or name in held or len(held) > 3:
            told = list(held.values())
            dice.shuffle(told)
            held.clear()
            return (*(each for each in told for _ in range(dice.randint(1, 2))), line)
        held[name] = line
        return ()

    scene.proxy.lines = lines
    for _ in range(4):
        await asyncio.sleep(dice.uniform(0.1, 0.3))
        held.clear()
        scene.proxy.drop()
    return scene.proxy.touched - before, []


INJECTORS: Mapping[Kind, Injector] = {
    Kind.API_RESTART: _restarts,
    Kind.WATCH_GONE: _gone,
    Kind.WATCH_SILENT: _silent,
    Kind.ETCD: _etcd,
    Kind.THROTTLED: _throttled,
    Kind.ACCESS: _access,
    Kind.EVENTS: _events,
}
