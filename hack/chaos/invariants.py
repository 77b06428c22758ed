"""The invariants that the history of a training job must satisfy under all faults."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from hack.chaos.history import JobPlan, Record, Round, rounds_of

RTOL, TINY = 1e-9, 1e-14


class Invariant(Enum):
    """A rule that every history has to keep. The value is its sentence."""

    NO_OVERLAP = "two worlds never train at once"
    WORLD_SIZE = "a world is never smaller than min nor larger than max"
    RANKS_UNIQUE = "a round has one world, and one process for each rank of it"
    SAME_START = "all ranks of a round go on from the same step, and make the same steps in order"
    COMMITTED_KEPT = "a step that is committed in storage is never lost"
    MEMORY_KEPT = (
        "after at most one fault, a step that all ranks had in memory is not lost, and is restored from memory and not "
        "from storage"
    )
    SAMPLES_ONCE = "each sample is trained on exactly once in an epoch"
    END = "the job comes to its end"
    MODEL = "the model is that of the undisturbed run"


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that was violated."""

    invariant: Invariant
    what: str  # where, with the numbers that show it

    def __str__(self) -> str:
        return f"{self.invariant.value}: {self.what}"


def find_violations(records: Sequence[Record], plan: JobPlan) -> tuple[Violation, ...]:
    """Return every violation of an invariant in this history; () if there is none. records: of all processes and the
    runner.
    """
    rounds = rounds_of(records)
    runner_records = sorted((record for record in records if record.rank < 0), key=lambda record: record.at_s)
    all_rounds = (
        _check_no_overlap(rounds),
        _check_world_size(rounds, plan),
        _check_ranks_unique(rounds),
        _check_same_start(rounds),
    )
    more = (
        _check_committed_kept(rounds, runner_records),
        _check_memory_kept(rounds, runner_records, plan),
        _check_samples_once(rounds, plan),
    )
    ends = (_check_end(runner_records, done := _done(records), plan), _check_model(done, plan))
    return tuple(violation for found in (*all_rounds, *more, *ends) for violation in found)


def _check_no_overlap(rounds: Sequence[Round]) -> Iterator[Violation]:
    """Yield a violation for each round that made a step after the first step of the next round that made any."""
    trained = [each for each in rounds if each.steps_s]
    for before, after in pairwise(trained):
        if before.steps_s[-1] > after.steps_s[0]:
            late_s = before.steps_s[-1] - after.steps_s[0]
            yield Violation(
                Invariant.NO_OVERLAP,
                f"round {before.number} made a step {late_s:.3f} s after the first of {after.number}",
            )


def _check_world_size(rounds: Sequence[Round], plan: JobPlan) -> Iterator[Violation]:
    """Yield a violation for each round that has fewer than `plan.minimum` or more than `plan.maximum` ranks."""
    for each in rounds:
        for world in sorted({record.world for record in each.records}):
            if not plan.minimum <= world <= plan.maximum:
                what = f"round {each.number} has {world} ranks, {plan.minimum} to {plan.maximum} are allowed"
                yield Violation(Invariant.WORLD_SIZE, what)


def _check_ranks_unique(rounds: Sequence[Round]) -> Iterator[Violation]:
    """Yield a violation if members of a round disagree on its size, or if a rank is not below it or began twice."""
    for each in rounds:
        worlds = sorted({record.world for record in each.records})
        if len(worlds) > 1:
            yield Violation(
                Invariant.RANKS_UNIQUE, f"round {each.number} is a world of {' and of '.join(map(str, worlds))}"
            )
        ranks = [record.rank for record in each.records_of("begun")]
        for rank in sorted(set(ranks)):
            if ranks.count(rank) > 1 or rank >= worlds[-1]:
                what = f"rank {rank} of {worlds[-1]} has begun {ranks.count(rank)} times in round {each.number}"
                yield Violation(Invariant.RANKS_UNIQUE, what)


def _check_same_start(rounds: Sequence[Round]) -> Iterator[Violation]:
    """Yield a violation if ranks of a round resume from different states, if their steps are not consecutive, or if
    the round resumes from a step that no round has done.
    """
    reached = 0
    for each in rounds:
        begun = {(record.step, record.epoch, record.cursor) for record in each.records_of("begun")}
        if len(begun) > 1:
            yield Violation(
                Invariant.SAME_START, f"round {each.number} begins at {sorted(begun)} (step, epoch, cursor)"
            )
        if each.start > reached:
            yield Violation(
                Invariant.SAME_START, f"round {each.number} goes on from step {each.start}, and {reached} were made"
            )
        for rank in sorted({record.rank for record in each.records_of("took")}):
            start_steps = [record.step for record in each.records_of("took") if record.rank == rank]
            if start_steps != list(range(each.start + 1, each.start + 1 + len(start_steps))):
                yield Violation(
                    Invariant.SAME_START,
                    f"rank {rank} of round {each.number} makes steps {start_steps[:3]} after {each.start}",
                )
        reached = max([reached, *(record.step for record in each.records_of("stepped"))])


def _check_committed_kept(rounds: Sequence[Round], runner_records: Sequence[Record]) -> Iterator[Violation]:
    """Yield a violation unless each round resumes from the newest step that was committed before the last step of
    the round before, or from a newer one. runner_records: of the runner, by time.
    """
    stepped_s = -math.inf
    for each in rounds:
        if each.start >= 0:
            committed = [r.step for r in runner_records if r.event == "committed" and r.at_s <= stepped_s]
            if committed and max(committed) > each.start:
                what = f"round {each.number} goes on from step {each.start}, and step {max(committed)} was in storage"
                yield Violation(Invariant.COMMITTED_KEPT, what)
        stepped_s = max([stepped_s, *each.steps_s])


