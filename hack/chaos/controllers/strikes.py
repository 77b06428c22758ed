"""turnout-controller under kind 12: its leader is paused and resumed, and killed, while an API server refuses a third.

Two replicas on a real API server, behind a proxy, make the pods of PyTorchJobs and see them run and end. The scenario
plays the kubelets.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import ssl
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from hack.chaos.fault_kinds import Kind
from hack.chaos.scenarios.fault_proxy import PASS, Answer, FaultProxy, fault_proxy, kubeconfig_with_token, refusal
from hack.chaos.strike_table import Check, Strike
from hack.chaos.testbed.manifests import ROOT
from hack.controlplane.api import Api
from hack.controlplane.plane import ControlPlane, free_ports

REPLICAS, NAMESPACE, LEASE_S, JOBS = ("controller-a", "controller-b"), "chaos", 4.0, 6
PATIENCE_S = 90.0
ONCE = "no pod of a job is made twice"
SAME = "every job comes to its end, with just the pods that it asked for"
FENCED = "a leader of the job controllers that was paused leads no more when another one does"
PROGRAMS = "no job controller ends by itself"
_DEFINITION = ROOT / "deploy/crds/pytorchjobs.kubeflow.org.yaml"
_JOBS = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/turnout-controller"
Raw = dict[str, Any]


@dataclass(slots=True)
class Seen:
    """The end of a scenario. wanted: workers by job. made: pods, each time that one was created.

    succeeded: pods that a job's status counts as such, by job; -1 for one that has not succeeded.
    """

    wanted: Mapping[str, int]
    made: int
    pods: frozenset[str]
    succeeded: Mapping[str, int]
    led_again: bool = False
    ended: tuple[str, ...] = ()


def checks(seen: Seen) -> tuple[Check, ...]:
    """Hold what was seen to the invariants."""
    names = frozenset(f"{job}-worker-{index}" for job, count in seen.wanted.items() for index in range(count))
    other = [f"{name} is {'missing' if name in names else 'one too many'}" for name in sorted(names ^ seen.pods)]
    ends = [
        f"{job}: {seen.succeeded.get(job, -1)} of {count} have succeeded"
        for job, count in sorted(seen.wanted.items())
        if seen.succeeded.get(job, -1) != count
    ]
    twice = [f"{seen.made} pods were made, {len(names)} are wanted"] * (seen.made != len(names))
    again = ["it leads again, though another one was there"] * seen.led_again
    return (
        Check(ONCE, tuple(twice)),
        Check(SAME, (*other, *ends)),
        Check(FENCED, tuple(again)),
        Check(PROGRAMS, tuple(f"{name} has ended" for name in seen.ended)),
    )


@dataclass(slots=True)
class _Storm:
    """Refuses a third of the calls: conflicts and faults for writes, and an end of history for watches."""

    dice: random.Random
    refused: int = 0

    def judge(self, request: web.Request) -> Answer:
        """Settle one request. A leader keeps its Lease: who leads is changed by other faults."""
        if "/leases/" in request.path or self.dice.random() > 1 / 3:
            return PASS
        if request.method == "GET" and "watch" not in request.query:
            return PASS
        self.refused += 1
        if request.method == "GET":
            return refusal(410, "Expired", "too old resource version")
        return self.dice.choice([refusal(409, "Conflict", "changed meanwhile"), refusal(500, "InternalError", "etcd")])


@dataclass(slots=True)
class _Scene:
    """The plane, what stands before it, and the replicas that run."""

    plane: ControlPlane
    api: Api
    proxy: FaultProxy
    config: Path
    dice: random.Random
    storm: _Storm
    wanted: dict[str, int] = field(default_factory=dict)
    kills: int = 0

    @property
    def made(self) -> int:
        """How many pods were created so far."""
        return sum(
            (each.method, each.code) == ("POST", 201) and each.path.endswith("/pods") for each in self.proxy.seen
        )

    async def start(self, name: str) -> None:
        """Start a replica while the API server is well, and wait until it is ready."""
        self.proxy.heal()
        (port,) = free_ports(1)
        argv = [sys.executable, "-m", "turnout.controllers", "--kinds=PyTorchJob", f"--namespace={NAMESPACE}"]
        argv += [f"--kubeconfig={self.config}", f"--metrics-bind=127.0.0.1:{port}"]
        argv += [f"--lease={NAMESPACE}/turnout-controller", f"--lease-seconds={LEASE_S:g}"]
        await asyncio.to_thread(self.plane.start_program, name, argv, f"http://127.0.0.1:{port}/readyz")
        self.proxy.judge = self.storm.judge

    async def leader(self) -> str:
        """Name the replica that holds the Lease, "" for none that runs."""
        holder = str((await self.api.get(_LEASE))["spec"].get("holderIdentity") or "")
        return next((name for name in REPLICAS if f"-{self.plane.pid(name)}-" in holder), "")

    async def another_leads(self, than: str) -> None:
        """Wait until another replica holds the Lease."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if await self.leader() not in ("", than):
                    return
                await asyncio.sleep(0.1)

    async def submit(self, count: int) -> None:
        """Create so many jobs, and wait until some of their pods, not all as a rule, are made."""
        before, more = self.made, 0
        for _ in range(count):
            name, workers = f"job-{len(self.wanted)}", self.dice.randint(2, 5)
            self.wanted[name], more = workers, more + workers
            await self.api.create(_job(name, workers))
        enough = before + self.dice.randint(1, more)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if self.made >= enough:
                    return
                await asyncio.sleep(0.002)

    async def kill(self) -> None:
        """Kill the leader, and start it again once another one leads."""
        name = await self.leader() or REPLICAS[0]
        await asyncio.to_thread(self.plane.kill_program, name)
        self.kills += 1
        await self.another_leads(name)
        await self.start(name)

    async def pause(self) -> bool:
        """Stop the leader until another one leads; then it goes on. True if it leads again all the same."""
        name = await self.leader() or REPLICAS[0]
        pid = self.plane.pid(name)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            await self.another_leads(name)
        finally:
            os.kill(pid, signal.SIGCONT)
        again, until_s = False, time.monotonic() + 2 * LEASE_S
        while time.monotonic() < until_s:
            again = again or await self.leader() == name
            await asyncio.sleep(0.3)
        return again

    async def become(self, phase: str) -> None:
        """Let all pods be there, and in this phase."""
        count = sum(self.wanted.values())
        await self.api.until(_PODS, lambda pods: len(pods) >= count, PATIENCE_S)
        for each in (await self.api.get(_PODS))["items"]:
            state: Raw = {"running": {}} if phase == "Running" else {"terminated": {"exitCode": 0}}
            told = {"name": "pytorch", "state": state, "ready": False, "restartCount": 0, "image": "", "imageID": ""}
            path = f"{_PODS}/{each['metadata']['name']}/status"
            await self.api.patch(path, {"status": {"phase": phase, "containerStatuses": [told]}})
        wanted = "Running" if phase == "Running" else "Succeeded"
        await self.api.until(_JOBS, lambda jobs: all(_is(each, wanted) for each in jobs), PATIENCE_S)


