"""One run: a configuration, a workload, and how fast a real kube-scheduler bound it.

Everything shares this machine's cores: etcd, API server, scheduler, our programs and the load.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from hack.bench.throughput import noop
from hack.controlplane import scheduler_config
from hack.controlplane.api import Api
from hack.controlplane.nodes import address, gpu_node
from hack.controlplane.plane import ControlPlane, free_ports
from turnout.kube import labels

MAP = "default/node-topology-config"
HOSTS_PER_LEAF, LEAVES_PER_SPINE = 8, 16
BENCH_FLAGS = (
    "--enable-priority-and-fairness=false",
    "--max-requests-inflight=0",
    "--max-mutating-requests-inflight=0",
)
PODS = "/api/v1/namespaces/default/pods"
GIVE_UP_S = 240.0


@dataclass(frozen=True, slots=True)
class Setup:
    """verbs: of the extender in the scheduler's configuration, empty for none. program: which one answers them.
    nominate: our nominator runs too. gates: it lifts gates."""

    name: str
    verbs: tuple[str, ...] = ()
    program: str = ""
    nominate: bool = False
    gates: bool = False


NONE = Setup("no extender")
NOOP = Setup("no-op extender, full answers", ("filter", "prioritize"), "noop")
PRIORITIZE = Setup("ours, prioritize only", ("prioritize",), "ours")
BOTH = Setup("ours, both verbs", ("filter", "prioritize"), "ours")
GATES = Setup("no extender, our gates", nominate=True, gates=True)
NOMINATING = Setup("ours, nominating", ("filter", "prioritize"), "ours", nominate=True)


@dataclass(frozen=True, slots=True)
class Result:
    """rate: pods/s from the first creation (or the scheduler's start) to the last binding. middle: over the middle
    80 % of the bindings. cpu_s: CPU time by program. bound: how many."""

    rate: float
    middle: float
    bound: int
    cpu_s: dict[str, float] = field(default_factory=dict)


class _Meta(msgspec.Struct):
    name: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Status(msgspec.Struct, rename="camel"):
    nominated_node_name: str = ""


class _Pod(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _Event(msgspec.Struct):
    type: str
    object: _Pod


_event = msgspec.json.Decoder(_Event)


class Cluster:
    """A control plane with `count` GPU nodes and their map; runs come one after another."""

    def __init__(self, plane: ControlPlane, count: int) -> None:
        self.plane, self.count = plane, count

    async def build(self) -> None:
        """Create nodes and map."""
        nodes = [gpu_node(f"node-{at:05d}", address(at)) for at in range(self.count)]
        lines = []
        for at in range(self.count):
            leaf = at // HOSTS_PER_LEAF
            lines.append(f"asw-{leaf:04d} psw-{leaf // LEAVES_PER_SPINE:03d} {address(at)}")
        meta = {"name": "node-topology-config", "namespace": "default"}
        text = {"topology_config": "\n".join(lines)}
        async with self.plane.api() as api:
            await api.create_all(nodes)
            await api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": text})

    async def run(self, setup: Setup, pods: Sequence[Sequence[dict[str, Any]]], percentage: int | None) -> Result:
        """End to end: the scheduler runs, then pods are created, each inner list at once; until all are bound."""
        total = sum(len(gang) for gang in pods)
        programs = self._start_programs(setup)
        self._start_scheduler(setup, programs.get("extender"), percentage)
        try:
            async with self.plane.api() as api:
                seen = asyncio.create_task(self._bindings(total))
                await asyncio.sleep(0.5)  # the watch is open before the first pod is
                before = self._cpu(programs)
                began_s = time.monotonic()
                await _create(api, pods)
                times = await seen
                return self._result(began_s, times, before, programs)
        finally:
            await self._end(programs)

    async def run_nominated(self, pods: Sequence[Sequence[dict[str, Any]]], percentage: int, nominate: bool) -> Result:
        """The scheduler alone: pods exist, and are all nominated or not, before it starts."""
        total = sum(len(gang) for gang in pods)
        programs = self._start_programs(Setup("", nominate=nominate))
        try:
            async with self.plane.api() as api:
                waiting = asyncio.create_task(self._nominations(total)) if nominate else None
                await _create(api, pods)
                if waiting is not None:
                    await waiting
                    await asyncio.to_thread(self.plane.stop_program, "nominator")
                    programs.pop("nominator")
                seen = asyncio.create_task(self._bindings(total))
                self._start_scheduler(NONE, None, percentage)
                before = self._cpu(programs)
                times = await seen
                return self._result(times[0], times, before, programs)
        finally:
            await self._end(programs)

    # Inside.

    def _start_programs(self, setup: Setup) -> dict[str, int]:
        """Start what the setup names; name -> port of its verbs (0 when it has none)."""
        started: dict[str, int] = {}
        common = ["--kubeconfig", str(self.plane.kubeconfig), "--configmap", MAP, "--log-level", "warning"]
        if setup.program:
            port, health = free_ports(2)
            argv = [sys.executable, noop.__file__, str(port), str(health)]  # by path: hack is no installed package
            if setup.program == "ours":
                argv = [sys.executable, "-m", "turnout.scheduler_ext", *common, "--bind", f"127.0.0.1:{port}"]
                argv += ["--metrics-bind", f"127.0.0.1:{health}"]
            self.plane.start_program("extender", argv, f"http://127.0.0.1:{health}/readyz")
            started["extender"] = port
        if setup.nominate:
            (health,) = free_ports(1)
            argv = [
                sys.executable,
                "-m",
                "turnout.scheduler_ext.nominator",
                *common,
                "--metrics-bind",
                f"127.0.0.1:{health}",
            ]
            argv += ["--lease", f"default/nominator-{time.monotonic_ns()}"]  # nobody's Lease is waited for
            argv += ["--gates"] if setup.gates else []
            self.plane.start_program("nominator", argv, f"http://127.0.0.1:{health}/readyz")
            started["nominator"] = 0
        return started

    def _start_scheduler(self, setup: Setup, port: int | None, percentage: int | None) -> None:
        config = scheduler_config.shipped(f"http://127.0.0.1:{port or 1}")
        config.pop("percentageOfNodesToScore", None)
        if percentage is not None:
            config["percentageOfNodesToScore"] = percentage
        if port is None:
            del config["extenders"]
        else:
            extender = config["extenders"][0]
            for verb in ("filter", "prioritize", "preempt"):
                if verb not in setup.verbs:
                    extender.pop(f"{verb}Verb", None)
            extender["httpTimeout"] = "5s"
        self.plane.start_scheduler(config)

    async def _end(self, programs: dict[str, int]) -> None:
        for name in ("kube-scheduler", *programs):
            await asyncio.to_thread(self.plane.stop_program, name)
        async with self.plane.api() as api:
            await api.delete(PODS)
            await api.until(PODS, lambda left: not left, GIVE_UP_S)

    async def _bindings(self, total: int) -> list[float]:
        """When each pod was seen on a node, in order. Raises TimeoutError after GIVE_UP_S."""
        return await self._watch("?fieldSelector=spec.nodeName!%3D&", total, lambda pod: bool(pod.spec.node_name))

    async def _nominations(self, total: int) -> list[float]:
        return await self._watch("?", total, lambda pod: bool(pod.status.nominated_node_name))

    async def _watch(self, query: str, total: int, wanted: Callable[[_Pod], bool]) -> list[float]:
        seen: dict[str, float] = {}
        async with asyncio.timeout(GIVE_UP_S), self.plane.api() as api:
            address_ = f"{api.url}{PODS}{query}watch=1&resourceVersion=0"
            while len(seen) < total:  # a watch that the server ends is opened anew, and gives everything again
                async with api._session.get(address_, timeout=aiohttp.ClientTimeout(total=None)) as answer:
                    await _collect(answer, total, wanted, seen)
        return sorted(seen.values())

    def _cpu(self, programs: dict[str, int]) -> dict[str, float]:
        return {name: _cpu_s(self.plane.pid(name)) for name in ("kube-apiserver", "kube-scheduler", *programs)}

    def _result(self, began_s: float, times: list[float], before: dict[str, float], programs: dict[str, int]) -> Result:
        after = self._cpu(programs)
        edge = len(times) // 10
        low, high = times[edge], times[-1 - edge]
        return Result(
            rate=len(times) / max(times[-1] - began_s, 1e-9),  # a few pods may all be seen at once
            middle=(len(times) - 2 * edge - 1) / max(high - low, 1e-9),
            bound=len(times),
            cpu_s={name: after[name] - before.get(name, 0.0) for name in after},
        )


def singles(count: int) -> list[list[dict[str, Any]]]:
    """Pods of one GPU, each by itself."""
    return [[_pod(f"single-{at:05d}", {})] for at in range(count)]


def gangs(count: int, size: int = 8) -> list[list[dict[str, Any]]]:
    """Gangs of pods of one GPU, each created whole; koordinator's annotations, which need no PodGroup."""
    made = []
    for gang in range(count // size):
        name = f"gang-{gang:04d}"
        notes = {labels.KOORD_NAME: name, labels.KOORD_MIN: str(size), labels.KOORD_TOTAL: str(size)}
        made.append([_pod(f"{name}-{rank}", notes) for rank in range(size)])
    return made


def _pod(name: str, notes: dict[str, str]) -> dict[str, Any]:
    room = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    container = {
        "name": "worker",
        "image": "registry.k8s.io/pause:3.10",
        "resources": {"requests": room, "limits": room},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": notes},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }


async def _collect(
    answer: aiohttp.ClientResponse, total: int, wanted: Callable[[_Pod], bool], seen: dict[str, float]
) -> None:
    """Note when each wanted pod came, until there are `total` or the stream ends."""
    buffer = b""
    async for chunk in answer.content.iter_any():
        *lines, buffer = (buffer + chunk).split(b"\n")
        now_s = time.monotonic()
        for line in lines:
            event = _event.decode(line)
            if wanted(event.object):
                seen.setdefault(event.object.metadata.name, now_s)
        if len(seen) >= total:
            if answer.connection is not None and answer.connection.transport is not None:
                answer.connection.transport.abort()
            return


async def _create(api: Api, pods: Sequence[Sequence[dict[str, Any]]]) -> None:
    await api.create_all([pod for gang in pods for pod in gang])


def _cpu_s(pid: int | None) -> float:
    """User and system time of a process so far."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
