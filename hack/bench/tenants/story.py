"""Some minutes of a full cluster in memory: gangs wait and compete, a scheduler asks the extender's real handlers.

Time goes by seconds of the story, so that all but the handlers' times is the same in each run. The tenant `greedy` has
one node from the start. Once the cluster is full and gangs wait, it ends its own job there and begins its attack, or
runs the plain pods of its attack: as many GPUs, and not a word on them.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from hack.bench.tenants.attacks import NAMESPACE, Attack
from hack.bench.tenants.objects import GPU, GPUS_PER_NODE, Raw, map_lines, node, node_name, pod
from turnout.kube import labels
from turnout.kube.objects import Node, Pod
from turnout.scheduler_ext.model import Notice, Rules
from turnout.scheduler_ext.planner.plans import plans_by
from turnout.scheduler_ext.server.extender import Extender
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.requests import Dispatcher, Outcome, Verb
from turnout.scheduler_ext.server.watches import WatchState
from turnout.topology.fabric import build
from turnout.topology.map_formats import read_map
from turnout.topology.names import TEXT_KEY

TENANTS = ("vision", "speech", "search")
BACKOFF_S = 5
BEGINS_S = 120  # the attack: by then the cluster is full
TIDY_S = 5


@dataclass(frozen=True, slots=True)
class SimulationSize:
    """How large the simulation is."""

    nodes: int
    seconds: int  # its length
    every_s: int  # seconds between two arrivals
    at_once: int  # gangs of one arrival
    quick: bool  # attacks are small


@dataclass(slots=True)
class GangMeasurements:
    """The results of the honest tenants in one run."""

    wait_s: list[float] = field(default_factory=list)  # of each gang: from its first pod to its last binding
    gpu_seconds: Counter[str] = field(default_factory=Counter[str])
    filter_s: list[float] = field(default_factory=list)
    placed_gangs: int = 0  # of which all pods are bound
    neutral: int = 0  # answers without opinion


class _Clock:
    """The simulated time, as the extender reads it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return 1_767_225_600.0 + self.now_s

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing of the story sleeps")

    def timeout(self, seconds: float | None) -> object:
        raise AssertionError("nothing of the story waits")


@dataclass(slots=True)
class _Gang:
    """One honest job."""

    pods: list[Raw]
    came_s: int
    lasts_s: int
    bound: int = 0
    ends_s: int = 0


