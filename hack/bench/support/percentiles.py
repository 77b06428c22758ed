"""Percentiles by the two definitions that benchmarks use. Both return NaN for no values; `share` is from 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def interpolated_percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile, interpolated linearly between the two ranks around (n - 1) x share, as numpy does by
    default.

    values: in any order; NaN for none. share: 0 to 1.
    """
    return float(np.quantile(values, share)) if values else math.nan


def nearest_rank(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed: rank ceil(n x share)."""
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1] if values else math.nan
