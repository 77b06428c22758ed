"""Values of the lending demo: players, GPUs that they hold, events; and the sums and checks of a story."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from turnout.autoscaler.model import Reason


@dataclass(frozen=True, slots=True)
class Player:
    """A job of the story; each of its workers has one GPU."""

    letter: str  # one upper-case letter that stands for the job
    minimum: int  # minimum number of workers, >= 1
    maximum: int  # maximum number of workers, >= minimum
    restarts: bool = False  # the whole job restarts when one of its pods is evicted

    @property
    def name(self) -> str:
        return f"job-{self.letter.lower()}"

    @property
    def elastic(self) -> bool:
        return self.maximum > self.minimum


@dataclass(frozen=True, slots=True, order=True)
class GpuSeat:
    """A GPU that a worker holds, from the moment it has a node until its pod is deleted."""

    letter: str  # of the job
    index: int  # of the worker in the job, >= 0
    node: str  # name
    runs: bool  # the worker runs and is not leaving


Seats = Sequence[GpuSeat]


@dataclass(frozen=True, slots=True)
class LoggedDecision:
    """A decision as the autoscaler logged it."""

    letter: str  # of the job
    workers_before: int
    workers: int  # target
    reason: Reason
    detail: str = ""  # a sentence; "" without details
    receiver: str = ""  # letter of the job that gets the freed GPUs; "" for none
    is_written: bool = False  # the job's size was changed


class MomentKind(Enum):
    """The kinds of events in a story."""

    ARRIVES = "arrives"  # the owner submits a job
    LEAVES = "leaves"  # the owner deletes a job
    MOVES = "moves"  # a pod got a node, runs, or was deleted
    DECIDES = "decides"  # the autoscaler logged a decision
    RUNS = "runs"  # a job runs with the number of workers that the story waited for
    COOLDOWN_OVER = "cooldown_over"  # the time in which the autoscaler must not resize the job has passed


@dataclass(frozen=True, slots=True)
class StoryMoment:
    """One event of a story."""

    at_s: float  # seconds since the story began
    kind: MomentKind
    letter: str = ""  # of the job; "" if the event is about no single job
    seats: tuple[GpuSeat, ...] = ()  # all GPUs in use after the event
    decision: LoggedDecision | None = None  # for MomentKind.DECIDES


@dataclass(frozen=True, slots=True)
class Story:
    """The whole story of the demo."""

    players: tuple[Player, ...]
    gpus: int  # of the queue
    cooldown_s: float  # the autoscaler's shortest time between two growths of a job
    moments: tuple[StoryMoment, ...]  # in ascending time

    def player(self, letter: str) -> Player:
        """Return the player with this letter. Raises KeyError for an unknown letter."""
        return {player.letter: player for player in self.players}[letter]

    def first(self, kind: MomentKind, letter: str, after_s: float = 0.0) -> StoryMoment | None:
        """Return the first moment of this kind about the job `letter` at or after a time; None if there is none.

        after_s: in seconds since the start of the story.
        """
        return next((m for m in self.moments if m.kind is kind and m.letter == letter and m.at_s >= after_s), None)

    def is_present(self, letter: str) -> bool:
        """Return True if a job has arrived and not left since. letter: of the job; False if it is unknown."""
        words = [
            m.kind for m in self.moments if m.letter == letter and m.kind in (MomentKind.ARRIVES, MomentKind.LEAVES)
        ]
        return bool(words) and words[-1] is MomentKind.ARRIVES

    def last_decision(self, letter: str) -> LoggedDecision | None:
        """Return the autoscaler's last decision about the job `letter`; None before the first."""
        return next((m.decision for m in reversed(self.moments) if m.decision and m.decision.letter == letter), None)

    def changes(self, letter: str = "") -> list[StoryMoment]:
        """Return the moments in which a size was written, in order. letter: of one job; "" for all."""
        return [m for m in self.moments if m.decision and m.decision.is_written and letter in ("", m.decision.letter)]


def held_gpus(seats: Seats, letter: str) -> int:
    """Return the number of GPUs that the job `letter` holds, starting and leaving workers included."""
    return sum(seat.letter == letter for seat in seats)


