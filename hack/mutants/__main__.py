"""python -m hack.mutants [--sample N] [--seed N] [PACKAGE ...]: the share of mutants that tests notice, by package.

Each mutant gets a copy of the checkout in which its package's tests run until the first that fails. One that is known
to change nothing stands in equivalent.yaml with the reason, and is not counted.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import yaml

from hack.mutants.made import Mutant, mutants
from hack.mutants.packages import PACKAGES, Package

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.yaml")
AT_ONCE = 2
LEAST = 0.9  # of the mutants, to be noticed
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not long and not real")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict of a package's tests on its mutants."""

    package: str
    killed: int
    survived: tuple[Mutant, ...]
    equivalent: int

    @property
    def share(self) -> float:
        """The part of the mutants that was noticed, 0 to 1."""
        return self.killed / max(1, self.killed + len(self.survived))


def sampled(package: Package, count: int, rng: random.Random, root: Path) -> list[Mutant]:
    """Draw mutants: a module by its length, then one of its mutants. Fewer than asked where there are no more."""
    modules = [path for source in package.sources for path in _modules(root / source)]
    made: dict[Path, list[Mutant]] = {}
    drawn: dict[str, Mutant] = {}
    for _ in range(count * 20):
        (path,) = rng.choices(modules, [len(module.read_text()) for module in modules])
        if path not in made:
            made[path] = list(mutants(path.relative_to(root).as_posix(), path.read_text()))
        if made[path]:
            mutant = rng.choice(made[path])
            drawn.setdefault(str(mutant), mutant)
        if len(drawn) == count:
            break
    return list(drawn.values())


def _modules(source: Path) -> Iterator[Path]:
    found = sorted(source.rglob("*.py")) if source.is_dir() else [source]
    yield from (path for path in found if path.name != "__init__.py")


class Bench:
    """Copies of the checkout in which mutants are tried."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
        for number in range(AT_ONCE):
            copy = folder / str(number)
            for name in filter(None, listed.split("\0")):
                if (root / name).is_file():
                    (copy / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(root / name, copy / name)
            self._free.put(copy)

    def noticed(self, package: Package, mutant: Mutant | None, within_s: float) -> bool:
        """True if a test fails, or does not end in time, with this mutant in its place (None: with none)."""
        copy = self._free.get()
        path = copy / mutant.path if mutant else None
        before = path.read_text() if path else ""
        try:
            if path and mutant:
                path.write_text(mutant.source)
            done = subprocess.run(
                [*PYTEST, *package.tests], cwd=copy, capture_output=True, timeout=within_s, check=False
            )
        except subprocess.TimeoutExpired:
            return True
        finally:
            if path:
                path.write_text(before)
            self._free.put(copy)
        return done.returncode != 0


def tried(bench: Bench, package: Package, drawn: Sequence[Mutant], known: set[tuple[str, str, str]]) -> Outcome:
    """Try all drawn mutants of one package. Raises RuntimeError if its tests fail without any."""
    began_s = time.monotonic()
    if bench.noticed(package, None, 600):
        raise RuntimeError(f"the tests of {package.name} fail without any mutant")
    within_s = 30 + 5 * (time.monotonic() - began_s)
    left = [mutant for mutant in drawn if (mutant.path, mutant.was, mutant.became) not in known]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda mutant: bench.noticed(package, mutant, within_s), left))
    survived = tuple(mutant for mutant, noticed in zip(left, found, strict=True) if not noticed)
    return Outcome(package.name, sum(found), survived, len(drawn) - len(left))


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table by package, the survivors, and one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m hack.mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=20, help="mutants of each package (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which ones are drawn (%(default)s)")
    parser.add_argument("package", nargs="*", help=f"{', '.join(package.name for package in PACKAGES)} (all)")
    asked = parser.parse_args(argv)
    known = {(each["path"], each["was"], each["became"]) for each in yaml.safe_load(EQUIVALENT.read_text()) or ()}
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="turnout-mutants-") as folder:
        bench = Bench(ROOT, Path(folder))
        for package in PACKAGES:
            if asked.package and package.name not in asked.package:
                continue
            drawn = sampled(package, asked.sample, random.Random(asked.seed), ROOT)
            outcome = tried(bench, package, drawn, known)
            outcomes.append(outcome)
            noticed = f"{outcome.killed:3} of {outcome.killed + len(outcome.survived):3} noticed"
            print(f"{package.name:18} {noticed}  {outcome.share:4.0%}  {outcome.equivalent} equivalent", flush=True)
            for mutant in outcome.survived:
                print(f"  {mutant}", flush=True)
    targets = [
        {"name": outcome.package, "value": outcome.share, "op": ">=", "limit": LEAST, "met": outcome.share >= LEAST}
        for outcome in outcomes
    ]
    figures = {outcome.package: outcome.share for outcome in outcomes}
    print(json.dumps({"bench": "mutants", "figures": figures, "targets": targets}))
    return 0 if all(target["met"] for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
