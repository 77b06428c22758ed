"""Metrics that have new names are served under their old names, too, for one release.

Take the module away after it; CHANGELOG.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

OLD_NAMES: Mapping[str, str] = {
    "turnout_autoscaler_changes": "turnout_lender_changes",
    "turnout_autoscaler_decide_seconds": "turnout_lender_decide_seconds",
    "turnout_autoscaler_faulty_nodes": "turnout_judged_nodes",
    "turnout_autoscaler_last_look_timestamp_seconds": "turnout_lender_last_look_timestamp_seconds",
    "turnout_autoscaler_leading": "turnout_lender_leading",
    "turnout_autoscaler_observation_age_seconds": "turnout_lender_sight_age_seconds",
    "turnout_node_verdicts_skipped": "turnout_node_verdicts_passed_over",
}  # new: old, as families are named: a counter's samples end in _total besides


class WithOldNames(CollectorRegistry):
    """A registry whose renamed metrics are collected twice, the second time under the old name."""

    def collect(self) -> Iterator[Metric]:
        """Give every metric, and after a renamed one the same samples under its old name."""
        for metric in super().collect():
            yield metric
            if (old := OLD_NAMES.get(metric.name)) is not None:
                yield _renamed(metric, old)


def _renamed(metric: Metric, old: str) -> Metric:
    made = Metric(old, f"Old name of {metric.name}, for one release. {metric.documentation}", metric.type, metric.unit)
    made.samples = [each._replace(name=old + each.name.removeprefix(metric.name)) for each in metric.samples]
    return made