def running_gpus(seats: Seats, letter: str) -> int:
    """Return the number of GPUs of the job's workers that run and are not leaving; a worker has one GPU."""
    return sum(seat.letter == letter and seat.runs for seat in seats)


@dataclass(frozen=True, slots=True)
class JobWait:
    """The waiting time of a job for which workers of another job left, in four consecutive parts."""

    letter: str  # of the waiting job
    since: StoryMoment  # when the waiting time began, see `wait_start`
    giver: str  # letter of the job that shrank
    given: int  # workers that left
    until_deleted_s: float  # until the pods of a job that ended were deleted; 0 if no job ended
    until_shrink_written_s: float  # then until the giver's new size was written
    until_workers_gone_s: float  # then until the giver's workers were deleted
    until_running_s: float  # then until the waiting job ran

    @property
    def whole_s(self) -> float:
        return self.until_deleted_s + self.until_shrink_written_s + self.until_workers_gone_s + self.until_running_s


@dataclass(frozen=True, slots=True)
class LendingSums:
    """The sums of a story."""

    own_gpu_s: float  # GPU-seconds of workers up to each job's minimum
    lent_gpu_s: float  # GPU-seconds of workers above the minimum
    idle_gpu_s: float  # GPU-seconds of idle GPUs
    growths: int  # number of written growths
    shrinks: int  # number of written shrinks
    given: int  # workers that left by all shrinks
    waiting_times: tuple[JobWait, ...]  # of jobs for which other jobs shrank

    @property
    def all_gpu_s(self) -> float:
        return self.own_gpu_s + self.lent_gpu_s + self.idle_gpu_s

    @property
    def longest(self) -> JobWait | None:
        """The longest wait for GPUs that were lent; None without one."""
        return max(self.waiting_times, key=lambda wait: wait.whole_s, default=None)


def sum_up(story: Story) -> LendingSums:
    """Return the sums of a story: GPU-seconds by use, numbers of resizes, and the waiting times of jobs."""
    own = lent = idle = 0.0
    for before, after in pairwise(story.moments):
        passed_s = after.at_s - before.at_s
        for player in story.players:
            has = held_gpus(before.seats, player.letter)
            own += passed_s * min(has, player.minimum)
            lent += passed_s * max(0, has - player.minimum)
        idle += passed_s * (story.gpus - len(before.seats))
    changes = [moment.decision for moment in story.changes() if moment.decision]
    less = [each.workers_before - each.workers for each in changes if each.workers < each.workers_before]
    waiting_times = (wait_of(story, player.letter) for player in story.players)
    return LendingSums(
        own, lent, idle, len(changes) - len(less), len(less), sum(less), tuple(w for w in waiting_times if w)
    )


def wait_of(story: Story, letter: str) -> JobWait | None:
    """Return the waiting time of the job `letter` for which workers of another job left, in its parts.

    Only the first shrink for it counts. None if there is none, if its reason is not MAKES_ROOM, or if the job does not
    run yet.
    """
    runs = story.first(MomentKind.RUNS, letter)
    change = next((m for m in story.changes() if m.decision and m.decision.receiver == letter), None)
    if runs is None or change is None or change.decision is None or change.decision.reason is not Reason.MAKES_ROOM:
        return None
    decision = change.decision
    since = wait_start(story, letter, change.at_s)
    left = since.letter if since.kind is MomentKind.LEAVES else ""
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
    """Return the first moment, from `since` on, in which the job `letter` holds at most `few` GPUs; None for none."""
    return next((m for m in story.moments if m.at_s >= since.at_s and held_gpus(m.seats, letter) <= few), None)


