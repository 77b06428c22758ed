"""Results of both controllers: tables, and the targets that ours has to meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hack.bench.controllers.scene import WorkloadSize
from hack.bench.controllers.trials import ControllerTrial, IdleMeasurement
from hack.bench.support.measure import load_note, middle, middle_ratio
from hack.bench.support.outcome import Outcome, Table, Target
from hack.bench.support.percentiles import interpolated_percentile

_MEASURES: dict[str, Callable[[ControllerTrial, WorkloadSize], float]] = {
    "seconds until all are Running": lambda one, size: one.running_s,
    "CPU seconds": lambda one, size: one.used.cpu_s,
    "peak MiB": lambda one, size: one.used.peak_mib,
    "requests a job": lambda one, size: one.requests.total() / size.jobs,
    "seconds until the children of all jobs are gone": lambda one, size: one.all_deleted_s,
    "ms from a lost pod to its replacement, p99": lambda one, size: interpolated_percentile(one.lost_s, 0.99) * 1e3,
}
_LOST = "ms from a lost pod to its replacement, p99"  # its target is a time, not a ratio
_DELETED = "ms from a job's deletion until its children are gone"
_SIDES = {"Training Operator": ".2f", "ours": ".2f"}


@dataclass(frozen=True, slots=True)
class ControllerResults:
    """A whole run: the repetitions of each controller in the order of their pairs, and both at rest."""

    size: WorkloadSize
    theirs: Sequence[ControllerTrial]
    ours: Sequence[ControllerTrial]
    their_rest: IdleMeasurement
    our_rest: IdleMeasurement
    deleted: Sequence[tuple[float, float]]  # by turn, theirs and ours: seconds until a deleted job's children were gone

    def outcome(self, quick: bool) -> Outcome:
        """Return all tables, targets, notes and further figures of the run. quick: say that the sizes are small."""
        title = "controllers: PyTorchJobs beside the Training Operator"
        tables = [self._comparison_table(), self._requests_table(), self._rest_table()]
        more = {
            "ours, writes at rest": self.our_rest.writes_at_rest,
            "ours, seconds until those at rest ran": self.our_rest.created_s,
        }
        return Outcome(title, tables, self.targets(), self._notes(quick), more=more)

    def targets(self) -> list[Target]:
        """Return the targets: no measure but the replacement of lost pods is worse than the Training Operator's; and
        absolute bounds, of which docs/jobs.md states some.
        """
        rest, steady = self.our_rest, f"{self.size.steady_jobs:,} jobs at rest"
        rows = self._rows()
        lost = f"a pod lost of {self.size.pods:,}: replaced after, s, p99"
        return [
            *(
                Target(f"{name}: ours to the Training Operator's", row[2], "<=", 1.0)
                for name, row in rows.items()
                if name != _LOST
            ),
            Target(lost, rows[_LOST][1] / 1e3, "<=", 1),
            Target(f"{steady}: cores", rest.cores, "<=", 0.05),
            Target(f"{steady}: restarted, caught up after, s", rest.caught_up_s, "<=", 10),
            Target(f"{steady}: writes of a restart", rest.writes_after_restart, "<=", 0),
        ]

    def _rows(self) -> dict[str, tuple[float, float, float]]:
        """Return, for each measure, the median of the Training Operator, our median, and the median ratio of ours to
        theirs.
        """
        series = {
            name: [[measure(each, self.size) for each in side] for side in (self.theirs, self.ours)]
            for name, measure in _MEASURES.items()
        }
        series[_DELETED] = [[turn[side] * 1e3 for turn in self.deleted] for side in (0, 1)]
        return {
            name: (middle(theirs), middle(ours), middle_ratio(ours, theirs)) for name, (theirs, ours) in series.items()
        }

    def _comparison_table(self) -> Table:
        """Return the table that compares the medians of both controllers."""
        times = f"median of {len(self.ours)}, of deletions {len(self.deleted)}"
        title = f"{self.size.jobs:,} jobs of {self.size.workers} workers, {times}"
        return Table(
            title, {"what": "", **_SIDES, "ratio": ".2f"}, [(name, *row) for name, row in self._rows().items()]
        )

    def _requests_table(self) -> Table:
        """Return the table of requests a job, by verb and resource, of the first repetition."""
        counted = [self.theirs[0].requests, self.ours[0].requests]
        rows = [(name, *(each[name] / self.size.jobs for each in counted)) for name in sorted(set().union(*counted))]
        return Table("requests a job, of the first repetition", {"request": "", **_SIDES}, rows)

    def _rest_table(self) -> Table:
        """Return the table of both controllers at rest: CPU, memory, and what a restart costs."""
        names = {"cores": "cores", "peak MiB": "peak_mib", "restarted, caught up after, s": "caught_up_s"}
        names["writes of a restart"] = "writes_after_restart"
        both = (self.their_rest, self.our_rest)
        rows = [(words, *(getattr(rest, name) for rest in both)) for words, name in names.items()]
        title = f"{self.size.steady_jobs:,} jobs of one worker at rest for {self.size.steady_s:g} s"
        return Table(title, {"what": "", "Training Operator": ".4g", "ours": ".4g"}, rows, key="at rest:")

    def _notes(self, quick: bool) -> tuple[str, ...]:
        """Return the notes below the tables. quick: say that the sizes are smaller than those of the targets."""
        size = (
            "Smaller than the 500 jobs of 8 workers and 5,000 at rest that the targets are meant for. " if quick else ""
        )
        return (
            f"{size}{load_note()}",
            "The Training Operator sends 20 creations a second at most, by the default of its client, for which 1.8.1 "
            "has no option: its time is that bound's. The garbage collector of Kubernetes removes what a deleted job "
            "leaves, in both. Ours made the jobs at rest; the Training Operator was started beside them afterwards.",
        )
