"""Places the gangs by the default scheduler's rules alone, pod by pod, as a baseline."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

from turnout.cli.demo.manifests import NAMESPACE, OTHERS, Raw, busy_pod, members, node
from turnout.cli.demo.scenario import Act, ActKind, DemoGang, Scene
from turnout.kube.objects import Node, Pod
from turnout.simulator.cluster.cluster import Cluster, PodInfo, pod_info_of
from turnout.simulator.cluster.scheduler import Chosen, Cursor, schedule_without_extender


class Baseline:
    """A cluster in which kube-scheduler decides. Nodes are added by name, as its cache gets them."""

    def __init__(self, play: Scene, seed: int) -> None:
        self._cluster = Cluster()
        self._cursor, self._dice = Cursor(), random.Random(seed)
        self._waiting: dict[str, PodInfo] = {}
        self.placements: dict[str, dict[int, str]] = {}  # gang name -> index -> node
        for place in sorted(play.places, key=lambda place: place.name):
            self._cluster.put_node(msgspec.convert(node(place), Node))
        for number, (name, gpus) in enumerate(play.busy):
            self._cluster.place(_want(busy_pod(number, name, gpus), OTHERS), name)

    def play(self, act: Act) -> Mapping[int, str]:
        """Let one thing happen, and everybody who waits try again. Gives the gang's members that have a node."""
        gang = act.gang
        if act.word is ActKind.LEAVES:
            for index in range(gang.pods):
                self._waiting.pop(_uid(gang, index), None)
                self._cluster.remove(_uid(gang, index))
            self.placements.pop(gang.name, None)
        else:
            self.placements[gang.name] = {}
            for raw in members(gang):
                want = _want(raw, NAMESPACE)
                self._waiting[want.uid] = want
        for uid, want in list(self._waiting.items()):
            outcome = schedule_without_extender(self._cluster, want, self._cursor, self._dice)
            if isinstance(outcome, Chosen):
                self._cluster.place(want, outcome.node)
                del self._waiting[uid]
                gang_name, at = uid.rsplit("-", 1)
                self.placements[gang_name][int(at)] = outcome.node
        return self.placements.get(gang.name, {})


def _uid(gang: DemoGang, index: int) -> str:
    return f"{gang.name}-{index}"


def _want(raw: Raw, namespace: str) -> PodInfo:
    pod = msgspec.convert(raw, Pod)
    pod.metadata.uid = pod.metadata.name
    pod.metadata.namespace = namespace
    return pod_info_of(pod)
