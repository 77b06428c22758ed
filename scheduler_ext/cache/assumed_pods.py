"""Remember the answers of the last seconds that the watch does not show yet: pod -> node, each for a limited time.

kube-scheduler does not say which node it took, and binds late (docs/facts/extender.md 1.8). A wrong entry costs one
slot for `ttl_s` seconds and nothing more.
"""

from __future__ import annotations


class AssumedPods:
    """Assumed placements, in the order in which they expire."""

    def __init__(self, ttl_s: float = 10.0) -> None:
        self.ttl_s = ttl_s
        self._assumed: dict[str, tuple[str, float]] = {}

    def assume(self, uid: str, node: str, now_s: float) -> None:
        """Assume that a pod goes to a node until `now_s + ttl_s`, in place of any earlier assumption."""
        self._assumed.pop(uid, None)
        self._assumed[uid] = (node, now_s + self.ttl_s)

    def forget(self, uid: str) -> None:
        """Drop the assumption on a pod that was seen on a node, or is gone."""
        self._assumed.pop(uid, None)

    def node_of(self, uid: str) -> str:
        """Return the node that the pod is assumed to go to; "" when nothing is assumed."""
        entry = self._assumed.get(uid)
        return entry[0] if entry else ""

    def expire(self, now_s: float) -> list[str]:
        """Drop the assumptions that are too old, and return their uids."""
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
