"""Results of the checkpoint benchmark: figures, tables, and the targets of docs/checkpoints.md.

Ratios are of minima: a busy machine only ever adds. Each names its floor and is taken within one scene, so within
minutes. A saver that failed has no figure, and a missing figure fails its target.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hack.bench.checkpoint.plan import SceneResult
from hack.bench.checkpoint.scenes.background_copy import ALONE, BARE, BESIDE, BLOCKING, BUSY
from hack.bench.checkpoint.scenes.overlap import ASKED, PERSIST, PLAIN, TAKEN
from hack.bench.checkpoint.scenes.reshard import DCP, MAX_RANKS, NOTHING, OTHERS, OWN, pair
from hack.bench.checkpoint.scenes.sockets import LOOPBACK, PACED, REPLICA, UNPACED
from hack.bench.checkpoint.scenes.stalls import (
    BASELINES,
    CHANGED,
    EQUAL,
    FIXED,
    FROZEN,
    OURS,
    PREPARE,
    REUSED,
    SECOND,
    SHIPPED,
    TOUCHED,
    UNPREPARED,
    floor,
    time_name,
)
from hack.bench.support.outcome import Table, Target

BROKE = "broke"  # the notes say how
COLUMNS = {"": "", "times": "d", "best ms": ",.1f", "median ms": ",.1f", "best / floor": ".2f", "floor": "", "said": ""}
WORLDS = {
    "ranks": "",
    "times": "d",
    **{f"{name} ms": ",.1f" for name in (floor(1), floor(2), NOTHING, DCP)},
    "ours best ms": ",.1f",
    "median ms": ",.1f",
    **{f"/ {name}": ".2f" for name in (floor(1), floor(2), DCP)},
    "said": "",
}


@dataclass(frozen=True, slots=True)
class CheckpointResults:
    """One run: the result of each scene."""

    scenes: Mapping[str, SceneResult]  # by name

    def ratio(self, scene: str, name: str, reference: str) -> float:
        """Return the best time of `name` in a scene divided by that of `reference`; NaN if one is missing."""
        best_s, least_s = (self.scenes[scene].best_s(each) for each in (name, reference))
        return best_s / least_s if least_s > 0 else math.nan

    def save_success_share(self) -> float:
        """Return the share of requested saves that succeeded during a persist; NaN if none was requested."""
        figures = self.scenes["persisted"].figures
        return figures.get(TAKEN, math.nan) / requested if (requested := figures.get(ASKED, 0)) else math.nan

    def worst_load_ratio(self) -> float:
        """Return the worst ratio of our load to the copy by one thread, over all pairs of world sizes.

        Returns NaN if a ratio or every pair is missing.
        """
        ratios = [self.ratio("worlds", pair(OURS, *each), pair(floor(1), *each)) for each in self._pairs()]
        return math.nan if not ratios or any(map(math.isnan, ratios)) else max(ratios)

    def targets(self) -> list[Target]:
        """Return the targets that docs/checkpoints.md promises."""
        one, two = floor(1), floor(2)
        return [
            Target("first save / floor 1", self.ratio("first", OURS, one), "<=", 1.5),
            Target("steady save, blocking / floor 2", self.ratio("steady", OURS, two), "<=", 1.08),
            Target("steady save, overlapped / floor 1", self.ratio("overlapped", OURS, one), "<=", 0.15),
            Target(
                "a step while it is copied / alone",
                self.ratio("overlapped", time_name(OURS, BESIDE), ALONE),
                "<=",
                1.05,
            ),
            Target(f"{CHANGED:.0%} not frozen / floor 2", self.ratio("steady", FROZEN, two), "<=", 0.10),
            Target("saves taken during a persist", self.save_success_share(), ">=", 1.0),
            Target("step rate during a persist / alone", self.ratio("persisted", PLAIN, OURS), ">=", 0.97),
            Target("load in other worlds / floor 1 of each", self.worst_load_ratio(), "<=", 1.2),
            Target("... and equal to dcp.load (1: it is)", self._equal_in_other_worlds(), ">=", 1.0),
            Target("replicas / loopback socket", self.ratio("sockets", LOOPBACK, REPLICA), ">=", 0.7),
            Target("step rate while replicas are sent, paced / alone", self.ratio("sockets", PLAIN, PACED), ">=", 0.97),
        ]

    def tables(self) -> list[Table]:
        """Return the tables. A row without times says BROKE."""
        one, two, part = floor(1), floor(2), floor(2, CHANGED)
        first = [one, two, *BASELINES, time_name(SHIPPED, SECOND), OURS, TOUCHED, time_name(OURS, PREPARE), UNPREPARED]
        steady = [one, two, part, *(name for name in BASELINES if name != SHIPPED), OURS, FROZEN, FIXED]
        copied = (BARE, REUSED, BLOCKING, OURS)
        slowed = [one, *copied, *(time_name(name, BUSY) for name in copied)]
        columns = [ALONE, *(time_name(name, BESIDE) for name in copied)]
        persisted = [PLAIN, REUSED, OURS, time_name(REUSED, PERSIST), time_name(OURS, PERSIST)]
        own = [time_name(name, OWN) for name in (one, two, *OTHERS, OURS)]
        return [
            self._table("first", "first save: training stands still", first, {"": one}),
            self._table(
                "steady", "the saves after it", steady, {OURS: two, FROZEN: two, FIXED: two, part: two, "": one}
            ),
            self._table(
                "overlapped", "what one save adds to a loop on one core, copy and all behind it", slowed, {"": one}
            ),
            self._table("overlapped", "the step right after a save, the copy behind it", columns, {"": ALONE}),
            self._table("persisted", "a step on one core while what was saved goes to a disk", persisted, {"": PLAIN}),
            self._worlds(),
            self._table("worlds", "what one rank saved, in new memory", own, {"": own[0]}),
            self._table("sockets", "bytes into a peer's memory", [LOOPBACK, REPLICA], {"": LOOPBACK}),
            self._table("sockets", "a step on one core, both ends beside it", [PLAIN, PACED, UNPACED], {"": PLAIN}),
        ]

    def _table(self, scene: str, title: str, names: Iterable[str], reference: Mapping[str, str]) -> Table:
        """Return a table of one scene with a row per name.

        reference: the name with which each row is compared, by name; "" for all names that are not listed. title: of
        the table, without the size.
        """
        rows = [self._row(scene, name, reference.get(name, reference[""])) for name in names]
        size = f"{self.scenes[scene].state_bytes / 1e6:,.0f} MB"
        return Table(f"{title}: {size}", COLUMNS, rows, key=f"{title.partition(':')[0]}:")

    def _row(self, scene: str, name: str, reference: str) -> Sequence[object]:
        """Return a row of COLUMNS for the times under `name` in a scene, compared with the times under `reference`.

        The last column says whether a load returned an equal state, or that there are no times (BROKE).
        """
        result = self.scenes[scene]
        times = result.times_s.get(name, [])
        equal = "loaded again, equal" if result.figures.get(time_name(name, EQUAL)) else ""
        check = equal if times else BROKE
        best_ms, median_ms = result.best_s(name) * 1e3, result.median_s(name) * 1e3
        return (name, len(times), best_ms, median_ms, self.ratio(scene, name, reference), f"x {reference}", check)

    def _worlds(self) -> Table:
        """Return the table of loads by another number of ranks than the saving one, a row for each pair of numbers."""
        result = self.scenes["worlds"]
        rows = []
        for each in self._pairs():
            ours = pair(OURS, *each)
            best_ms = [result.best_s(pair(name, *each)) * 1e3 for name in (floor(1), floor(2), NOTHING, DCP, OURS)]
            ratios = [self.ratio("worlds", ours, pair(name, *each)) for name in (floor(1), floor(2), DCP)]
            times = len(result.times_s.get(ours, ()))
            check = "" if times else BROKE
            rows.append((f"{each[0]} -> {each[1]}", times, *best_ms, result.median_s(ours) * 1e3, *ratios, check))
        equal = ", loaded equal to dcp.load" if self._equal_in_other_worlds() == 1 else ""
        title = f"load what another number of ranks saved: {result.state_bytes / 1e6:,.0f} MB{equal}"
        return Table(title, WORLDS, rows)

    def _pairs(self) -> list[tuple[int, int]]:
        """List the measured pairs (ranks that saved, ranks that load)."""
        names = self.scenes["worlds"].times_s
        sizes = range(1, MAX_RANKS + 1)
        return [(one, other) for one in sizes for other in sizes if pair(floor(1), one, other) in names]

    def _equal_in_other_worlds(self) -> float:
        """Return 1 if loads in other worlds were equal to dcp.load, NaN if they were not compared."""
        return self.scenes["worlds"].figures.get(time_name(OURS, EQUAL), math.nan)

    def failures(self) -> list[str]:
        """Return a line for each saver that failed: scene, name and reason."""
        return sorted(
            f"{scene}, {name}: {why}" for scene, result in self.scenes.items() for name, why in result.faults.items()
        )
