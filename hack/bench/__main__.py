"""`python -m hack.bench NAME ... [--quick|--smallest]` runs benchmarks, `--all` every one, each by itself.

A benchmark is a folder here whose module `run` has a `run(scale) -> Outcome`. It prints tables for people and, as its
last line, one JSON object, which also goes to build/bench/NAME.json unless the run is of the smallest size. Exit
status: 1 if a benchmark broke, else 3 if a strict one missed a target, else 0.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from hack.bench.support.outcome import MISSED, Outcome, Scale, Table

RESULTS = Path("build/bench")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named benchmarks and print their outcomes. Return the exit status that the module's docstring describes.

    A single benchmark runs in this process, and its exception is raised. argv: without the program's name; None for
    that of this process.
    """
    names = names_of_benchmarks()
    parser = argparse.ArgumentParser(prog="python -m hack.bench", description="Measure ours beside its baselines.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one or several of {', '.join(names)}")
    parser.add_argument("--all", action="store_true", help="run every benchmark")
    sizes = parser.add_mutually_exclusive_group()
    for scale, text in ((Scale.QUICK, "the same measurement, smaller: a minute or two"), (Scale.SMALLEST, "only run")):
        sizes.add_argument(f"--{scale.value}", dest="scale", action="store_const", const=scale, help=text)
    parser.set_defaults(scale=Scale.FULL)
    chosen = parser.parse_args(argv)
    if unknown := sorted({*chosen.names} - {*names}):
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(names)}")
    if chosen.all == bool(chosen.names):
        parser.error("name benchmarks, or --all")
    if chosen.all or len(chosen.names) > 1:
        return run_each(names if chosen.all else chosen.names, chosen.scale)
    (name,) = chosen.names
    return show_and_rate(name, runner(name)(chosen.scale), save=chosen.scale is not Scale.SMALLEST)


def show_and_rate(name: str, outcome: Outcome, save: bool = True) -> int:
    """Show an outcome as `show` does. Return MISSED if it is strict and missed a target, else 0."""
    show(name, outcome, save)
    return MISSED if outcome.strict and not all(target.is_met for target in outcome.targets) else 0


def names_of_benchmarks() -> list[str]:
    """Return the names of this package's benchmarks, sorted."""
    return sorted(run.parent.name for run in Path(__file__).parent.glob("*/run.py"))


def runner(name: str) -> Callable[[Scale], Outcome]:
    """Return the function `run` of a benchmark. name: one of `names_of_benchmarks`. Raises ImportError for another."""
    run: Callable[[Scale], Outcome] = importlib.import_module(f"hack.bench.{name}.run").run
    return run


def _status(command: Sequence[str]) -> int:
    return subprocess.run(command, check=False).returncode


def run_each(names: Sequence[str], scale: Scale, status_of: Callable[[Sequence[str]], int] = _status) -> int:
    """Run each benchmark in its own process, so that one does not affect another, and a failure does not stop the
    others.

    Returns 1 if one breaks, else MISSED if a strict one misses a target, else 0. status_of: runs a command and returns
    its exit status.
    """
    broken, missed = [], False
    for name in names:
        command = [sys.executable, "-m", "hack.bench", name, *([] if scale is Scale.FULL else [f"--{scale.value}"])]
        status = status_of(command)
        missed |= status == MISSED
        if status not in (0, MISSED):
            broken.append(name)
    if broken:
        print(f"broken: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else MISSED if missed else 0


def _console() -> Console:
    """Return a console as wide as the terminal; 140 columns, which fit every table, if the output is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=140)


def show(name: str, outcome: Outcome, save: bool = True) -> None:
    """Print an outcome: its tables, notes and targets, then one line of JSON. save: also write the JSON to
    build/bench.
    """
    console = _console()
    console.rule(outcome.title)
    for table in outcome.tables:
        console.print(rich_table(table))
    for note in outcome.notes:
        console.print(note, markup=False, highlight=False)
    if outcome.targets:
        console.print(rich_table(_targets(outcome)))
    line = as_json(name, outcome)
    if save:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{name}.json").write_text(line + "\n")
    print(line)


def as_json(name: str, outcome: Outcome) -> str:
    """Return an outcome as one line of JSON. A figure that is not finite is null."""
    targets = [
        {
            "name": target.name,
            "value": _number(target.value),
            "op": target.op,
            "limit": target.limit,
            "met": bool(target.is_met),
        }
        for target in outcome.targets
    ]
    figures = {key: _number(value) for key, value in outcome.figures.items()}
    return json.dumps({"bench": name, "figures": figures, "targets": targets}, allow_nan=False)


def rich_table(table: Table) -> RichTable:
    """Return the table for rich: the first column aligned to the left, the others to the right."""
    rich = RichTable(title=table.title, title_justify="left")
    for at, column in enumerate(table.columns):
        rich.add_column(column, justify="left" if at == 0 else "right")
    for row in table.texts():
        rich.add_row(*row)
    return rich


def _targets(outcome: Outcome) -> Table:
    """Return the table of an outcome's targets, with limits and whether they are met."""
    rows = [
        (target.name, target.value, f"{target.op} {target.limit:g}", "met" if target.is_met else "NOT MET")
        for target in outcome.targets
    ]
    return Table("targets", {"target": "", "value": ".4g", "limit": "", "": ""}, rows)


def _number(value: float) -> float | None:
    return round(float(value), 6) if math.isfinite(value) else None


if __name__ == "__main__":
    sys.exit(main())
