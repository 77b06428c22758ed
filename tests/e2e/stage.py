"""Set up a story on a real control plane: nodes on a fabric, our programs, gangs, and where their pods ran."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from collections import Counter

from hack.controlplane import scheduler_config
from hack.controlplane.plane import free_ports
from tests.kit import cluster
from turnout.topology.fabric import build, ring_cost
from turnout.topology.map_formats import read_map

MAP = "default/node-topology-config"
RESERVATIONS = "default/turnout-reservations"  # the nominator makes it


class Stage:
    """One cluster for one story."""

    def __init__(self, plane, rng):
        self.plane, self.rng = plane, rng
        self.extenders: dict[str, int] = {}
        self.health: dict[str, int] = {}

    async def build(self, leaves=8, hosts_per_leaf=8, gpus=8, with_map=True, **more):
        """Create the nodes and the map, and play the kubelets."""
        nodes, self.text = cluster.make_fabric(leaves, hosts_per_leaf, self.rng, gpus, **more)
        self.ip_of = {n["metadata"]["name"]: n["status"]["addresses"][0]["address"] for n in nodes}
        self.leaf = cluster.leaf_of(self.text)
        async with self.plane.api() as api:
            await api.create_all(nodes)
            if with_map:
                await api.create(cluster.config_map(self.text))
        self.plane.start_kwok()
        return self

    def start_extender(self, name="extender", *flags):
        """Start our extender as a process and wait until it has seen everything. Returns its port."""
        port, health = self.extenders.get(name, 0), self.health.get(name, 0)
        if not port:
            port, health = free_ports(2)
        argv = [sys.executable, "-m", "turnout.scheduler_ext", "--kubeconfig", str(self.plane.kubeconfig)]
        argv += ["--configmap", MAP, "--reservations", RESERVATIONS, "--bind", f"127.0.0.1:{port}"]
        argv += ["--metrics-bind", f"127.0.0.1:{health}", *flags]
        self.plane.start_program(name, argv, f"http://127.0.0.1:{health}/readyz")
        self.extenders[name], self.health[name] = port, health
        return port

    def start_nominator(self, name="nominator", *flags, lease="default/turnout-nominator"):
        """Start our nominator as a process and wait until it has seen everything."""
        (health,) = free_ports(1)
        argv = [sys.executable, "-m", "turnout.scheduler_ext.nominator", "--kubeconfig", str(self.plane.kubeconfig)]
        argv += [
            "--configmap",
            MAP,
            "--reservations",
            RESERVATIONS,
            "--lease",
            lease,
            "--metrics-bind",
            f"127.0.0.1:{health}",
            *flags,
        ]
        self.plane.start_program(name, argv, f"http://127.0.0.1:{health}/readyz")
        self.health[name] = health

    def start_scheduler(self, port=None, shipped=scheduler_config.SHIPPED, **options):
        """Start kube-scheduler with the shipped configuration, its extender's address filled in."""
        port = port or self.extenders["extender"]
        config = scheduler_config.with_extender_url(f"http://127.0.0.1:{port}", file=shipped)
        self.plane.start_scheduler(config, **options)

    async def submit(self, *objects):
        """Create objects in the order given."""
        async with self.plane.api() as api:
            return await api.create_all(objects)

    async def landed(self, gang, size, within_s=120.0, namespace="default"):
        """Wait until `size` pods of a gang are bound; {pod: node}."""
        path = f"/api/v1/namespaces/{namespace}/pods?labelSelector=gang%3D{gang}"
        async with self.plane.api() as api:
            return await api.until(path, cluster.bound(size), within_s)

    def leaves(self, node_by_pod):
        """How many pods each leaf got."""
        return Counter(self.leaf[self.ip_of[node]] for node in node_by_pod.values())

    def ring(self, node_by_pod):
        """Return the cost on the real fabric of a ring over the pods' indices."""
        fabric = build(read_map({"topology_config": self.text}).entries)
        by_rank = sorted(node_by_pod.items(), key=lambda item: int(item[0].rsplit("-", 1)[1]))
        return ring_cost(fabric, [fabric.id_of_host[self.ip_of[node]] for _, node in by_rank])

    async def events(self, reason, within_s=60.0, namespace="default"):
        """Wait for an Event with this reason."""

        def matching_events(events):
            return [event for event in events if event["reason"] == reason]

        async with self.plane.api() as api:
            return await api.until(f"/api/v1/namespaces/{namespace}/events", matching_events, within_s)

    def view(self, name="extender"):
        """The extender's own account of the world."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.health[name]}/debug/view", timeout=5) as answer:
            return json.load(answer)

    def metric(self, series, name="extender"):
        """The value of one series on the metrics page; 0.0 when it is not there."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.health[name]}/metrics", timeout=5) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(series + " "):
                    return float(line.rsplit(" ", 1)[1])
        return 0.0

    async def eventually(self, true, within_s=60.0):
        """Ask again and again until the answer is true; give it."""
        async with asyncio.timeout(within_s):
            while True:
                if answer := true():
                    return answer
                await asyncio.sleep(0.05)