def _check_memory_kept(rounds: Sequence[Round], runner_records: Sequence[Record], plan: JobPlan) -> Iterator[Violation]:
    """Yield a violation if a round loses a step that all ranks of the round before had in memory, or restores from
    storage.

    Skipped if two or more harmful faults hit between the last step before and the next start, or if no process of the
    round before takes part. runner_records: of the runner, with its faults, by time.
    """
    begun = [each for each in rounds if each.start >= 0]
    for before, after in pairwise(begun):
        first_s = after.records_of("begun")[0].at_s
        last_s = before.steps_s[-1] if before.steps_s else before.records[0].at_s
        harmful_faults = [
            r
            for r in runner_records
            if r.event == "fault" and r.kind not in plan.harmless and last_s - 1 <= r.at_s <= first_s
        ]
        if len(harmful_faults) > 1 or not before.homes & after.homes:
            continue
        source, in_memory = after.records_of("begun")[0].source, before.saved_by_all
        if after.start < in_memory or (source != "memory" and in_memory > 0):
            goes_on = f"round {after.number} goes on from step {after.start} ({source})"
            yield Violation(
                Invariant.MEMORY_KEPT, f"all of round {before.number} had saved step {in_memory}, {goes_on}"
            )


def _final_lineage(rounds: Sequence[Round]) -> dict[int, tuple[int, list[int], bool]]:
    """Return, by step number, the steps that led to the final state; steps that a restore undid are left out.

    Each is (epoch, sample IDs of all ranks, True if all ranks reported their samples). rounds: oldest first.
    """
    line: dict[int, tuple[int, list[int], bool]] = {}
    for each in rounds:
        if each.start < 0:
            continue
        line = {step: entry for step, entry in line.items() if step <= each.start}
        for (event, step), ranks in each.ranks_of.items():
            if event == "stepped":
                one = next(iter(ranks.values()))
                took = each.ranks_of.get(("took", step), ranks)
                ids = [sample for record in took.values() for sample in record.samples]
                line[step] = one.epoch, ids, len(took) == one.world
    return line


def _check_samples_once(rounds: Sequence[Round], plan: JobPlan) -> Iterator[Violation]:
    """Yield a violation if a step is missing, if a rank did not record its samples of a step, or if an epoch lacks a
    sample or has one twice. The last epoch may be cut short if the job has not made `plan.steps` steps.
    """
    line = _final_lineage(rounds)
    if missing := sorted(set(range(1, max(line, default=0) + 1)) - set(line)):
        yield Violation(Invariant.SAMPLES_ONCE, f"step {missing[0]} is missing, but later steps exist")
    ids_by_epoch: defaultdict[int, list[int]] = defaultdict(list)
    for step, (epoch, ids, is_whole) in sorted(line.items()):
        ids_by_epoch[epoch] += ids
        if not is_whole:
            yield Violation(Invariant.SAMPLES_ONCE, f"a rank has not told what it trained on in step {step}")
    newest = max(ids_by_epoch, default=0)
    for epoch, ids in sorted(ids_by_epoch.items()):
        if repeated := sorted({each for each in ids if ids.count(each) > 1}):
            yield Violation(
                Invariant.SAMPLES_ONCE, f"epoch {epoch} has sample {repeated[0]} {ids.count(repeated[0])} times"
            )
        lost = set(range(plan.samples)) - set(ids)
        if lost and (epoch < newest or max(line) >= plan.steps):
            yield Violation(Invariant.SAMPLES_ONCE, f"epoch {epoch} lacks {len(lost)} samples, {min(lost)} first")


def _done(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.event == "ended" and record.why == "done"]


def _check_end(runner_records: Sequence[Record], done: Sequence[Record], plan: JobPlan) -> Iterator[Violation]:
    """Yield a violation for each end of the job with another exit code than 0, and one for a wrong last step.

    The last step is wrong if no rank completed the job, or if one ended before or after `plan.steps`. done: records of
    the ranks that completed the job. runner_records: of the runner.
    """
    for over in (record for record in runner_records if record.event == "over" and record.code):
        yield Violation(Invariant.END, f"the job was over with {over.code}: {over.why}")
    if not done or any(record.step != plan.steps for record in done):
        at = sorted({record.step for record in done})
        yield Violation(Invariant.END, f"it was to end after step {plan.steps}, and did after {at or 'none'}")


def _check_model(done: Sequence[Record], plan: JobPlan) -> Iterator[Violation]:
    """Yield a violation for each final model with a weight that differs from that of the undisturbed run by more than
    the relative tolerance RTOL (and by more than TINY), or with another number of weights.

    Equal models of several ranks count once. Nothing if plan.model is empty. done: records of the ranks that completed
    the job.
    """
    for model in {record.model for record in done if record.model} if plan.model else ():
        close = len(model) == len(plan.model) and all(
            math.isclose(ours, theirs, rel_tol=RTOL, abs_tol=TINY)
            for ours, theirs in zip(model, plan.model, strict=True)
        )
        if not close:
            off = max((abs(a - b) for a, b in zip(model, plan.model, strict=False)), default=math.inf)
            yield Violation(Invariant.MODEL, f"a weight is off by {off:.3g}")
