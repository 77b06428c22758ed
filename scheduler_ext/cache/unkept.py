"""Tell the owner of a gang in sentences which parts of its wishes are read and not kept."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.jobs.gang import Dialect
from turnout.jobs.wishes.model import Mode
from turnout.scheduler_ext.cache.cache import GangView
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.cache.pod_info import Member

_WHY = {
    "ResourceClaims": "its devices come from resource claims alone, whose room we do not know",
    "PodLevelGpus": "it asks for GPUs at the level of the pod",
}


def unkept_wishes(view: GangView, member: Member) -> Iterator[str]:
    """Yield a sentence for each part of a member's wish that is not kept."""
    gang = view.gangs.get(member.belongs.key)
    wish = member.belongs.wish
    if wish.source and member.silence in _WHY:
        yield f"{wish.source} is not kept: {_WHY[member.silence]}"
        return
    alone = member.belongs.key.dialect == Dialect.ALONE.value
    if alone and wish.source and wish.mode is Mode.NEAR:
        yield f"{wish.source} is not kept: the pod belongs to no gang, and has no index among pods of one owner"
    if gang is not None:
        yield from gang.unkept()
        yield from _outside(view, gang)


def _outside(view: GangView, gang: Gang) -> Iterator[str]:
    """Yield a sentence if a member without an accelerator runs outside the domain that the gang must not leave.

    A scheduler that asks about pods with accelerators alone binds such members as it likes.
    """
    tier = gang.tier
    if tier is None or not gang.accelerated or not view.fabric.tiers:
        return
    row = view.fabric.switch_of[min(tier, view.fabric.tiers)]
    rows = view.snapshot.row_of
    bound = [(member, rows[member.node]) for member in gang.members.values() if member.node in rows]
    domain = {int(row[host]) for member, host in bound if member.gpus}
    strays = sorted(
        member.name for member, host in bound if not member.gpus and domain and int(row[host]) not in domain
    )
    if strays:
        source = next(wish.source for wish in gang.wishes if wish.required is not None)
        yield f"{source} is not kept for {strays[0]}, which has no accelerator: it was bound outside the gang's domain"
