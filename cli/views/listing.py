"""A listing in each of its formats: a table, a wide table, JSON, YAML, or names that other commands accept.

Verbs make the rows; verb_support/listing_output.py decides when a listing is printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

from turnout.kube.client.logs import printable

R = TypeVar("R")
FORMS = ("table", "wide", "json", "yaml", "name")
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """One column of a table."""

    head: str
    cell: Callable[[R], str]
    wide: bool = False  # only in the wide table
    number: bool = False  # aligned to the right
    order: Callable[[R], Any] | None = None  # sort key of a row, None to sort by the cell's text
    share: Callable[[R], float] | None = None  # 0 to 1, drawn as a bar in a live listing

    def key(self, row: R) -> Any:
        """Return the sort key of a row: numbers before texts, ascending."""
        if self.order is not None:
            return self.order(row)
        cell = self.cell(row)
        found = re.fullmatch(r"(-?\d+(?:\.\d+)?)%?", cell)
        return (0, float(found[1]), "") if found else (1, 0.0, cell)


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """Rows, and how each is printed."""

    columns: Sequence[Column[R]]
    rows: Sequence[R]
    name: Callable[[R], str]  # of a row, as other commands take it
    empty: str  # printed in place of a table without rows
    notes: Sequence[str] = ()  # lines under a table; not in JSON, YAML and names
    # Returns a row as JSON and YAML print it. The default needs a dataclass.
    value: Callable[[R], Mapping[str, Any]] = asdict  # type: ignore[assignment]
    document: Any = None  # printed as JSON and YAML in place of the rows' values; None for the rows
    # Fields that time alone changes, such as an age: their change is no change of the row.
    ignored_fields: frozenset[str] = frozenset()

    def sorted_by(self, head: str) -> Listing[R]:
        """Return the listing with its rows in the order of a column; as it is for "" and for an unknown one."""
        column = next((each for each in self.columns if head and each.head == head), None)
        return self if column is None else replace(self, rows=sorted(self.rows, key=column.key))

    def compared_values(self) -> dict[str, Mapping[str, Any]]:
        """Return, by row name, the values whose change counts as a change of the row: all but `ignored_fields`."""
        return {self.name(row): self._compared(row) for row in self.rows}

    def changed_rows(self, before: Mapping[str, Mapping[str, Any]]) -> list[R]:
        """List the rows that are new or have changed. before: `compared_values()` of an earlier listing."""
        return [row for row in self.rows if before.get(self.name(row)) != self._compared(row)]

    def _compared(self, row: R) -> Mapping[str, Any]:
        return {key: each for key, each in self.value(row).items() if key not in self.ignored_fields}


def text(listing: Listing[Any], output_format: str, *, headers: bool = True) -> str:
    """Return a listing as text, without a newline at the end. output_format: one of FORMS.

    JSON and YAML are of the listing's document if it has one, else a list of its rows. headers: False leaves only the
    rows of a table, without its heading, its notes and the text for an empty one; other formats ignore it.
    """
    if output_format in ("json", "yaml"):
        values = listing.document
        if values is None:
            values = [dict(listing.value(row)) for row in listing.rows]
        return encode_values(values, output_format)
    if output_format == "name":
        return "\n".join(printable(listing.name(row)) for row in listing.rows)
    table = _table(listing, output_format == "wide")[0 if headers else 1 :]
    if not headers:
        return "\n".join(table)
    return "\n".join([*(table or [listing.empty]), *map(printable, listing.notes)])


def encode_values(values: Any, output_format: str) -> str:
    """Return values as JSON or YAML, without a newline at the end. output_format: "json"; any other word is YAML."""
    return json.dumps(values, indent=2) if output_format == "json" else _yaml(values)


def changes(listing: Listing[Any], output_format: str, before: Mapping[str, Mapping[str, Any]]) -> str:
    """Return only the new and the changed rows, as `kubectl get -w` does: no heading, one document for each row.

    output_format: one of FORMS. before: the `compared_values` values of an earlier listing. "" if nothing has changed.
    """
    rows = listing.changed_rows(before)
    if not rows:
        return ""
    if output_format == "json":
        return "\n".join(json.dumps(listing.value(row), indent=2) for row in rows)
    if output_format == "yaml":
        return "\n".join(f"---\n{_yaml(dict(listing.value(row)))}" for row in rows)
    if output_format == "name":
        return "\n".join(printable(listing.name(row)) for row in rows)
    shown = {id(row) for row in rows}
    lines = _table(listing, output_format == "wide")
    return "\n".join(line for line, row in zip(lines[1:], listing.rows, strict=True) if id(row) in shown)


def _table(listing: Listing[Any], wide: bool) -> list[str]:
    """Return the lines of a table: the headings, then the rows; [] without rows. wide: also show the wide columns."""
    columns = [column for column in listing.columns if wide or not column.wide]
    if not listing.rows:
        return []
    padded = []
    for column in columns:
        cells = [column.head, *(printable(column.cell(row)) for row in listing.rows)]
        width = max(map(len, cells))
        padded.append([cell.rjust(width) if column.number else cell.ljust(width) for cell in cells])
    return [_GAP.join(line).rstrip() for line in zip(*padded, strict=True)]


def _yaml(value: Any) -> str:
    """Return a value as YAML."""
    import yaml

    text: str = yaml.safe_dump(_plain(value), sort_keys=False, allow_unicode=True)
    return text.rstrip("\n")


def _plain(value: Any) -> Any:
    """Return a copy of the value with JSON's types only: YAML would write others, such as tuples, as Python objects."""
    return json.loads(json.dumps(value))
