"""Claims of the demo, checked against the history that the training processes have written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hack.chaos.history import JobPlan, Record, rounds_of
from hack.chaos.invariants import find_violations

_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence with its numbers."""

    text: str
    holds: bool  # the run fulfilled the claim


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that is done to the job."""

    what: str  # the act as text
    at_s: float  # when it was done, on the monotonic clock
    max_repeated_steps: int  # steps that it may cause to be made twice, >= 0


def check_resume(records: Sequence[Record], act: Act, until_s: float) -> Claim:
    """Return the claim that all rounds after an act resumed from memory, and that together they repeated at most
    `act.max_repeated_steps` steps.

    until_s: later records, such as those of the next act, are ignored. The claim is false if no round after the act has
    trained.
    """
    rounds = rounds_of(record for record in records if record.at_s <= until_s)
    after = [each for each in rounds[1:] if each.begun_s > act.at_s]
    back_s = [each.steps_s[0] for each in after if each.steps_s]
    if not back_s:
        return Claim(f"{act.what}: no new round has trained", False)
    path = rounds[rounds.index(after[0]) - 1 :]
    repeated = sum(max(0, one.reached - other.start) for one, other in pairwise(path) if other.start >= 0)
    sources = sorted({record.source for each in after for record in each.records_of("begun")})
    steps = {0: "no step", 1: "1 step"}.get(repeated, f"{repeated} steps")
    worlds = " → ".join(str(each.records[0].world) for each in path)
    text = f"{act.what}: {worlds} workers, training again after {min(back_s) - act.at_s:.1f} s, "
    text += f"from {' and '.join(sources) or 'nowhere'}, {steps} made twice"
    return Claim(text, sources == ["memory"] and repeated <= act.max_repeated_steps)


def check_end(records: Sequence[Record], plan: JobPlan) -> tuple[Claim, ...]:
    """Return the claims that the final model equals that of an undisturbed job, and that no invariant is violated."""
    models = {record.model for record in records if record.event == "ended" and record.why == "done"}
    off = max((abs(a - b) for model in models for a, b in zip(model, plan.model, strict=True)), default=float("inf"))
    faults = find_violations(records, plan)
    text = "; ".join(map(str, faults))
    return (
        Claim(f"the model is that of the same job undisturbed: no weight is off by more than {off:.0e}", off < 1e-9),
        Claim(text or f"each of {plan.samples} samples came exactly once in each of {plan.epochs} epochs", not faults),
    )


def sparkline(losses: Sequence[float], columns: int) -> str:
    """Return the losses as a line of bars, at most `columns` characters: each bar is the mean of equally many losses.

    "" for no losses. The lowest bar is the smallest mean, the highest the largest.
    """
    if not losses:
        return ""
    size = max(1, -(-len(losses) // columns))
    means = [sum(part) / len(part) for part in (losses[at : at + size] for at in range(0, len(losses), size))]
    low, high = min(means), max(means)
    return "".join(_BARS[int((mean - low) / (high - low or 1) * (len(_BARS) - 1))] for mean in means)


def losses_of(records: Sequence[Record]) -> list[float]:
    """Return the loss of each step over the global batch, by ascending step, as far as its ranks have recorded it.

    A repeated step has its newest round's loss.
    """
    parts: dict[int, dict[int, tuple[int, float]]] = {}
    for record in records:
        if record.event == "stepped":
            parts.setdefault(record.step, {})[record.rank] = (record.round, record.loss / record.world)
    found = []
    for _, ranks in sorted(parts.items()):
        newest = max(number for number, _ in ranks.values())
        found.append(sum(loss for number, loss in ranks.values() if number == newest))
    return found
