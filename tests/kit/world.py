"""A small world for tests of the extender: nodes on a fabric, pods in every dialect, who asks about them.

Objects are built as tests.kit.cluster builds them for a real API server, and read as the extender reads them.
"""

from __future__ import annotations

import itertools

import msgspec

from tests.kit import cluster
from turnout.jobs.gang import Dialect
from turnout.kube import labels
from turnout.kube.objects import ContainerPort, Node, Owner, Pod, PodGroup
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.model import Rules
from turnout.scheduler_ext.planner.answers import answer_filter, answer_prioritize
from turnout.scheduler_ext.planner.plans import Plans
from turnout.scheduler_ext.wire.extender_v1 import failures
from turnout.topology.fabric import build
from turnout.topology.map_formats import read_map
from turnout.topology.model import DistanceRule

_uids = itertools.count(1)


def node(name="n0", gpus=8, ip="", **more):
    """A node as the extender sees it. more: as for hack.controlplane.nodes.gpu_node, or spec=..., conditions=..."""
    spec, conditions = more.pop("spec", {}), more.pop("conditions", None)
    raw_node = cluster.make_node(name, ip or "10.9.9.9", gpus, **more)
    raw_node["spec"].update(spec)
    if conditions is not None:
        raw_node["status"]["conditions"] = conditions
    return msgspec.convert(raw_node, Node)


def pod(name="p", gpus=1, at="", **more):
    """A pod as the extender sees it. at: the node it is bound to. created: seconds, uid, priority, phase, leaving."""
    meta = {key: more.pop(key) for key in ("uid", "owner", "version") if key in more}
    created, phase, leaving = more.pop("created", 0), more.pop("phase", "Pending"), more.pop("leaving", False)
    raw_pod = cluster.make_pod(name, gpus, **more)
    return see(raw_pod, at, created=created, phase=phase, leaving=leaving, **meta)


