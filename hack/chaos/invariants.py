"""The laws that the history of a training job has to obey, whatever was done to the job."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from hack.chaos.history import Record, Round, Terms, rounds_of

RTOL, TINY = 1e-9, 1e-14


class Invariant(Enum):
    """The invariants."""

    APART = "two worlds never train at once"
    SIZES = "a world is never smaller than the least nor larger than the most"
    ONE_EACH = "a round has one world, and one process for each rank of it"
    ALIKE = "all ranks of a round go on from the same step, and make the same steps in order"
    COMMITTED = "a step that is committed in storage is never lost"
    MEMORY = "a step that all had saved is not lost while one of them keeps its memory, nor read from storage"
    ONCE = "each sample is trained on exactly once in an epoch"
    ENDED = "the job comes to its end"
    MODEL = "the model is that of the undisturbed run"


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that was broken. what: where, with the numbers that show it."""

    law: Invariant
    what: str

    def __str__(self) -> str:
        return f"{self.law.value}: {self.what}"


def breaches(records: Sequence[Record], terms: Terms) -> tuple[Violation, ...]:
    """Return every violation of an invariant in this history. Raises nothing."""
    rounds = rounds_of(records)
    told = sorted((record for record in records if record.rank < 0), key=lambda record: record.at_s)
    laws = (_apart(rounds), _sizes(rounds, terms), _one_each(rounds), _alike(rounds))
    more = (_committed(rounds, told), _memory(rounds, told, terms), _once(rounds, terms))
    ends = (_ended(told, done := _done(records), terms), _model(done, terms))
    return tuple(breach for found in (*laws, *more, *ends) for breach in found)


def _apart(rounds: Sequence[Round]) -> Iterator[Violation]:
    """Check that a round makes no step after the next round's first step."""
    trained = [each for each in rounds if each.steps_s]
    for before, after in pairwise(trained):
        if before.steps_s[-1] > after.steps_s[0]:
            late_s = before.steps_s[-1] - after.steps_s[0]
            yield Violation(
                Invariant.APART, f"round {before.number} made a step {late_s:.3f} s after the first of {after.number}"
            )


def _sizes(rounds: Sequence[Round], terms: Terms) -> Iterator[Violation]:
    """Check that each round has between `terms.least` and `terms.most` ranks."""
    for each in rounds:
        for world in sorted({record.world for record in each.records}):
            if not terms.least <= world <= terms.most:
                what = f"round {each.number} has {world} ranks, {terms.least} to {terms.most} are allowed"
                yield Violation(Invariant.SIZES, what)


def _one_each(rounds: Sequence[Round]) -> Iterator[Violation]:
    """Check that all members of a round agree on its size, and that each rank began exactly once."""
    for each in rounds:
        worlds = sorted({record.world for record in each.records})
        if len(worlds) > 1:
            yield Violation(
                Invariant.ONE_EACH, f"round {each.number} is a world of {' and of '.join(map(str, worlds))}"
            )
        seen = [record.rank for record in each.all("begun")]
        for rank in sorted(set(seen)):
            if seen.count(rank) > 1 or rank >= worlds[-1]:
                what = f"rank {rank} of {worlds[-1]} has begun {seen.count(rank)} times in round {each.number}"
                yield Violation(Invariant.ONE_EACH, what)


def _alike(rounds: Sequence[Round]) -> Iterator[Violation]:
    """Check that all ranks of a round resume from the same state, and make consecutive steps from there."""
    reached = 0
    for each in rounds:
        begun = {(record.step, record.epoch, record.cursor) for record in each.all("begun")}
        if len(begun) > 1:
            yield Violation(Invariant.ALIKE, f"round {each.number} begins at {sorted(begun)} (step, epoch, cursor)")
        if each.start > reached:
            yield Violation(
                Invariant.ALIKE, f"round {each.number} goes on from step {each.start}, and {reached} were made"
            )
        for rank in sorted({record.rank for record in each.all("took")}):
            made = [record.step for record in each.all("took") if record.rank == rank]
            if made != list(range(each.start + 1, each.start + 1 + len(made))):
                yield Violation(
                    Invariant.ALIKE, f"rank {rank} of round {each.number} makes steps {made[:3]} after {each.start}"
                )
        reached = max([reached, *(record.step for record in each.all("stepped"))])


