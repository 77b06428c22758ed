"""Compares the promises to users with the tests: `python -m hack.lint.contract [--write | --check]`.

The promises stand in docs/contract.yaml, a row each. A test says which it shows with @pytest.mark.contract("CS-01").
Both together make docs/contract.md. Tests are read as text: nothing is imported.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from hack.lint.source_tree import definitions

ROOT = Path(__file__).resolve().parents[2]
TABLE, PAGE = "docs/contract.yaml", "docs/contract.md"
MARK = "contract"
CONDITIONS = {
    "real": "by `make test-real`, as in CI",
    "slow": "by `make test-slow`, as in CI",
    "long": "only by `make test-long`",
    "peers": "where `TURNOUT_PEERS` names Volcano's binaries",
    "gpu": "where a GPU is",
    "debian": "where Debian's package is",
}
AWAY = {"long", "peers", "gpu"}  # CI installs what Debian has, and runs no test of these
GROUPS = {
    "CS": "the core",
    "DL": "what users of DLRover's guide are used to",
    "CA": "ColossalAIJobs",
    "PE": "PyTorchJobs, and torchrun's variables",
    "VE": "elasticity in Volcano's words",
    "MS": "MindSpore's jobs",
    "XD": "across kinds",
}


class State(StrEnum):
    """The state of a promise."""

    SHOWN = "shown"
    ABSENT = "absent"
    OPERATOR = "operator's part"
    OTHERWISE = "decided otherwise"


@dataclass(frozen=True, slots=True)
class Row:
    """One promise."""

    id: str
    promise: str  # in short
    acceptance: str  # in full: what a test of it does
    state: State
    note: str = ""  # why it is not shown, or where a shown one stops


@dataclass(frozen=True, slots=True)
class Showing:
    """A test that proves rows of the contract."""

    path: str
    name: str
    rows: tuple[str, ...]
    only: tuple[str, ...] = ()  # marks by which it is left out of `make test`

    def __str__(self) -> str:
        elsewhere = {"slow", "long"} & {*self.only}  # their commands run tests of real parts, too
        where = "; ".join(CONDITIONS[mark] for mark in self.only if mark != "real" or not elsewhere)
        return f"`{self.path}::{self.name}`" + (f" ({where})" if where else "")


def rows(text: str) -> tuple[Row, ...]:
    """Return the rows of the contract's table. Raises ValueError for an incomplete row or a repeated ID, and for a text
    that is no list of objects.
    """
    table = yaml.load(text, yaml.CSafeLoader)
    if not isinstance(table, list) or not all(isinstance(each, dict) for each in table):
        raise ValueError(f"{TABLE}: it must be a list of objects")
    found = [_row(each) for each in table]
    twice = [name for name, count in Counter(row.id for row in found).items() if count > 1]
    if twice:
        raise ValueError(f"{TABLE}: {', '.join(twice)}: more than one row")
    return tuple(found)


def _row(fields: Mapping[str, Any]) -> Row:
    """Return one row of the table from its fields.

    Raises ValueError if a field is missing, unknown or has an unknown state, or if a row that is not shown has no note.
    """
    try:
        row = Row(**{**fields, "state": State(fields["state"])})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{TABLE}: {fields.get('id', fields)}: {error}") from error
    if row.state is not State.SHOWN and not row.note:
        raise ValueError(f"{TABLE}: {row.id} is {row.state}, and no note says why")
    return row


def tests_in(path: str, source: str) -> Iterator[Showing]:
    """Yield the tests and test classes of one module that have the mark of the contract themselves, with their rows.

    path: of the module, copied to the results. source: its text.
    """
    if f"mark.{MARK}" not in source:
        return
    tree = ast.parse(source)
    module = _module_marks(tree)
    for node in definitions(tree):
        marks = [found for each in node.decorator_list if (found := _mark(each))]
        shown = [row for name, words in marks if name == MARK for row in words]
        only = sorted({name for name, _ in (*marks, *module)} & CONDITIONS.keys())
        if shown:
            yield Showing(path, node.name, tuple(shown), tuple(only))


def _module_marks(tree: ast.Module) -> list[tuple[str, tuple[str, ...]]]:
    """Return name and words of each mark that applies to a whole module (pytestmark)."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                each = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
                return [found for mark in each if (found := _mark(mark))]
    return []


def _mark(node: ast.expr) -> tuple[str, tuple[str, ...]] | None:
    """Return name and arguments of pytest.mark.NAME or pytest.mark.NAME("word", …); None for another expression."""
    words: tuple[str, ...] = ()
    if isinstance(node, ast.Call):
        words = tuple(
            each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
        )
        node = node.func
    match node:
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="pytest"), attr="mark"), attr=name):
            return name, words
    return None


