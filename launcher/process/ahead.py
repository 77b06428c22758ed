"""Which modules the parent of processes imports ahead from a script's second life on: those of its first.

Only names are known here. Where modules lie and what their import does is seen in shell/processes/learning.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

MOST_NAMES = 5_000
LEAST_NAMES = 20  # fewer are imported sooner than a parent is started
MOST_TRIES = 3  # parents that are started to import ahead: each further one leaves out what did harm


def packages(names: Iterable[str], left_out: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """Sort names of modules by their package, in the order in which they came, each once.

    left_out: packages that are passed over. Words that are no names of modules are, too.
    """
    found: dict[str, dict[str, None]] = {}
    for name in names:
        package = name.partition(".")[0]
        if package not in left_out and all(part.isidentifier() for part in name.split(".")):
            found.setdefault(package, {})[name] = None
    return {package: tuple(each) for package, each in found.items()}


def worth_it(names: Iterable[str], left_out: Collection[str]) -> bool:
    """Tell whether a further parent would save more time than it takes."""
    return sum(map(len, packages(names, left_out).values())) >= LEAST_NAMES
