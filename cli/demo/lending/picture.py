"""The pictures of the second part: who holds which GPU now, and who held how many from beginning to end.

A capital is a worker that its job must have, a small letter one that it was lent, a dot a GPU that nobody holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from turnout.cli.demo.lending.model import MomentKind, Player, Seats, Story, held_gpus

FREE = "·"
_MARKS = {MomentKind.ARRIVES: "+", MomentKind.LEAVES: "-"}


@dataclass(frozen=True, slots=True)
class Bar:
    """One job in GPUs: up to its least, and above."""

    letter: str
    own: int
    lent: int


@dataclass(frozen=True, slots=True)
class Chart:
    """GPUs over time. rows: from the top, a sign a column; marks: who arrived (+) and left (-), below them."""

    rows: tuple[str, ...]
    marks: str
    column_s: float


def strip(seats: Seats, players: Sequence[Player], nodes: Sequence[str], gpus: int) -> str:
    """A leaf: a sign a GPU, node by node. gpus: of each node."""
    least = {player.letter: player.least for player in players}
    signs = ""
    for node in nodes:
        letters = [s.letter if s.index < least[s.letter] else s.letter.lower() for s in sorted(seats) if s.node == node]
        signs += "".join(letters).ljust(gpus, FREE)
    return signs


def bars(seats: Seats, players: Sequence[Player]) -> list[Bar]:
    """Count the GPUs that each holds."""
    amounts = [(player, held_gpus(seats, player.letter)) for player in players]
    return [Bar(player.letter, min(has, player.least), max(0, has - player.least)) for player, has in amounts]


def chart(story: Story, columns: int) -> Chart:
    """Draw a story. What jobs must have lies at the bottom, what is lent on it, what is idle on top."""
    times = [moment.at_s for moment in story.moments]
    column_s = times[-1] / columns
    stacks = []
    for column in range(columns):
        now = story.moments[max(0, bisect_right(times, (column + 0.5) * column_s) - 1)]
        found = bars(now.seats, story.players)
        own = "".join(bar.letter * bar.own for bar in found)
        stacks.append((own + "".join(bar.letter.lower() * bar.lent for bar in found)).ljust(story.gpus, FREE))
    rows = ("".join(stack[row] for stack in stacks) for row in reversed(range(story.gpus)))
    return Chart(tuple(rows), _marks(story, column_s), column_s)


def _marks(story: Story, column_s: float) -> str:
    line = ""
    for moment in story.moments:
        if moment.word in _MARKS:
            at = int(moment.at_s / column_s)
            line = line.ljust(max(at, len(line) + bool(line)))
            line += moment.letter + _MARKS[moment.word]
    return line


def runs(signs: str) -> list[str]:
    """Cut the signs wherever they change."""
    cuts = [0, *(at for at, (a, b) in enumerate(pairwise(signs), 1) if a != b), len(signs)]
    return [signs[a:b] for a, b in pairwise(cuts) if a < b]
