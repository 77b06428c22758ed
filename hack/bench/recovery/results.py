"""Results of all acts, as a table and as figures. A time-out counts as infinite."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hack.bench.recovery.driver import Trial
from hack.bench.recovery.recovery import Act, Recovery
from hack.bench.support.outcome import Table, Target

OURS = ("turnout-run", "turnout-run, usual")
MOST_AGAIN = 1  # the step that was in flight


@dataclass(frozen=True, slots=True)
class Results:
    """trials: of each side, by its name, of each act. limit_s: after which nothing is waited for."""

    trials: Mapping[str, Mapping[Act, Sequence[Trial]]]
    limit_s: float

    def figures(self) -> dict[str, float]:
        """Give the figures by side and act; NaN where it timed out more often than not."""
        said = {"limit_s": self.limit_s}
        for side, acts in self.trials.items():
            for act, trials in acts.items():
                word = f"{_word(side)}_{act.name.lower()}"
                backs = [trial.back for trial in trials if trial.back]
                said[f"{word}_new_step_s"] = _middle([each.new_s for each in backs], len(trials))
                said[f"{word}_still_s"] = _middle([each.still_s for each in backs], len(trials))
                said[f"{word}_steps_again"] = _middle([each.again for each in backs], len(trials))
                said[f"{word}_timed_out"] = len(trials) - len(backs)
        return said

    def table(self) -> Table:
        """Give the table, act by act."""
        figures, rows = self.figures(), list[tuple[str, ...]]()
        for act in Act:
            for side, acts in self.trials.items():
                trials, word = acts[act], f"{_word(side)}_{act.name.lower()}"
                names = ("new_step_s", "still_s", "steps_again")
                cells = [self._cell(figures[f"{word}_{name}"], name) for name in names]
                late = f"{figures[f'{word}_timed_out']:g} of {len(trials)}"
                rows.append((act.what, side, *cells, _whence([each.back for each in trials if each.back]), late))
        columns = ("what happens", "launcher", "next new step s", "stood still s", "steps again", "from", "timed out")
        return Table("Median of what it took", columns, rows)

    def targets(self) -> list[Target]:
        """Give our targets: a job goes on from memory."""
        ours = [trial for side in OURS for trials in self.trials.get(side, {}).values() for trial in trials]
        again = [trial.back.again if trial.back else math.inf for trial in ours]
        disk = [trial for trial in ours if trial.back and {*trial.back.sources} - {"memory", "buddy"}]
        return [
            Target(
                "steps that ours made again after any event, at most", max(again, default=math.nan), "<=", MOST_AGAIN
            ),
            Target("events after which ours read its state from disk", len(disk) if ours else math.nan, "<=", 0),
        ]

    def notes(self) -> list[str]:
        """List acts that never began."""
        return [
            f"{side}, {act.what}: {trial.why}"
            for side, acts in self.trials.items()
            for act, trials in acts.items()
            for trial in trials
            if trial.why
        ]

    def _cell(self, figure: float, name: str) -> str:
        if math.isfinite(figure):
            return f"{figure:.2f}" if name.endswith("_s") else f"{figure:g}"
        return f"time-out, {self.limit_s:g} s" if name == "new_step_s" else "-"


def _middle(values: Sequence[float], trials: int) -> float:
    """The median of all trials; nan where it would be one of those that timed out."""
    found = median([*values, *[math.inf] * (trials - len(values))]) if trials else math.nan
    return found if math.isfinite(found) else math.nan


def _whence(backs: Sequence[Recovery]) -> str:
    return ", ".join(sorted({" and ".join(each.sources) for each in backs})) or "-"


def _word(side: str) -> str:
    return side.replace(",", "").replace("-", "_").replace(" ", "_")
