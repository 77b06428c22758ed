"""Defines the stacks of all ranks, and merges them into one tree, in which a shared frame stands once.

A set of ranks is an integer, rank r as bit r, so sets of thousands of ranks are joined in one operation. parse.py reads
stacks from the output of tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

MAX_RANKS = 65_536


def all_of(world: int) -> int:
    """Return the set of all ranks."""
    return (1 << world) - 1


def set_of(ranks: Iterable[int]) -> int:
    """Return the set of these ranks."""
    bits = 0
    for rank in ranks:
        bits |= 1 << rank
    return bits


def runs_of(ranks: int) -> Iterator[tuple[int, int]]:
    """Give the runs of consecutive ranks in a set, ascending: the first and last rank of each."""
    at = 0
    while ranks:
        skipped = (ranks & -ranks).bit_length() - 1
        ranks >>= skipped
        length = (ranks + 1 & -(ranks + 1)).bit_length() - 1
        yield at + skipped, at + skipped + length - 1
        ranks >>= length
        at += skipped + length


def rank_set_text(ranks: int) -> str:
    """Write a set as the guide does: `0-2/5/7-9`."""
    return "/".join(str(first) if first == last else f"{first}-{last}" for first, last in runs_of(ranks))


def label(ranks: int, world: int) -> str:
    """Write the ranks that have a frame, and those that lack it, as the guide does: `0-2/5-7|3-4`.

    Source: the guide's page on stacks; vectors in docs/facts/dlrover.md 7
    """
    return f"{rank_set_text(ranks)}|{rank_set_text(all_of(world) & ~ranks)}"


MAX_THREADS = 256  # of one rank; the first are kept

MAX_FRAMES = 192  # of one thread; if there are more, the outer and the inner ones are kept

INNER_FRAMES = 64

MAX_NAME = 160

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
        if not 0 < self.world <= MAX_RANKS:
            raise ValueError(f"a world of {self.world} ranks, must be 1 to {MAX_RANKS}")
        for rank in (*self.showings, *self.why):
            if not 0 <= rank < self.world:
                raise ValueError(f"rank {rank} in a world of {self.world}")

    @property
    def silent(self) -> int:
        """Return the ranks without a stack."""
        return all_of(self.world) & ~set_of(self.showings)


MAX_LINES = 4  # line numbers kept for one frame


@dataclass(frozen=True, slots=True)
class StackNode:
    """A frame of the merged tree. Sets of ranks are bit masks."""

    frame: Frame
    ranks: int  # ranks that have this frame here
    ends: int = 0  # ranks for which it is the innermost frame
    threads: int = 0  # number of stacks that end here
    lines: tuple[int, ...] = ()  # some line numbers, ascending
    children: tuple[StackNode, ...] = ()  # sorted by frame

    def each(self) -> Iterator[StackNode]:
        """Give this node and all nodes below it."""
        left = [self]
        while left:
            node = left.pop()
            yield node
            left.extend(reversed(node.children))


_ROOT = Frame("all", "")


class _Growing:
    __slots__ = ("children", "ends", "lines", "ranks", "threads")

    def __init__(self) -> None:
        self.ranks = self.ends = self.threads = 0
        self.lines = set[int]()
        self.children = dict[Frame, _Growing]()


def fold(threads: Mapping[int, Iterable[Thread]]) -> StackNode:
    """Merge the stacks of all ranks into one tree. The root is no frame; its children are the outermost frames.

    The order of ranks and threads makes no difference. Source: DL-115, DL-116
    """
    same = dict[Thread, tuple[int, int]]()  # waiting ranks show the same stack: walk each stack once
    for rank, stacks in threads.items():
        for thread in stacks:
            ranks, count = same.get(thread, (0, 0))
            same[thread] = ranks | 1 << rank, count + 1
    root = _Growing()
    for thread, (ranks, count) in same.items():
        node = root
        node.ranks |= ranks
        for frame, line in zip(thread.frames, thread.lines, strict=True):
            node = node.children.setdefault(frame, _Growing())
            node.ranks |= ranks
            node.lines.add(line)
        node.ends |= ranks
        node.threads += count
    return _grown(_ROOT, root)


def _grown(frame: Frame, node: _Growing) -> StackNode:
    """Freeze a growing node and everything below it, its children sorted by frame."""
    children = tuple(_grown(each, node.children[each]) for each in sorted(node.children))
    lines = tuple(sorted(node.lines - {0})[:MAX_LINES])
    return StackNode(frame, node.ranks, node.ends, node.threads, lines, children)
