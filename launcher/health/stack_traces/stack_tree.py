"""Defines the stacks of all ranks, and merges them into one tree, in which a shared frame stands once.

A set of ranks is an int as a bit mask: bit r stands for rank r. So sets of thousands of ranks are joined in one
operation. parse.py reads stacks from the output of tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

MAX_RANKS = 65_536


def all_of(world: int) -> int:
    """Return the set of all ranks of a world of this size, as a bit mask."""
    return (1 << world) - 1


def set_of(ranks: Iterable[int]) -> int:
    """Return the set of these ranks, as a bit mask."""
    bits = 0
    for rank in ranks:
        bits |= 1 << rank
    return bits


def runs_of(ranks: int) -> Iterator[tuple[int, int]]:
    """Yield the runs of consecutive ranks in a set (bit mask), ascending: the first and last rank of each."""
    first_rank = 0
    while ranks:
        skipped = (ranks & -ranks).bit_length() - 1
        ranks >>= skipped
        length = (ranks + 1 & -(ranks + 1)).bit_length() - 1
        yield first_rank + skipped, first_rank + skipped + length - 1
        ranks >>= length
        first_rank += skipped + length


def rank_set_text(ranks: int) -> str:
    """Return a set of ranks (bit mask) as text in the guide's form: `0-2/5/7-9`; "" for no rank."""
    return "/".join(str(first) if first == last else f"{first}-{last}" for first, last in runs_of(ranks))


def label(ranks: int, world: int) -> str:
    """Return the ranks that have a frame and those that lack it, in the guide's form: `0-2/5-7|3-4`.

    ranks: those that have it, as a bit mask. world: number of ranks.

    Source: the guide's page on stacks; vectors in docs/facts/dlrover.md 7
    """
    return f"{rank_set_text(ranks)}|{rank_set_text(all_of(world) & ~ranks)}"


MAX_THREADS = 256  # of one rank; the first are kept

MAX_FRAMES = 192  # of one thread; if there are more, the outer and the inner ones are kept

INNER_FRAMES = 64  # innermost frames that stay in a stack that is too deep
MAX_NAME = 160  # characters

UNNAMED = "??"  # the guide's word for a function that no debugger can name


@dataclass(frozen=True, slots=True, order=True)
class Frame:
    """A function and its source file. Line numbers are kept separately, since they differ between ranks."""

    function: str
    source: str

    def __str__(self) -> str:
        return f"{self.function}@{self.source}"


OMITTED_FRAMES = Frame("...", "...")  # replaces the frames in the middle of a deep stack


@dataclass(frozen=True, slots=True)
class Thread:
    """The stack of one thread, the outermost frame first."""

    frames: tuple[Frame, ...]
    lines: tuple[int, ...]  # of each frame, 0 if unknown
    main: bool = False  # it is the main thread of its process

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

    world: int  # number of ranks
    stacks_by_rank: dict[int, RankStacks]  # by rank; missing ranks have no stack
    why: dict[int, str] = field(default_factory=dict)  # reasons for missing stacks, by rank

    def __post_init__(self) -> None:
        if not 0 < self.world <= MAX_RANKS:
            raise ValueError(f"a world of {self.world} ranks, must be 1 to {MAX_RANKS}")
        for rank in (*self.stacks_by_rank, *self.why):
            if not 0 <= rank < self.world:
                raise ValueError(f"rank {rank} in a world of {self.world}")

    @property
    def silent(self) -> int:
        """Return the ranks without a stack, as a bit mask."""
        return all_of(self.world) & ~set_of(self.stacks_by_rank)


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
        """Yield this node and all its descendants, parents first."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(reversed(node.children))


_ROOT = Frame("all", "")


class _MutableNode:
    """A node of the tree while it grows, with the fields of StackNode."""

    __slots__ = ("children", "ends", "lines", "ranks", "threads")

    def __init__(self) -> None:
        self.ranks = self.ends = self.threads = 0
        self.lines = set[int]()
        self.children = dict[Frame, _MutableNode]()


def fold(threads: Mapping[int, Iterable[Thread]]) -> StackNode:
    """Merge the stacks of all ranks into one tree. The root stands for no frame; its children are the outermost frames.

    threads: stacks by rank. Their order makes no difference. Source: DL-115, DL-116
    """
    ranks_of_stack = dict[Thread, tuple[int, int]]()  # waiting ranks show the same stack: walk each stack once
    for rank, stacks in threads.items():
        for thread in stacks:
            ranks, count = ranks_of_stack.get(thread, (0, 0))
            ranks_of_stack[thread] = ranks | 1 << rank, count + 1
    root = _MutableNode()
    for thread, (ranks, count) in ranks_of_stack.items():
        node = root
        node.ranks |= ranks
        for frame, line in zip(thread.frames, thread.lines, strict=True):
            node = node.children.setdefault(frame, _MutableNode())
            node.ranks |= ranks
            node.lines.add(line)
        node.ends |= ranks
        node.threads += count
    return _freeze(_ROOT, root)


def _freeze(frame: Frame, node: _MutableNode) -> StackNode:
    """Convert a mutable node and its descendants to a StackNode, with children sorted by frame."""
    children = tuple(_freeze(each, node.children[each]) for each in sorted(node.children))
    lines = tuple(sorted(node.lines - {0})[:MAX_LINES])
    return StackNode(frame, node.ranks, node.ends, node.threads, lines, children)
