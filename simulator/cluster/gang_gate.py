"""Gangs that start together or not at all, as Volcano and koord-scheduler hold them.

kube-scheduler by itself knows no gangs; only pods of the scheduler names that do are held.
"""

from __future__ import annotations

from turnout.jobs.gang import POD_GROUP_PATHS, Dialect, GangKey, Membership


class Gangs:
    """The members of every gang that is held, by what their pods and PodGroups say."""

    def __init__(self) -> None:
        self._least: dict[GangKey, int] = {}
        self._of: dict[str, Membership] = {}
        self._members: dict[GangKey, dict[str, bool]] = {}  # uid -> has it a node?

    def put_group(self, dialect: Dialect, namespace: str, name: str, least: int) -> None:
        """A PodGroup as it is now. least: 0 when it is gone."""
        self._least[GangKey(namespace, name, dialect.value)] = least

    def put_pod(self, uid: str, member: Membership, bound: bool) -> None:
        """A pod that lives, and whether it has a node."""
        before = self._of.get(uid)
        if before is not None and before.key != member.key:
            self.drop_pod(uid)
        if any(member.key.dialect == each.value for each in POD_GROUP_PATHS):
            self._of[uid] = member
            self._members.setdefault(member.key, {})[uid] = bound

    def bind(self, uid: str, bound: bool) -> None:
        """A member was given a node, or it was taken back, before a watch has shown it."""
        if (member := self._of.get(uid)) is not None:
            self._members[member.key][uid] = bound

    def drop_pod(self, uid: str) -> None:
        """A pod that is gone, or has ended."""
        member = self._of.pop(uid, None)
        if member is not None:
            members = self._members[member.key]
            members.pop(uid, None)
            if not members:
                del self._members[member.key]

    def together(self, uid: str) -> list[str]:
        """The pods that have to be tried together with this one, in the order of their ranks; itself among them."""
        member = self._of.get(uid)
        if member is None or self.lacking(uid) <= 1:
            return [uid]
        waiting = [each for each, bound in self._members[member.key].items() if not bound]
        return sorted(waiting, key=lambda each: (self._of[each].role, self._of[each].rank or 0, each))

    def lacking(self, uid: str) -> int:
        """How many members have to be placed at once before any may start; 0 and 1 hold nobody."""
        member = self._of.get(uid)
        if member is None:
            return 0
        least = self._least.get(member.key) or member.min_members or 0
        return least - sum(self._members[member.key].values())

    def name(self, uid: str) -> str:
        """The gang's name, for whoever is told that it waits."""
        return str(self._of[uid].key)
