"""Results of the preprocess benchmark: tables, figures and the targets of docs/benchmarks.md.

A rate is taken after start-up: the time of a run over one short document is subtracted. Ratios are taken within a
round, in which every side ran once, and their median counts. A missing measurement fails its target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hack.bench.preprocess.measure import Usage
from hack.bench.preprocess.sides import AUTO, DATATROVE, FAST, GIGATOKEN, OLD, OURS, SPARK, WORKERS
from hack.bench.support.measure import middle, middle_ratio, ratio
from hack.bench.support.outcome import Table, Target

MEMORY_LIMIT_MIB = 512 + 200 * WORKERS
_COLUMNS = {"": "", "MB of text": ",.0f", "runs": "d", "MB/s": ",.1f", "spread": "", "MB per CPU s": ",.1f"}
_COLUMNS |= {"start s": ".1f", "ours / it": ".2f", "by CPU": ".2f", "tokens": ""}
_MISSING = "-"
_OWN = (OURS, AUTO, SPARK)
_NOT_COUNTED = (DATATROVE, SPARK)  # their workers' CPU time


@dataclass(frozen=True, slots=True)
class PreprocessRunResult:
    """One run of a side."""

    size_bytes: int  # of its input, > 0
    usage: Usage

    def rate(self, start: Usage) -> float:
        """Return MB a second after start-up; NaN if the run was not longer than a run over one document."""
        return ratio(self.size_bytes / 1e6, self.usage.wall_s - start.wall_s)

    def cpu_rate(self, start: Usage) -> float:
        """Return MB for each second of CPU time after start-up; NaN if a run over one document used no less."""
        return ratio(self.size_bytes / 1e6, self.usage.cpu_s - start.cpu_s)


@dataclass(frozen=True, slots=True)
class MergeResult:
    """A merge of shards beside `cp` of the same files, one after the other."""

    size_bytes: int
    merge_s: float
    copy_s: float


@dataclass(frozen=True, slots=True)
class PreprocessFindings:
    """Everything that a run measured. Keys are the names of sides."""

    starts: Mapping[str, Sequence[Usage]] = field(default_factory=dict)  # one short document, once each round
    rounds: Mapping[str, Sequence[PreprocessRunResult]] = field(default_factory=dict)  # equal positions: the same round
    memory: Mapping[str, Sequence[PreprocessRunResult]] = field(default_factory=dict)
    # With the long document, and in small documents.
    long_document: Sequence[tuple[PreprocessRunResult, PreprocessRunResult]] = ()
    merges: Sequence[MergeResult] = ()
    equal: Mapping[str, bool] = field(default_factory=dict)  # True: the tokens of ours

    def rates(self, side: str) -> list[float]:
        """Return the rate of a side in each round, in MB/s after start-up. [] if the side did not run."""
        pairs = zip(self.rounds.get(side, ()), self.starts.get(side, ()), strict=True)
        return [run.rate(start) for run, start in pairs]

    def ratio_to(self, side: str, ours: str = OURS) -> float:
        """Return the median ratio of our rate to the rate of `side`, round by round; NaN if one of them did not run.

        A slow side, which ran once on less text, is compared by medians. ours: name of the side that counts as ours.
        """
        own, other = self.rates(ours), self.rates(side)
        if not own or not other:
            return math.nan
        if len(own) != len(other):  # a slow side runs once, on less text
            return ratio(middle(own), middle(other))
        return middle_ratio(own, other)

    def cpu_rates(self, side: str) -> list[float]:
        """Return MB per second of CPU time of a side, in each round. Other load on the machine changes these less than
        `rates`.

        Returns [] if the side did not run, or if its CPU time cannot be counted.
        """
        pairs = zip(self.rounds.get(side, ()), self.starts.get(side, ()), strict=True)
        return [] if side in _NOT_COUNTED else [run.cpu_rate(start) for run, start in pairs]

    def cpu_ratio_to(self, side: str, ours: str = OURS) -> float:
        """Return the ratio of the medians of `cpu_rates`, ours to those of `side`; NaN if one is not known.

        ours: name of the side that counts as ours.
        """
        return ratio(middle(self.cpu_rates(ours)), middle(self.cpu_rates(side)))

    def peak_mib(self, side: str) -> float:
        """Return the largest memory of a side over all sizes; NaN if it was not measured."""
        return max((run.usage.peak_mib for run in self.memory.get(side, ())), default=math.nan)

    def long_document_ratio(self) -> float:
        """Return the median ratio of the time over the text with a long document to the time over small documents."""
        return middle(ratio(joined.usage.wall_s, small.usage.wall_s) for joined, small in self.long_document)

    def merge_ratio(self) -> float:
        """Return the median ratio of the rate of the merge to the rate of `cp`."""
        return middle(ratio(merge.copy_s, merge.merge_s) for merge in self.merges)


def targets(findings: PreprocessFindings, *, full: bool) -> list[Target]:
    """Return the targets of docs/benchmarks.md.

    full: the sizes are those of docs/benchmarks.md; otherwise the target on memory names no sizes.
    """
    sizes = "1, 4 and 16 GB" if full else "the sizes above"
    return [
        Target("rate, --engine gigatoken, beside gigatoken's own file path", findings.ratio_to(GIGATOKEN), ">=", 0.8),
        Target("rate, --engine auto, beside gigatoken's own file path", findings.ratio_to(GIGATOKEN, AUTO), ">=", 0.8),
        Target("rate, --engine auto, beside preprocess_data_fast.py", findings.ratio_to(FAST, AUTO), ">=", 1.0),
        Target("rate, --engine auto, beside preprocess_data.py", findings.ratio_to(OLD, AUTO), ">=", 8.0),
        Target("rate, --engine auto, beside datatrove's writer", findings.ratio_to(DATATROVE, AUTO), ">=", 8.0),
        Target(f"memory for {sizes}, MiB", findings.peak_mib(OURS), "<=", MEMORY_LIMIT_MIB),
        Target("merge, beside cp of the same bytes", findings.merge_ratio(), ">=", 0.8),
        Target("a long document, beside the same bytes in small ones", findings.long_document_ratio(), "<=", 1.2),
        Target("Spark on local[2], beside the local runner", findings.ratio_to(OURS, SPARK), ">=", 0.8),
    ]


def tables(findings: PreprocessFindings) -> list[Table]:
    """Return the tables. A side that did not run has no row; the notes say why."""
    columns = {"": "", "GB of text": ",.2f", "peak MiB": ",.0f", "seconds": ",.1f"}
    memory = [
        (f"{side}, {run.size_bytes / 1e9:,.2f} GB", run.size_bytes / 1e9, run.usage.peak_mib, run.usage.wall_s)
        for side, runs in findings.memory.items()
        for run in runs
    ]
    title = f"end to end, {WORKERS} processes or threads; 'ours' is --engine auto"
    found = [
        Table(title, _COLUMNS, [_rate_row(findings, side) for side in findings.rounds]),
        Table("memory of all processes together (PSS)", columns, memory, key="memory:"),
        _long_document(findings),
        Table(
            "merge beside cp of the same files", {"": "", "MB of tokens": ",.0f", "merge s": ".2f", "cp s": ".2f"},
            [(f"merge {at}", one.size_bytes / 1e6, one.merge_s, one.copy_s)
             for at, one in enumerate(findings.merges, 1)],
        ),
    ]  # fmt: skip
    return [table for at, table in enumerate(found) if table.rows or at == 0]


def _rate_row(findings: PreprocessFindings, side: str) -> tuple[object, ...]:
    """Return the row of one side, in the order of _COLUMNS.

    Its cells: name, MB of text, rounds, MB/s after start-up and their range, MB for each second of CPU time, seconds of
    start-up, two ratios, and whether its tokens equal ours. The two ratios are our rate (--engine auto) divided by that
    of the side, by wall clock and by CPU time; _MISSING for our own sides.
    """
    runs, rates = findings.rounds[side], findings.rates(side)
    own = side in _OWN
    return (
        *(side, runs[0].size_bytes / 1e6, len(runs), middle(rates)),
        f"{min(rates):,.1f}..{max(rates):,.1f}" if rates else _MISSING,
        *(middle(findings.cpu_rates(side)), middle(start.wall_s for start in findings.starts.get(side, ()))),
        *((_MISSING,) * 2 if own else (findings.ratio_to(side, AUTO), findings.cpu_ratio_to(side, AUTO))),
        {True: "equal", False: "DIFFERENT", None: _MISSING}[findings.equal.get(side)],
    )


def _long_document(findings: PreprocessFindings) -> Table:
    """Return the table that compares one long document with the same text in small documents."""
    rows = [
        (
            *(f"round {at}", joined.size_bytes / 1e6, joined.usage.wall_s, small.usage.wall_s),
            *(joined.usage.cpu_s, small.usage.cpu_s),
        )
        for at, (joined, small) in enumerate(findings.long_document, 1)
    ]
    columns = {"": "", "MB of text": ",.0f", "one long document s": ".1f", "small documents s": ".1f"}
    columns |= {"long, CPU s": ".1f", "small, CPU s": ".1f"}
    return Table("half of the text in one document, beside the same text in small documents", columns, rows)
