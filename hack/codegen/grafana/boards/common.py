"""What several boards say and ask in the same words."""

from __future__ import annotations

HOUR_S, DAY_S = 3600, 86_400
RULE_S = 60  # interval of the recording rules: `sum_over_time` counts one value per interval
KINDS = "Productive is the time of steps whose result was kept. docs/goodput.md explains the other kinds."
LAUNCHERS = "Only jobs whose launcher is scraped count (monitoring.launchers)."


KNOWN = " >= 0"  # drops NaN, which is the share or the quantile of nothing: Grafana shows "No data" in its place


def quantile(share: float, buckets: str, by: str = "le") -> str:
    """Return the query of the time that this share of the events does not exceed.

    share: 0 to 1. buckets: PromQL of their rate or increase. by: labels that remain, with "le".
    """
    return f"histogram_quantile({share:g}, sum by ({by}) ({buckets})){KNOWN}"


def p99(metric: str, by: str = "le", window: str = "W") -> str:
    """Return the query of the time that 99 in 100 do not exceed.

    metric: name of the histogram, without "_bucket". by: labels that remain, with "le". window: the macro of the range;
    "W" for a rate, another one for an increase.
    """
    function = "rate" if window == "W" else "increase"
    return quantile(0.99, f"{function}({metric}_bucket{{C}}[{window}])", by)
