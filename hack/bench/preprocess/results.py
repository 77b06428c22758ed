"""Results of the preprocess benchmark: tables, figures and the targets of docs/benchmarks.md.

A rate is taken after start-up: the time of a run over one short document is subtracted. Ratios are taken within a
round, in which every side ran once, and their median counts. A missing measurement has no number and meets no target.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from hack.bench.preprocess.measure import Usage
from hack.bench.preprocess.sides import AUTO, DATATROVE, FAST, GIGATOKEN, OLD, OURS, SPARK, WORKERS
from hack.bench.support.outcome import Table, Target

MEMORY_LIMIT_MIB = 512 + 200 * WORKERS
_COLUMNS = ("", "MB of text", "runs", "MB/s", "spread", "MB per CPU s", "start s", "ours / it", "by CPU", "tokens")
_MISSING = "-"
_OWN = (OURS, AUTO, SPARK)
_NOT_COUNTED = (DATATROVE, SPARK)  # their workers' CPU time


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a side."""

    size_bytes: int  # of its input, > 0
    usage: Usage

    def rate(self, start: Usage) -> float:
        """Return MB a second after start-up; NaN if the run was not longer than a run over one document."""
        return _ratio(self.size_bytes / 1e6, self.usage.wall_s - start.wall_s)

    def cpu_rate(self, start: Usage) -> float:
        """Return MB for each second of CPU time after start-up."""
        return _ratio(self.size_bytes / 1e6, self.usage.cpu_s - start.cpu_s)


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge of shards beside `cp` of the same files, one after the other."""

    size_bytes: int
    merge_s: float
    copy_s: float


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that a run measured. Keys are the names of sides."""

    starts: Mapping[str, Sequence[Usage]] = field(default_factory=dict)  # one short document, once each round
    rounds: Mapping[str, Sequence[Run]] = field(default_factory=dict)  # equal positions: the same round
    memory: Mapping[str, Sequence[Run]] = field(default_factory=dict)
    long_document: Sequence[tuple[Run, Run]] = ()  # with the long document, and in small documents
    merges: Sequence[Merge] = ()
    equal: Mapping[str, bool] = field(default_factory=dict)  # True: the tokens of ours

    def rates(self, side: str) -> list[float]:
        """Return the rates of a side, one each round."""
        pairs = zip(self.rounds.get(side, ()), self.starts.get(side, ()), strict=True)
        return [run.rate(start) for run, start in pairs]

    def over(self, side: str, ours: str = OURS) -> float:
        """Return how many times as fast as a side ours is; NaN if one of them did not run."""
        own, other = self.rates(ours), self.rates(side)
        if not own or not other:
            return math.nan
        if len(own) != len(other):  # a slow side runs once, on less text
            return _ratio(median(own), median(other))
        return median(_ratio(mine, its) for mine, its in zip(own, other, strict=True))

    def cpu_rates(self, side: str) -> list[float]:
        """Return MB for each second of CPU time of a side, one each round. Another load changes them less."""
        pairs = zip(self.rounds.get(side, ()), self.starts.get(side, ()), strict=True)
        return [] if side in _NOT_COUNTED else [run.cpu_rate(start) for run, start in pairs]

    def over_by_cpu(self, side: str, ours: str = OURS) -> float:
        """Return how many times as much text ours takes for each second of CPU time as a side does."""
        return _ratio(_median(self.cpu_rates(ours)), _median(self.cpu_rates(side)))

    def peak_mib(self, side: str) -> float:
        """Return the largest memory of a side over all sizes; NaN if it was not measured."""
        return max((run.usage.peak_mib for run in self.memory.get(side, ())), default=math.nan)

    def long_ratio(self) -> float:
        """Return the time with the long document beside the time of the same text in small documents."""
        return _median(_ratio(joined.usage.wall_s, small.usage.wall_s) for joined, small in self.long_document)

    def merge_ratio(self) -> float:
        """Return the rate of the merge beside the rate of cp."""
        return _median(_ratio(merge.copy_s, merge.merge_s) for merge in self.merges)


def targets(findings: Findings, *, full: bool) -> list[Target]:
    """Return the promises. full: the sizes are those that the promises name; a quick run has no promise on sizes."""
    sizes = "1, 4 and 16 GB" if full else "the sizes above"
    return [
        Target("rate, --engine gigatoken, beside gigatoken's own file path", findings.over(GIGATOKEN), ">=", 0.8),
        Target("rate, --engine auto, beside gigatoken's own file path", findings.over(GIGATOKEN, AUTO), ">=", 0.8),
        Target("rate, --engine auto, beside preprocess_data_fast.py", findings.over(FAST, AUTO), ">=", 1.0),
        Target("rate, --engine auto, beside preprocess_data.py", findings.over(OLD, AUTO), ">=", 8.0),
        Target("rate, --engine auto, beside datatrove's writer", findings.over(DATATROVE, AUTO), ">=", 8.0),
        Target(f"memory for {sizes}, MiB", findings.peak_mib(OURS), "<=", MEMORY_LIMIT_MIB),
        Target("merge, beside cp of the same bytes", findings.merge_ratio(), ">=", 0.8),
        Target("a long document, beside the same bytes in small ones", findings.long_ratio(), "<=", 1.2),
        Target("Spark on local[2], beside the local runner", findings.over(OURS, SPARK), ">=", 0.8),
    ]


