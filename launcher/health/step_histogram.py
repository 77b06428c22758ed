"""Counts step times in buckets: small enough for shared memory, precise enough for a limit.

A bucket is 4.4 % wide. A training process counts (launcher/health/hang_monitor/heartbeat.py), and its agent reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

PER_OCTAVE = 16
OCTAVES = 24
BUCKETS = PER_OCTAVE * OCTAVES
SHORTEST_S = 2.0**-10  # shorter steps are counted as this long
WIDTH = 2 ** (1 / PER_OCTAVE)
MOST_COUNTED = 32_768  # then all counts are halved


def bucket_of(took_s: float) -> int:
    """Return the bucket for a step of this length: 0 for the shortest, BUCKETS - 1 for hours."""
    if took_s <= SHORTEST_S:
        return 0
    return min(BUCKETS - 1, math.ceil(PER_OCTAVE * math.log2(took_s / SHORTEST_S)))


def edge_s(bucket: int) -> float:
    """Return the longest step time of this bucket in seconds."""
    return SHORTEST_S * 2 ** (bucket / PER_OCTAVE)


def aged(counts: Sequence[int]) -> list[int]:
    """Halve all counts. A count of one stays, since a limit is about rare steps."""
    return [(count + 1) // 2 for count in counts]


def quantile_s(counts: Sequence[int], share: float) -> float:
    """Return the time within which `share` of the steps ended: the upper edge of a bucket, so up to 4.4 % too long. 0
    without steps.
    """
    left = math.ceil(share * sum(counts))
    if left <= 0:
        return 0.0
    for bucket, count in enumerate(counts):
        left -= count
        if left <= 0:
            return edge_s(bucket)
    return edge_s(BUCKETS - 1)
