"""Percentiles by the definitions that benchmarks use: each keeps its own, and its figures stay comparable.

All return NaN for no values. `share` lies between 0 and 1. The four differ by one rank at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def interpolated(values: Sequence[float], share: float) -> float:
    """Interpolate linearly between the two ranks around (n - 1) x share, as numpy does by default."""
    return float(np.quantile(values, share)) if values else math.nan


def interpolated_up(values: Sequence[float], share: float) -> float:
    """Take the upper of the two ranks that `interpolated` lies between: always a measured value."""
    return float(np.quantile(values, share, method="higher")) if values else math.nan


def nearest_rank(values: Sequence[float], share: float) -> float:
    """Take the smallest value that at least `share` of the values do not exceed: rank ceil(n x share)."""
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1] if values else math.nan


def rank_above(values: Sequence[float], share: float) -> float:
    """Take the smallest value that more than `share` of the values do not exceed: rank floor(n x share) + 1."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else math.nan
