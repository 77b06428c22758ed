"""The stacks of many ranks as one tree: a frame that ranks share is in it once, with the ranks that have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from turnout.launcher.health.stacks.model import Frame, Thread

MOST_LINES = 4  # of one frame that are told


@dataclass(frozen=True, slots=True)
class Node:
    """A frame below a certain other one. ranks: who has it; ends: for whom it is the innermost one.

    threads: how many stacks end here; lines: of the frame, a few of them, ascending; children: by frame.
    """

    frame: Frame
    ranks: int
    ends: int = 0
    threads: int = 0
    lines: tuple[int, ...] = ()
    children: tuple[Node, ...] = ()

    def each(self) -> Iterator[Node]:
        """This one and all below it."""
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


def fold(threads: Mapping[int, Iterable[Thread]]) -> Node:
    """One tree of all stacks, by rank. Its root is no frame: its children are the outermost ones.

    The order of ranks and of their threads makes no difference.
    Source: DL-115, DL-116
    """
    same = dict[Thread, tuple[int, int]]()  # ranks that wait show the same stack: each is walked once
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


def _grown(frame: Frame, node: _Growing) -> Node:
    children = tuple(_grown(each, node.children[each]) for each in sorted(node.children))
    lines = tuple(sorted(node.lines - {0})[:MOST_LINES])
    return Node(frame, node.ranks, node.ends, node.threads, lines, children)
