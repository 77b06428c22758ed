"""Choose which of several holes take a number of pods, so that few holes are used and large ones stay free.

A hole is the free room of a host of a leaf, or of a leaf of a spine. This module does not know which.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Share = tuple[int, int]  # which hole, how many pods go there
_CELLS = 400_000  # of the table below; past that the first holes are the largest, unseen


def pick(holes: Sequence[int], need: int) -> list[Share]:
    """Return which holes are used and how far; a partly used hole comes last.

    holes: the room of each, 0 or more; their sum is at least `need`. need: pods, 0 or more.

    Among the sets with the fewest holes, the one that leaves the largest sum of squares of free room is chosen. So
    small holes are filled before a large one is touched. Ties go to the first holes.
    """
    if need <= 0:
        return []
    single = _tightest(holes, need)
    if single is not None:
        return [(single, need)]
    order = sorted(range(len(holes)), key=lambda at: (-holes[at], at))
    chosen: list[int] = []
    left, fewest = need, 0
    for at in order:
        left -= holes[at]
        fewest += 1
        if left <= 0:
            break
    if left == 0 or fewest == len(order) or holes[order[0]] == holes[order[fewest - 1]] == holes[order[-1]]:
        chosen = order[:fewest]  # no other set is possible, or none differs
    else:
        chosen = _best_set(holes, order, need, fewest)
    return _filled(holes, chosen, need)


def _tightest(holes: Sequence[int], need: int) -> int | None:
    best = None
    for at, hole in enumerate(holes):
        if hole >= need and (best is None or hole < holes[best]):
            best = at
    return best


def _filled(holes: Sequence[int], chosen: list[int], need: int) -> list[Share]:
    """Fill the chosen holes, the largest first. The free rest is in the last one."""
    shares = []
    for at in sorted(chosen, key=lambda at: (-holes[at], at)):
        take = min(holes[at], need)
        shares.append((at, take))
        need -= take
    return shares


def _best_set(holes: Sequence[int], order: list[int], need: int, fewest: int) -> list[int]:
    """Return the `fewest` holes that reach `need` and lose the least sum of squares, by a table over (holes, sum)."""
    free = 2
    while free < fewest and len(order) * (free + 1) * (free + 2) * holes[order[0]] <= _CELLS:
        free += 1
    fixed, rest = order[: fewest - free], order[fewest - free :]
    need -= sum(holes[at] for at in fixed)
    items = _useful(holes, rest, free)
    return fixed + _by_table(holes, items, need, free)


def _useful(holes: Sequence[int], order: list[int], free: int) -> list[int]:
    """Return the holes without those that repeat a size which is there `free` times already."""
    copies: dict[int, int] = {}
    useful = []
    for at in order:
        copies[holes[at]] = copies.get(holes[at], 0) + 1
        if holes[at] and copies[holes[at]] <= free:
            useful.append(at)
    return useful


def _by_table(holes: Sequence[int], items: list[int], need: int, free: int) -> list[int]:
    width = need + holes[items[0]]  # with the fewest holes no set overshoots by a whole hole
    worst = np.iinfo(np.int64).max // 2
    loss = np.full((free + 1, width), worst, np.int64)
    loss[0, 0] = 0
    uses_item = np.zeros((len(items), free + 1, width), np.bool_)
    for row, at in enumerate(items):
        hole = holes[at]
        with_it = loss[:-1, : width - hole] + hole * hole
        better = with_it < loss[1:, hole:]
        uses_item[row, 1:, hole:] = better
        loss[1:, hole:][better] = with_it[better]
    over = np.arange(width - need, dtype=np.int64)
    total = need + int(np.argmin(loss[free, need:] - over * over))
    chosen = []
    for row in range(len(items) - 1, -1, -1):
        if uses_item[row, free, total]:
            chosen.append(items[row])
            total -= holes[items[row]]
            free -= 1
    return chosen
