"""The sizes and terms that PodGroups, CompositePodGroups, Jobs and StatefulSets state for their gangs.

Objects may come before their pods and after them. `view.py` creates the gangs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from turnout.jobs.gang import Dialect, GangKey, role_of, subgroup_role
from turnout.jobs.wishes import kai
from turnout.jobs.wishes.merge import min_pods_by_task, native_min, wish_of_pod_group, wish_of_pod_group_annotations
from turnout.kube.objects import Owner, PodGroup
from turnout.scheduler_ext.cluster.composites import CompositeGroups, parent_name
from turnout.scheduler_ext.cluster.gang import Gang, GangChanges, Sizing


class PodGroupIndex:
    """The statements of PodGroups and owners by gang. A gang with a new statement counts as changed."""

    def __init__(self, gangs: Mapping[GangKey, Gang], changed_gangs: GangChanges) -> None:
        """Start without statements. gangs: those that have a pod. changed_gangs: gets the gangs whose terms changed."""
        self.composites = CompositeGroups()
        self._gangs, self._changed_gangs = gangs, changed_gangs
        self._sizings: dict[GangKey, Sizing] = {}
        self._sizings_in_trees: dict[GangKey, Sizing] = {}  # of PodGroups with a parent: their own terms alone

    def sizing_of(self, key: GangKey) -> Sizing | None:
        """Return what the PodGroup or owner of a gang states; None if neither is known."""
        return self._sizings.get(key)

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
            if key in self._gangs:  # the terms of a sibling may have changed, too
                self._changed_gangs.add(key)

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

    def _set_sizing(self, key: GangKey, sizing: Sizing | None) -> None:
        """Store the sizes that a PodGroup or owner states for a gang, and mark the gang as changed if they differ.

        sizing: None removes them.
        """
        if sizing is None:
            self._sizings.pop(key, None)
        else:
            self._sizings[key] = sizing
        gang = self._gangs.get(key)
        if gang is not None and gang.sizing != sizing:
            gang.sizing = sizing
            self._changed_gangs.add(key)
