"""The nouns of the lending demo: players, GPUs that they hold, events; and the sums and checks of a story."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from turnout.autoscaler.model import Reason


@dataclass(frozen=True, slots=True)
class Player:
    """A job of the story; each of its workers has one GPU. letter: its sign.

    restarts: it wants to be restarted whenever a pod of it is evicted.
    """

    letter: str
    least: int
    most: int
    restarts: bool = False

    @property
    def name(self) -> str:
        return f"job-{self.letter.lower()}"

    @property
    def elastic(self) -> bool:
        return self.most > self.least


@dataclass(frozen=True, slots=True, order=True)
class GpuSeat:
    """A GPU that a worker holds, from the moment it has a node until it is gone. runs: it does, and may stay."""

    letter: str
    index: int
    node: str
    runs: bool


Seats = Sequence[GpuSeat]


@dataclass(frozen=True, slots=True)
class LoggedDecision:
    """A decision as the autoscaler logged it. is_written: it has changed the job's size.

    for_: the sign of the job that it makes room for, "" for none.
    """

    letter: str
    workers_before: int
    workers: int
    reason: Reason
    detail: str = ""
    for_: str = ""
    is_written: bool = False


class MomentKind(Enum):
    """The kinds of moments."""

    ARRIVES = "arrives"  # its owner submits it
    LEAVES = "leaves"  # its owner takes it away
    MOVES = "moves"  # a pod got a node, runs, or is gone
    SAYS = "says"  # the autoscaler has decided
    RUNS = "runs"  # a job has what it was waited for
    RESTS = "rests"  # it was looked for a while whether anybody is disturbed


@dataclass(frozen=True, slots=True)
class StoryMoment:
    """One thing that happened. at_s: since the story began; seats: who held what then."""

    at_s: float
    word: MomentKind
    letter: str = ""
    seats: tuple[GpuSeat, ...] = ()
    decision: LoggedDecision | None = None


@dataclass(frozen=True, slots=True)
class Story:
    """All of it, in order. gpus: of the queue. cooldown_s: between two changes, as the autoscaler was told."""

    players: tuple[Player, ...]
    gpus: int
    cooldown_s: float
    moments: tuple[StoryMoment, ...]

    def player(self, letter: str) -> Player:
        return next(player for player in self.players if player.letter == letter)

    def first(self, word: MomentKind, letter: str, after_s: float = 0.0) -> StoryMoment | None:
        """Return the first such moment from a time on."""
        return next((m for m in self.moments if m.word is word and m.letter == letter and m.at_s >= after_s), None)

    def is_present(self, letter: str) -> bool:
        """Return True if a job has arrived and not left."""
        words = [
            m.word for m in self.moments if m.letter == letter and m.word in (MomentKind.ARRIVES, MomentKind.LEAVES)
        ]
        return bool(words) and words[-1] is MomentKind.ARRIVES

    def last_decision(self, letter: str) -> LoggedDecision | None:
        """Return the autoscaler's last word on a job."""
        return next((m.decision for m in reversed(self.moments) if m.decision and m.decision.letter == letter), None)

    def changes(self, letter: str = "") -> list[StoryMoment]:
        """Return the moments in which a size was written; of one job, or of all."""
        return [m for m in self.moments if m.decision and m.decision.is_written and letter in ("", m.decision.letter)]


def held_gpus(seats: Seats, letter: str) -> int:
    """How many GPUs a job holds."""
    return sum(seat.letter == letter for seat in seats)


def running_gpus(seats: Seats, letter: str) -> int:
    """How many of its workers run and may stay."""
    return sum(seat.letter == letter and seat.runs for seat in seats)


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


def sum_up(story: Story) -> LendingSums:
    """Return the sums of a story.

    They are GPU-seconds up to the mins, above them and idle, the numbers of resizes, and the waits of jobs.
    """
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
    """Return how long a job waited until workers of another job had left.

    None if none left for it, or if it does not run yet.
    """
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
    """Return the first moment in which a job holds no more than so many."""
    return next((m for m in story.moments if m.at_s >= since.at_s and held_gpus(m.seats, letter) <= few), None)


def turn(story: Story, letter: str, before_s: float) -> StoryMoment:
    """Return the moment a job's turn came: when it arrived, or when the last one left before it was served."""
    arrivals = [
        m
        for m in story.moments
        if m.at_s <= before_s and (m.word is MomentKind.LEAVES or (m.word is MomentKind.ARRIVES and m.letter == letter))
    ]
    arrived = next(m for m in arrivals if m.word is MomentKind.ARRIVES)
    return max((m for m in arrivals if m.at_s >= arrived.at_s), key=lambda m: m.at_s)


def waited(wait: JobWait) -> str:
    """Return a wait in words."""
    cause = "it arrived" if wait.since.letter == wait.letter else f"{wait.since.letter} left"
    parts = [f"{wait.away_s:.2f} s until {wait.since.letter}'s pods had gone"] if wait.away_s else []
    parts += [
        f"{wait.told_s:.2f} s until {wait.giver} was told",
        f"{wait.gone_s:.2f} s until {wait.given} of its workers had gone",
        f"{wait.start_s:.2f} s to start",
    ]
    return f"{wait.whole_s:.2f} s after {cause}: {', '.join(parts)}"


def sentence(story: Story, sums: LendingSums) -> str:
    """Return the outcome of the story in one sentence, for a reader who has not watched it."""
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


_STAMP_S = 1.0  # the moment of a change stands on the job in whole seconds


