"""The nouns of the second part: who plays, who holds which GPU, and what happened when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

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
    """A decision as the autoscaler logged it. written: it has changed the job's size.

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
        """The first such moment from a time on."""
        return next((m for m in self.moments if m.word is word and m.letter == letter and m.at_s >= after_s), None)

    def is_present(self, letter: str) -> bool:
        """True if a job has arrived and not left."""
        words = [
            m.word for m in self.moments if m.letter == letter and m.word in (MomentKind.ARRIVES, MomentKind.LEAVES)
        ]
        return bool(words) and words[-1] is MomentKind.ARRIVES

    def last_decision(self, letter: str) -> LoggedDecision | None:
        """The autoscaler's last word on a job."""
        return next((m.decision for m in reversed(self.moments) if m.decision and m.decision.letter == letter), None)

    def changes(self, letter: str = "") -> list[StoryMoment]:
        """The moments in which a size was written; of one job, or of all."""
        return [m for m in self.moments if m.decision and m.decision.is_written and letter in ("", m.decision.letter)]


def held_gpus(seats: Seats, letter: str) -> int:
    """How many GPUs a job holds."""
    return sum(seat.letter == letter for seat in seats)


def running_gpus(seats: Seats, letter: str) -> int:
    """How many of its workers run and may stay."""
    return sum(seat.letter == letter and seat.runs for seat in seats)
