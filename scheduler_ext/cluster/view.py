"""The cluster as the extender knows it: pods in gangs, PodGroups and owners, and the free room on nodes.

Objects may be put in any order and any number of times. Questions are about one gang at a time. One thread changes the
view, never during a request. `planner/plans.py` decides which gang gets which host.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from turnout.jobs.gang import LEADER_WORKER_SET, Dialect, GangKey, role_of, subgroup_role
from turnout.jobs.wishes import kai
from turnout.jobs.wishes.merge import min_pods_by_task, native_min, wish_of_pod_group, wish_of_pod_group_annotations
from turnout.kube.errors import BadQuantity, KubeError, TooComplex
from turnout.kube.node_capacity import Charge, ClusterSnapshot, Rows
from turnout.kube.objects import Node, Owner, Pod, PodGroup
from turnout.kube.pod_shape import Term, admission_view, preference
from turnout.scheduler_ext.cluster.composites import CompositeGroups, parent_name
from turnout.scheduler_ext.cluster.gang import Gang, Sizing
from turnout.scheduler_ext.cluster.gang_sets import GangSets
from turnout.scheduler_ext.cluster.levels import Levels
from turnout.scheduler_ext.cluster.member import GangMember, member_of
from turnout.topology.fabric import EMPTY, Fabric, with_unmapped_hosts

_VERSION = re.compile(r"[0-9]{1,20}")  # 64 bits
PATIENCE_S = 30.0  # how long room is reserved for announced members after the last member came
MAX_PATIENCE_S = 300.0  # from the first member on, once in a gang's life, whatever size is stated later
# A LeaderWorkerSet with the start-up policy LeaderReady makes the workers once the leader is ready: room for up to so
# many workers is reserved while the leader runs, so long after it came.
MAX_LEADER_WAIT_S = 1_800.0
MAX_AWAITED_WORKERS = 64


class GangChanges:
    """The gangs that changed since their plans were updated, and how."""

    def __init__(self) -> None:
        # uids of the members that got a node or took one; None where the gang has changed in any other way, too
        self._placed_uids: dict[GangKey, set[str] | None] = {}

    def add(self, key: GangKey) -> None:
        """Note that a gang has changed in any way."""
        self._placed_uids[key] = None

    def add_placed(self, key: GangKey, uid: str) -> None:
        """Note that only the node or the nomination of one member has changed.

        An earlier `add` of the gang stays in force.
        """
        if (uids := self._placed_uids.setdefault(key, set())) is not None:
            uids.add(uid)

    def placed_uids(self, key: GangKey) -> set[str] | None:
        """Return the uids of the members whose place is all that has changed in a gang: the stored set itself.

        None if the gang has changed in another way, too, or not at all.
        """
        return self._placed_uids.get(key)

    def clear(self) -> None:
        """Forget all changes."""
        self._placed_uids.clear()

    def __iter__(self) -> Iterator[GangKey]:
        return iter(self._placed_uids)


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
        self.unconfirmed_nominations: dict[
            str, str
        ] = {}  # uid -> node: our nominations that the watch has not shown yet
        self.unreadable_pods = 0  # pods that could not be read, in all
        self.lifts_gates = False  # True if this process lifts our placement gates: gated pods then wait for a plan
        self._gpu_resources = gpu_resources
        self._map: Fabric = EMPTY
        self._ips: dict[str, str] = {}
        self._stale_layout = True
        self.composites = CompositeGroups()
        self.sets = GangSets()
        self._sizings: dict[GangKey, Sizing] = {}
        self._sizings_in_trees: dict[GangKey, Sizing] = {}  # of PodGroups with a parent: their own terms alone
        self._gangs_with_new_members: dict[GangKey, None] = {}  # gangs with a new member since the last update
        self._wait_until_s: dict[
            GangKey, float
        ] = {}  # until when room is reserved for the missing members of each gang
        self._incomplete_since_s: dict[GangKey, float] = {}  # gangs that lacked members, and when that was first so
        self._next_expiry_s = math.inf  # when the first of them need not be waited for any more

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

    def put_group(self, dialect: Dialect, group: PodGroup) -> None:
        """Store what a PodGroup of one dialect states: its min, roles, queue and terms.

        They replace its earlier statements.
        """
        meta = group.metadata
        key = GangKey(meta.namespace, meta.name, dialect.value)
        spec, created, notes = group.spec, meta.creation_timestamp or "", meta.annotations or {}
        if dialect is Dialect.KAI:
            kai_group = kai.read_pod_group(
                spec.min_member, spec.min_sub_group, spec.sub_groups, spec.topology_constraint
            )
            roles = tuple((subgroup_role(name), count) for name, count in kai_group.subgroups)
            wish = kai_group.wish if kai_group.wish.source else wish_of_pod_group_annotations(notes)
            self._set_sizing(
                key, Sizing(kai_group.min_pods, None, meta.uid, created, meta.name, wish, spec.queue, roles)
            )
            return
        min_pods = native_min(spec.scheduling_policy) if dialect is Dialect.NATIVE else spec.min_member
        fields = spec.network_topology, spec.sub_group_policy, spec.scheduling_constraints
        wish = wish_of_pod_group(*fields, notes)
        roles = tuple((role_of(task), count) for task, count in min_pods_by_task(spec.min_task_member))
        sizing = Sizing(min_pods, None, meta.uid, created, meta.name, wish, spec.queue, roles)
        if dialect is Dialect.NATIVE:
            sizing = self._in_tree(key, sizing, parent_name(group))
        self._set_sizing(key, sizing)

    def _in_tree(self, key: GangKey, sizing: Sizing, parent: str) -> Sizing:
        """Store the parent of a PodGroup, and return its statements with the terms of its tree.

        sizing: its own statements. parent: the name of its CompositePodGroup; "" for a PodGroup in no tree, whose
        statements are returned unchanged.
        """
        self.composites.put_gang(key, parent, sizing.created, sizing.uid)
        if not parent:
            self._sizings_in_trees.pop(key, None)
            return sizing
        self._sizings_in_trees[key] = sizing
        return self.composites.with_terms(key, sizing)

    def drop_group(self, dialect: Dialect, namespace: str, name: str) -> None:
        """Remove a PodGroup. The annotations of its pods count from now on. Does nothing for an unknown one."""
        key = GangKey(namespace, name, dialect.value)
        self.composites.drop_gang(key)
        self._sizings_in_trees.pop(key, None)
        self._set_sizing(key, None)

    def put_composite(self, group: PodGroup) -> None:
        """Add or update a CompositePodGroup, and store the new terms of the PodGroups below it."""
        self._update_trees(self.composites.put(group))

    def drop_composite(self, namespace: str, name: str) -> None:
        """Remove a CompositePodGroup, and store the new terms of the PodGroups below it, also for an unknown one."""
        self._update_trees(self.composites.drop(namespace, name))

    def _update_trees(self, keys: Collection[GangKey]) -> None:
        """Store the terms of PodGroups whose tree has changed, and mark their gangs as changed.

        keys: of PodGroups with a parent.
        """
        for key in keys:
            self._set_sizing(key, self.composites.with_terms(key, self._sizings_in_trees[key]))
            if key in self.gangs:  # the terms of a sibling may have changed, too
                self.changed_gangs.add(key)

    def put_owner(self, kind: str, owner: Owner) -> None:
        """Add or update a Job or StatefulSet, which states how many pods it will have.

        kind: "Job" or "StatefulSet". The number is the smaller of a Job's parallelism and completions, or the replicas;
        1 if the owner states none. A stated 0 counts as unknown. Such pods start together only if their own annotations
        require it.
        """
        spec, meta = owner.spec, owner.metadata
        if kind == "Job":
            bounds = [n for n in (spec.parallelism, spec.completions) if n is not None]
            total = min(bounds, default=1)
        else:
            total = spec.replicas if spec.replicas is not None else 1
        key = GangKey(meta.namespace, f"{kind}/{meta.name}", Dialect.OWNER.value)
        self._set_sizing(key, Sizing(None, total or None, meta.uid, meta.creation_timestamp or "", meta.name))

    def drop_owner(self, kind: str, namespace: str, name: str) -> None:
        """Remove a Job or StatefulSet, so that its number of pods is not known. kind: "Job" or "StatefulSet"."""
        self._set_sizing(GangKey(namespace, f"{kind}/{name}", Dialect.OWNER.value), None)

    def put_node(self, node: Node) -> None:
        """Add or update a node. If its name or its InternalIP is new, the next `settle` lays the tables out again."""
        name = node.metadata.name
        ip = next((a.address for a in node.status.addresses or () if a.type == "InternalIP"), "")
        if self._ips.get(name) != ip:
            self._ips[name] = ip
            self._stale_layout = True
        if not self.snapshot.put_node(node):
            self._stale_layout = True

    def drop_node(self, name: str) -> None:
        """Remove a node. Its row in the tables is removed with the next new layout."""
        self._ips.pop(name, None)
        self.snapshot.drop_node(name)

    def set_map(self, fabric: Fabric) -> None:
        """Use a new fabric, whose hosts have the names of the map: InternalIPs or node names."""
        self._map = fabric
        self._stale_layout = True

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
        self._wait_for_members(now_s)
        for key in self.changed_gangs:
            gang = self.gangs.get(key)
            self.sets.update(key, gang)
            if gang is not None and any(self.node_of(member) for member in gang.members.values()):
                gang.note_member_has_host(now_s, MAX_PATIENCE_S)
        if self._stale_layout:
            self._lay_out()

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

        The node that `node_of` gives without the assumption is charged with the pod; for "" its room is released.
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
        if not self._node_exists(member.nominated) or (
            member.nominated_by_us and member.membership.key.dialect != Dialect.ALONE.value
        ):
            return ""
        return member.nominated

    def missing_pods(self, gang: Gang) -> int:
        """Count the members that do not exist yet and for which room is reserved.

        The count is 0 once no new member has come for PATIENCE_S, MAX_PATIENCE_S after the gang was first incomplete,
        and once the gang was complete. So no room is reserved for pods that never come or have ended. The workers of a
        LeaderWorkerSet are waited for longer (MAX_LEADER_WAIT_S).
        """
        return max(0, gang.total - len(gang.living())) if gang.key in self._wait_until_s else 0

    def mapped_hosts(self) -> int:
        """Count the hosts that the map knows, with or without a node."""
        return self.fabric.mapped_count

    def waiting_gangs(self) -> Iterator[Gang]:
        """Yield the gangs with a waiting member, in no order."""
        return (gang for gang in self.gangs.values() if any(m.is_waiting for m in gang.members.values()))

    # Inside.

    def _node_exists(self, node: str) -> bool:
        return bool(node) and node in self.snapshot.nodes

    def _charge(self, member: GangMember) -> None:
        """Charge a member's node with its requests; release them if the member has no node."""
        node = self.node_of(member)
        if node:
            self.snapshot.charge(member.uid, Charge(node, member.shape, member.priority))
        else:
            self.snapshot.release(member.uid)

    def _wait_for_members(self, now_s: float) -> None:
        """Update until when room is reserved for members that do not exist yet.

        Each new member prolongs the time to PATIENCE_S from now, at most MAX_PATIENCE_S after the gang was first
        incomplete. After that time no room is reserved, and the gang is marked as changed; the workers of a
        LeaderWorkerSet are waited for longer (`_awaits_workers`). A complete gang is not waited for. now_s: by the
        monotonic clock.
        """
        for key in self._gangs_with_new_members:
            gang = self.gangs[key]
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
            if self._awaits_workers(self.gangs[key], now_s):
                self._wait_until_s[key] = now_s + PATIENCE_S
                continue
            del self._wait_until_s[key]
            self.changed_gangs.add(key)
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
        return any(m.membership.rank == 0 and self.node_of(m) for m in gang.living())

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
                sizing=self._sizings.get(key),
                version=int(version) if _VERSION.fullmatch(version) else 0,
                tier_of=self.levels.tier_of,
            )
        if old is None:
            self._gangs_with_new_members[key] = None
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
            for table in (self._wait_until_s, self._incomplete_since_s):
                table.pop(key, None)
            self._gangs_with_new_members.pop(key, None)

    def _set_sizing(self, key: GangKey, sizing: Sizing | None) -> None:
        """Store the sizes that a PodGroup or owner states for a gang, and mark the gang as changed if they differ.

        sizing: None removes them.
        """
        if sizing is None:
            self._sizings.pop(key, None)
        else:
            self._sizings[key] = sizing
        gang = self.gangs.get(key)
        if gang is not None and gang.sizing != sizing:
            gang.sizing = sizing
            self.changed_gangs.add(key)

    def _lay_out(self) -> None:
        """Rebuild the fabric and the tables: the map's hosts under the names of their nodes, then the nodes off the
        map.

        Host ids get a new meaning, so `layout_version` is raised.
        """
        names = sorted(self._ips, reverse=True)  # of two nodes with one address the first by name has it
        by_key = {self._ips[name]: name for name in names if self._ips[name]} | {name: name for name in names}
        known = with_node_names(self._map, by_key)
        on_map = set(known.hosts)
        self.fabric = with_unmapped_hosts(known, sorted(name for name in self._ips if name not in on_map))
        self.snapshot.set_row_order(self.fabric.hosts)
        self.levels.use(self.fabric)
        self.layout_version += 1
        self._stale_layout = False


def with_node_names(fabric: Fabric, by_key: dict[str, str]) -> Fabric:
    """Return a copy of the fabric with the hosts named like their nodes. A host without a node keeps its name.

    by_key: name or InternalIP of a host -> name of its node.
    """
    hosts = tuple(by_key.get(host, host) for host in fabric.hosts)
    return replace(fabric, hosts=hosts, id_of_host={name: host for host, name in enumerate(hosts)})


# How long a pod that is assumed to be placed, and is not seen as bound, counts as placed; seconds.
ASSUME_S = 10.0


class AssumedPods:
    """Assumed placements, in the order in which they expire.

    kube-scheduler does not report which node it chose, and binds late (docs/facts/extender.md 1.8). A wrong entry
    blocks the room of one pod for `ttl_s` seconds, after which an assumed pod that is not bound counts no more.
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
