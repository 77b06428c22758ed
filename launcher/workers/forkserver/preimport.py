"""Chooses the modules that a parent imports ahead from a script's second life on: those of its first life.

It only handles names. Where modules are, and what their import does, is known in learning.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

MOST_NAMES = 5_000
LEAST_NAMES = 20  # fewer are imported faster than a parent starts
MOST_TRIES = 3  # parents to start: each one leaves out what made the last one fail


def packages(names: Iterable[str], left_out: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """Group module names by package, in their first order, without duplicates.

    left_out: packages to skip. Words that are no module names are skipped too.
    """
    found: dict[str, dict[str, None]] = {}
    for name in names:
        package = name.partition(".")[0]
        if package not in left_out and all(part.isidentifier() for part in name.split(".")):
            found.setdefault(package, {})[name] = None
    return {package: tuple(each) for package, each in found.items()}


def worth_it(names: Iterable[str], left_out: Collection[str]) -> bool:
    """True if another parent would save more time than its start takes."""
    return sum(map(len, packages(names, left_out).values())) >= LEAST_NAMES
