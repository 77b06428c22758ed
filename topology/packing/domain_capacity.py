"""Compute how many pods of one shape each switch holds, and choose among equally good domains.

Sums are computed once per tier, and only for the tiers that a plan looks at.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from turnout.topology.fabric import Fabric

Counts = npt.NDArray[np.signedinteger]


class Sums:
    """The capacity per switch of each tier, computed when first asked for."""

    __slots__ = ("_liked", "_tiers", "fabric")

    def __init__(self, fabric: Fabric, room: Counts, liking: Counts | None = None) -> None:
        self.fabric = fabric
        self._liked = None if liking is None else np.where(room > 0, liking, 0)
        self._tiers: list[Counts] = [room]

    def of(self, tier: int) -> Counts:
        """Return the capacity of every switch of a tier, in pods. Tier 0 are the hosts."""
        while len(self._tiers) <= tier:
            below = self._tiers[-1]
            above: Counts = np.add.reduceat(below, self.fabric.first_child[len(self._tiers)])
            self._tiers.append(above)
        return self._tiers[tier]

    def liked(self, tier: int) -> Counts | None:
        """Return how gladly the pods go to the hosts with room under each switch of a tier; None if all are alike."""
        if self._liked is None or tier == 0:
            return self._liked
        liked: Counts = np.add.reduceat(self._liked, self.fabric.starts[tier])
        return liked

    def children(self, tier: int, switch: int) -> tuple[int, int]:
        """Return the first switch directly below a switch and the one after the last."""
        first = self.fabric.first_child[tier]
        below = self.fabric.starts[tier - 1]
        return int(first[switch]), int(first[switch + 1]) if switch + 1 < len(first) else len(below)

    def under(self, tier: int, switch: int, below: int) -> Counts:
        """Return the capacity of every switch of tier `below` under a switch."""
        start, end = self.fabric.span(tier, switch)
        row = self.fabric.switch_of[below]
        return self.of(below)[row[start] : row[end - 1] + 1]

    def ancestors(self, tier: int, switches: Counts, above: int) -> Counts:
        """Return, for each of some switches of a tier, the switch of tier `above` over it."""
        if above == tier:
            return switches
        found: Counts = self.fabric.switch_of[above][self.fabric.starts[tier][switches]]
        return found

    def tightest(self, tier: int, domains: Counts, most: int) -> int:
        """Return the best of some domains that hold a gang at the same cost.

        The domain whose lowest enclosing switch with room for `most` pods is lowest comes first. Ties go to the least
        room in the domain, then to what the pods like best. Further ties go to the least room in each switch above
        it, from below, then to the first domain.
        """
        for above in range(tier, self.fabric.tiers + 1):
            grown = domains[self.of(above)[self.ancestors(tier, domains, above)] >= most]
            if len(grown):
                domains = grown
                break
        if (liked := self.liked(tier)) is not None:
            room = self.of(tier)[domains]
            domains = domains[room == room.min()]
            domains = domains[liked[domains] == liked[domains].max()]
        over = self.ancestors(tier, domains, tier)
        for above in range(tier, self.fabric.tiers):
            room = self.of(above)[over]
            least = room == room.min()
            domains, over = domains[least], over[least]
            if len(domains) == 1:
                break
            # Of those under one switch the first is as good as any: from here on only that switch counts.
            over = self.ancestors(above, over, above + 1)
            first = np.flatnonzero(np.diff(over, prepend=-1))
            domains, over = domains[first], over[first]
        return int(domains[0])