class _Story:
    def __init__(self, size: SimulationSize, attack: Attack) -> None:
        self._size, self._attack = size, attack
        self._clock = _Clock()
        self._watches = WatchState(plans_by(Rules()), self._clock)  # type: ignore[arg-type]
        self._view = Extender(Rules(), self._clock, Metrics(), _ignore_notice, self._watches)  # type: ignore[arg-type]
        self._desk = Dispatcher(self._view, self._view.metrics)
        self._rng = random.Random(7)
        self._free = {node_name(at): GPUS_PER_NODE for at in range(size.nodes)}
        self._pending: dict[str, tuple[Raw, int]] = {}  # uid -> pod, not before
        self._bound: dict[str, str] = {}
        self._gpus_of: dict[str, int] = {}  # GPUs of bound pods
        self._gangs: dict[str, _Gang] = {}
        self._arrived, self._created_at = 0, dict[str, str]()
        self.results = GangMeasurements()
        for at in range(size.nodes):
            self._view.view.layout.put_node(msgspec.convert(node(at), Node))
        self._view.view.layout.set_map(build(read_map({TEXT_KEY: map_lines(size.nodes)}).entries))

    def run(self) -> GangMeasurements:
        """Run the simulation second by second. Return the results of the honest tenants.

        Gangs that still wait at the end count with their wait so far.
        """
        for second in range(self._size.seconds):
            self._clock.now_s = float(second)
            for member in self._greedy(second):
                self._write(member)
            for _ in range(self._size.at_once if second % self._size.every_s == 0 else 0):
                self._arrive(second)
            for name in [name for name, gang in self._gangs.items() if gang.ends_s and gang.ends_s <= second]:
                self._leave(self._gangs.pop(name))
            self._schedule(second)
            if second % TIDY_S == 0:
                self._view.clean_up()
        for gang in self._gangs.values():
            if gang.bound < len(gang.pods):
                self.results.wait_s.append(float(self._size.seconds - gang.came_s))
        return self.results

    def _greedy(self, second: int) -> Iterable[Raw]:
        """Return the pods that the tenant `greedy` writes in this second: first one pod of its own, from BEGINS_S on
        the attack.
        """
        if second == 0:
            own = pod(NAMESPACE, "own", 0, GPUS_PER_NODE, {})
            own["spec"]["nodeName"] = node_name(0)
            return [own]
        if second < BEGINS_S:
            return []
        if second == BEGINS_S:
            self._drop(f"{NAMESPACE}/own-0/0")
        return self._attack(second - BEGINS_S, self._size.quick)

    def _arrive(self, second: int) -> None:
        """Create a gang of the next honest tenant, of random size and length. second: now."""
        number, self._arrived = self._arrived, self._arrived + 1
        namespace, members = TENANTS[number % len(TENANTS)], self._rng.choice((1, 2, 4, 8, 16, 16))
        sizes = {labels.KOORD_MIN: str(members)}
        pods = [pod(namespace, f"job{number}", at, GPUS_PER_NODE, sizes, second) for at in range(members)]
        self._gangs[f"{namespace}/job{number}"] = _Gang(pods, second, self._rng.randint(120, 300))
        for each in pods:
            self._write(each)

    def _leave(self, gang: _Gang) -> None:
        """Delete the pods of a gang."""
        for each in gang.pods:
            self._drop(each["metadata"]["uid"])

    def _drop(self, uid: str) -> None:
        """Remove a pod; free the GPUs of its node if it was bound. uid: of the pod; an unknown one is ignored."""
        self._watches.drop_pod(uid)
        self._pending.pop(uid, None)
        if on := self._bound.pop(uid, ""):
            self._free[on] += self._gpus_of.pop(uid)

    def _write(self, member: Raw) -> None:
        """Show a pod to the extender, as a watch does. It replaces a pod of the same name with another uid."""
        uid = member["metadata"]["uid"]
        if member["metadata"]["namespace"] == NAMESPACE:  # it was created when it was first shown
            stamp = f"2026-01-01T00:{int(self._clock.now_s) // 60:02d}:{int(self._clock.now_s) % 60:02d}Z"
            member["metadata"]["creationTimestamp"] = self._created_at.setdefault(uid, stamp)
        stem, _, life = uid.rpartition("/")
        if int(life) and (before := f"{stem}/{int(life) - 1}") in self._view.view.pods:
            self._drop(before)
        if uid in self._bound:
            member["spec"]["nodeName"] = self._bound[uid]
        self._watches.put_pod(msgspec.json.decode(msgspec.json.encode(member), type=Pod))
        if on := member["spec"].get("nodeName"):
            self._take(member, on)
        else:
            self._pending.setdefault(uid, (member, 0))

    def _take(self, member: Raw, on: str) -> None:
        """Count a pod's GPUs as used on its node `on`; nothing if they are counted already."""
        uid = member["metadata"]["uid"]
        if uid not in self._bound:
            self._bound[uid], self._gpus_of[uid] = on, _gpus(member)
            self._free[on] -= _gpus(member)

    def _schedule(self, second: int) -> None:
        """Ask the extender about each pending pod that is due, by priority and age, and bind it. Others are tried
        again later.
        """
        due = [(member, uid) for uid, (member, at_s) in self._pending.items() if at_s <= second]
        due.sort(key=lambda each: (-each[0]["spec"]["priority"], each[0]["metadata"]["creationTimestamp"]))
        for member, uid in due:
            if uid not in self._pending:
                continue
            names = [name for name, free in self._free.items() if free >= _gpus(member)] if _nodes_offer(member) else []
            candidates = self._ask(member, names) if names else []
            if candidates:
                self._bind(member, uid, candidates[0], second)
            else:
                self._pending[uid] = (member, second + BACKOFF_S)

    def _ask(self, member: Raw, names: list[str]) -> list[str]:
        """Ask the extender's filter about a pod. Return the nodes that it keeps, [] for none.

        names: nodes with enough free GPUs. The CPU time, and answers without opinion, are recorded.
        """
        body = json.dumps({"Pod": member, "Nodes": None, "NodeNames": names}).encode()
        began_s = time.thread_time()
        reply = self._desk.answer(Verb.FILTER, body)
        if member["metadata"]["namespace"] != NAMESPACE:
            self.results.filter_s.append(time.thread_time() - began_s)
            self.results.neutral += reply.outcome is not Outcome.ANSWERED
        else:  # a pod that is too large to be read is refused
            self.results.neutral += reply.outcome is Outcome.NO_ADVICE
        candidates: list[str] = json.loads(reply.body).get("NodeNames") or []
        return candidates

    def _bind(self, member: Raw, uid: str, on: str, second: int) -> None:
        """Bind a pod to the node `on`. When an honest gang is complete, record its wait and the GPU-seconds that it
        gets.
        """
        del self._pending[uid]
        self._take(member, on)
        member["spec"]["nodeName"] = on
        self._watches.put_pod(msgspec.json.decode(msgspec.json.encode(member), type=Pod))
        namespace = member["metadata"]["namespace"]
        gang = self._gangs.get(f"{namespace}/{member['metadata']['annotations'].get(labels.KOORD_NAME)}")
        if gang is None or namespace == NAMESPACE:
            return
        gang.bound += 1
        if gang.bound == len(gang.pods):
            gang.ends_s = second + gang.lasts_s
            self.results.placed_gangs += 1
            self.results.wait_s.append(float(second - gang.came_s))
            lasted_s = min(gang.lasts_s, self._size.seconds - second)
            self.results.gpu_seconds[namespace] += lasted_s * GPUS_PER_NODE * len(gang.pods)


def tell(size: SimulationSize, attack: Attack) -> GangMeasurements:
    """Run the simulation with an attack; return the results of the honest tenants."""
    return _Story(size, attack).run()


def _gpus(member: Raw) -> int:
    return int(member["spec"]["containers"][0]["resources"]["requests"].get(GPU, 0))


def _nodes_offer(member: Raw) -> bool:
    """Return True if nodes offer all that a pod asks for."""
    return set(member["spec"]["containers"][0]["resources"]["requests"]) <= {"cpu", "memory", GPU}


def _ignore_notice(notice: Notice) -> None:
    """Do nothing: Events are not written here."""
