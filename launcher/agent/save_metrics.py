"""Counts the ends of saves that the checkpoint daemon reports, on the metrics page of the agent that started it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from turnout.launcher.model import SaveOutcome, SaveTier

INTERVALS = 8  # the last intervals of a tier, of which the longest counts


class SaveMetrics:
    """Series of the saves of one agent's ranks. run: the job's id, a label of the launcher's metrics."""

    def __init__(self, registry: CollectorRegistry, run: str) -> None:
        self._run = run
        self._saves = Counter(
            "turnout_launcher_saves",
            "Saves of this agent's ranks that ended, by where they are kept and how they ended.",
            ["run", "tier", "outcome"],
            registry=registry,
        )
        self._last_save_s = Gauge(
            "turnout_launcher_last_save_timestamp_seconds",
            "When the newest save was complete. In storage only a committed step is.",
            ["run", "tier"],
            registry=registry,
        )
        self._interval_s = Gauge(
            "turnout_launcher_save_interval_seconds",
            f"The longest of the last {INTERVALS} intervals at which the training asked for a save in a round.",
            ["run", "tier"],
            registry=registry,
        )
        self._intervals = {tier: SaveIntervals() for tier in SaveTier}
        self._newest_s = dict.fromkeys(SaveTier, 0.0)
        for tier in SaveTier:
            for outcome in SaveOutcome:
                self._saves.labels(run, tier.value, outcome.value)

    def count_event(self, event: str, fields: Mapping[str, Any]) -> None:
        """Count an event "save_ended" by tier and outcome, and update the times of saves. Ignore other events."""
        if event != "save_ended":
            return
        tier, labels = SaveTier(fields["tier"]), (self._run, fields["tier"].value)
        self._saves.labels(*labels, fields["outcome"].value).inc()
        if fields["complete"]:
            self._newest_s[tier] = max(self._newest_s[tier], fields["ended_s"])
            self._last_save_s.labels(*labels).set(self._newest_s[tier])
        if fields["announced_s"]:
            self._intervals[tier].add(fields["round"], fields["step"], fields["announced_s"])
            if (longest_s := self._intervals[tier].longest_s) > 0:
                self._interval_s.labels(*labels).set(longest_s)


class SaveIntervals:
    """The last intervals between the saves that the training asked for. In a new round the first save has no interval.

    Ranks save the same steps, so that only the first rank of a step counts.
    """

    def __init__(self) -> None:
        self._round, self._step, self._announced_s = -1, -1, 0.0
        self._intervals_s: list[float] = []  # newest last

    @property
    def longest_s(self) -> float:
        """Return the longest interval in seconds, 0 if none is known."""
        return max(self._intervals_s, default=0.0)

    def add(self, round_: int, step: int, announced_s: float) -> None:
        """Record a save that was announced at `announced_s`, in seconds since 1970, and the interval since the save
        before it.

        The interval counts only between saves of one round, and only if the clock went forward. A save of an older
        round, or of the same round and a step that is not newer, is ignored.
        """
        if (round_, step) <= (self._round, self._step):
            return
        if round_ == self._round and announced_s > self._announced_s:
            self._intervals_s = [*self._intervals_s, announced_s - self._announced_s][-INTERVALS:]
        self._round, self._step, self._announced_s = round_, step, announced_s
