"""Finds suspect ranks by their stacks: most ranks wait in one place, and those elsewhere are the ones they wait for.

Only main threads count. The majority is followed from the outermost frame inwards while two thirds of the ranks share
the way. Ranks that leave it are suspect, the earliest first. Without such a majority none is suspect.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.launcher.health.stack_traces.merge import Node, fold
from turnout.launcher.health.stack_traces.model import Frame, WorldStacks


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks in one place of the program."""

    ranks: int
    at: Frame  # the innermost frame they share
    lines: tuple[int, ...]  # of that frame
    by: Frame  # the frame at which they left the majority

    def __str__(self) -> str:
        lines = ":" + ",".join(map(str, self.lines)) if self.lines else ""
        return f"{self.at}{lines}{f', by way of {self.by}' if self.by != self.at else ''}"


@dataclass(frozen=True, slots=True)
class Outliers:
    """Says where the ranks of a world stand: the majority, the groups that left it, and the silent ranks."""

    majority: tuple[Group, ...]  # where the majority is: one group, or those into which it splits
    suspect_groups: tuple[Group, ...]  # groups that left the majority, the earliest first
    silent: int  # ranks without a stack

    @property
    def outliers(self) -> int:
        """Return the ranks that left the majority, and those without a stack if others have one."""
        ranks = self.silent if self.majority else 0
        for group in self.suspect_groups:
            ranks |= group.ranks
        return ranks


def find_outliers(gathered: WorldStacks) -> Outliers:
    """Find the places of all ranks, by the Python frames of their main threads."""
    mains = {rank: [each for each in stacks.python if each.main] for rank, stacks in gathered.showings.items()}
    node: Node | None = fold(mains)
    assert node is not None
    enough, suspect_groups, majority = 2 * node.ranks.bit_count(), list[Group](), list[Group]()
    while node is not None:
        ways = _ways(node)
        if not ways or 3 * ways[0].ranks.bit_count() < enough:
            majority = [way.group() for way in ways]
            break
        suspect_groups += (way.group() for way in ways[1:])
        majority, node = (
            [Group(ways[0].ranks, ways[0].place.frame, ways[0].place.lines, ways[0].place.frame)],
            ways[0].into,
        )
    return Outliers(tuple(majority), tuple(suspect_groups), gathered.silent)


@dataclass(frozen=True, slots=True)
class _Way:
    """How some ranks continue from a frame: into another frame, or not at all."""

    ranks: int
    place: Node
    into: Node | None

    def group(self) -> Group:
        """Return the group at the innermost frame that all these ranks share."""
        node = self.place
        while self.into is not None and len(node.children) == 1 and not node.ends:
            node = node.children[0]
        return Group(self.ranks, node.frame, node.lines, self.place.frame)


def _ways(node: Node) -> list[_Way]:
    """List the ways from a node, that of most ranks first."""
    ways = [_Way(child.ranks, child, child) for child in node.children]
    if node.ends:
        ways.append(_Way(node.ends, node, None))
    return sorted(ways, key=lambda way: (-way.ranks.bit_count(), way.ranks))
