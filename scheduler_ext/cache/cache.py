"""What the extender knows: pods gathered into gangs, their PodGroups and owners, and the room that is left.

Fed with sightings, in any order and any number of times; asked for one gang at a time. It decides nothing: who gets
which host is in plan_cache.py. One thread changes it between requests and never within one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from turnout.jobs.gang import Dialect, GangKey
from turnout.kube.errors import BadQuantity
from turnout.kube.node_capacity import Charge, ClusterSnapshot
from turnout.kube.objects import Node, Owner, Pod, PodGroup
from turnout.scheduler_ext.cache.assumed_pods import AssumedPods
from turnout.scheduler_ext.cache.gang import Gang, Sizing
from turnout.scheduler_ext.cache.pod_info import Member, member_of
from turnout.topology.fabric import EMPTY, Fabric, with_strangers

PATIENCE_S = 30.0  # how long room is kept, after the last member came, for those that a gang announces
MOST_PATIENCE_S = 300.0  # the same since its first member came: who lets them trickle keeps no room for ever


class GangView:
    """Everything seen. `touched` names the gangs that changed since the book last looked."""

    def __init__(self, gpu_resources: tuple[str, ...]) -> None:
        self.fabric: Fabric = EMPTY
        self.snapshot = ClusterSnapshot()
        self.gangs: dict[GangKey, Gang] = {}
        self.pods: dict[str, Member] = {}
        self.touched: set[GangKey] = set()
        self.layout = 0  # raised when host ids change their meaning
        self.ledger = AssumedPods()
        self.sent: dict[str, str] = {}  # uid -> node: nominations of ours that the watch has not shown yet
        self.unreadable_pods = 0
        self._gpu_resources = gpu_resources
        self._map: Fabric = EMPTY
        self._ips: dict[str, str] = {}
        self._stale_layout = True
        self._sizings: dict[GangKey, Sizing] = {}
        self._arrived: dict[GangKey, None] = {}  # gangs that got a new member since the last look
        self._expected: dict[GangKey, float] = {}  # gangs whose missing members are waited for, and until when
        self._incomplete_s: dict[GangKey, float] = {}  # gangs that are not whole, and since when
        self._look_at_s = math.inf  # when the first of them need not be waited for any more

    # Sightings.

    def put_pod(self, pod: Pod) -> None:
        """Take in a pod as it is now."""
        try:
            member = member_of(pod, self._gpu_resources)
        except BadQuantity:
            self.unreadable_pods += 1
            member = None
        if member is None:
            self.drop_pod(pod.metadata.uid)
            return
        old = self.pods.get(member.uid)
        if old == member:
            return
        if old is not None and old.belongs.key != member.belongs.key:
            self._leave(old)
        self.pods[member.uid] = member
        if member.node:
            self.ledger.forget(member.uid)
        self._charge(member)
        if not member.silence or member.belongs.key.dialect != Dialect.ALONE.value:
            self._join(member, pod.metadata.resource_version, new=old is None)

    def drop_pod(self, uid: str) -> None:
        """A pod is gone or finished."""
        self.ledger.forget(uid)
        self.sent.pop(uid, None)
        self.snapshot.release(uid)
        member = self.pods.pop(uid, None)
        if member is not None:
            self._leave(member)

    def put_group(self, dialect: Dialect, group: PodGroup) -> None:
        """Take in a PodGroup of one dialect."""
        meta = group.metadata
        key = GangKey(meta.namespace, meta.name, dialect.value)
        self._size(key, Sizing(group.spec.min_member, None, meta.uid, meta.creation_timestamp or "", meta.name))

    def drop_group(self, dialect: Dialect, namespace: str, name: str) -> None:
        """A PodGroup is gone; its pods speak for themselves."""
        self._size(GangKey(namespace, name, dialect.value), None)

    def put_owner(self, kind: str, owner: Owner) -> None:
        """Take in a Job or StatefulSet: how many pods it will have. They start together only if they say so."""
        spec, meta = owner.spec, owner.metadata
        if kind == "Job":
            bounds = [n for n in (spec.parallelism, spec.completions) if n is not None]
            total = min(bounds, default=1)
        else:
            total = spec.replicas if spec.replicas is not None else 1
        key = GangKey(meta.namespace, f"{kind}/{meta.name}", Dialect.OWNER.value)
        self._size(key, Sizing(None, total or None, meta.uid, meta.creation_timestamp or "", meta.name))

    def drop_owner(self, kind: str, namespace: str, name: str) -> None:
        """A Job or StatefulSet is gone."""
        self._size(GangKey(namespace, f"{kind}/{name}", Dialect.OWNER.value), None)

    def put_node(self, node: Node) -> None:
        """Take in a node as it is now."""
        name = node.metadata.name
        ip = next((a.address for a in node.status.addresses or () if a.type == "InternalIP"), "")
        if self._ips.get(name) != ip:
            self._ips[name] = ip
            self._stale_layout = True
        if not self.snapshot.put_node(node):
            self._stale_layout = True

    def drop_node(self, name: str) -> None:
        """A node is gone. Its place in the tables is given up with the next new layout."""
        self._ips.pop(name, None)
        self.snapshot.drop_node(name)

    def set_map(self, fabric: Fabric) -> None:
        """Take in a new fabric, whose hosts are named as the map names them: by InternalIP or by node name."""
        self._map = fabric
        self._stale_layout = True

    # Answers.

    def settle(self, now_s: float) -> None:
        """Bring the tables up to date before a decision: layout if hosts changed, and the ledger's expiry."""
        for uid in self.ledger.expire(now_s):
            member = self.pods.get(uid)
            if member is not None:
                self._charge(member)
                self.touched.add(member.belongs.key)
        self._wait_for_members(now_s)
        if self._stale_layout:
            self._lay_out()

    def assume(self, member: Member, node: str, now_s: float) -> None:
        """Remember that this pod was just sent to this node, until the watch shows where it went."""
        if member.node or member.uid not in self.pods:
            return
        self.ledger.assume(member.uid, node, now_s)
        self._charge(member)
        self.touched.add(member.belongs.key)

    def disbelieve(self, member: Member) -> None:
        """The scheduler does not offer the node that the pod was sent to: forget that it was."""
        self.ledger.forget(member.uid)
        self._charge(member)
        self.touched.add(member.belongs.key)

    def host_of(self, member: Member) -> int | None:
        """The host a member holds: bound, assumed, or nominated by somebody else. None while it holds none."""
        return self.snapshot.row_of.get(self.place_of(member))

    def wish_of(self, member: Member) -> str:
        """Where our nominator has sent a waiting member, as the watch shows it or as it was just written; "" if not."""
        return self.sent.get(member.uid, member.nominated if member.ours else "")

    def place_of(self, member: Member) -> str:
        """The node that a member takes room on: "" for none.

        Our own nomination of a gang's member is a plan, which a gang ahead may take back; that of a lone pod is a fact.
        """
        if member.node:
            return member.node
        assumed = self.ledger.node_of(member.uid)
        if assumed:
            return assumed
        if not self._alive(member.nominated) or (member.ours and member.belongs.key.dialect != Dialect.ALONE.value):
            return ""
        return member.nominated

    def missing(self, gang: Gang) -> int:
        """How many members are still to be created. 0 once nobody new has come for PATIENCE_S, and once the gang was
        whole: room is kept neither for pods that never come nor for those that have ended."""
        return max(0, gang.total - len(gang.living())) if gang.key in self._expected else 0

    def mapped_hosts(self) -> int:
        """How many hosts the map knows, whether or not they have a node."""
        return self.fabric.mapped_count

    def waiting_gangs(self) -> Iterator[Gang]:
        """Gangs with a member that waits, in no order."""
        return (gang for gang in self.gangs.values() if any(m.waits for m in gang.members.values()))

    # Inside.

    def _alive(self, node: str) -> bool:
        return bool(node) and node in self.snapshot.nodes

    def _charge(self, member: Member) -> None:
        node = self.place_of(member)
        if node:
            self.snapshot.charge(member.uid, Charge(node, member.shape, member.priority))
        else:
            self.snapshot.release(member.uid)

    def _wait_for_members(self, now_s: float) -> None:
        """Wait a while longer for the rest of gangs that got a member, and no longer for those whose time is over."""
        for key in self._arrived:
            gang = self.gangs[key]
            if 0 < gang.announced <= len(gang.living()):
                self._expected.pop(key, None)
                self._incomplete_s.pop(key, None)
                continue
            since_s = self._incomplete_s.setdefault(key, now_s)
            self._expected[key] = min(now_s + PATIENCE_S, since_s + MOST_PATIENCE_S)
            self._look_at_s = min(self._look_at_s, self._expected[key])
        self._arrived.clear()
        if now_s < self._look_at_s:
            return
        for key in [key for key, until_s in self._expected.items() if until_s <= now_s]:
            del self._expected[key]
            self.touched.add(key)
        self._look_at_s = min(self._expected.values(), default=math.inf)

    def _join(self, member: Member, version: str, new: bool) -> None:
        """Count a pod to its gang. new: not known before; one that only changed its gang is not waited for."""
        key = member.belongs.key
        gang = self.gangs.get(key)
        if gang is None:
            gang = self.gangs[key] = Gang(
                key, sizing=self._sizings.get(key), version=int(version) if version.isdecimal() else 0
            )
        if new:
            self._arrived[key] = None
        gang.members[member.uid] = member
        self.touched.add(key)

    def _leave(self, member: Member) -> None:
        key = member.belongs.key
        gang = self.gangs.get(key)
        if gang is None or gang.members.pop(member.uid, None) is None:
            return
        self.touched.add(key)
        if not gang.members:
            del self.gangs[key]
            for kept in (self._expected, self._incomplete_s):
                kept.pop(key, None)
            self._arrived.pop(key, None)

    def _size(self, key: GangKey, sizing: Sizing | None) -> None:
        if sizing is None:
            self._sizings.pop(key, None)
        else:
            self._sizings[key] = sizing
        gang = self.gangs.get(key)
        if gang is not None and gang.sizing != sizing:
            gang.sizing = sizing
            self.touched.add(key)

    def _lay_out(self) -> None:
        """Name the fabric's hosts by node, put nodes off the map behind them, and lay the tables out so."""
        names = sorted(self._ips, reverse=True)  # of two nodes with one address the first by name has it
        by_key = {self._ips[name]: name for name in names if self._ips[name]} | {name: name for name in names}
        known = renamed(self._map, by_key)
        on_map = set(known.hosts)
        self.fabric = with_strangers(known, sorted(name for name in self._ips if name not in on_map))
        self.snapshot.lay_out(self.fabric.hosts)
        self.layout += 1
        self._stale_layout = False


def renamed(fabric: Fabric, by_key: dict[str, str]) -> Fabric:
    """The same fabric with its hosts called by their nodes' names; a host without a node keeps its own."""
    hosts = tuple(by_key.get(host, host) for host in fabric.hosts)
    return replace(fabric, hosts=hosts, index={name: host for host, name in enumerate(hosts)})
