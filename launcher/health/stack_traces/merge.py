"""Merges the stacks of many ranks into one tree: a frame that ranks share is in it once, with these ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from turnout.launcher.health.stack_traces.model import Frame, Thread

MOST_LINES = 4  # line numbers kept for one frame


@dataclass(frozen=True, slots=True)
class Node:
    """A frame of the merged tree. Sets of ranks are bit masks."""

    frame: Frame
    ranks: int  # ranks that have this frame here
    ends: int = 0  # ranks for which it is the innermost frame
    threads: int = 0  # number of stacks that end here
    lines: tuple[int, ...] = ()  # some line numbers, ascending
    children: tuple[Node, ...] = ()  # sorted by frame

    def each(self) -> Iterator[Node]:
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


def fold(threads: Mapping[int, Iterable[Thread]]) -> Node:
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


def _grown(frame: Frame, node: _Growing) -> Node:
    children = tuple(_grown(each, node.children[each]) for each in sorted(node.children))
    lines = tuple(sorted(node.lines - {0})[:MOST_LINES])
    return Node(frame, node.ranks, node.ends, node.threads, lines, children)
