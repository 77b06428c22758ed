"""Hold gangs until all can start, as Volcano and koord-scheduler do.

kube-scheduler itself knows no gangs; so only pods that name one of the other schedulers are held.
"""

from __future__ import annotations

from turnout.jobs.gang import POD_GROUP_PATHS, Dialect, GangKey, Membership

# The PodGroups that are held here: Kubernetes' own are its scheduler's matter, which this one does not play.
HELD = {dialect: path for dialect, path in POD_GROUP_PATHS.items() if dialect is not Dialect.NATIVE}


class Gangs:
    """The members of every held gang, as their pods and PodGroups state them."""

    def __init__(self) -> None:
        self._least: dict[GangKey, int] = {}
        self._of: dict[str, Membership] = {}
        self._members: dict[GangKey, dict[str, bool]] = {}  # uid -> has it a node?

    def put_group(self, dialect: Dialect, namespace: str, name: str, least: int) -> None:
        """Add or update a PodGroup.

        least: 0 when it is gone.
        """
        self._least[GangKey(namespace, name, dialect.value)] = least

    def put_pod(self, uid: str, member: Membership, bound: bool) -> None:
        """Add or update a pod that has not ended.

        bound: True if it has a node.
        """
        before = self._of.get(uid)
        if before is not None and before.key != member.key:
            self.drop_pod(uid)
        if any(member.key.dialect == each.value for each in HELD):
            self._of[uid] = member
            self._members.setdefault(member.key, {})[uid] = bound

    def bind(self, uid: str, bound: bool) -> None:
        """Record before a watch shows it that a member got a node, or that the node was taken back."""
        if (member := self._of.get(uid)) is not None:
            self._members[member.key][uid] = bound

    def drop_pod(self, uid: str) -> None:
        """Remove a pod that is gone or has ended."""
        member = self._of.pop(uid, None)
        if member is not None:
            members = self._members[member.key]
            members.pop(uid, None)
            if not members:
                del self._members[member.key]

    def together(self, uid: str) -> list[str]:
        """Return the pods to try together with this one, itself included, in the order of their ranks."""
        member = self._of.get(uid)
        if member is None or self.lacking(uid) <= 1:
            return [uid]
        waiting = [each for each, bound in self._members[member.key].items() if not bound]
        return sorted(waiting, key=lambda each: (self._of[each].role, self._of[each].rank or 0, each))

    def lacking(self, uid: str) -> int:
        """Return how many members must be placed at once before any may start; 0 and 1 hold no pod."""
        member = self._of.get(uid)
        if member is None:
            return 0
        least = self._least.get(member.key) or member.min_members or 0
        return least - sum(self._members[member.key].values())

    def name(self, uid: str) -> str:
        """Return the gang's name for messages."""
        return str(self._of[uid].key)
