"""Defines what a stage reports, and renders the summary of all stages with the targets.

Each line of `results.jsonl` is either a figure of a stage, or how a stage ended.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

Number: TypeAlias = int | float


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, or a fact in words."""

    stage: str
    name: str
    value: Number | str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class StageEnd:
    """How a stage ended."""

    stage: str
    status: str  # "ok", "failed", "timed out" or "not run"
    took_s: float
    detail: str = ""


class Results:
    """Appends lines to the file of results. A line is written at once, so that a killed stage loses none."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, line: Figure | StageEnd) -> None:
        """Append one line to the file."""
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, json.dumps(asdict(line)).encode() + b"\n")
        finally:
            os.close(file)

    def read(self) -> tuple[list[Figure], list[StageEnd]]:
        """Return all (figures, ends of stages) so far, in the order of the file; two empty lists if it does not
        exist.
        """
        lines = [json.loads(line) for line in self._path.read_text().splitlines()] if self._path.exists() else []
        figures = [Figure(**line) for line in lines if "name" in line]
        return figures, [StageEnd(**line) for line in lines if "status" in line]


@dataclass(frozen=True, slots=True)
class StageArguments:
    """The command line of a stage, and the figures of the stages before it."""

    stage: str
    device: str  # "cuda" or "cpu"
    size: str  # of the model: default, large or tiny
    results: Results
    figures: Mapping[tuple[str, str], Number | str]  # those of the stages before, by stage and name
    folder: Path  # on disk; removed when the stage has ended
    memory: Path  # in shared memory; removed when the stage has ended

    def report(self, name: str, value: Number | str, unit: str = "") -> None:
        """Report a figure at once, to the file and to the terminal."""
        self.results.add(Figure(self.stage, name, value, unit))
        print(f"{name}: {_value_text(value)} {unit}".rstrip(), flush=True)


def arguments(argv: Sequence[str] | None = None) -> StageArguments:
    """Parse a stage's command line, and read the figures of the stages before it. argv: None for that of this
    process.
    """
    parser = argparse.ArgumentParser()
    for name in ("--stage", "--device", "--size", "--results", "--folder", "--memory"):
        parser.add_argument(name, required=True)
    args = parser.parse_args(argv)
    results = Results(Path(args.results))
    known = {(figure.stage, figure.name): figure.value for figure in results.read()[0]}
    return StageArguments(args.stage, args.device, args.size, results, known, Path(args.folder), Path(args.memory))


@dataclass(frozen=True, slots=True)
class Target:
    """A target of the check on a GPU."""

    words: str  # what is measured, for the summary
    stage: str
    name: str  # of the stage's figure
    limit: float
    maximum: bool = True  # True if the value must not be above the limit, else not below it

    def is_met(self, value: Number) -> bool:
        """Return True if the value meets the target."""
        return value <= self.limit if self.maximum else value >= self.limit


TARGETS = (
    Target("blocking save: stand-still over bytes at raw pinned bandwidth", "ours-blocking", "stall_over_floor", 1.1),
    Target("overlapped save: stand-still, s", "ours-overlapped", "stall_s", 0.050),
    Target("step rate beside the copy", "ours-overlapped", "rate_beside_copy", 0.97, maximum=False),
    Target("step rate during persist", "ours-overlapped", "rate_during_persist", 0.99, maximum=False),
    Target("restore over the floor", "restore", "restore_over_floor", 1.3),
    Target("worker killed to next step, s", "restart-ours", "to_next_step_s", 3.0),
    Target("host memory over the state, two generations", "ours-overlapped", "host_memory_over_state", 2.1),
)


def summary(figures: Sequence[Figure], ends: Sequence[StageEnd], device: str) -> str:
    """Return all results as Markdown: stages, targets, figures. Of several figures with the same stage and name, and of
    several ends of a stage, the last one counts.

    device: "cuda" or "cpu"; on a CPU targets count neither as met nor as missed.
    """
    latest = {(figure.stage, figure.name): figure for figure in figures}
    last = {end.stage: end for end in ends}
    lines = [f"# GPU check on {device}", "", "| stage | status | s | detail |", "| --- | --- | --- | --- |"]
    lines += [f"| {end.stage} | {end.status} | {end.took_s:.1f} | {_cell(end.detail)} |" for end in last.values()]
    lines += ["", "| target | limit | value | met |", "| --- | --- | --- | --- |"]
    for target in TARGETS:
        figure = latest.get((target.stage, target.name))
        sign = "≤" if target.maximum else "≥"
        if figure is None or isinstance(figure.value, str):
            lines.append(f"| {target.words} | {sign} {target.limit:g} | not measured | |")
            continue
        met = ("yes" if target.is_met(figure.value) else "no") if device == "cuda" else "not on a GPU"
        lines.append(f"| {target.words} | {sign} {target.limit:g} | {_value_text(figure.value)} | {met} |")
    lines += ["", "| stage | figure | value | unit |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {each.stage} | {each.name} | {_cell(_value_text(each.value))} | {each.unit} |" for each in latest.values()
    ]
    return "\n".join(lines) + "\n"


def _value_text(value: Number | str) -> str:
    """Return a value as text: a number with four digits, a text unchanged."""
    return value if isinstance(value, str) else f"{value:.4g}"


def _cell(text: str) -> str:
    """Return text that fits into a cell of a Markdown table: one line, at most 200 characters."""
    return text.replace("|", "/").replace("\n", " ")[:200]
