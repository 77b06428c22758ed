"""A chart that is upgraded and rolled back, kind 20, by real helm on a real control plane, while a gang waits.

The chart's Deployments run as processes. A caller asks whichever extender is ready about the gang, all the while, as
kube-scheduler does through the Service. Somebody edits the map by hand between two changes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hack.chaos.chart.world import CHART, PACE
from hack.chaos.fault_kinds import Kind
from hack.chaos.strike_table import Check, Strike
from hack.chaos.testbed.testbed import Stood
from hack.controlplane.plane import ControlPlane
from hack.controlplane.tools import cache
from turnout.kube import labels
from turnout.kube.times import unix_s
from turnout.simulator.cluster import kubeconfig
from turnout.simulator.cluster.node_builder import Place, map_text
from turnout.simulator.cluster.runtime.clients import ApiError
from turnout.simulator.local_cluster import LocalCluster, attached

NAMESPACE, RELEASE, PORT = "gpu-team", "turnout", 9443
CHANGES = 3  # upgrades and rollbacks of one strike
PATIENCE_S = 3.0  # for which a caller may find nobody who answers: kube-scheduler asks again after a second
LEADS_S = 30.0  # within which somebody leads again: the Lease's 15 s, and a try
HELM_S = 120
_GANG = "ring"
_SIZE = 4
_CORE = f"/api/v1/namespaces/{NAMESPACE}"
_MAP = f"{_CORE}/configmaps/node-topology-config"
_LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/turnout-autoscaler"
_PARTS = "controller.enabled=false,bindAddress=$(POD_IP)"

SERVED = "a caller is answered by a ready extender all the while"
SAME = "the plan of a gang that waits moves for no change"
EDITED = "a map edited by hand outlives every change"
LEADS = "an autoscaler leads after every change"
READY = "every change ends with all Deployments ready"


@dataclass(slots=True)
class Story:
    """The facts that were seen. answers: the nodes that were named. silent_s: the longest time without an answer."""

    changes: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    maps: list[str] = field(default_factory=list)
    leaders: list[str] = field(default_factory=list)
    answers: set[str] = field(default_factory=set)
    asked: int = 0
    silent_s: float = 0.0

    def checks(self) -> tuple[Check, ...]:
        """Hold what was seen against the invariants."""
        silent = (f"nobody answered for {self.silent_s:.1f} s",) if self.silent_s > PATIENCE_S else ()
        unasked = () if self.asked else ("nobody was ever asked",)
        moved = (f"it was sent to {', '.join(sorted(self.answers))}",) if len(self.answers) > 1 else ()
        return (
            Check(SERVED, silent + unasked),
            Check(SAME, moved),
            Check(EDITED, tuple(self.maps)),
            Check(LEADS, tuple(self.leaders)),
            Check(READY, tuple(self.failed)),
        )


async def play(seed: int, folder: Path) -> Strike:
    """Install the chart, and change it again and again under one seed."""
    dice, story = random.Random(f"chart/{seed}"), Story()
    async with _installed(folder) as (plane, made):
        helm = _Helm(plane, folder)
        caller = asyncio.create_task(_ask(made, await _trust(made, folder), story))
        try:
            for number in range(CHANGES):
                text = _edited(dice)
                await made.api.call("PATCH", _MAP, {"data": {"topology_config": text}}, "application/merge-patch+json")
                what = await helm.change(dice, number + 1)
                story.changes.append(what)
                story.failed += helm.complaints
                helm.complaints.clear()
                await _look(made, text, what, story)
        finally:
            caller.cancel()
            with suppress(asyncio.CancelledError):
                await caller
    return Strike(Kind.UPGRADE, seed, len(story.changes), story.checks(), ", ".join(story.changes))


@asynccontextmanager
async def _installed(folder: Path) -> AsyncIterator[tuple[ControlPlane, LocalCluster]]:
    """A control plane with nodes, a gang that waits for a scheduler that is not there, and the release."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    plane = await asyncio.to_thread(ControlPlane().start)
    try:
        config = await asyncio.to_thread(plane.kubeconfig.read_bytes)
        async with attached(kubeconfig.read(config)) as made:
            await asyncio.to_thread(plane.start_scheduler)
            await asyncio.to_thread(plane.start_controller_manager)
            made.run_pods(PACE, folder / "pods", config)
            await made.add_nodes(_places(), 8)
            for rank in range(_SIZE):
                await made.api.call("POST", "/api/v1/namespaces/default/pods", _member(rank))
            helm = _Helm(plane, folder)
            await helm.run("install", RELEASE, str(CHART), "--create-namespace", "--set", _PARTS)
            if helm.complaints:
                raise Stood(helm.complaints[0])
            yield plane, made
    finally:
        await asyncio.to_thread(plane.stop)


