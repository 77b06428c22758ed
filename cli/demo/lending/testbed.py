"""The lending demo's cluster: a queue of 16 GPUs under two leaf switches, four jobs, and the programs that run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from turnout.autoscaler.model import Reason
from turnout.cli.demo.lending.model import GpuSeat, LoggedDecision, MomentKind, Player, StoryMoment
from turnout.cli.demo.scenario import GPU, MAP_NAME, MAP_NAMESPACE, Raw
from turnout.kube import labels
from turnout.simulator.cluster.node_builder import NodeSpec, map_text
from turnout.simulator.local_cluster import LocalCluster
from turnout.topology.names import TEXT_KEY

NAMESPACE, QUEUE = "team", "team"
LEAVES, NODES_PER_LEAF, GPUS_PER_NODE = 2, 2, 4
GPUS = LEAVES * NODES_PER_LEAF * GPUS_PER_NODE

# Grows into what is idle; needs what A has been lent; fits only once B has left; may not be resized.
A, B, C = Player("A", 2, 12), Player("B", 6, 6), Player("C", 12, 12)
D = Player("D", 1, 4, restarts=True)
PLAYERS = (A, B, C, D)


def places() -> list[NodeSpec]:
    """Return the demo's nodes, leaf by leaf, each with its address and its switches."""
    found = []
    for number in range(LEAVES * NODES_PER_LEAF):
        path = ("spine-1", f"leaf-{number // NODES_PER_LEAF + 1}")
        found.append(NodeSpec(f"gpu-{number + 1}", f"10.30.0.{number + 1}", path))
    return found


def topology_map(where: Sequence[NodeSpec]) -> Raw:
    """Return the topology ConfigMap. where: nodes with their switches."""
    return {"metadata": {"name": MAP_NAME}, "data": {TEXT_KEY: map_text(where)}}


def queue() -> Raw:
    """Return the queue, whose quota is every GPU of the cluster."""
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": QUEUE},
        "spec": {"weight": 1, "reclaimable": True, "capability": {GPU: str(GPUS)}},
        "status": {"state": "Open"},
    }


def job(player: Player) -> Raw:
    """Return the manifest of a job of the story, a Volcano Job that starts with `minimum` workers of one GPU each.

    An elastic one has its max as an annotation. One with `restarts` restarts as a whole after an eviction.
    """
    container = {"name": "train", "image": "train", "resources": {"limits": {GPU: "1"}}}
    task: dict[str, Any] = {
        "name": "worker",
        "replicas": player.minimum,
        "minAvailable": player.minimum,
        "template": {"spec": {"containers": [container]}},
    }
    notes = {labels.MAX_WORKERS: str(player.maximum)} if player.elastic else {}
    spec: dict[str, Any] = {"minAvailable": player.minimum, "queue": QUEUE, "tasks": [task]}
    if player.restarts:
        spec["policies"] = [{"event": "PodEvicted", "action": "RestartJob"}]
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": player.name, "annotations": notes},
        "spec": spec,
    }


_JOBS = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{NAMESPACE}/jobs"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_OVER = ("Succeeded", "Failed")


class StoryFailed(Exception):
    """A step of the demo did not happen in time, or the autoscaler ended."""


