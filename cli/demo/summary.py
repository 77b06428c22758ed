"""Sums of the demo: gangs, leaves, crossings, requests; and the sentence that tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from turnout.cli.demo.heatmap import Score
from turnout.cli.demo.scenario import DemoGang


@dataclass(frozen=True, slots=True)
class Pair:
    """Scores by gang letter: with Turnout, and with the default scheduler alone."""

    ours: Mapping[str, Score]
    theirs: Mapping[str, Score]


@dataclass(frozen=True, slots=True)
class ExtenderCall:
    """One question to the extender. verb: filter or prioritize."""

    verb: str
    names: int
    took_s: float
    failed: str


@dataclass(frozen=True, slots=True)
class Tally:
    """The whole play, added up. calls: in order. neutral: answers without advice, since the extender had a fault."""

    gangs: tuple[DemoGang, ...]
    scores: Pair
    calls: tuple[ExtenderCall, ...]
    neutral: int = 0

    @property
    def both(self) -> tuple[str, ...]:
        """The gangs that both placed whole: only these are compared."""
        return tuple(g.letter for g in self.gangs if g.letter in self.scores.ours and g.letter in self.scores.theirs)

    def leaves(self, scores: Mapping[str, Score]) -> float:
        """Leaves a gang, over the gangs that both placed; 0.0 when there are none."""
        return sum(scores[letter].leaves for letter in self.both) / max(1, len(self.both))

    def crossings(self, scores: Mapping[str, Score]) -> int:
        """Ring crossings in all, over the gangs that both placed."""
        return sum(scores[letter].crossings for letter in self.both)


def sentence(tally: Tally) -> str:
    """Tell the outcome in one sentence, for a reader who has not watched."""
    if not tally.both:
        return "No gang was placed whole by both, so there is nothing to compare."
    ours, theirs = tally.crossings(tally.scores.ours), tally.crossings(tally.scores.theirs)
    rings = f"{len(tally.both)} rings cross a switch {ours} times with Turnout, {theirs} times without"
    if ours == theirs:
        return f"This time both do alike: {rings}."
    if ours > theirs:
        return f"This time the default scheduler did better: {rings}."
    if ours == 0:
        return f"Every ring stays under one leaf: {rings}."
    return f"{theirs / ours:.1f} times fewer crossings: {rings}."


def asked_sentence(tally: Tally) -> str:
    """Tell how many requests the extender answered, and how fast."""
    if not tally.calls:
        return "The extender was not asked at all."
    took_ms = sorted(asking.took_s * 1000 for asking in tally.calls)
    filters = sum(asking.verb == "filter" for asking in tally.calls)
    failed = sum(bool(asking.failed) for asking in tally.calls)
    text = (
        f"Asked over HTTP {len(took_ms)} times ({filters} filter, {len(took_ms) - filters} prioritize): "
        f"median {median(took_ms):.1f} ms, slowest {took_ms[-1]:.1f} ms"
    )
    text += f"; {failed} went without an answer" if failed else ""
    text += f"; {tally.neutral} got a neutral answer, since the extender had a fault" if tally.neutral else ""
    return f"{text}."
