"""Who stands where: the crowd waits in one place, and whoever stands elsewhere is whom it waits for.

Only the main threads count. The crowd is followed from the outermost frame inwards for as long as two thirds of the
ranks go the same way; who turns off is named, the earliest first. Where nobody is in such a majority nobody is named.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.launcher.health.stacks.fold import Node, fold
from turnout.launcher.health.stacks.model import Frame, Gathered

_COLLECTIVES = tuple(
    f"torch/distributed/{name}.py" for name in ("distributed_c10d", "c10d_logger", "_functional_collectives")
)


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that stand in one place. at: the innermost frame they share, and its lines; by: where they turned off."""

    ranks: int
    at: Frame
    lines: tuple[int, ...]
    by: Frame

    def __str__(self) -> str:
        lines = ":" + ",".join(map(str, self.lines)) if self.lines else ""
        return f"{self.at}{lines}{f', by way of {self.by}' if self.by != self.at else ''}"


@dataclass(frozen=True, slots=True)
class Standing:
    """crowd: where most stand, in one group or in the several that it splits into; apart: who left it, the first first.

    silent: ranks of which there is no stack.
    """

    crowd: tuple[Group, ...]
    apart: tuple[Group, ...]
    silent: int

    @property
    def outliers(self) -> int:
        """The ranks that stand apart, and those that are silent while others are not."""
        ranks = self.silent if self.crowd else 0
        for group in self.apart:
            ranks |= group.ranks
        return ranks


def stand(gathered: Gathered) -> Standing:
    """Who stands where, by the main threads' Python frames."""
    mains = {rank: [each for each in seen.python if each.main] for rank, seen in gathered.showings.items()}
    node: Node | None = fold(mains)
    assert node is not None
    enough, apart, crowd = 2 * node.ranks.bit_count(), list[Group](), list[Group]()
    while node is not None:
        ways = _ways(node)
        if not ways or 3 * ways[0].ranks.bit_count() < enough:
            crowd = [way.group() for way in ways]
            break
        apart += (way.group() for way in ways[1:])
        crowd, node = (
            [Group(ways[0].ranks, ways[0].place.frame, ways[0].place.lines, ways[0].place.frame)],
            ways[0].into,
        )
    return Standing(tuple(crowd), tuple(apart), gathered.silent)


def in_torch(gathered: Gathered) -> int:
    """The ranks whose main thread is in torch's own Python of collectives: it waits there, on record or not."""
    ranks = 0
    for rank, seen in gathered.showings.items():
        if any(each.main and each.frames[-1].source.startswith(_COLLECTIVES) for each in seen.python):
            ranks |= 1 << rank
    return ranks


@dataclass(frozen=True, slots=True)
class _Way:
    """How some ranks go on from a frame: into another one, or not at all."""

    ranks: int
    place: Node
    into: Node | None

    def group(self) -> Group:
        """As far as all of these go together."""
        node = self.place
        while self.into is not None and len(node.children) == 1 and not node.ends:
            node = node.children[0]
        return Group(self.ranks, node.frame, node.lines, self.place.frame)


def _ways(node: Node) -> list[_Way]:
    """Those of most ranks first."""
    ways = [_Way(child.ranks, child, child) for child in node.children]
    if node.ends:
        ways.append(_Way(node.ends, node, None))
    return sorted(ways, key=lambda way: (-way.ranks.bit_count(), way.ranks))
