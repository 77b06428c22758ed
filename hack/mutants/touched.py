"""The tests that touch a line, and how long each may take on a mutant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hack.mutants.made import Mutant

NOBODY = -1  # in a list of tests: an import, or a fixture that several tests share
# A test that loops for ever fails when it has had its time. On a busy machine it may be much slower than when seen.
LEAST_S, TIMES = 10, 5


@dataclass(frozen=True, slots=True)
class Touched:
    """The lines that one run of a package's tests has run.

    seconds: by test, in the order of the run. lines: by file and line, the places in `seconds` of who runs it.
    """

    seconds: Mapping[str, float]
    lines: Mapping[str, Mapping[int, tuple[int, ...]]]

    def by(self, mutant: Mutant) -> tuple[str, ...]:
        """Name the tests that may notice, quickest first. A line that is run outside of tests may matter to each."""
        tests = list(self.seconds)
        lines = self.lines.get(mutant.path, {})
        places = {place for line in mutant.statement for place in lines.get(line, ())}
        touching = self._sorted(tests[place] for place in places if place != NOBODY)
        others = self._sorted(set(tests).difference(touching)) if NOBODY in places else []
        return (*touching, *others)

    def _sorted(self, tests: Iterable[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self.seconds[test], test))

    def within_s(self, test: str) -> float:
        """The time after which a test is taken to hang."""
        return LEAST_S + TIMES * self.seconds[test]