class LendingTestbed:
    """The cluster of the lending demo. decisions: the autoscaler's last decision on each job, by the job's letter."""

    def __init__(self, cluster: LocalCluster, on_moment: Callable[[StoryMoment], None], patience_s: float) -> None:
        """Begin with an empty story. on_moment: called with each moment.

        patience_s: time limit of `until`, in seconds.
        """
        self._cluster, self._on_moment, self._patience_s = cluster, on_moment, patience_s
        self._letters = {player.name: player.letter for player in PLAYERS}
        self._pods: dict[str, GpuSeat] = {}
        self._news = asyncio.Event()
        self._began_s = asyncio.get_running_loop().time()
        self._silent = False
        self.decisions: dict[str, LoggedDecision] = {}
        self.moments: list[StoryMoment] = []

    async def set_up(self) -> None:
        """Create the namespaces, the nodes, the map and the queue, and start the controller of the jobs."""
        where = places()
        for name in (NAMESPACE, MAP_NAMESPACE):
            await self._cluster.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        maps = f"/api/v1/namespaces/{MAP_NAMESPACE}/configmaps"
        await self._cluster.api.call("POST", maps, topology_map(where))
        await self._cluster.add_nodes(where, GPUS_PER_NODE)
        await self._cluster.run_jobs()
        await self._cluster.api.call("POST", "/apis/scheduling.volcano.sh/v1beta1/queues", queue())

    def begin_story(self) -> None:
        """Begin the story: times count from here."""
        self._began_s = asyncio.get_running_loop().time()
        self._cluster.background.start(self._watch())

    async def arrive(self, player: Player) -> StoryMoment:
        """Record the arrival of a player, submit its job, and return the moment."""
        moment = self.note(MomentKind.ARRIVES, player.letter)
        await self._cluster.api.call("POST", _JOBS, job(player))
        return moment

    async def leave(self, player: Player) -> StoryMoment:
        """Record the departure of a player, delete its job, and return the moment."""
        moment = self.note(MomentKind.LEAVES, player.letter)
        await self._cluster.api.call("DELETE", f"{_JOBS}/{player.name}")
        return moment

    def hear(self, line: str) -> None:
        """Record the decision in a line of the autoscaler's log. line: "" means that the autoscaler has ended."""
        self._silent = not line
        logged = decision(line, PLAYERS)
        if logged is not None:
            self.decisions[logged.letter] = logged
            self.note(MomentKind.DECIDES, logged.letter, logged)
        self._news.set()

    def note(self, kind: MomentKind, letter: str = "", logged: LoggedDecision | None = None) -> StoryMoment:
        """Append an event to the story with the present time, pass it to `on_moment`, and return it.

        letter: of the job, "" for an event of no job. logged: the decision of a DECIDES event, else None. Times count
        from begin_story().
        """
        at_s = asyncio.get_running_loop().time() - self._began_s
        moment = StoryMoment(at_s, kind, letter, self.seats, logged)
        self.moments.append(moment)
        self._on_moment(moment)
        return moment

    @property
    def seats(self) -> tuple[GpuSeat, ...]:
        """List who holds which GPUs now."""
        return tuple(sorted(self._pods.values()))

    async def until(self, happens: Callable[[], bool], what: str) -> None:
        """Wait until `happens()` is true.

        what: the condition as text, such as "A has 12 workers". Raises StoryFailed after the time limit, or if the
        autoscaler ends.
        """
        try:
            async with asyncio.timeout(self._patience_s):
                while not happens():
                    if self._silent:
                        raise StoryFailed(f"the autoscaler ended before this was so: {what}")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError as error:
            raise StoryFailed(f"this was not so within {self._patience_s:g} s: {what}") from error

    async def _watch(self) -> None:
        """Watch the pods of the story until cancelled, and note each change of the GPUs that they hold as MOVES."""
        async for word, now in self._cluster.api.changes(_PODS):
            if word == "SYNCED":
                continue
            meta, spec, status = now.obj["metadata"], now.obj["spec"], now.obj.get("status") or {}
            sign = self._letters.get((meta.get("labels") or {}).get(labels.VOLCANO_JOB, ""))
            phase, before = status.get("phase"), self._pods.get(meta["name"])
            if sign is None or word == "DELETED" or phase in _OVER or not spec.get("nodeName"):
                self._pods.pop(meta["name"], None)
            else:
                index = int((meta.get("annotations") or {}).get(labels.VOLCANO_TASK_INDEX, 0))
                runs = phase == "Running" and not meta.get("deletionTimestamp")
                self._pods[meta["name"]] = GpuSeat(sign, index, spec["nodeName"], runs)
            if self._pods.get(meta["name"]) != before:
                self.note(MomentKind.MOVES)
            self._news.set()


_DECIDED, _RESIZED = "decided", "resized"


def decision(line: str, players: Sequence[Player]) -> LoggedDecision | None:
    """Return the decision on a player's job in a line of the autoscaler's log; None for any other line.

    Raises KeyError or ValueError for a decision without its fields. line: in JSON. players: whose jobs count.
    """
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    if not isinstance(fields, dict) or fields.get("event") not in (_DECIDED, _RESIZED):
        return None
    letters = {player.name: player.letter for player in players}
    letter = letters.get(_name(fields["job"]))
    if letter is None:
        return None
    return LoggedDecision(
        letter,
        workers_before=fields["workers_before"],
        workers=fields["workers"],
        reason=Reason(fields["reason"]),
        detail=fields.get("detail", ""),
        receiver=letters.get(_name(fields.get("for_job", "")), ""),
        is_written=fields["event"] == _RESIZED,
    )


def _name(job: str) -> str:
    """Return the last part of a job's full name, kind/namespace/name."""
    return job.rpartition("/")[2]
