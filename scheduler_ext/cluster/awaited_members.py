"""How long room is reserved for members of a gang that are announced and do not exist yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from turnout.jobs.gang import LEADER_WORKER_SET, Dialect, GangKey
from turnout.scheduler_ext.cluster.gang import Gang, GangChanges
from turnout.scheduler_ext.cluster.member import GangMember

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