def missing_parts(story: Story, lends: str, served: str, too_large: str, refused: str) -> tuple[str, ...]:
    """Return a sentence for each part of the story that did not happen. The arguments are signs of jobs."""
    claims = (
        _grew(story, lends),
        _check_gave_enough(story, served),
        _check_undisturbed(story, too_large),
        _check_gave_enough(story, too_large),
        _grew_again(story, lends),
        _check_left_alone(story, refused),
        _check_bounds(story),
    )
    return tuple(fault for claim in claims for fault in claim)


def _grew(story: Story, letter: str) -> Iterator[str]:
    """Before it gives anything, it has all that it can use."""
    less = _shrinks(story, letter)
    if less:
        yield from _check_uses_all_room(story, letter, 0.0, less[0].at_s)
    else:
        yield f"{letter} never gave anything back"


def _check_uses_all_room(story: Story, letter: str, after_s: float, before_s: float) -> Iterator[str]:
    """Yield a fault unless the player's job grew to its maximum into idle room between two times.

    letter: of the player. after_s, before_s: since the start of the story.
    """
    most = story.player(letter).most
    grown = (m.decision for m in story.changes(letter) if after_s < m.at_s < before_s and m.decision)
    if not any(decision.reason is Reason.IDLE_ROOM and decision.workers == most for decision in grown):
        when = "at first" if after_s == 0.0 else "once it could again"
        yield f"{letter} did not grow to {most} {when}, with the reason {Reason.IDLE_ROOM.value}"


def _check_gave_enough(story: Story, letter: str) -> Iterator[str]:
    """Yield a fault unless exactly as many workers were told to leave for a job as it was short of.

    Workers that were leaving already count as gone. letter: of the job.
    """
    changes = [m for m in story.changes() if m.decision and m.decision.for_ == letter]
    if wait_of(story, letter) is None:
        yield f"nobody made room for {letter}, or it does not run"
        return
    left = {m.letter for m in story.moments if m.word is MomentKind.LEAVES and m.at_s <= changes[0].at_s}
    staying = sum(seat.letter not in left for seat in changes[0].seats)
    short = story.player(letter).least - (story.gpus - staying)
    given = sum(m.decision.workers_before - m.decision.workers for m in changes if m.decision)
    if given != short:
        yield f"{given} workers left for {letter}, which was short of {short}"


def _check_undisturbed(story: Story, letter: str) -> Iterator[str]:
    """Yield a fault if any job was resized while this job needed more than others could give. letter: of the job."""
    moment = _decision_moment(story, letter, Reason.NEEDS_MORE)
    rests = story.first(MomentKind.RESTS, letter)
    if moment is None or rests is None:
        yield f"{letter} was not told {Reason.NEEDS_MORE.value}"
        return
    if any(moment.at_s <= m.at_s <= rests.at_s for m in story.changes()):
        yield f"somebody was resized while {letter} could not have been helped by it"
    if any(held_gpus(moment.seats, p.letter) != held_gpus(rests.seats, p.letter) for p in story.players):
        yield f"somebody lost or got GPUs while {letter} waited in vain"


def _grew_again(story: Story, letter: str) -> Iterator[str]:
    """After it has given, it grows to its most once more, and no sooner than it may."""
    if not (less := _shrinks(story, letter)):
        return
    yield from _check_uses_all_room(story, letter, less[-1].at_s, float("inf"))
    waited = [m.at_s - less[-1].at_s for m in story.changes(letter) if m.at_s > less[-1].at_s]
    if waited and waited[0] < story.cooldown_s - _STAMP_S:
        yield f"{letter} grew {waited[0]:.1f} s after its last change, within its cooldown of {story.cooldown_s:g} s"


def _check_left_alone(story: Story, letter: str) -> Iterator[str]:
    """Yield a sentence if a paused job was resized, got no reason, or if no GPU was idle beside it."""
    moment = _decision_moment(story, letter, Reason.REFUSED)
    if moment is None or moment.decision is None or not moment.decision.detail:
        yield f"{letter} was not told {Reason.REFUSED.value} with a sentence"
    rests = story.first(MomentKind.RESTS, letter)
    if rests is None or held_gpus(rests.seats, letter) != story.player(letter).least or story.changes(letter):
        yield f"{letter} was resized, although that would restart it"
    elif len(rests.seats) == story.gpus:
        yield f"no GPU was idle beside {letter}"


def _check_bounds(story: Story) -> Iterator[str]:
    """Yield a fault for each job that had more workers than its max, or fewer than its min once it ran."""
    ran: set[str] = set()
    for moment in story.moments:
        if moment.word is MomentKind.LEAVES:
            ran.discard(moment.letter)
        for player in story.players:
            has = running_gpus(moment.seats, player.letter)
            if held_gpus(moment.seats, player.letter) > player.most:
                yield f"{player.letter} had more than {player.most} workers"
                return
            if has >= player.least and not _left(story, player.letter, moment):
                ran.add(player.letter)
            elif player.letter in ran:
                yield f"{player.letter} had {has} workers, fewer than {player.least}"
                return


def _shrinks(story: Story, letter: str) -> list[StoryMoment]:
    return [m for m in story.changes(letter) if m.decision and m.decision.workers < m.decision.workers_before]


def _left(story: Story, letter: str, now: StoryMoment) -> bool:
    left = story.first(MomentKind.LEAVES, letter)
    return left is not None and left.at_s <= now.at_s


def _decision_moment(story: Story, letter: str, reason: Reason) -> StoryMoment | None:
    words = (m for m in story.moments if m.decision and m.decision.letter == letter)
    return next((m for m in words if m.decision and m.decision.reason is reason), None)
