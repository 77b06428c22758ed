"""What was answered in the last seconds and is not yet seen on the watch: pod -> node, forgotten on its own.

kube-scheduler does not say which node it took, and binds late (docs/facts/extender.md 1.8). An entry that never comes
true costs a slot for `ttl_s`, nothing more.
"""

from __future__ import annotations


class AssumedPods:
    """Assumed placements, in the order they expire. ttl_s: how long an answer is believed, in seconds."""

    def __init__(self, ttl_s: float = 10.0) -> None:
        self.ttl_s = ttl_s
        self._assumed: dict[str, tuple[str, float]] = {}

    def assume(self, uid: str, node: str, now_s: float) -> None:
        """Believe that a pod goes to a node until `now_s + ttl_s`, instead of what was believed before."""
        self._assumed.pop(uid, None)
        self._assumed[uid] = (node, now_s + self.ttl_s)

    def forget(self, uid: str) -> None:
        """The pod was seen on a node, or is gone."""
        self._assumed.pop(uid, None)

    def node_of(self, uid: str) -> str:
        """Where the pod is believed to go; "" when nothing is."""
        entry = self._assumed.get(uid)
        return entry[0] if entry else ""

    def expire(self, now_s: float) -> list[str]:
        """Drop what is too old, and name it."""
        gone = []
        for uid, (_, until_s) in self._assumed.items():
            if until_s > now_s:
                break
            gone.append(uid)
        for uid in gone:
            del self._assumed[uid]
        return gone

    def __len__(self) -> int:
        return len(self._assumed)
