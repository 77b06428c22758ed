"""Decides which peers have been silent for too long, in both directions."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

PAUSED_SHARE = 0.5  # of the limit: a process that slept this long has not listened itself


def heartbeat_period_s(members: int, beat_s: float) -> float:
    """Return the seconds between a member's heartbeats: longer for many members, so the coordinator gets at most 1,000
    a second.
    """
    return max(beat_s, members / 1_000)


def silent_members(heard_s: Mapping[str, float], now_s: float, limit_s: float) -> tuple[str, ...]:
    """List the peers from which nothing came within the limit."""
    return tuple(id_ for id_, at_s in heard_s.items() if now_s - at_s > limit_s)


def excuse_silence(heard_s: MutableMapping[str, float], looked_s: float, now_s: float, limit_s: float) -> bool:
    """True if this process itself was stopped since its last look; all peers then count as heard now.

    Their messages may still be unread, so none of them was silent.
    """
    if now_s - looked_s <= limit_s * PAUSED_SHARE:
        return False
    for id_ in heard_s:
        heard_s[id_] = now_s
    return True
