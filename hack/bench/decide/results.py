"""Results of an autoscaler that was fed at full size: figures, tables and targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from hack.bench.support.outcome import Table, Target
from hack.bench.support.percentiles import interpolated

_PARTS = {"observation_s": "what was seen", "decision_s": "the decision", "look_s": "a look as a whole"}


@dataclass(frozen=True, slots=True)
class Results:
    """One run. numbers: by name; parts: seconds of CPU time of each look, by what they were spent on."""

    numbers: Mapping[str, float]
    parts: Mapping[str, list[float]]

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Results:
        """Read the results that the process printed."""
        numbers = {name: value for name, value in told.items() if name not in _PARTS}
        return cls(numbers, {name: told[name] for name in _PARTS})

    @property
    def rate(self) -> float:
        """Give the changes per second of wall-clock time."""
        return self.numbers["changes"] / self.numbers["took_s"]

    def figures(self) -> dict[str, float]:
        """Give the figures for the JSON line."""
        names = ("start_s", "mib", "peak_mib", "first_observation_s", "first_decision_s", "pods")
        figures = {"changes_per_s": self.rate, **{f"fed_{name}": self.numbers[name] for name in names}}
        for name, times in self.parts.items():
            word = name.removesuffix("_s")
            figures[f"{word}_cpu_p50_ms"] = median(times) * 1e3
            figures[f"{word}_cpu_p99_ms"] = interpolated(times, 0.99) * 1e3
        return figures

    def table(self) -> Table:
        """Give the table."""
        rows = [
            (word, f"{median(times) * 1e3:.1f}", f"{interpolated(times, 0.99) * 1e3:.1f}", str(len(times)))
            for word, times in ((_PARTS[name], times) for name, times in self.parts.items())
        ]
        return Table("an autoscaler that is fed: milliseconds of CPU time", ("part", "p50", "p99", "times"), rows)

    def targets(self) -> list[Target]:
        """Give what docs/autoscaler.md promises."""
        return [
            Target("changes a second, a look after each burst", self.rate, ">=", 1000),
            Target("peak MiB of the process", self.numbers["peak_mib"], "<=", 400),
        ]

    def note(self) -> str:
        """Describe the load and what it took."""
        has = self.numbers
        return (
            f"Fed: {has['jobs']:,} jobs, {has['pods']:,} pods, {has['nodes']:,} nodes, taken in within "
            f"{has['start_s']:.1f} s; then {has['changes']:,} changes in {has['took_s']:.1f} s; "
            f"{has['peak_mib']:.0f} MiB at most, of which {has['before_mib']:.0f} before the first list."
        )
