"""The share of jobs lost after a kill, of split worlds, and the restarts that a fault costs.

Real agents on one machine, their rounds granted by files in a shared folder. Two jobs run at a time.
"""

from __future__ import annotations

import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hack.bench.support.outcome import Outcome, Scale, Table, Target
from hack.bench.survival.trial import LIMIT_S, Death, Result
from hack.bench.survival.trial import run as run_trial

AT_ONCE = 2


def run(scale: Scale) -> Outcome:
    """Run each kind of death several times."""
    times = scale.pick(200, 5, 1)
    results = {death: _trials(death, times) for death in Death}
    rows, figures = [], dict[str, float]()
    for death, found in results.items():
        back = sorted(result.back_s for result in found)
        lost, split = sum(not result.finished for result in found), sum(result.split for result in found)
        charged = [result.charged for result in found]
        median, worst = statistics.median(back), back[-1]
        rows.append(
            [
                death.value,
                f"{times}",
                f"{lost}",
                f"{split}",
                f"{min(charged)}..{max(charged)}",
                f"{median:.2f}",
                f"{worst:.2f}",
            ]
        )
        word = death.name.lower()
        figures |= {f"{word}_lost": lost, f"{word}_split": split, f"{word}_back_median_s": median}
        figures |= {f"{word}_back_worst_s": worst, f"{word}_most_charged": max(charged)}
    killed = (Death.COORDINATOR_IN_TRAINING, Death.COORDINATOR_IN_JOIN)
    once = sum(result.charged == 1 and result.finished for result in results[Death.PROCESS])
    targets = [
        Target("jobs lost when the coordinator dies", sum(figures[f"{d.name.lower()}_lost"] for d in killed), "<=", 0),
        Target("worlds split", sum(figures[f"{death.name.lower()}_split"] for death in Death), "<=", 0),
        Target("faults that cost exactly one restart, of all", once / times, ">=", 1),
    ]
    table = Table(
        f"Jobs of three agents, {times} of each kind",
        ["what happens", "jobs", "lost", "split", "restarts charged", "back median s", "worst s"],
        rows,
    )
    faults = [result.why.splitlines()[0] for found in results.values() for result in found if not result.finished]
    notes = [f"A job that is not done {LIMIT_S:g} s after it should be counts as lost.", *faults[:5]]
    return Outcome("survival", [table], figures, targets, notes)


def _trials(death: Death, times: int) -> list[Result]:
    def one(_: int) -> Result:
        with tempfile.TemporaryDirectory(prefix="turnout-trial-") as folder:
            (Path(folder) / "rounds").mkdir()
            return run_trial(death, Path(folder))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, range(times)))
