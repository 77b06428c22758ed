"""The nouns of stacks: a frame, a thread, what one rank showed, and sets of ranks.

A set of ranks is a whole number, rank r its bit r: thousands of ranks are joined in one operation. How stacks come to
be is in reading.py, how they are folded in fold.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from turnout.launcher.health.calls.model import Record

MOST_RANKS = 65_536
MOST_THREADS = 256  # of one rank; the first ones are kept
MOST_FRAMES = 192  # of one thread; of more, the outer and the inner ones are kept
INNER_FRAMES = 64
MOST_NAME = 160
UNNAMED = "??"  # the guide's word for a function that no debugger can name


@dataclass(frozen=True, slots=True, order=True)
class Frame:
    """A function and the file it is from. Lines differ from rank to rank, so they are kept beside it."""

    function: str
    source: str

    def __str__(self) -> str:
        return f"{self.function}@{self.source}"


LEFT_OUT = Frame("...", "...")  # stands for frames that were too many


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread's stack, the outermost frame first; lines: of each frame, 0 where it is not known."""

    frames: tuple[Frame, ...]
    lines: tuple[int, ...]
    main: bool = False

    def __post_init__(self) -> None:
        if len(self.lines) != len(self.frames):
            raise ValueError(f"{len(self.lines)} lines for {len(self.frames)} frames")


@dataclass(frozen=True, slots=True)
class Showing:
    """What one rank showed. state: the letter of the kernel for its process, as `ps` has it, "" where nobody looked."""

    python: tuple[Thread, ...] = ()
    native: tuple[Thread, ...] = ()
    state: str = ""


@dataclass(frozen=True, slots=True)
class Gathered:
    """The stacks of a world. showings: by rank; a rank that is not in it showed nothing. why: of some of those.

    records: of the calls of some ranks, those that showed no stack too.
    """

    world: int
    showings: dict[int, Showing]
    why: dict[int, str] = field(default_factory=dict)
    records: dict[int, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.world <= MOST_RANKS:
            raise ValueError(f"a world of {self.world} ranks, must be 1 to {MOST_RANKS}")
        for rank in (*self.showings, *self.why, *self.records):
            if not 0 <= rank < self.world:
                raise ValueError(f"rank {rank} in a world of {self.world}")

    @property
    def silent(self) -> int:
        """The ranks that showed nothing."""
        return all_of(self.world) & ~set_of(self.showings)


def all_of(world: int) -> int:
    """The set of all ranks."""
    return (1 << world) - 1


def set_of(ranks: Iterable[int]) -> int:
    """The set of these."""
    bits = 0
    for rank in ranks:
        bits |= 1 << rank
    return bits


def runs_of(ranks: int) -> Iterator[tuple[int, int]]:
    """The runs of a set: first and last rank of each, ascending."""
    at = 0
    while ranks:
        skipped = (ranks & -ranks).bit_length() - 1
        ranks >>= skipped
        length = (ranks + 1 & -(ranks + 1)).bit_length() - 1
        yield at + skipped, at + skipped + length - 1
        ranks >>= length
        at += skipped + length


def ranks_in(ranks: int) -> Iterator[int]:
    """The ranks of a set, ascending."""
    for first, last in runs_of(ranks):
        yield from range(first, last + 1)


def folded(ranks: int) -> str:
    """As the guide writes a set: `0-2/5/7-9`."""
    return "/".join(str(first) if first == last else f"{first}-{last}" for first, last in runs_of(ranks))


def unfolded(words: str, world: int) -> int:
    """The set that `folded` wrote. 0 for what is none, or has a rank that this world has not."""
    bits = 0
    for run in words.split("/") if words else ():
        first, to, last = run.partition("-")
        last = last if to else first
        if not (first.isascii() and last.isascii() and first.isdecimal() and last.isdecimal()):
            return 0
        if len(last) > 9 or not int(first) <= int(last) < world:
            return 0
        bits |= (1 << int(last) + 1) - (1 << int(first))
    return bits


def label(held: int, world: int) -> str:
    """As the guide writes who has a frame and who lacks it: `0-2/5-7|3-4`.

    Source: the guide's page on stacks; vectors in docs/facts/dlrover.md 7
    """
    return f"{folded(held)}|{folded(all_of(world) & ~held)}"