def wait_start(story: Story, letter: str, before_s: float) -> StoryMoment:
    """Return the moment from which the waiting time of the job `letter` counts.

    It is the job's arrival, or the last departure of a job between that arrival and `before_s` (seconds in the story).
    Raises KeyError if the job has not arrived by then.
    """
    arrivals = [
        m
        for m in story.moments
        if m.at_s <= before_s and (m.kind is MomentKind.LEAVES or (m.kind is MomentKind.ARRIVES and m.letter == letter))
    ]
    arrived = next((m for m in arrivals if m.kind is MomentKind.ARRIVES), None)
    if arrived is None:
        raise KeyError(letter)
    return max((m for m in arrivals if m.at_s >= arrived.at_s), key=lambda m: m.at_s)


def wait_text(wait: JobWait) -> str:
    """Return a job's waiting time as text: the total, its cause (an arrival or a departure), and the parts that add up
    to it.
    """
    cause = "it arrived" if wait.since.letter == wait.letter else f"{wait.since.letter} left"
    parts = [f"{wait.until_deleted_s:.2f} s until {wait.since.letter}'s pods had gone"] if wait.until_deleted_s else []
    parts += [
        f"{wait.until_shrink_written_s:.2f} s until {wait.giver} was told",
        f"{wait.until_workers_gone_s:.2f} s until {wait.given} of its workers had gone",
        f"{wait.until_running_s:.2f} s to start",
    ]
    return f"{wait.whole_s:.2f} s after {cause}: {', '.join(parts)}"


def sentence(story: Story, sums: LendingSums) -> str:
    """Return the outcome of the story in one sentence: who borrowed, how many GPU-seconds, and how long each job waited
    for GPUs that were lent.

    Says "Nothing was lent." if no job ever had more workers than its minimum.
    """
    borrowers = [
        p.letter for p in story.players if any(held_gpus(m.seats, p.letter) > p.minimum for m in story.moments)
    ]
    if not borrowers:
        return "Nothing was lent."
    text = f"{' and '.join(borrowers)} used {sums.lent_gpu_s:.0f} GPU-seconds that nobody else needed"
    if not sums.waiting_times:
        return f"{text}, and nobody needed them back."
    who = ", ".join(f"{wait.letter} ran {wait.whole_s:.2f} s after its turn had come" for wait in sums.waiting_times)
    return f"{text}, and gave back at once: {who}."


_STAMP_S = 1.0  # the moment of a change stands on the job in whole seconds


def missing_parts(story: Story, lends: str, served: str, too_large: str, refused: str) -> tuple[str, ...]:
    """Return a sentence for each part of the story that did not happen; () if all did.

    The arguments are letters of jobs. lends: grows into idle GPUs and gives them back. served: gets them. too_large:
    first needs more than others could give, then gets it. refused: elastic, but must not be resized.
    """
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
    """Yield a fault unless the job grew to its maximum into idle room before its first shrink.

    Also yield a fault if it never shrank. letter: of the job.
    """
    less = _shrinks(story, letter)
    if less:
        yield from _check_uses_all_room(story, letter, 0.0, less[0].at_s)
    else:
        yield f"{letter} never gave anything back"


def _check_uses_all_room(story: Story, letter: str, after_s: float, before_s: float) -> Iterator[str]:
    """Yield a fault unless the player's job grew to its maximum into idle room between two times.

    letter: of the player. after_s, before_s: since the start of the story.
    """
    maximum = story.player(letter).maximum
    grown = (m.decision for m in story.changes(letter) if after_s < m.at_s < before_s and m.decision)
    if not any(decision.reason is Reason.IDLE_ROOM and decision.workers == maximum for decision in grown):
        when = "at first" if after_s == 0.0 else "once it could again"
        yield f"{letter} did not grow to {maximum} {when}, with the reason {Reason.IDLE_ROOM.value}"


def _check_gave_enough(story: Story, letter: str) -> Iterator[str]:
    """Yield a fault unless exactly as many workers were told to leave for a job as it was short of.

    Workers that were leaving already count as gone. letter: of the job.
    """
    changes = [m for m in story.changes() if m.decision and m.decision.receiver == letter]
    if wait_of(story, letter) is None:
        yield f"nobody made room for {letter}, or it does not run"
        return
    left = {m.letter for m in story.moments if m.kind is MomentKind.LEAVES and m.at_s <= changes[0].at_s}
    staying = sum(seat.letter not in left for seat in changes[0].seats)
    short = story.player(letter).minimum - (story.gpus - staying)
    given = sum(m.decision.workers_before - m.decision.workers for m in changes if m.decision)
    if given != short:
        yield f"{given} workers left for {letter}, which was short of {short}"


