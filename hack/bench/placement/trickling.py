"""The streams of gangs with pods that arrive one by one: each is a request to the extender when it arrives.

A job controller makes its pods some milliseconds apart and in no order that a planner may count on. The extender is
the real one, from the bytes of a question to the bytes of its answer; only the clock and the API server are ours.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hack.bench.placement import streams
from hack.bench.support.outcome import Table
from hack.controlplane.nodes import gpu_node
from turnout.kube import labels
from turnout.kube.client.clock import RealClock
from turnout.kube.objects import Node, Pod
from turnout.scheduler_ext.model import Notice, Rules
from turnout.scheduler_ext.planner.plans import plans_by
from turnout.scheduler_ext.server.extender import Extender
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.requests import Dispatcher, Verb
from turnout.scheduler_ext.server.watches import WatchState
from turnout.topology.fabric import Fabric, cost

APART_S = 0.02  # between two pods of a gang
_GPUS = 8


@dataclass(frozen=True, slots=True)
class Trickle:
    """One seed's first gangs: mean crossings a gang with pods together, in the order of ranks, and shuffled."""

    seed: int
    together: float
    in_order: float
    shuffled: float


def measure(together: streams.Policy, seeds: Iterable[int], gangs: int = 40) -> list[Trickle]:
    """Measure the committed streams. together: who places a gang whole, from the room as it is."""
    tree, kept, found = streams.fabric(), streams.committed(), []
    for seed in seeds:
        events = streams.first(kept[seed], gangs)
        runs = (streams.replay(tree, events, together), replay(tree, events, None), replay(tree, events, seed))
        found.append(Trickle(seed, *(statistics.fmean(run.total) for run in runs)))
    return found


def table(rows: Sequence[Trickle]) -> Table:
    """Show them beside each other."""
    columns = {"seed": "", **dict.fromkeys(("together", "in order", "shuffled"), ".3f")}
    lines = [(str(row.seed), row.together, row.in_order, row.shuffled) for row in rows]
    title = f"ring crossings a gang, its pods {APART_S * 1e3:.0f} ms apart and each asked about at once"
    return Table(title, columns, lines, key="trickling, seed")


class SimulatedClock(RealClock):
    """A clock moved by hand; nobody here waits."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s


class _SimulatedExtender:
    """An extender that sees an empty cluster of whole nodes, and what it was told since."""

    def __init__(self, tree: Fabric) -> None:
        self.tree, self.clock, metrics = tree, SimulatedClock(), Metrics()
        self.watches = WatchState(plans_by(Rules()), self.clock)
        self.view = Extender(Rules(), self.clock, metrics, _say_nothing, self.watches)
        self.dispatcher = Dispatcher(self.view, metrics)
        self.free = set(self.tree.hosts)
        for name in self.tree.hosts:
            self.view.view.put_node(msgspec.convert(gpu_node(name, ""), Node))
        self.view.view.set_map(self.tree)

    def come(self, number: int, size: int, order: Iterable[int]) -> list[str]:
        """Let a gang's pods come in this order, each asked about and bound at once. Return their nodes by rank."""
        nodes = [""] * size
        for index in order:
            self.clock.now_s += APART_S
            pod = _pod(number, index, size)
            self.watches.put_pod(msgspec.convert(pod, Pod))
            body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": sorted(self.free)}).encode()
            (nodes[index],) = json.loads(self.dispatcher.answer(Verb.FILTER, body).body)["NodeNames"]
            self.free.remove(nodes[index])
            bound = {**pod, "spec": {**pod["spec"], "nodeName": nodes[index]}}
            self.watches.put_pod(msgspec.convert(bound, Pod))
        return nodes

    def leave(self, number: int, nodes: Sequence[str]) -> None:
        """Take a gang's pods away."""
        for index, node in enumerate(nodes):
            self.watches.drop_pod(_uid(number, index))
            self.free.add(node)


def replay(tree: Fabric, events: Sequence[int], seed: int | None) -> streams.Run:
    """Run one stream. seed: of the order in which each gang's pods come; None for the order of their ranks.

    A pod that is not placed breaks the run: every gang of a stream fits.
    """
    extender, dice = _SimulatedExtender(tree), random.Random(seed)
    held: list[list[str]] = []
    total, leaf, full = [], [], []
    for event in events:
        if event <= 0:
            extender.leave(-event, held[-event])
            continue
        order = list(range(event))
        if seed is not None:
            order.sort(key=lambda _: dice.random())
        held.append(extender.come(len(held), event, order))
        full.append(1 - len(extender.free) / len(tree.hosts))
        paid = cost(tree, [tree.index[node] for node in held[-1]])
        total.append(paid.total)
        leaf.append(paid.crossings[0])
    return streams.Run(tuple(total), tuple(leaf), sum(full) / len(full))


def _pod(number: int, index: int, size: int) -> dict[str, Any]:
    asks = {"nvidia.com/gpu": str(_GPUS)}
    name = f"gang-{number}"
    return {
        "metadata": {
            "name": f"{name}-{index}",
            "namespace": "default",
            "uid": _uid(number, index),
            "annotations": {labels.KOORD_NAME: name, labels.KOORD_MIN: str(size)},
            "creationTimestamp": f"2026-01-01T{number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z",
        },
        "spec": {
            "schedulerName": "default-scheduler",
            "containers": [{"name": "main", "resources": {"requests": asks, "limits": asks}}],
        },
    }


def _uid(number: int, index: int) -> str:
    return f"uid-{number}-{index}"


def _say_nothing(_: Notice) -> None:
    """Ignore what the extender tells owners."""
