"""A gang as the extender sees it: its members, and how many must start together.

The numbers come from three places that may disagree: the PodGroup or owner, the pods' annotations, and the pods seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from turnout.jobs.gang import Dialect, GangKey
from turnout.scheduler_ext.cache.pod_info import Member


@dataclass(frozen=True, slots=True)
class Sizing:
    """What a PodGroup or an owner says of a gang. total None: it does not say. created: RFC 3339."""

    least: int | None
    total: int | None
    uid: str
    created: str
    name: str = ""


@dataclass(slots=True)
class Gang:
    """The members of one gang by uid, and the number that must start together.

    version: the resourceVersion at which the first member was seen. It tells who came first within one second, which
    is as fine as creation times are (comparable by KEP-5504; equal on every replica that watched then).
    """

    key: GangKey
    version: int
    sizing: Sizing | None = None
    members: dict[str, Member] = field(default_factory=dict)

    def waiting(self) -> list[Member]:
        """Members without a node, in rank order: masters first, then by index, then by name."""
        return sorted((m for m in self.members.values() if m.waits), key=rank_order)

    def living(self) -> list[Member]:
        """Members that run or may still run."""
        return [m for m in self.members.values() if not m.leaving]

    @property
    def accelerated(self) -> bool:
        """Does any member ask for an accelerator?"""
        return any(m.gpus for m in self.members.values())

    @property
    def least(self) -> int:
        """How many must start together: the PodGroup's min, else what the pods say.

        When nothing is said, everybody, but for the plain pods of a Job or StatefulSet: those start one by one, as
        they do without us, unless they must stay within a tier.
        """
        if self.sizing is not None and self.sizing.least:
            return self.sizing.least
        said = max((m.belongs.min_members or 0 for m in self.members.values()), default=0)
        return said or (0 if self.key.dialect == Dialect.OWNER.value and not self.required else self.total)

    @property
    def required(self) -> bool:
        """Must it stay within a tier? One member that says so is enough."""
        return any(m.belongs.required for m in self.members.values())

    @property
    def tier(self) -> int | None:
        """The widest tier allowed, the narrowest that a member names; None when the gang only prefers."""
        return min((m.belongs.tier for m in self.members.values() if m.belongs.tier is not None), default=None)

    @property
    def multiple(self) -> int:
        """Pods on one host come in multiples of this."""
        return max((m.belongs.multiple for m in self.members.values()), default=1)

    @property
    def announced(self) -> int:
        """How many members somebody says that it will have; 0 when nobody says."""
        said = [m.belongs.total for m in self.members.values() if m.belongs.total]
        if self.sizing is not None and self.sizing.total:
            said = [self.sizing.total]
        floor = self.sizing.least if self.sizing is not None and self.sizing.least else 0
        floor = max([floor, *(m.belongs.min_members or 0 for m in self.members.values())])
        return max(max(said, default=0), floor)

    @property
    def total(self) -> int:
        """How many members the gang will have now: what is said of it, but never fewer than are seen or must start."""
        return max(self.announced, len(self.living()))

    @property
    def most(self) -> int:
        """How many it may grow to."""
        return max([self.total, *(m.belongs.most or 0 for m in self.members.values())])

    @property
    def priority(self) -> int:
        """Of its most important member."""
        return max((m.priority for m in self.members.values()), default=0)

    @property
    def age(self) -> tuple[str, int, str]:
        """(created, version, uid): who came first."""
        if self.sizing is not None:
            return self.sizing.created, self.version, self.sizing.uid
        created, uid = min(((m.created, m.uid) for m in self.members.values()), default=("", ""))
        return created, self.version, uid


def rank_order(member: Member) -> tuple[str, float, str]:
    """Ranks count within a role, and who has none comes last; roles sort by name, masters (role "") first."""
    rank = member.belongs.rank
    return member.belongs.role, rank if rank is not None else math.inf, member.name
