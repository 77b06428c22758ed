"""Results of both controllers: figures, tables, and the targets that ours has to meet."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from hack.bench.controllers.scene import Size
from hack.bench.controllers.trials import Rest, Trial
from hack.bench.support.outcome import Outcome, Table, Target
from hack.bench.support.percentiles import interpolated

_MEASURES: dict[str, Callable[[Trial, Size], float]] = {
    "seconds until all are Running": lambda one, size: one.running_s,
    "CPU seconds": lambda one, size: one.used.cpu_s,
    "peak MiB": lambda one, size: one.used.peak_mib,
    "requests a job": lambda one, size: one.requests.total() / size.jobs,
    "seconds until the children of all jobs are gone": lambda one, size: one.all_deleted_s,
    "ms from a lost pod to its replacement, p99": lambda one, size: interpolated(one.lost_s, 0.99) * 1e3,
}
_NAMES = ("running_s", "cpu_s", "peak_mib", "requests_per_job", "all_deleted_s", "replaced_p99_ms")
_DELETED = "ms from a job's deletion until its children are gone"
_NO_RATIO = "replaced_p99_ms"  # its target is a time


def _named() -> list[tuple[str, str]]:
    """Give the names of all figures that have a ratio, each with its words."""
    return [*zip(_NAMES, _MEASURES, strict=True), ("deleted_ms", _DELETED)]


@dataclass(frozen=True, slots=True)
class Results:
    """A whole run: the repetitions of each controller in the order of their pairs, and both at rest.

    deleted: by turn, theirs and ours, the seconds until a deleted job's children were gone.
    """

    size: Size
    theirs: Sequence[Trial]
    ours: Sequence[Trial]
    their_rest: Rest
    our_rest: Rest
    deleted: Sequence[tuple[float, float]]

    def outcome(self, quick: bool) -> Outcome:
        """Give tables, figures and targets."""
        tables = (self._compared(), self._requests(), self._at_rest())
        return Outcome(
            "controllers: PyTorchJobs beside the Training Operator",
            tables,
            self.figures(),
            self.targets(),
            self._notes(quick),
        )

    def figures(self) -> dict[str, float]:
        """Give the medians of both, and the median of the ratios, each within its repetition."""
        found: dict[str, float] = {}
        for name, measure in zip(_NAMES, _MEASURES.values(), strict=True):
            for side, trials in (("theirs", self.theirs), ("ours", self.ours)):
                found[f"{side}_{name}"] = median(measure(each, self.size) for each in trials)
            found[f"ratio_{name}"] = self._ratio(measure)
        for at, side in enumerate(("theirs", "ours")):
            found[f"{side}_deleted_ms"] = median(turn[at] for turn in self.deleted) * 1e3
        found["ratio_deleted_ms"] = median(ours / theirs for theirs, ours in self.deleted)
        for side, seen in (("theirs", self.their_rest), ("ours", self.our_rest)):
            found |= {f"{side}_rest_cores": seen.cores, f"{side}_rest_peak_mib": seen.peak_mib}
            found |= {f"{side}_restart_s": seen.caught_up_s, f"{side}_restart_writes": seen.wrote_again}
        return {**found, "ours_rest_writes": self.our_rest.wrote, "ours_steady_made_s": self.our_rest.made_s}

    def targets(self) -> list[Target]:
        """Give what docs/jobs.md promises."""
        found = self.figures()
        ratios = [
            Target(f"{words}: ours to the Training Operator's", found[f"ratio_{name}"], "<=", 1.0)
            for name, words in _named()
            if name != _NO_RATIO
        ]
        steady = f"{self.size.steady:,} jobs at rest"
        return [
            *ratios,
            Target(
                f"a pod lost of {self.size.pods:,}: replaced after, s, p99",
                found["ours_replaced_p99_ms"] / 1e3,
                "<=",
                1,
            ),
            Target(f"{steady}: cores", found["ours_rest_cores"], "<=", 0.05),
            Target(f"{steady}: restarted, caught up after, s", found["ours_restart_s"], "<=", 10),
            Target(f"{steady}: writes of a restart", found["ours_restart_writes"], "<=", 0),
        ]

    def _ratio(self, measure: Callable[[Trial, Size], float]) -> float:
        pairs = zip(self.ours, self.theirs, strict=True)
        return median(measure(one, self.size) / measure(other, self.size) for one, other in pairs)

    def _compared(self) -> Table:
        found = self.figures()
        rows = [
            (words, *(f"{found[f'{part}_{name}']:.2f}" for part in ("theirs", "ours", "ratio")))
            for name, words in _named()
        ]
        times = f"median of {len(self.ours)}, of deletions {len(self.deleted)}"
        title = f"{self.size.jobs:,} jobs of {self.size.workers} workers, {times}"
        return Table(title, ("what", "Training Operator", "ours", "ratio"), rows)

    def _requests(self) -> Table:
        counted = [self.theirs[0].requests, self.ours[0].requests]
        names = sorted(set().union(*counted))
        rows = [(name, *(f"{each[name] / self.size.jobs:.2f}" for each in counted)) for name in names]
        return Table("requests a job, of the first repetition", ("request", "Training Operator", "ours"), rows)

    def _at_rest(self) -> Table:
        both = (self.their_rest, self.our_rest)
        rows = (
            ("cores", *(f"{seen.cores:.4f}" for seen in both)),
            ("peak MiB", *(f"{seen.peak_mib:.0f}" for seen in both)),
            ("restarted, caught up after, s", *(f"{seen.caught_up_s:.1f}" for seen in both)),
            ("writes of a restart", *(f"{seen.wrote_again}" for seen in both)),
        )
        title = f"{self.size.steady:,} jobs of one worker at rest for {self.size.steady_s:g} s"
        return Table(title, ("what", "Training Operator", "ours"), rows)

    def _notes(self, quick: bool) -> tuple[str, ...]:
        load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
        size = (
            "Smaller than the 500 jobs of 8 workers and 5,000 at rest that the targets are meant for. " if quick else ""
        )
        return (
            f"{size}Load of the machine over the last 1, 5 and 15 minutes: {load} on {os.cpu_count()} cores.",
            "The Training Operator sends 20 creations a second at most, by the default of its client, for which 1.8.1 "
            "has no option: its time is that bound's. The garbage collector of Kubernetes removes what a deleted job "
            "leaves, in both. Ours made the jobs at rest; the Training Operator was started beside them afterwards.",
        )