def see(
    raw_pod,
    at="",
    created=0,
    phase="Pending",
    leaving=False,
    uid=None,
    owner=None,
    nominated="",
    ours=False,
    version="",
):
    """A pod built by tests.kit.cluster, with what the API server and the scheduler add."""
    raw_pod = msgspec.json.decode(msgspec.json.encode(raw_pod))
    meta = raw_pod["metadata"]
    meta["uid"] = uid or f"uid-{meta['name']}"
    meta["resourceVersion"] = version
    meta["creationTimestamp"] = f"2026-01-01T{created // 3600:02d}:{created // 60 % 60:02d}:{created % 60:02d}Z"
    if leaving:
        meta["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    if owner:
        kind, name = owner.split("/")
        meta["ownerReferences"] = [{"kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}]
    if at:
        raw_pod["spec"]["nodeName"] = at
    raw_pod["status"] = {"phase": phase}
    if nominated:
        raw_pod["status"]["nominatedNodeName"] = nominated
        manager = labels.FIELD_MANAGER_NOMINATOR if ours else "kube-scheduler"
        owned = {"f:status": {"f:nominatedNodeName": {}}}
        meta["managedFields"] = [{"manager": manager, "subresource": "status", "fieldsV1": owned}]
    return msgspec.json.decode(msgspec.json.encode(raw_pod), type=Pod)


def group(name, minimum, namespace="default", created=0, **spec):
    """A PodGroup of any dialect."""
    stamp = f"2026-01-01T00:00:{created:02d}Z"
    meta = {"name": name, "namespace": namespace, "uid": f"uid-group-{name}", "creationTimestamp": stamp}
    return msgspec.convert({"metadata": meta, "spec": {"minMember": minimum, **spec}}, PodGroup)


def owner(kind, name, **spec):
    """A Job or StatefulSet."""
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return msgspec.convert({"kind": kind, "metadata": meta, "spec": spec}, Owner)


def volcano(name, size, gpus=8, at=(), **more):
    """The pods of a Volcano gang. at: the nodes of the first ones."""
    return _members(cluster.volcano_gang(name, size, gpus, **_spec(more)), at, more)


def koordinator(name, size, minimum=None, gpus=8, at=(), **more):
    """The pods of a koordinator gang, which says its min itself."""
    return _members(
        cluster.koordinator_gang(name, size, minimum, gpus, more.pop("total", None), **_spec(more)), at, more
    )


def _spec(more):
    return {
        key: more.pop(key) for key in list(more) if key in ("priority", "notes", "marks", "nodeSelector", "namespace")
    }


def _members(raw_pods, at, more):
    places = [*at, *[""] * len(raw_pods)]
    return [see(each, place, **more) for each, place in zip(raw_pods, places, strict=False)]


REQUIRED = {labels.TOPOLOGY: "required"}


class World:
    """A ClusterView and its Plans. Nodes on leaves: a0 a1 ... on leaf 0, b0 b1 ... on leaf 1; two to a spine."""

    def __init__(self, *leaves, gpus=8, rules=None, off_map=0, mapped=True):
        self.rules = rules or Rules()
        self.view = ClusterView(self.rules.gpu_resources)
        self.now_s = 1000.0
        self.nodes, lines = [], []
        for leaf, size in enumerate(leaves):
            for host in range(size):
                name, ip = f"{chr(97 + leaf)}{host}", f"10.0.{leaf}.{host + 1}"
                self.nodes.append(node(name, gpus, ip))
                lines.append(f"asw{leaf} psw{leaf // 2} {ip}")
        self.nodes += [node(f"x{at}", gpus, f"10.99.0.{at + 1}") for at in range(off_map)]
        self.fabric = build(read_map({"topology_config": "\n".join(lines)}).entries)
        for each in self.nodes:
            self.view.layout.put_node(each)
        if mapped:
            self.view.layout.set_map(self.fabric)
        rule = DistanceRule.LEAF_ONLY if self.rules.leaf_only else DistanceRule.ALL_TIERS
        self.plans = Plans(self.view, rule, self.rules.hold_incomplete)

    @property
    def names(self):
        """Every node, in the order of the fabric."""
        return [each.metadata.name for each in self.nodes]

    def put(self, *pods):
        """Show pods to the view."""
        for each in pods:
            self.view.put_pod(each)
        return self

    def put_group(self, name, minimum, dialect=Dialect.VOLCANO, created=0, **spec):
        """Show a PodGroup."""
        self.view.groups.put_group(dialect, group(name, minimum, created=created, **spec))
        return self

    def member(self, pod_):
        """The pod as the view knows it."""
        return self.view.pods[pod_.metadata.uid]

    def fit(self, pod_, names=None):
        """Ask filter, and believe the answer as the extender does."""
        self.now_s += 0.01
        names = self.free(pod_) if names is None else names
        answer = answer_filter(self.plans, self.member(pod_), names, self.rules, self.now_s)
        if answer.nodes:
            self.view.assume(self.member(pod_), answer.nodes[0], self.now_s)
        return Told(answer, names)

    def rank(self, pod_, names=None):
        """Ask prioritize: {node: score}."""
        self.now_s += 0.01
        return dict(answer_prioritize(self.plans, self.member(pod_), names or self.names, self.rules, self.now_s))

    def free(self, pod_):
        """The nodes that the scheduler's own filters would leave: those with room beside the pods bound or assumed."""
        self.view.settle(self.now_s)
        member, snapshot = self.member(pod_), self.view.snapshot
        own = self.view.node_of(member)
        return [n for n in self.names if n == own or snapshot.room_at(snapshot.row_of[n], member.shape) > 0]

    def bind(self, pod_, at):
        """The watch shows the pod on its node."""
        spec = msgspec.structs.replace(pod_.spec, node_name=at)
        self.view.put_pod(msgspec.structs.replace(pod_, spec=spec))

    def schedule(self, *pods):
        """Show the pods, ask about each and bind it where filter says; {pod: node}, without those refused."""
        self.put(*(each for each in pods if each.metadata.uid not in self.view.pods))
        node_by_pod = {}
        for each in pods:
            nodes = self.fit(each).nodes
            if nodes:
                self.bind(each, nodes[0])
                node_by_pod[each.metadata.name] = nodes[0]
        return node_by_pod

    def plan(self, pod_):
        """The plan of the pod's gang: {pod: node}."""
        self.view.settle(self.now_s)
        plan = self.plans.plan_of(self.member(pod_).membership.key, self.now_s)
        hosts = self.view.fabric.hosts
        return {self.view.pods[uid].name: hosts[host] for uid, host in plan.hosts.items()} if plan else {}


class Told:
    """An answer to filter as a scheduler reads it."""

    def __init__(self, answer, names):
        self.nodes, self.refusal, self.retry, self.pause_s = answer.nodes, answer.refusal, answer.retry, answer.pause_s
        self.all_kept = not answer.has_opinion
        self.no_room, self.forbidden = ({}, {}) if self.all_kept else failures(answer, names)

    @property
    def node(self):
        return self.nodes[0] if self.nodes else ""


def leaves(node_by_pod):
    """The leaves of some nodes, as letters: leaves({"p": "a1"}) is {"a"}."""
    return {place[0] for place in node_by_pod.values()}


def port(number, host=0):
    """A container's port."""
    return ContainerPort(container_port=number, host_port=host)


def fabric(leaves_, spine="psw0"):
    """A fabric of leaves under one spine, each a list of hosts' keys."""
    lines = [f"asw{at} {spine} {key}" for at, leaf in enumerate(leaves_) for key in leaf]
    return build(read_map({"topology_config": "\n".join(lines)}).entries)
