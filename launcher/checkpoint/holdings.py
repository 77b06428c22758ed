"""Which step may be restored, and from where each of its shards comes: the newest one that is whole somewhere living.

A shard belongs to the rank that saved it, wherever that rank runs now: who has another rank after a change of the
world reads another shard, and never its own of before.
Source: facts/launcher.md §5; DL-108
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from launcher.errors import BadCheckpoint

_SHOWN = 8  # ranks named in one line


class Kind(IntEnum):
    """Where a shard lies, the nearest first."""

    OWN = 0  # in the memory of the member that saved it
    BUDDY = 1  # in the memory of another member
    STORAGE = 2


@dataclass(frozen=True, slots=True)
class Holding:
    """One whole copy of one shard: saved at a step of a round, by a rank of a world.

    member: whose memory it is in, "" for storage. hashed: False where it is sealed and its sums were not taken.
    """

    step: int
    round: int
    rank: int
    world: int
    member: str = ""
    kind: Kind = Kind.OWN
    hashed: bool = True

    def __post_init__(self) -> None:
        if self.step < 0 or self.round < 0 or not 0 <= self.rank < self.world:
            raise BadCheckpoint(
                f"rank {self.rank} of {self.world} at step {self.step} of round {self.round}: there is no such shard"
            )


@dataclass(frozen=True, slots=True)
class Plan:
    """What to restore. places: by rank of the world that saved it. told: each fall-back, a sentence for the log."""

    step: int
    round: int
    world: int
    places: tuple[Holding, ...]
    told: tuple[str, ...] = ()


def restorable(
    holdings: Iterable[Holding], living: Collection[str], seats: Mapping[int, str] | None = None
) -> Plan | None:
    """Choose the newest step that is whole in what lives and in storage; None when there is none.

    living: members whose memory can be reached. seats: rank -> the member that will run it, where that is known: what
    it has in its own memory is nearest, whoever saved it. Shards of one step that were saved in different rounds or
    worlds make no step together. Of one step saved in two rounds the newer one counts, then the larger world. Each
    shard is taken from the nearest place, hashed before unhashed where two are equally near.
    """
    living = frozenset(living)
    found: dict[tuple[int, int, int], dict[int, Holding]] = {}
    for holding in holdings:
        if holding.kind != Kind.STORAGE and holding.member not in living:
            continue
        shards = found.setdefault((holding.step, holding.round, holding.world), {})
        other = shards.get(holding.rank)
        if other is None or _far(holding, seats) < _far(other, seats):
            shards[holding.rank] = holding
    passed: list[str] = []
    for (step, round_, world), shards in sorted(found.items(), reverse=True):
        if len(shards) < world:
            passed.append(_passed(step, round_, world, shards))
            continue
        places = tuple(shards[rank] for rank in range(world))
        return Plan(step, round_, world, places, (*passed, *_told(step, places)))
    return None


def _far(holding: Holding, seats: Mapping[int, str] | None) -> tuple[bool, Kind, bool, str]:
    """How far a copy is from who needs it; the name makes it the same choice whatever the order told."""
    here = bool(seats) and holding.kind != Kind.STORAGE and (seats or {}).get(holding.rank) == holding.member
    return (not here, holding.kind, not holding.hashed, holding.member)


def _passed(step: int, round_: int, world: int, shards: Collection[int]) -> str:
    missing = [rank for rank in range(world) if rank not in shards]
    return f"step {step} of round {round_} is passed over: {_ranks(missing)} of {world} {_is(missing)} nowhere"


def _told(step: int, places: Sequence[Holding]) -> list[str]:
    told = []
    for kind, where in ((Kind.BUDDY, "from memory of others"), (Kind.STORAGE, "from storage")):
        ranks = [place.rank for place in places if place.kind == kind]
        if ranks:
            told.append(f"step {step}: {_ranks(ranks)} {_comes(ranks)} {where}")
    unverified = [place.rank for place in places if not place.hashed]
    if unverified:
        told.append(f"step {step}: {_ranks(unverified)} {_is(unverified)} unverified: sealed, and not hashed in time")
    return told


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:_SHOWN])
    more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
    return f"rank{'s' * (len(ranks) > 1)} {shown}{more}"


def _is(ranks: Sequence[int]) -> str:
    return "are" if len(ranks) > 1 else "is"


def _comes(ranks: Sequence[int]) -> str:
    return "come" if len(ranks) > 1 else "comes"