def tables(findings: Findings) -> list[Table]:
    """Return the tables. A side that did not run has no row; the notes say why."""
    found = [_rates(findings)]
    if findings.memory:
        found.append(_memory(findings))
    if findings.long_document:
        found.append(_long_document(findings))
    if findings.merges:
        merges = [
            (f"{merge.size_bytes / 1e6:,.0f} MB of tokens", f"{merge.merge_s:.2f}", f"{merge.copy_s:.2f}")
            for merge in findings.merges
        ]
        found.append(Table("merge beside cp of the same files", ("", "merge s", "cp s"), merges))
    return found


def figures(findings: Findings) -> dict[str, float]:
    """Return the figures for the JSON line."""
    told: dict[str, float] = {}
    for side in findings.rounds:
        rates = findings.rates(side)
        told[f"{side} MB/s"] = _median(rates)
        told[f"{side} start s"] = _start_s(findings, side)
        told[f"{side} MB per CPU s"] = _median(findings.cpu_rates(side))
        told[f"{side} tokens equal"] = float(findings.equal[side]) if side in findings.equal else math.nan
        if side not in _OWN:
            told |= {f"{OURS} / {side}": findings.over(side), f"{AUTO} / {side}": findings.over(side, AUTO)}
            told[f"{AUTO} / {side}, by CPU"] = findings.over_by_cpu(side, AUTO)
    for side, runs in findings.memory.items():
        told |= {f"{side} MiB for {run.size_bytes / 1e9:.2f} GB": run.usage.peak_mib for run in runs}
    told |= {"merge / cp": findings.merge_ratio(), "long document / small ones": findings.long_ratio()}
    return told | {"Spark / local": findings.over(OURS, SPARK)}


def _rates(findings: Findings) -> Table:
    rows = []
    for side, runs in findings.rounds.items():
        rates = findings.rates(side)
        rows.append(
            (
                side,
                f"{runs[0].size_bytes / 1e6:,.0f}",
                f"{len(runs)}",
                _number(_median(rates), ",.1f"),
                f"{min(rates):,.1f}..{max(rates):,.1f}" if rates else _MISSING,
                _number(_median(findings.cpu_rates(side)), ",.1f"),
                _number(_start_s(findings, side), ".1f"),
                _MISSING if side in _OWN else _number(findings.over(side, AUTO), ".2f"),
                _MISSING if side in _OWN else _number(findings.over_by_cpu(side, AUTO), ".2f"),
                {True: "equal", False: "DIFFERENT", None: _MISSING}[findings.equal.get(side)],
            )
        )
    return Table(f"end to end, {WORKERS} processes or threads; 'ours' is --engine auto", _COLUMNS, rows)


def _start_s(findings: Findings, side: str) -> float:
    return _median(start.wall_s for start in findings.starts.get(side, ()))


def _memory(findings: Findings) -> Table:
    rows = [
        (side, f"{run.size_bytes / 1e9:,.2f}", f"{run.usage.peak_mib:,.0f}", f"{run.usage.wall_s:,.1f}")
        for side, runs in findings.memory.items()
        for run in runs
    ]
    return Table("memory of all processes together (PSS)", ("", "GB of text", "peak MiB", "seconds"), rows)


def _long_document(findings: Findings) -> Table:
    rows = [
        (
            f"round {at}",
            f"{joined.size_bytes / 1e6:,.0f}",
            f"{joined.usage.wall_s:.1f}",
            f"{small.usage.wall_s:.1f}",
            f"{joined.usage.cpu_s:.1f}",
            f"{small.usage.cpu_s:.1f}",
        )
        for at, (joined, small) in enumerate(findings.long_document, 1)
    ]
    columns = ("", "MB of text", "one long document s", "small documents s", "CPU s", "CPU s")
    return Table("half of the text in one document, beside the same text in small documents", columns, rows)


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else math.nan  # also where `other` is no number


def _median(values: Iterable[float]) -> float:
    found = list(values)
    return float(median(found)) if found else math.nan


def _number(value: float, form: str) -> str:
    return f"{value:{form}}" if math.isfinite(value) else _MISSING
