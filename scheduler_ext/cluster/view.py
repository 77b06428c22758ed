"""The cluster as the extender knows it: pods in gangs, and the free room on nodes.

Objects may be put in any order and any number of times. Questions are about one gang at a time. One thread changes the
view, never during a request. PodGroups and owners are in `pod_group_index.py`. `planner/plans.py` decides which gang
gets which host.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from heapq import nsmallest

import numpy as np

from turnout.jobs.gang import LEADER_WORKER_SET, Dialect, GangKey
from turnout.jobs.wishes.model import MAX_TOGETHER
from turnout.kube.errors import BadQuantity, KubeError, TooComplex
from turnout.kube.node_capacity import Charge, ClusterSnapshot, Rows
from turnout.kube.objects import Node, Pod
from turnout.kube.pod_shape import Term, admission_view, preference
from turnout.scheduler_ext.cluster.gang import Gang, GangChanges
from turnout.scheduler_ext.cluster.levels import Levels
from turnout.scheduler_ext.cluster.member import GangMember, member_of
from turnout.scheduler_ext.cluster.pod_group_index import PodGroupIndex
from turnout.topology.fabric import EMPTY, Fabric, with_unmapped_hosts


class HostLayout:
    """The map and the addresses of the nodes, from which the fabric is laid out."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        """Start without nodes and without a map. snapshot: gets each node."""
        self.is_stale = True  # True if the hosts have changed since the last `lay_out`
        self._snapshot = snapshot
        self._map: Fabric = EMPTY
        self._ips: dict[str, str] = {}  # node -> InternalIP, "" for none

    def put_node(self, node: Node) -> None:
        """Add or update a node. If its name or its InternalIP is new, the layout is stale."""
        name = node.metadata.name
        ip = next((a.address for a in node.status.addresses or () if a.type == "InternalIP"), "")
        if self._ips.get(name) != ip:
            self._ips[name] = ip
            self.is_stale = True
        if not self._snapshot.put_node(node):
            self.is_stale = True

    def drop_node(self, name: str) -> None:
        """Remove a node. Its row in the tables is removed with the next new layout."""
        self._ips.pop(name, None)
        self._snapshot.drop_node(name)

    def set_map(self, fabric: Fabric) -> None:
        """Use a new fabric, whose hosts have the names of the map: InternalIPs or node names."""
        self._map = fabric
        self.is_stale = True

    def lay_out(self) -> Fabric:
        """Return the fabric: the map's hosts under the names of their nodes, then the nodes off the map.

        Host ids get a new meaning.
        """
        names = sorted(self._ips, reverse=True)  # of two nodes with one address the first by name has it
        by_key = {self._ips[name]: name for name in names if self._ips[name]} | {name: name for name in names}
        known = with_node_names(self._map, by_key)
        on_map = set(known.hosts)
        self.is_stale = False
        return with_unmapped_hosts(known, sorted(name for name in self._ips if name not in on_map))


def with_node_names(fabric: Fabric, by_key: dict[str, str]) -> Fabric:
    """Return a copy of the fabric with the hosts named like their nodes. A host without a node keeps its name.

    by_key: name or InternalIP of a host -> name of its node.
    """
    hosts = tuple(by_key.get(host, host) for host in fabric.hosts)
    return replace(fabric, hosts=hosts, id_of_host={name: host for host, name in enumerate(hosts)})


PATIENCE_S = 30.0  # how long room is reserved for announced members after the last member came
MAX_PATIENCE_S = 300.0  # from the first member on, once in a gang's life, whatever size is stated later
# A LeaderWorkerSet with the start-up policy LeaderReady makes the workers once the leader is ready: room for up to so
# many workers is reserved while the leader runs, so long after it came.
MAX_LEADER_WAIT_S = 1_800.0
MAX_AWAITED_WORKERS = 64


class AwaitedMembers:
    """The gangs for whose missing members room is reserved, and until when."""

    def __init__(
        self,
        gangs: Mapping[GangKey, Gang],
        changed_gangs: GangChanges,
        node_of: Callable[[GangMember], str],
    ) -> None:
        """Start without gangs.

        gangs: those that have a pod. changed_gangs: gets the gangs that are not waited for any more. node_of: returns
        the node on which a member takes room, "" if it takes none.
        """
        self._gangs, self._changed_gangs, self._node_of = gangs, changed_gangs, node_of
        self._gangs_with_new_members: dict[GangKey, None] = {}  # gangs with a new member since the last update
        self._wait_until_s: dict[GangKey, float] = {}
        self._incomplete_since_s: dict[GangKey, float] = {}  # gangs that lacked members, and when that was first so
        self._next_expiry_s = math.inf  # when the first of them need not be waited for any more

    def note_new_member(self, key: GangKey) -> None:
        """Note that a gang has a new member. The next `update` prolongs the wait for further members."""
        self._gangs_with_new_members[key] = None

    def forget(self, key: GangKey) -> None:
        """Forget a deleted gang."""
        for table in (self._wait_until_s, self._incomplete_since_s):
            table.pop(key, None)
        self._gangs_with_new_members.pop(key, None)

    def missing_pods(self, gang: Gang) -> int:
        """Count the members that do not exist yet and for which room is reserved.

        The count is 0 once no new member has come for PATIENCE_S, MAX_PATIENCE_S after the gang was first incomplete,
        and once the gang was complete. So no room is reserved for pods that never come or have ended. The workers of a
        LeaderWorkerSet are waited for longer (MAX_LEADER_WAIT_S).
        """
        return max(0, gang.total - len(gang.living())) if gang.key in self._wait_until_s else 0

    def update(self, now_s: float) -> None:
        """Update until when room is reserved for members that do not exist yet.

        Each new member prolongs the time to PATIENCE_S from now, at most MAX_PATIENCE_S after the gang was first
        incomplete. After that time no room is reserved, and the gang is marked as changed; the workers of a
        LeaderWorkerSet are waited for longer (`_awaits_workers`). A complete gang is not waited for. now_s: by the
        monotonic clock.
        """
        for key in self._gangs_with_new_members:
            gang = self._gangs[key]
            if 0 < gang.expected_pods <= len(gang.living()):
                self._wait_until_s.pop(key, None)
                continue
            since_s = self._incomplete_since_s.setdefault(key, now_s)
            self._wait_until_s[key] = min(now_s + PATIENCE_S, since_s + MAX_PATIENCE_S)
            self._next_expiry_s = min(self._next_expiry_s, self._wait_until_s[key])
        self._gangs_with_new_members.clear()
        if now_s < self._next_expiry_s:
            return
        for key in [key for key, until_s in self._wait_until_s.items() if until_s <= now_s]:
            if self._awaits_workers(self._gangs[key], now_s):
                self._wait_until_s[key] = now_s + PATIENCE_S
                continue
            del self._wait_until_s[key]
            self._changed_gangs.add(key)
        self._next_expiry_s = min(self._wait_until_s.values(), default=math.inf)

    def _awaits_workers(self, gang: Gang, now_s: float) -> bool:
        """Return True if the leader of a LeaderWorkerSet group holds a host and its workers may still come.

        False if more than MAX_AWAITED_WORKERS are missing, or MAX_LEADER_WAIT_S after the group was first incomplete.
        now_s: by the monotonic clock.
        """
        since_s = self._incomplete_since_s.get(gang.key, -math.inf)
        missing = gang.total - len(gang.living())
        is_group = gang.key.dialect == Dialect.OWNER.value and gang.key.name.startswith(LEADER_WORKER_SET)
        if not is_group or missing > MAX_AWAITED_WORKERS or now_s >= since_s + MAX_LEADER_WAIT_S:
            return False
        return any(m.membership.rank == 0 and self._node_of(m) for m in gang.living())


_SetName = tuple[str, str]  # namespace and name of a set


class GangSets:
    """The sets of all namespaces. A question costs the gangs of its set once, and nothing until one of them changes."""

    def __init__(self) -> None:
        self._set_of: dict[GangKey, _SetName] = {}
        self._keys: dict[_SetName, dict[GangKey, None]] = {}
        self._oldest: dict[_SetName, list[Gang]] = {}  # the oldest gangs of a set, until one of its gangs changes

    def update(self, key: GangKey, gang: Gang | None) -> None:
        """Store to which set a changed gang belongs, and forget the cached order of its old and its new set.

        gang: None for a deleted gang, which is removed from its set, as is a gang that names no set any more.
        """
        together_name = gang.terms.sets.together_name if gang is not None else ""
        name = (key.namespace, together_name) if together_name else None
        before = self._set_of.pop(key, None)
        if before is not None:
            self._oldest.pop(before, None)
            self._keys[before].pop(key)
            if not self._keys[before]:
                del self._keys[before]
        if name is not None:
            self._set_of[key] = name
            self._keys.setdefault(name, {})[key] = None
            self._oldest.pop(name, None)

    def oldest_gangs(self, namespace: str, name: str, gangs: Mapping[GangKey, Gang]) -> list[Gang]:
        """Return the gangs of a set, the oldest first, at most MAX_TOGETHER; [] for an unknown set.

        gangs: all gangs of the cluster. The list is cached until a gang of the set changes: do not change it.
        """
        key = namespace, name
        if key not in self._oldest:
            members = [gang for other in self._keys.get(key, ()) if (gang := gangs.get(other)) is not None]
            self._oldest[key] = nsmallest(MAX_TOGETHER, members, key=lambda gang: (gang.age, gang.key))
        return self._oldest[key]


_VERSION = re.compile(r"[0-9]{1,20}")  # 64 bits


class ClusterView:
    """The cluster as the watches have shown it."""

    def __init__(self, gpu_resources: tuple[str, ...]) -> None:
        """Start with an empty cluster. gpu_resources: names of the resources that count as a GPU."""
        self.fabric: Fabric = EMPTY
        self.snapshot = ClusterSnapshot(gpu_resources)
        self.gangs: dict[GangKey, Gang] = {}
        self.pods: dict[str, GangMember] = {}
        self.changed_gangs = GangChanges()
        self.layout_version = 0  # raised when host ids change their meaning
        self.assumed_pods = AssumedPods()
        self.preferences = Preferences(self.snapshot)
        self.levels = Levels(self.snapshot)
        # uid -> node: our nominations that the watch has not shown yet.
        self.unconfirmed_nominations: dict[str, str] = {}
        self.unreadable_pods = 0  # pods that could not be read, in all
        self.lifts_gates = False  # True if this process lifts our placement gates: gated pods then wait for a plan
        self._gpu_resources = gpu_resources
        self.layout = HostLayout(self.snapshot)
        self.groups = PodGroupIndex(self.gangs, self.changed_gangs)
        self.awaited_members = AwaitedMembers(self.gangs, self.changed_gangs, self.node_of)
        self.sets = GangSets()

    # Sightings.

    def put_pod(self, pod: Pod) -> KubeError | None:
        """Add or update a pod, and mark its gang as changed. A pod that reads as before changes nothing.

        A pod that is finished or cannot be read is removed instead. A pod without a gang on which the extender has no
        opinion is stored and takes room, but joins no gang.

        Return the error for a pod that cannot be read, which is also counted in `unreadable_pods`; else None.
        """
        try:
            member = member_of(pod, self._gpu_resources)
        except (BadQuantity, TooComplex) as error:
            self.unreadable_pods += 1
            self.drop_pod(pod.metadata.uid)
            return error
        if member is None:
            self.drop_pod(pod.metadata.uid)
            return None
        old = self.pods.get(member.uid)
        if old == member:
            return None
        joins = not member.no_opinion_reason or member.membership.key.dialect != Dialect.ALONE.value
        if old is not None and not (joins and old.membership.key == member.membership.key):
            self._leave(old)
        self.pods[member.uid] = member
        if member.node:
            self.assumed_pods.forget(member.uid)
        self._charge(member)
        if joins:
            self._join(member, pod.metadata.resource_version, old)
        return None

    def drop_pod(self, uid: str) -> None:
        """Remove a pod, release its room, and mark its gang as changed. Does nothing for an unknown uid."""
        self.assumed_pods.forget(uid)
        self.unconfirmed_nominations.pop(uid, None)
        self.snapshot.release(uid)
        member = self.pods.pop(uid, None)
        if member is not None:
            self._leave(member)

    # Answers.

    def settle(self, now_s: float) -> None:
        """Bring the tables up to date before a decision. now_s: by the monotonic clock.

        Drops assumed pods that have expired, ends the wait for members that did not come, updates the sets of changed
        gangs, notes which gangs have started, and lays the tables out again if the hosts have changed.
        """
        for uid in self.assumed_pods.expire(now_s):
            member = self.pods.get(uid)
            if member is not None:
                self._charge(member)
                self.changed_gangs.add(member.membership.key)
        self.awaited_members.update(now_s)
        for key in self.changed_gangs:
            gang = self.gangs.get(key)
            self.sets.update(key, gang)
            if gang is not None and any(self.node_of(member) for member in gang.members.values()):
                gang.note_member_has_host(now_s, MAX_PATIENCE_S)
        if self.layout.is_stale:
            self.fabric = self.layout.lay_out()
            self.snapshot.set_row_order(self.fabric.hosts)
            self.levels.use(self.fabric)
            self.layout_version += 1

    def assume(self, member: GangMember, node: str, now_s: float) -> None:
        """Charge a node with a pod that was just sent there, until the watch shows where it went, or the assumption
        expires.

        Does nothing for a pod that is bound or unknown. now_s: by the monotonic clock.
        """
        if member.node or member.uid not in self.pods:
            return
        self.assumed_pods.assume(member.uid, node, now_s)
        self._charge(member)
        self.changed_gangs.add_placed(member.membership.key, member.uid)

    def forget_assumed(self, member: GangMember) -> None:
        """Drop the assumption where a pod goes, because the scheduler does not offer that node. Marks its gang as
        changed.

        Then the pod is charged to the node that `node_of` gives without the assumption; its room is released if there
        is none.
        """
        self.assumed_pods.forget(member.uid)
        self._charge(member)
        self.changed_gangs.add(member.membership.key)

    def host_of(self, member: GangMember) -> int | None:
        """Return the host id of the node on which a member takes room (`node_of`).

        None if it takes none, or if that node is not in the tables.
        """
        return self.snapshot.row_of.get(self.node_of(member))

    def our_nomination(self, member: GangMember) -> str:
        """Return the node for which our nominator nominated a member, even if the watch does not show it yet.

        "" if it nominated none, or has cleared the nomination. A bound member may still have a nomination.
        """
        return self.unconfirmed_nominations.get(member.uid, member.nominated if member.nominated_by_us else "")

    def node_of(self, member: GangMember) -> str:
        """Return the node on which a member takes room: bound, assumed, or nominated; "" if it takes none.

        Our own nomination of a gang's member is only a plan, which a gang ahead may take back, so it takes no room. Our
        own nomination of a pod without a gang does. A nomination for an unknown node takes none.
        """
        if member.node:
            return member.node
        assumed = self.assumed_pods.node_of(member.uid)
        if assumed:
            return assumed
        if not member.nominated or (member.nominated_by_us and member.membership.key.dialect != Dialect.ALONE.value):
            return ""
        return member.nominated if member.nominated in self.snapshot.nodes else ""

    # Inside.

    def _charge(self, member: GangMember) -> None:
        """Charge the node on which a member takes room with its requests; release them if it takes no room."""
        node = self.node_of(member)
        if node:
            self.snapshot.charge(member.uid, Charge(node, member.shape, member.priority))
        else:
            self.snapshot.release(member.uid)

    def _join(self, member: GangMember, version: str, old: GangMember | None) -> None:
        """Add a pod to its gang, which is created with its first pod, and mark the gang as changed.

        version: resourceVersion of the pod; a new gang keeps it, 0 if it is no number. old: the pod as it was; None for
        a new pod. Only a new pod prolongs the wait for further members.
        """
        key = member.membership.key
        gang = self.gangs.get(key)
        if gang is None:
            gang = self.gangs[key] = Gang(
                key,
                sizing=self.groups.sizing_of(key),
                version=int(version) if _VERSION.fullmatch(version) else 0,
                tier_of=self.levels.tier_of,
            )
        if old is None:
            self.awaited_members.note_new_member(key)
        gang.join(member)
        if old is not None and member.differs_only_in_place(old):
            self.changed_gangs.add_placed(key, member.uid)
        else:
            self.changed_gangs.add(key)

    def _leave(self, member: GangMember) -> None:
        """Remove a member from its gang, and the gang with its last member.

        Does nothing if the gang does not have it.
        """
        key = member.membership.key
        gang = self.gangs.get(key)
        if gang is None or not gang.leave(member.uid):
            return
        self.changed_gangs.add(key)
        if not gang.members:
            del self.gangs[key]
            self.awaited_members.forget(key)


# How long a pod that is assumed to be placed, and is not seen as bound, counts as placed; seconds.
ASSUME_S = 10.0


class AssumedPods:
    """Assumed placements, in the order in which they expire.

    kube-scheduler does not report which node it chose, and binds late (docs/facts/extender.md 1.8). A wrong entry
    blocks the room of one pod for `ttl_s` seconds (10 by default). After that time an assumed pod that is not bound
    does not count.
    """

    def __init__(self, ttl_s: float = ASSUME_S) -> None:
        self.ttl_s = ttl_s
        self._assumed: dict[str, tuple[str, float]] = {}

    def assume(self, uid: str, node: str, now_s: float) -> None:
        """Assume that a pod goes to a node until `now_s + ttl_s`. This replaces an earlier assumption."""
        self._assumed.pop(uid, None)
        self._assumed[uid] = (node, now_s + self.ttl_s)

    def forget(self, uid: str) -> None:
        """Drop the assumption about a pod that is bound or deleted."""
        self._assumed.pop(uid, None)

    def node_of(self, uid: str) -> str:
        """Return the node that the pod is assumed to go to; "" when nothing is assumed."""
        entry = self._assumed.get(uid)
        return entry[0] if entry else ""

    def expire(self, now_s: float) -> list[str]:
        """Drop the assumptions whose time is over, and return the uids of their pods, the oldest first.

        now_s: by the clock of `assume`.
        """
        expired = []
        for uid, (_, until_s) in self._assumed.items():
            if until_s > now_s:
                break
            expired.append(uid)
        for uid in expired:
            del self._assumed[uid]
        return expired

    def __len__(self) -> int:
        return len(self._assumed)


MAX_TABLES = 64  # cached tables

_TableKey = tuple[tuple[tuple[str, str, str, str], ...], tuple[tuple[int, Term], ...]]


class Preferences:
    """One table for all pods with equal preferences, built when it is first needed after a node changed."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        self._offer_version = -1
        self._tables: dict[_TableKey, Rows] = {}

    def of(self, member: GangMember) -> Rows | None:
        """Return the pod's score of each node row, the larger the better; None if all rows are equal for the pod.

        The scores come from its preferred node affinity and from PreferNoSchedule taints. The table is cached and
        shared: do not change it.
        """
        if not member.preferred_terms and not self._snapshot.soft_tainted:
            return None
        if self._offer_version != self._snapshot.offer_version:
            self._offer_version = self._snapshot.offer_version
            self._tables.clear()
        key = (member.shape.tolerations, member.preferred_terms)
        table = self._tables.get(key)
        if table is None:
            while len(self._tables) >= MAX_TABLES:
                del self._tables[next(iter(self._tables))]
            table = self._tables[key] = self._table(*key)
        return table

    def _table(self, tolerations: tuple[tuple[str, str, str, str], ...], wishes: tuple[tuple[int, Term], ...]) -> Rows:
        """Return the score of each node row for pods with these terms; 0 for a row without a node.

        tolerations: (key, operator, value, effect). wishes: (weight, term) of the preferred node affinity.
        """
        table = np.zeros(len(self._snapshot.order), np.int32)
        keys = sorted({key for _, (on_labels, _) in wishes for key, _, _ in on_labels})
        by_name = any(on_fields for _, (_, on_fields) in wishes)
        scores: dict[object, int] = {}  # nodes with equal features are scored once
        for name in self._snapshot.nodes if wishes else self._snapshot.soft_tainted:
            if (row := self._snapshot.row_of.get(name)) is None:
                continue
            node = self._snapshot.nodes[name]
            features = admission_view(node, keys, by_name)
            if features not in scores:
                scores[features] = preference(node, tolerations, wishes)
            table[row] = scores[features]
        return table