def _committed(rounds: Sequence[Round], told: Sequence[Record]) -> Iterator[Violation]:
    """Check that a step committed before a round's end was restored from, or a newer one."""
    stepped_s = -math.inf
    for each in rounds:
        if each.start >= 0:
            there = [r.step for r in told if r.event == "committed" and r.at_s <= stepped_s]
            if there and max(there) > each.start:
                what = f"round {each.number} goes on from step {each.start}, and step {max(there)} was in storage"
                yield Violation(Invariant.COMMITTED, what)
        stepped_s = max([stepped_s, *each.steps_s])


def _memory(rounds: Sequence[Round], told: Sequence[Record], terms: Terms) -> Iterator[Violation]:
    """Check that a round loses no step that all ranks of the round before had in memory, and resumes from memory.

    Skipped if two faults occurred since its last step, or if no process of the round before is left.
    """
    begun = [each for each in rounds if each.start >= 0]
    for before, after in pairwise(begun):
        first_s = after.all("begun")[0].at_s
        last_s = before.steps_s[-1] if before.steps_s else before.records[0].at_s
        hard = [
            r for r in told if r.event == "fault" and r.kind not in terms.harmless and last_s - 1 <= r.at_s <= first_s
        ]
        if len(hard) > 1 or not before.homes & after.homes:
            continue
        source, held = after.all("begun")[0].source, before.saved_by_all
        if after.start < held or (source != "memory" and held > 0):
            goes_on = f"round {after.number} goes on from step {after.start} ({source})"
            yield Violation(Invariant.MEMORY, f"all of round {before.number} had saved step {held}, {goes_on}")


def _descent(rounds: Sequence[Round]) -> dict[int, tuple[int, list[int], bool]]:
    """Return the steps on which the final state is based, by number: (epoch, sample IDs of all ranks, all ranks
    reported).
    """
    line: dict[int, tuple[int, list[int], bool]] = {}
    for each in rounds:
        if each.start < 0:
            continue
        line = {step: told for step, told in line.items() if step <= each.start}
        for (event, step), ranks in each.ranks_of.items():
            if event == "stepped":
                one = next(iter(ranks.values()))
                took = each.ranks_of.get(("took", step), ranks)
                ids = [sample for record in took.values() for sample in record.samples]
                line[step] = one.epoch, ids, len(took) == one.world
    return line


def _once(rounds: Sequence[Round], terms: Terms) -> Iterator[Violation]:
    """Check that no step is missing, and that each epoch has every sample exactly once."""
    line = _descent(rounds)
    if missing := sorted(set(range(1, max(line, default=0) + 1)) - set(line)):
        yield Violation(Invariant.ONCE, f"step {missing[0]} was never made, later ones count")
    seen: defaultdict[int, list[int]] = defaultdict(list)
    for step, (epoch, ids, whole) in sorted(line.items()):
        seen[epoch] += ids
        if not whole:
            yield Violation(Invariant.ONCE, f"a rank has not told what it trained on in step {step}")
    newest = max(seen, default=0)
    for epoch, ids in sorted(seen.items()):
        if again := sorted({each for each in ids if ids.count(each) > 1}):
            yield Violation(Invariant.ONCE, f"epoch {epoch} has sample {again[0]} {ids.count(again[0])} times")
        lost = set(range(terms.samples)) - set(ids)
        if lost and (epoch < newest or max(line) >= terms.steps):
            yield Violation(Invariant.ONCE, f"epoch {epoch} lacks {len(lost)} samples, {min(lost)} first")


def _done(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.event == "ended" and record.why == "done"]


def _ended(told: Sequence[Record], done: Sequence[Record], terms: Terms) -> Iterator[Violation]:
    """Check that the job ended with exit code 0, and that every rank ended after the last step."""
    for over in (record for record in told if record.event == "over" and record.code):
        yield Violation(Invariant.ENDED, f"the job was over with {over.code}: {over.why}")
    if not done or any(record.step != terms.steps for record in done):
        at = sorted({record.step for record in done})
        yield Violation(Invariant.ENDED, f"it was to end after step {terms.steps}, and did after {at or 'none'}")


def _model(done: Sequence[Record], terms: Terms) -> Iterator[Violation]:
    """Check that the final model equals that of an undisturbed run, within RTOL. Skipped if that model is not known."""
    for model in {record.model for record in done if record.model} if terms.model else ():
        close = len(model) == len(terms.model) and all(
            math.isclose(ours, theirs, rel_tol=RTOL, abs_tol=TINY)
            for ours, theirs in zip(model, terms.model, strict=True)
        )
        if not close:
            off = max((abs(a - b) for a, b in zip(model, terms.model, strict=False)), default=math.inf)
            yield Violation(Invariant.MODEL, f"a weight is off by {off:.3g}")
