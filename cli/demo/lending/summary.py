"""Sums of the second part: GPU-seconds lent, changes of size, how long somebody waited for what was lent."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from turnout.autoscaler.model import Reason
from turnout.cli.demo.lending.model import MomentKind, Story, StoryMoment, held_gpus


@dataclass(frozen=True, slots=True)
class JobWait:
    """A job that others gave workers for. since: the moment its turn came; given: so many workers left for it.

    The parts, in seconds: until the pods of whoever left were gone, until the giver was told, until those workers had
    gone, until it ran.
    """

    letter: str
    since: StoryMoment
    giver: str
    given: int
    away_s: float
    told_s: float
    gone_s: float
    start_s: float

    @property
    def whole_s(self) -> float:
        return self.away_s + self.told_s + self.gone_s + self.start_s


@dataclass(frozen=True, slots=True)
class LendingSums:
    """The story, added up. GPU-seconds: what jobs held up to their least, above it, and what nobody held."""

    own_gpu_s: float
    lent_gpu_s: float
    idle_gpu_s: float
    growths: int
    shrinks: int
    given: int  # workers, by all the shrinks
    waiting_times: tuple[JobWait, ...]

    @property
    def all_gpu_s(self) -> float:
        return self.own_gpu_s + self.lent_gpu_s + self.idle_gpu_s

    @property
    def longest(self) -> JobWait | None:
        """The longest wait for GPUs that were lent; None when nobody had to."""
        return max(self.waiting_times, key=lambda wait: wait.whole_s, default=None)


def added_up(story: Story) -> LendingSums:
    """Add up a story."""
    own = lent = idle = 0.0
    for before, after in pairwise(story.moments):
        passed_s = after.at_s - before.at_s
        for player in story.players:
            has = held_gpus(before.seats, player.letter)
            own += passed_s * min(has, player.least)
            lent += passed_s * max(0, has - player.least)
        idle += passed_s * (story.gpus - len(before.seats))
    changes = [moment.decision for moment in story.changes() if moment.decision]
    less = [each.workers_before - each.workers for each in changes if each.workers < each.workers_before]
    waiting_times = (wait_of(story, player.letter) for player in story.players)
    return LendingSums(
        own, lent, idle, len(changes) - len(less), len(less), sum(less), tuple(w for w in waiting_times if w)
    )


def wait_of(story: Story, letter: str) -> JobWait | None:
    """How long a job waited for workers of another to leave; None when none left for it, or it does not run yet."""
    runs = story.first(MomentKind.RUNS, letter)
    change = next((m for m in story.changes() if m.decision and m.decision.for_ == letter), None)
    if runs is None or change is None or change.decision is None or change.decision.reason is not Reason.MAKES_ROOM:
        return None
    decision = change.decision
    since = turn(story, letter, change.at_s)
    left = since.letter if since.word is MomentKind.LEAVES else ""
    away = _when_few(story, since, left, 0) if left else since
    away = min(away or change, change, key=lambda moment: moment.at_s)
    pods_gone = _when_few(story, change, decision.letter, decision.workers) or runs
    return JobWait(
        letter,
        since,
        decision.letter,
        decision.workers_before - decision.workers,
        away.at_s - since.at_s,
        change.at_s - away.at_s,
        pods_gone.at_s - change.at_s,
        runs.at_s - pods_gone.at_s,
    )


def _when_few(story: Story, since: StoryMoment, letter: str, few: int) -> StoryMoment | None:
    """The first moment in which a job holds no more than so many."""
    return next((m for m in story.moments if m.at_s >= since.at_s and held_gpus(m.seats, letter) <= few), None)


def turn(story: Story, letter: str, before_s: float) -> StoryMoment:
    """The moment a job's turn came: when it arrived, or when the last one left before it was served."""
    arrivals = [
        m
        for m in story.moments
        if m.at_s <= before_s and (m.word is MomentKind.LEAVES or (m.word is MomentKind.ARRIVES and m.letter == letter))
    ]
    arrived = next(m for m in arrivals if m.word is MomentKind.ARRIVES)
    return max((m for m in arrivals if m.at_s >= arrived.at_s), key=lambda m: m.at_s)


def waited(wait: JobWait) -> str:
    """A wait in words."""
    cause = "it arrived" if wait.since.letter == wait.letter else f"{wait.since.letter} left"
    parts = [f"{wait.away_s:.2f} s until {wait.since.letter}'s pods had gone"] if wait.away_s else []
    parts += [
        f"{wait.told_s:.2f} s until {wait.giver} was told",
        f"{wait.gone_s:.2f} s until {wait.given} of its workers had gone",
        f"{wait.start_s:.2f} s to start",
    ]
    return f"{wait.whole_s:.2f} s after {cause}: {', '.join(parts)}"


def sentence(story: Story, sums: LendingSums) -> str:
    """Tell the outcome in one sentence, for a reader who has not watched."""
    autoscalers = [
        p.letter for p in story.players if any(held_gpus(m.seats, p.letter) > p.least for m in story.moments)
    ]
    if not autoscalers:
        return "Nothing was lent."
    text = f"{' and '.join(autoscalers)} used {sums.lent_gpu_s:.0f} GPU-seconds that nobody else needed"
    if not sums.waiting_times:
        return f"{text}, and nobody needed them back."
    who = ", ".join(f"{wait.letter} ran {wait.whole_s:.2f} s after its turn had come" for wait in sums.waiting_times)
    return f"{text}, and gave back at once: {who}."