async def play(seed: int, folder: Path) -> Strike:
    """Strike once: jobs come while the leader is killed and paused, in a drawn order, and killed again at the end.

    folder: an empty one.
    """
    dice = random.Random(f"controllers/{seed}")
    plane = await asyncio.to_thread(ControlPlane().start)
    try:
        token = folder / "token"
        await asyncio.to_thread(token.write_text, plane.token)
        trust = ssl.create_default_context(cafile=str(plane.ca))
        async with plane.api() as api, fault_proxy(plane.url, trust) as proxy:
            config = folder / "kubeconfig"
            await asyncio.to_thread(config.write_text, kubeconfig_with_token(proxy.url, str(token)))
            await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
            await api.create(yaml.safe_load(await asyncio.to_thread(_DEFINITION.read_text)))
            return await _play(_Scene(plane, api, proxy, config, dice, _Storm(dice)), seed)
    finally:
        await asyncio.to_thread(plane.stop)


async def _play(scene: _Scene, seed: int) -> Strike:
    for name in REPLICAS:
        await scene.start(name)
    order, again = ["kill", "pause"], False
    scene.dice.shuffle(order)
    for what in order:
        await scene.submit(JOBS // 2)
        if what == "kill":
            await scene.kill()
        else:
            again = await scene.pause()
    await scene.become("Running")
    await scene.kill()
    await scene.become("Succeeded")
    ended = tuple(name for name in REPLICAS if not _runs(scene.plane.pid(name)))
    pods = frozenset(str(each["metadata"]["name"]) for each in (await scene.api.get(_PODS))["items"])
    jobs = (await scene.api.get(_JOBS))["items"]
    seen = Seen(scene.wanted, scene.made, pods, dict(_succeeded(jobs)), again, ended)
    detail = f"a leader paused once and killed {scene.kills} times, {scene.storm.refused} calls refused"
    return Strike(Kind.LEADER_PAUSED, seed, 1, checks(seen), detail)


def _runs(pid: int | None) -> bool:
    return pid is not None and Path(f"/proc/{pid}").exists()


def _succeeded(jobs: Iterable[Raw]) -> Iterable[tuple[str, int]]:
    for job in jobs:
        counts = job["status"]["replicaStatuses"]["Worker"]
        yield job["metadata"]["name"], int(counts.get("succeeded", 0)) if _is(job, "Succeeded") else -1


def _is(job: Raw, type_: str) -> bool:
    found = (job.get("status") or {}).get("conditions") or ()
    return any(each["type"] == type_ and each["status"] == "True" for each in found)


def _job(name: str, workers: int) -> Raw:
    pod = {"containers": [{"name": "pytorch", "image": "example.org/train:1", "command": ["python", "train.py"]}]}
    role = {"replicas": workers, "restartPolicy": "OnFailure", "template": {"spec": pod}}
    head = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name, "namespace": NAMESPACE}}
    return {**head, "spec": {"pytorchReplicaSpecs": {"Worker": role}}}
