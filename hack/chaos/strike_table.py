"""The table of fault kinds, seeds and invariants: how often each kind struck, and which invariants held.

A kind that was asked for and never struck, and a strike after which nothing was checked, count as failures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hack.chaos.fault_kinds import TITLES, Kind

_HELD, _VIOLATED = "held", "VIOLATED"


@dataclass(frozen=True, slots=True)
class Check:
    """An invariant that was checked, with its violations."""

    invariant: str
    violations: tuple[str, ...] = ()  # one line each, with the numbers that show it; () if it held


@dataclass(frozen=True, slots=True)
class Strike:
    """The faults of one kind under one seed."""

    kind: Kind
    seed: int
    times: int  # how often the fault really happened
    checks: tuple[Check, ...] = ()
    detail: str = ""  # size of the fault, in words


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: an invariant of a kind over all seeds."""

    kind: Kind
    seeds: int
    struck: int
    invariant: str
    verdict: str  # held, VIOLATED, or why there is none


def rows(kinds: Iterable[Kind], strikes: Sequence[Strike]) -> tuple[Row, ...]:
    """Return a row for each invariant of each kind in `kinds`, in the order of the kinds' numbers.

    A kind without a check has one row without an invariant. strikes: of all seeds, in any order.
    """
    return tuple(row for kind in _by_number(kinds) for row in _rows_of(kind, strikes))


def table(kinds: Iterable[Kind], strikes: Sequence[Strike]) -> tuple[str, ...]:
    """Return the rows as lines of text, the heading first, and a line for each violation at the end.

    kinds: kinds that get rows, even if they did not strike. strikes: of all seeds.
    """
    wide = max([len("invariant"), *(len(row.invariant) for row in rows(kinds, strikes))]) + 2
    head = f"{'':>3} {'fault kind':34}{'seeds':>6}{'struck':>8}  {'invariant':{wide}}verdict"
    lines, before = [head], None
    for row in rows(kinds, strikes):
        title = TITLES[row.kind] if row.kind is not before else ""
        number = str(row.kind.value) if row.kind is not before else ""
        counts = f"{row.seeds:>6}{row.struck:>8}" if row.kind is not before else f"{'':14}"
        lines.append(f"{number:>3} {title:34}{counts}  {row.invariant:{wide}}{row.verdict}".rstrip())
        before = row.kind
    return (*lines, *violations(strikes))


def violations(strikes: Iterable[Strike]) -> tuple[str, ...]:
    """Return a line for every violation in `strikes`, with its kind and seed."""
    return tuple(
        f"{_VIOLATED}: {TITLES[strike.kind]}, seed {strike.seed}: {check.invariant}: {what}"
        for strike in strikes
        for check in strike.checks
        for what in check.violations
    )


def kinds_without_strike(kinds: Iterable[Kind], strikes: Sequence[Strike]) -> tuple[Kind, ...]:
    """Return the kinds in `kinds` that did not happen, or after which nothing was checked, in the order of numbers."""
    struck = {strike.kind for strike in strikes if strike.times > 0 and strike.checks}
    return tuple(kind for kind in _by_number(kinds) if kind not in struck)


def code(kinds: Iterable[Kind], strikes: Sequence[Strike]) -> int:
    """Return the exit code: 1 if an invariant was violated or a kind in `kinds` never struck, else 0."""
    return 1 if violations(strikes) or kinds_without_strike(kinds, strikes) else 0


def _rows_of(kind: Kind, strikes: Sequence[Strike]) -> Iterator[Row]:
    """Yield the rows of one kind, one for each invariant that was checked.

    If nothing was checked, yield one row that says so. strikes: of all kinds.
    """
    found = [strike for strike in strikes if strike.kind is kind and strike.times > 0]
    seeds, struck = len({strike.seed for strike in found}), sum(strike.times for strike in found)
    checks = [check for strike in found for check in strike.checks]
    if not checks:
        yield Row(kind, seeds, struck, "", "NOTHING CHECKED" if struck else "NEVER STRUCK")
    for invariant in dict.fromkeys(check.invariant for check in checks):
        broken = any(check.violations for check in checks if check.invariant == invariant)
        yield Row(kind, seeds, struck, invariant, _VIOLATED if broken else _HELD)


def _by_number(kinds: Iterable[Kind]) -> list[Kind]:
    return sorted(set(kinds), key=lambda kind: kind.value)
