"""Defines the nouns of stack traces: a frame, a thread, and the stacks of one rank.

parse.py reads stacks from the output of tools, and merge.py merges those of many ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from turnout.launcher.health.rank_sets import MOST_RANKS, all_of, set_of

MOST_THREADS = 256  # of one rank; the first are kept
MOST_FRAMES = 192  # of one thread; if there are more, the outer and the inner ones are kept
INNER_FRAMES = 64
MOST_NAME = 160
UNNAMED = "??"  # the guide's word for a function that no debugger can name


@dataclass(frozen=True, slots=True, order=True)
class Frame:
    """A function and its source file. Line numbers are kept separately, since they differ between ranks."""

    function: str
    source: str

    def __str__(self) -> str:
        return f"{self.function}@{self.source}"


LEFT_OUT = Frame("...", "...")  # replaces the frames in the middle of a deep stack


@dataclass(frozen=True, slots=True)
class Thread:
    """The stack of one thread, the outermost frame first."""

    frames: tuple[Frame, ...]
    lines: tuple[int, ...]  # of each frame, 0 if unknown
    main: bool = False

    def __post_init__(self) -> None:
        if len(self.lines) != len(self.frames):
            raise ValueError(f"{len(self.lines)} lines for {len(self.frames)} frames")


@dataclass(frozen=True, slots=True)
class RankStacks:
    """The stacks of one rank."""

    python: tuple[Thread, ...] = ()
    native: tuple[Thread, ...] = ()
    state: str = ""  # the process state as in ps, "" if unknown


@dataclass(frozen=True, slots=True)
class WorldStacks:
    """The stack traces of all ranks of a world."""

    world: int
    showings: dict[int, RankStacks]  # by rank; missing ranks have no stack
    why: dict[int, str] = field(default_factory=dict)  # reasons for missing stacks, by rank

    def __post_init__(self) -> None:
        if not 0 < self.world <= MOST_RANKS:
            raise ValueError(f"a world of {self.world} ranks, must be 1 to {MOST_RANKS}")
        for rank in (*self.showings, *self.why):
            if not 0 <= rank < self.world:
                raise ValueError(f"rank {rank} in a world of {self.world}")

    @property
    def silent(self) -> int:
        """Return the ranks without a stack."""
        return all_of(self.world) & ~set_of(self.showings)
