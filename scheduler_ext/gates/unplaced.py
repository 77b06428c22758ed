"""Whether anybody places gated pods, as the nominator's Lease tells, and what a schedule does where nobody does."""

from __future__ import annotations

import math
from enum import Enum

from turnout.kube.objects import Lease
from turnout.kube.times import unix_s

_TERMS = 3  # of the Lease without a word: another replica would have it long before
_MAX_TERM_S = 60.0  # of a Lease: a record that claims more is not believed


class PlacerState(Enum):
    """The state of whoever places, as the Lease tells."""

    PLACED = "Placed"  # somebody holds it
    SILENT = "Silent"  # nobody does, for less than the bound
    GONE = "Gone"  # nobody does, for longer


def silence_s(lease: Lease | None, wall_s: float) -> float:
    """Return for how long the holder of a Lease has said nothing; infinite where there is no Lease, or no time in it.

    A holder whose clock goes ahead of ours is not silent.
    """
    renewed_s = unix_s(lease.spec.renew_time or "") if lease is not None else None
    return math.inf if renewed_s is None else max(0.0, wall_s - renewed_s)


def placer_state(lease: Lease | None, bound_s: float, wall_s: float) -> PlacerState:
    """Tell how a Lease stands. bound_s: silence after which its holder is gone for good."""
    silent_s = silence_s(lease, wall_s)
    term_s = min(_MAX_TERM_S, max(1.0, float((lease.spec.lease_duration_seconds if lease else 0) or 0)))
    if silent_s <= _TERMS * term_s:
        return PlacerState.PLACED
    return PlacerState.GONE if silent_s > bound_s else PlacerState.SILENT