def _check_undisturbed(story: Story, letter: str) -> Iterator[str]:
    """Yield a fault if any job was resized while this job needed more than others could give, or if it never did.

    letter: of the job.
    """
    moment = _decision_moment(story, letter, Reason.NEEDS_MORE)
    rests = story.first(MomentKind.COOLDOWN_OVER, letter)
    if moment is None or rests is None:
        yield f"{letter} was not told {Reason.NEEDS_MORE.value}"
        return
    if any(moment.at_s <= m.at_s <= rests.at_s for m in story.changes()):
        yield f"somebody was resized while {letter} could not have been helped by it"
    if any(held_gpus(moment.seats, p.letter) != held_gpus(rests.seats, p.letter) for p in story.players):
        yield f"somebody lost or got GPUs while {letter} waited in vain"


def _grew_again(story: Story, letter: str) -> Iterator[str]:
    """Yield a fault unless the job `letter` grew to its maximum again after its last shrink, and one if it grew within
    its cooldown.

    Yields nothing for a job that never shrank.
    """
    if not (less := _shrinks(story, letter)):
        return
    yield from _check_uses_all_room(story, letter, less[-1].at_s, float("inf"))
    waits_s = [m.at_s - less[-1].at_s for m in story.changes(letter) if m.at_s > less[-1].at_s]
    if waits_s and waits_s[0] < story.cooldown_s - _STAMP_S:
        yield f"{letter} grew {waits_s[0]:.1f} s after its last change, within its cooldown of {story.cooldown_s:g} s"


def _check_left_alone(story: Story, letter: str) -> Iterator[str]:
    """Yield a fault if the job `letter` was not refused with a sentence, was resized, or had no idle GPU beside it."""
    moment = _decision_moment(story, letter, Reason.REFUSED)
    if moment is None or moment.decision is None or not moment.decision.detail:
        yield f"{letter} was not told {Reason.REFUSED.value} with a sentence"
    rests = story.first(MomentKind.COOLDOWN_OVER, letter)
    if rests is None or held_gpus(rests.seats, letter) != story.player(letter).minimum or story.changes(letter):
        yield f"{letter} was resized, although that would restart it"
    elif len(rests.seats) == story.gpus:
        yield f"no GPU was idle beside {letter}"


def _check_bounds(story: Story) -> Iterator[str]:
    """Yield the first fault, if any: a job had more workers than its max, or fewer than its min once it ran."""
    ran: set[str] = set()
    for moment in story.moments:
        if moment.kind is MomentKind.LEAVES:
            ran.discard(moment.letter)
        for player in story.players:
            has = running_gpus(moment.seats, player.letter)
            if held_gpus(moment.seats, player.letter) > player.maximum:
                yield f"{player.letter} had more than {player.maximum} workers"
                return
            if has >= player.minimum and not _left(story, player.letter, moment):
                ran.add(player.letter)
            elif player.letter in ran:
                yield f"{player.letter} had {has} workers, fewer than {player.minimum}"
                return


def _shrinks(story: Story, letter: str) -> list[StoryMoment]:
    """Return the moments in which a smaller size of the job `letter` was written, in order."""
    return [m for m in story.changes(letter) if m.decision and m.decision.workers < m.decision.workers_before]


def _left(story: Story, letter: str, now: StoryMoment) -> bool:
    """Return True if the owner of the job `letter` had deleted it at that moment or before."""
    left = story.first(MomentKind.LEAVES, letter)
    return left is not None and left.at_s <= now.at_s


def _decision_moment(story: Story, letter: str, reason: Reason) -> StoryMoment | None:
    """Return the first moment in which the autoscaler gave the job `letter` this reason; None if it never did."""
    words = (m for m in story.moments if m.decision and m.decision.letter == letter)
    return next((m for m in words if m.decision and m.decision.reason is reason), None)
