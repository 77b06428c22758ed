"""The processes that are measured, and the API server beside them: `python -m hack.bench.extender.children WHAT ...`.

ours: the extender as it is shipped, its times written down request by request. noop: the same server with nothing to
say. api: the simulator's API with a cluster in it that changes all the time.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

from hack.bench.extender import cluster
from hack.bench.scheduler.noop import NoopExtender
from turnout.kube.client import logs
from turnout.kube.client.run_until_signal import run_until_signal
from turnout.scheduler_ext.__main__ import serve as serve_extender
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.ports import Listen, Listeners
from turnout.scheduler_ext.settings import extender_settings
from turnout.simulator.api.kinds.catalogue import ROWS
from turnout.simulator.api.server.serve import serve as serve_api
from turnout.simulator.api.store import Store
from turnout.simulator.api.writes.deletion import DeleteOptions

PACE_S = 0.02  # between bursts of events


class PhaseTimes:
    """Replaces the phase histogram: keeps each request's decode, plan and encode times in order, in seconds."""

    def __init__(self) -> None:
        self.taken_s = array("d")

    def labels(self, *_: str) -> PhaseTimes:
        """Return this same series for all labels. The order of the requests tells verbs and phases apart."""
        return self

    def observe(self, seconds: float) -> None:
        """Store the time of one phase of a request. seconds: the time."""
        self.taken_s.append(seconds)


class TimedMetrics(Metrics):
    """The extender's metrics, with every handler time kept."""

    def __init__(self) -> None:
        super().__init__()
        self.times = PhaseTimes()
        self.phase = self.times  # type: ignore[assignment]


async def serve_ours(metrics: Metrics, flags: Sequence[str]) -> None:
    """Run the extender until SIGTERM."""
    await serve_extender(extender_settings(flags), metrics)


async def serve_noop(metrics: Metrics, port_file: Path) -> None:
    """Serve a no-op extender, which answers at once, until SIGTERM. port_file: gets the port."""
    async with Listeners(NoopExtender(), metrics, Listen(port=0, health_port=0)) as opened:
        _write_whole(port_file, str(opened.port))
        await run_until_signal()


async def serve_changing_cluster(kubeconfig: Path, nodes: int, pods: int, events_per_s: float) -> None:
    """Serve an API with a cluster that changes at this rate, until SIGTERM.

    The kubeconfig is written when the cluster is complete. kubeconfig: the file, through which the API is found. nodes,
    pods: in the cluster. events_per_s: watch events that the changes cause.
    """
    part_file = kubeconfig.with_suffix(".part")
    async with serve_api(part_file, kept_changes=50_000) as served:
        churn = Churn(served.store, nodes, pods)
        gc.collect()
        gc.freeze()  # else each page of a list has the collector walk the whole cluster
        part_file.rename(kubeconfig)
        await run_until_signal(churn.run(events_per_s))


class Churn:
    """A new cluster in a store, and its changes: pods that report or are replaced, and heartbeats of nodes."""

    def __init__(self, store: Store, nodes: int, pods: int) -> None:
        kinds = {kind.resource: kind for kind in ROWS}
        self._store, self._nodes = store, nodes
        self._node, self._pod = kinds["nodes"], kinds["pods"]
        self._rng = random.Random(7)
        store.create(kinds["configmaps"], cluster.MAP_NAMESPACE, cluster.topology_map(nodes))
        for number in range(nodes):
            store.create(self._node, "", cluster.node(number))
        self._bound = [
            (self._new_pod(f"serve-{n}", on), on)
            for n, on in enumerate(cluster.busy_nodes(nodes, pods, random.Random(3)))
        ]
        self._created = pods

    async def run(self, events_per_s: float) -> None:
        """Change pods and nodes so that `events_per_s` watch events arise per second, until cancelled."""
        start_s, done = time.monotonic(), 0
        while True:
            await asyncio.sleep(PACE_S)
            due = int((time.monotonic() - start_s) * events_per_s)
            while done < due:
                done += self._change(done)

    def _change(self, events_so_far: int) -> int:
        """Make one change: a node's heartbeat, a pod's new status, or a pod replaced by another one.

        Returns the number of watch events of the change: 1, or 2 for the replacement. events_so_far: its remainder by 4
        chooses the kind of change.
        """
        if events_so_far % 4 == 0:
            which = self._rng.randrange(self._nodes)
            beat = cluster.node(which, events_so_far)
            self._store.update(self._node, "", cluster.node_name(which), beat, "status")
            return 1
        at = self._rng.randrange(len(self._bound))
        name, on = self._bound[at]
        if events_so_far % 4 == 1:
            status = {"phase": "Running", "podIP": f"10.1.{events_so_far % 250}.{at % 250}"}
            self._store.update(self._pod, cluster.NAMESPACE, name, self._with_status(name, status), "status")
            return 1
        # Another of its kind takes its place, so that the cluster stays as full as it was.
        self._store.delete(self._pod, cluster.NAMESPACE, name, DeleteOptions(grace_s=0))
        self._created += 1
        self._bound[at] = (self._new_pod(f"serve-{self._created}", on), on)
        return 2

    def _with_status(self, name: str, status: cluster.Raw) -> cluster.Raw:
        return {**self._store.objects.get(self._pod, cluster.NAMESPACE, name).obj, "status": status}

    def _new_pod(self, name: str, on: int) -> str:
        self._store.create(self._pod, cluster.NAMESPACE, cluster.pod(name, 1, cluster.node_name(on)))
        return name


def _write_whole(file: Path, text: str) -> None:
    file.with_suffix(".part").write_text(text)
    file.with_suffix(".part").rename(file)  # no reader sees a part of the text


def main(argv: Sequence[str]) -> int:
    """Run the API, the extender or the no-op, as the first argument says, until SIGTERM. Return 0.

    argv: the program, a file, and further arguments. For the API the file is the kubeconfig; for the others it gets the
    times of all requests at the end.
    """
    logs.setup("warning")
    what, file, *rest = argv
    metrics = TimedMetrics()
    if what == "api":
        settings = json.loads(rest[0])
        asyncio.run(serve_changing_cluster(Path(file), settings["nodes"], settings["pods"], settings["events_per_s"]))
        return 0
    asyncio.run(serve_ours(metrics, rest) if what == "ours" else serve_noop(metrics, Path(rest[0])))
    Path(file).write_bytes(metrics.times.taken_s.tobytes())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
