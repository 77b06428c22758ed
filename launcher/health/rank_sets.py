"""Represents sets of ranks as integers, rank r as bit r: sets of thousands of ranks are joined in one operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MOST_RANKS = 65_536


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


def folded(ranks: int) -> str:
    """Write a set as the guide does: `0-2/5/7-9`."""
    return "/".join(str(first) if first == last else f"{first}-{last}" for first, last in runs_of(ranks))


def label(ranks: int, world: int) -> str:
    """Write the ranks that have a frame, and those that lack it, as the guide does: `0-2/5-7|3-4`.

    Source: the guide's page on stacks; vectors in docs/facts/dlrover.md 7
    """
    return f"{folded(ranks)}|{folded(all_of(world) & ~ranks)}"
