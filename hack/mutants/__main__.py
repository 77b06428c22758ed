"""python -m hack.mutants [--sample N] [--seed N] [PACKAGE ...]: the share of mutants that tests notice, by package.

Each mutant is tried in a copy of the checkout. Those of its package's tests that run its line run there, the quickest
first, until one fails. A mutant that is known to change nothing stands in equivalent.yaml with the reason, and is not
counted; nor is one that takes the check out of zip(strict=True).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from hack.lint.architecture import does_io
from hack.mutants.bench import Bench
from hack.mutants.made import Mutant, is_only_checked, mutants
from hack.mutants.packages import PACKAGES, Package

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.yaml")
LEAST = 0.9  # of the mutants, to be noticed


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict of a package's tests on its mutants. unrun: those of the survivors whose line no test runs."""

    package: str
    killed: int
    survived: tuple[Mutant, ...]
    unrun: tuple[Mutant, ...]
    equivalent: int

    @property
    def share(self) -> float:
        """The part of the mutants that was noticed, 0 to 1."""
        return self.killed / max(1, self.killed + len(self.survived))


def sampled(package: Package, count: int, rng: random.Random, root: Path) -> list[Mutant]:
    """Draw mutants: a module by its length, then one of its mutants. Fewer than asked where there are no more.

    count: 0 for all there are.
    """
    modules = [path for source in package.sources for path in _modules(root / source)]
    read = cache(lambda path: mutants(path.relative_to(root).as_posix(), path.read_text()))
    if count == 0:
        return [make() for path in modules for make in read(path)]
    lengths = [len(module.read_text()) for module in modules]
    drawn: dict[str, Mutant] = {}
    for _ in range(count * 20):
        (path,) = rng.choices(modules, lengths)
        if read(path):
            mutant = rng.choice(read(path))()
            drawn.setdefault(str(mutant), mutant)
        if len(drawn) == count:
            break
    return list(drawn.values())


def _modules(source: Path) -> Iterator[Path]:
    found = sorted(source.rglob("*.py")) if source.is_dir() else [source]
    for path in found:
        inside = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        if path.name != "__init__.py" and not does_io(".".join(inside.with_suffix("").parts)):
            yield path


def tried(bench: Bench, package: Package, drawn: Sequence[Mutant], known: set[tuple[str, str, str]]) -> Outcome:
    """Try all drawn mutants of one package. Raises RuntimeError if its tests fail without any."""
    counted = (mutant for mutant in drawn if not is_only_checked(mutant))
    left = [mutant for mutant in counted if (mutant.path, mutant.was, mutant.became) not in known]
    touched, found = bench.noticed(package, left)
    survived = tuple(mutant for mutant, noticed in zip(left, found, strict=True) if not noticed)
    unrun = tuple(mutant for mutant in survived if not touched.by(mutant))
    return Outcome(package.name, sum(found), survived, unrun, len(drawn) - len(left))


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table by package, the survivors, and one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m hack.mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=20, help="mutants of each package, 0 for all (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which ones are drawn (%(default)s)")
    parser.add_argument("--at-once", type=int, default=2, help="how many are tried side by side (%(default)s)")
    parser.add_argument("package", nargs="*", help=f"{', '.join(package.name for package in PACKAGES)} (all)")
    asked = parser.parse_args(argv)
    known = {(each["path"], each["was"], each["became"]) for each in yaml.safe_load(EQUIVALENT.read_text()) or ()}
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="turnout-mutants-") as folder:
        bench = Bench(ROOT, Path(folder), asked.at_once)
        for package in PACKAGES:
            if asked.package and package.name not in asked.package:
                continue
            drawn = sampled(package, asked.sample, random.Random(asked.seed), ROOT)
            outcome = tried(bench, package, drawn, known)
            outcomes.append(outcome)
            noticed = f"{outcome.killed:3} of {outcome.killed + len(outcome.survived):3} noticed"
            print(f"{package.name:18} {noticed}  {outcome.share:4.0%}  {outcome.equivalent} equivalent", flush=True)
            for mutant in outcome.survived:
                print(f"  {mutant}{'  (no test runs this line)' * (mutant in outcome.unrun)}", flush=True)
    targets = [
        {"name": outcome.package, "value": outcome.share, "op": ">=", "limit": LEAST, "met": outcome.share >= LEAST}
        for outcome in outcomes
    ]
    figures = {outcome.package: outcome.share for outcome in outcomes}
    print(json.dumps({"bench": "mutants", "figures": figures, "targets": targets}))
    return 0 if all(target["met"] for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