def faults(table: Sequence[Row], tests: Iterable[Showing]) -> Iterator[str]:
    """Yield a sentence for each difference between the table and the marks of the tests."""
    states = {row.id: row.state for row in table}
    shows = by_row(tests)
    for name, found in shows.items():
        if name not in states:
            yield f"{found[0].path}::{found[0].name} shows {name}, which is no row of {TABLE}"
        elif states[name] is not State.SHOWN:
            yield f"{found[0].path}::{found[0].name} shows {name}, which {TABLE} says is {states[name]}"
    for row in table:
        if row.state is State.SHOWN and row.id not in shows:
            yield f'{row.id} is shown by no test: mark one with @pytest.mark.contract("{row.id}"), or say what it is'
        elif row.state is State.SHOWN and not row.note and all(AWAY & {*test.only} for test in shows[row.id]):
            yield f"{row.id} is shown by no test that continuous integration runs, and no note of its row says so"


def by_row(tests: Iterable[Showing]) -> dict[str, list[Showing]]:
    """Return the tests that show each row: ID -> tests, by place."""
    shows: dict[str, list[Showing]] = defaultdict(list)
    for test in sorted(tests, key=lambda test: (test.path, test.name)):
        for name in test.rows:
            shows[name].append(test)
    return dict(shows)


def summary(table: Sequence[Row]) -> list[str]:
    """Return the lines of a Markdown table: the number of rows by group and state."""
    lines = [f"| | rows | {' | '.join(State)} |", f"| --- |{' ---: |' * (1 + len(State))}"]
    for group, title in [*GROUPS.items(), ("", "all")]:
        ours = [row for row in table if row.id.startswith(group)]
        counted = Counter(row.state for row in ours)
        name = f"{group}: {title}" if group else title
        lines.append(f"| {name} | {len(ours)} | {' | '.join(str(counted[state]) for state in State)} |")
    return lines


HEAD = f"""# What is promised, and the test that shows it

Made by `make contract` from [contract.yaml](contract.yaml), where each row has its acceptance in full, and from the
marks `@pytest.mark.{MARK}` of the tests; `make check` holds it. Where nothing else is said, `make test` runs the test.

*Shown*: by the tests that are named. *Absent*: promised, and not there yet. *Operator's part*: what the operator of the
job kind does, where one is installed. *Decided otherwise*: the note says what is done in its place.
What else is shown, and on which systems: [shown-on.md](shown-on.md).
"""


def page(table: Sequence[Row], tests: Iterable[Showing]) -> str:
    """Return the text of docs/contract.md. tests: that show its rows."""
    shows = by_row(tests)
    parts = [HEAD, *summary(table)]
    for group, title in GROUPS.items():
        parts += ["", f"## {group}: {title}", "", "| promise | in short | state | shown by, or why not |"]
        parts.append("| --- | --- | --- | --- |")
        for row in table:
            if row.id.startswith(group):
                shown = ", ".join(map(str, shows.get(row.id, ())))
                parts.append(
                    f"| {row.id} | {row.promise} | {row.state} | {'. '.join(filter(None, (shown, row.note)))} |"
                )
    return "\n".join([*parts, ""])


def read(root: Path = ROOT) -> tuple[tuple[Row, ...], list[Showing]]:
    """Return the table, and the marked tests sorted by path, of a checkout. Raises ValueError as `rows` does."""
    tests = [
        test
        for file in sorted((root / "tests").rglob("test_*.py"))
        for test in tests_in(file.relative_to(root).as_posix(), file.read_text())
    ]
    return rows((root / TABLE).read_text()), tests


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Print the table by state, unless --check; with --write write the page docs/contract.md.

    Returns 1 if the page is stale, or if table and tests differ, else 0. argv: None for that of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m hack.lint.contract", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE}")
    parser.add_argument("--check", action="store_true", help="say nothing but what is wrong")
    arguments = parser.parse_args(argv)
    table, tests = read(root)
    text = page(table, tests)
    wrong = list(faults(table, tests))
    if arguments.write:
        (root / PAGE).write_text(text)
    elif (root / PAGE).read_text() != text:
        wrong.append(f"{PAGE} is old: type make contract")
    if not arguments.check:
        print("\n".join(_table_lines(table, tests)))
    print("".join(f"contract: {each}\n" for each in wrong), end="", file=sys.stderr)
    return 1 if wrong else 0


def _table_lines(table: Sequence[Row], tests: Iterable[Showing]) -> Iterator[str]:
    """Yield the lines of the printed table, with the number of tests of each row."""
    shows = by_row(tests)
    for state in State:
        ours = [row for row in table if row.state is state]
        yield f"{state}: {len(ours)}"
        for row in ours:
            count = len(shows.get(row.id, ()))
            yield f"  {row.id}  {row.promise}" + (f"  [{count} test{'s' * (count != 1)}]" if count else "")
    yield ""
    yield from (line.strip("| ").replace(" | ", "\t") for line in summary(table) if "---" not in line)


if __name__ == "__main__":
    sys.exit(main())
