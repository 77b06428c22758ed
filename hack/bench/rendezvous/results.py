"""Results of the rendezvous benchmark: figures, tables, and the targets of docs/launcher.md.

Meetings are compared by their best time, since a busy machine only ever adds to it; deaths by the worst.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from hack.bench.rendezvous.agents import WorldTimes
from hack.bench.rendezvous.phase_times import PHASES, Fault, middle
from hack.bench.support.outcome import Table, Target
from hack.bench.support.percentiles import interpolated_up

Meetings = Mapping[tuple[str, int], Sequence[WorldTimes]]

KINDS = {
    "floor": "floor: connect, 64 bytes each way",
    "ours": "ours: connect and join",
    "nvrx": "baseline: NVRx barrier, connected before",
    "c10d": "baseline: c10d of torch, connected before",
}
MOST_GROWTH, MOST_SLOWED = 4, 1.02  # from 1,024 to 4,096; by a silent name server


class Crowds(NamedTuple):
    """How many agents meet where a target is about their number."""

    together: int = 1_024
    large: int = 4_096
    largest: int = 10_000


FULL_CROWDS = Crowds()


@dataclass(frozen=True, slots=True)
class Results:
    """One run. meetings: by kind and agents; beside: `together` in the minutes of `large`; deaths: one of them dies.

    named, unnamed: where names come from files, and where nobody answers. restarts: by launcher; shrinks: a whole
    agent of two is lost, by launcher.
    """

    meetings: Meetings = field(default_factory=dict)
    beside: Sequence[WorldTimes] = ()
    deaths: Sequence[WorldTimes] = ()
    named: Sequence[WorldTimes] = ()
    unnamed: Sequence[WorldTimes] = ()
    restarts: Mapping[str, Sequence[Fault]] = field(default_factory=dict)
    shrinks: Mapping[str, Fault] = field(default_factory=dict)
    ours: str = "turnout-run"
    crowds: Crowds = FULL_CROWDS
    baseline: str = "torchrun at its best"

    def best_s(self, kind: str, agents: int) -> float:
        """Give the shortest rendezvous; NaN if there was none."""
        return best_s(self.meetings.get((kind, agents), ()))

    def targets(self) -> list[Target]:
        """Give what docs/launcher.md promises."""
        together, large, largest = self.crowds
        together_s = self.best_s("ours", together)
        ours, baseline = (took_s(self.restarts.get(name, ())) for name in (self.ours, self.baseline))
        usual_s = median(baseline) if baseline else math.nan
        slowed = ratio(best_s(self.unnamed), best_s(self.named))
        growth = ratio(self.best_s("ours", large), best_s(self.beside))
        return [
            Target(f"{together:,} agents meet, s", together_s, "<=", 0.35),
            Target(
                f"{together:,} agents / NVRx's barrier", ratio(together_s, self.best_s("nvrx", together)), "<=", 0.5
            ),
            Target(f"{large:,} agents / {together:,}", growth, "<=", MOST_GROWTH),
            Target(
                f"{largest:,} agents meet (1: they do)", float(math.isfinite(self.best_s("ours", largest))), ">=", 1
            ),
            Target("a death is noticed, s", worst([met.noticed_s for met in self.deaths]), "<=", 1.5),
            Target("then the others hold a world, s", worst([met.renewed_s for met in self.deaths]), "<=", 1.0),
            Target("with a silent name server / without", slowed, "<=", MOST_SLOWED),
            Target("restart, median / torchrun's", ratio(median(ours) if ours else math.nan, usual_s), "<=", 0.1),
            Target("restart, p95 / torchrun's median", ratio(p95(ours), usual_s), "<=", 0.3),
        ]

    def figures(self) -> dict[str, float]:
        """Give the figures for the JSON line."""
        told: dict[str, float] = {}
        for (kind, agents), mets in self.meetings.items():
            told[f"{kind}_{agents}_s"] = best_s(mets)
            told[f"{kind}_{agents}_median_s"] = median([met.took_s for met in mets])
        for name, mets in (("beside", self.beside), ("named", self.named), ("unnamed", self.unnamed)):
            told[f"{name}_{self.crowds.together}_s"] = best_s(mets)
        told["noticed_s"] = worst([met.noticed_s for met in self.deaths])
        told["renewed_s"] = worst([met.renewed_s for met in self.deaths])
        for name, faults in self.restarts.items():
            word = _word(name)
            told |= {f"{word}_{phase}_s": after_s for phase, after_s in middle(faults).items()}
            told |= {f"{word}_p95_s": p95(took_s(faults)), f"{word}_faults": float(len(faults))}
            told |= {f"{word}_lost": float(lost(faults)), f"{word}_restarts_of_a_fault": float(burned(faults))}
        return told | {f"{_word(name)}_agent_lost_s": fault.took_s for name, fault in self.shrinks.items()}

    def tables(self) -> list[Table]:
        """Give the tables."""
        return [self._met(), self._survived()]

    def _met(self) -> Table:
        rows = []
        for kind, agents in sorted(self.meetings, key=lambda key: (key[1], [*KINDS].index(key[0]))):
            mets = self.meetings[kind, agents]
            why = next((met.why for met in mets if met.why), "")
            times = [met.took_s for met in mets]
            ready_s = f"{min(met.ready_s for met in mets):.3f}"
            rows.append(
                (KINDS[kind], f"{agents:,}", str(len(mets)), *_seconds(min(times), median(times)), ready_s, why)
            )
        columns = ("from the word to the last agent, s", "agents", "times", "best", "median", "ready in", "")
        return Table("agents that meet over loopback, in 8 processes", columns, rows)

    def _survived(self) -> Table:
        rows = []
        for name, faults in self.restarts.items():
            after = middle(faults)
            counts = (str(len(faults)), str(lost(faults)), str(burned(faults)))
            rows.append((name, *counts, *_seconds(*(after[phase] for phase in PHASES), p95(took_s(faults)))))
        for name, fault in self.shrinks.items():
            after = middle([fault])
            counts = ("1", str(lost([fault])), "-")
            rows.append((f"{name}: an agent", *counts, *_seconds(*(after[phase] for phase in PHASES), fault.took_s)))
        columns = ("SIGKILL, then s until", "kills", "lost", "burned", *PHASES, "p95")
        return Table(
            "two processes with 64 MiB of state: medians; the most restarts that one kill burned", columns, rows
        )


def best_s(mets: Sequence[WorldTimes]) -> float:
    """Give the shortest time; infinite if none was done, NaN if there was none."""
    return min((met.took_s for met in mets), default=math.nan)


def took_s(faults: Sequence[Fault]) -> list[float]:
    """Give the time of each fault until every process had made a step."""
    return [fault.took_s for fault in faults]


def ratio(ours: float, baseline: float) -> float:
    """Give the ratio; NaN if one is unknown or the baseline was not done."""
    return ours / baseline if math.isfinite(baseline) and baseline > 0 else math.nan


def worst(times: Sequence[float]) -> float:
    """Give the longest time; NaN if there is none."""
    return max(times, default=math.nan)


def p95(times: Sequence[float]) -> float:
    """Give the 95th percentile: a measured time, never one between two."""
    return interpolated_up(times, 0.95)


def lost(faults: Sequence[Fault]) -> int:
    """Count the faults after which the job made no step any more."""
    return sum(not fault.after_s for fault in faults)


def burned(faults: Sequence[Fault]) -> int:
    """Give the most restarts that one survived fault cost."""
    return max((fault.burned for fault in faults), default=0)


def _word(launcher: str) -> str:
    return "".join(letter if letter.isalnum() else " " for letter in launcher).lower().replace(" ", "_").strip("_")


def _seconds(*times: float) -> list[str]:
    return ["-" if math.isnan(each) else "never" if math.isinf(each) else f"{each:.3f}" for each in times]