class _Helm:
    """Real helm. complaints: what it said of changes that did not end well."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._env = {"HOME": str(folder), "KUBECONFIG": str(plane.kubeconfig), "PATH": os.environ["PATH"]}
        self.complaints: list[str] = []
        self._revision = 1

    async def change(self, dice: random.Random, number: int) -> str:
        """Upgrade to other values, or roll back to an earlier revision. The first change is an upgrade."""
        if number > 1 and dice.random() < 0.5:
            to = dice.randint(1, self._revision - 1)
            await self.run("rollback", RELEASE, str(to))
            what = f"rolled back to {to}"
        else:
            act, mark = dice.choice(["true", "false"]), f"extender.podAnnotations.change=n{number}"
            parts = f"{_PARTS},autoscaler.act={act},{mark},autoscaler.podAnnotations.change=n{number}"
            await self.run("upgrade", RELEASE, str(CHART), "--set", parts)
            what = f"upgraded with act={act}"
        self._revision += 1
        return what

    async def run(self, *words: str) -> None:
        """Run one command, and wait until all is ready."""
        argv = [str(cache.binary("helm")), *words, "--namespace", NAMESPACE, "--wait", f"--timeout={HELM_S - 20}s"]
        done = await asyncio.to_thread(
            subprocess.run, argv, capture_output=True, text=True, timeout=HELM_S, env=self._env, check=False
        )
        if done.returncode:
            self.complaints.append(f"helm {words[0]}: {(done.stderr or done.stdout).strip()[-300:]}")


def _places() -> list[Place]:
    return [Place(f"gpu-{at}", f"10.0.0.{at + 1}", ("spine-1", f"leaf-{at // _SIZE}")) for at in range(2 * _SIZE)]


def _edited(dice: random.Random) -> str:
    """Write the map as somebody edits it: a host that is still to come is added to it. The old hosts stay."""
    more = Place("soon", f"10.0.9.{dice.randint(1, 200)}", ("spine-2", "leaf-9"))
    return map_text([*_places(), more])


def _member(rank: int) -> dict[str, Any]:
    notes = {labels.KOORD_NAME: _GANG, labels.KOORD_MIN: str(_SIZE), labels.KOORD_TOTAL: str(_SIZE)}
    asks = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "8"}
    container = {"name": "main", "image": "train:1", "resources": {"requests": asks, "limits": asks}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{_GANG}-{rank}", "namespace": "default", "annotations": notes},
        "spec": {"schedulerName": "nobody", "containers": [container]},
    }


async def _trust(made: LocalCluster, folder: Path) -> ssl.SSLContext:
    """Return a caller's TLS with the certificate that helm made for kube-scheduler."""
    secret: Mapping[str, Any] = await made.api.call("GET", f"{_CORE}/secrets/turnout-scheduler-tls")
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (folder / name).write_bytes(base64.b64decode(secret["data"][name]))
    trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    trust.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return trust


async def _ask(made: LocalCluster, trust: ssl.SSLContext, story: Story) -> None:
    """Ask whichever extender is ready about a pod of the gang, until cancelled. Silence counts from an answer on."""
    last_s: float | None = None
    pod = await made.api.call("GET", f"/api/v1/namespaces/default/pods/{_GANG}-0")
    body = json.dumps({"pod": pod, "nodenames": [each.name for each in _places()]}).encode()
    turn = 0
    while True:
        ready = await _ready(made)
        turn += 1
        node = await _answer(ready[turn % len(ready)], trust, body) if ready else ""
        now_s = time.monotonic()
        if node:
            story.answers.add(node)
            story.asked, last_s = story.asked + 1, now_s
        story.silent_s = max(story.silent_s, now_s - (now_s if last_s is None else last_s))
        await asyncio.sleep(0.1)


async def _ready(made: LocalCluster) -> list[str]:
    """List the addresses of the extenders that a Service would lead to."""
    label = "labelSelector=app.kubernetes.io/name%3Dturnout-extender"
    found = await made.api.call("GET", f"{_CORE}/pods?{label}")
    return [
        pod["status"]["podIP"]
        for pod in found["items"]
        if not pod["metadata"].get("deletionTimestamp")
        and any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions") or ())
    ]


async def _answer(address: str, trust: ssl.SSLContext, body: bytes) -> str:
    """Ask one extender where the pod is to go; "" where it does not answer with one node."""
    host = f"turnout-extender.{NAMESPACE}.svc"
    head = f"POST /filter HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_connection(address, PORT, ssl=trust, server_hostname=host)
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.read()
            writer.close()
    except (OSError, TimeoutError):  # ssl.SSLError is an OSError
        return ""
    _, _, told = answer.partition(b"\r\n\r\n")
    with suppress(ValueError):
        names = json.loads(told).get("NodeNames") or []
        if len(names) == 1:
            return str(names[0])
    return ""


async def _look(made: LocalCluster, text: str, what: str, story: Story) -> None:
    """Look at the map after a change, and wait until an autoscaler leads."""
    found = await made.api.call("GET", _MAP)
    if (found.get("data") or {}).get("topology_config") != text:
        story.maps.append(f"{what}: the map is not what was edited")
    changed_s = time.time()
    try:
        async with asyncio.timeout(LEADS_S):
            while True:
                if await _renewed(made, changed_s):
                    return
                await asyncio.sleep(0.2)
    except TimeoutError:
        story.leaders.append(f"{what}: nobody has renewed the Lease for {LEADS_S:.0f} s")


async def _renewed(made: LocalCluster, after_s: float) -> bool:
    try:
        spec = (await made.api.call("GET", _LEASE)).get("spec") or {}
    except ApiError:
        return False
    return bool(spec.get("holderIdentity")) and (unix_s(spec.get("renewTime")) or 0.0) > after_s
