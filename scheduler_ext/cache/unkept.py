"""Tell the owner of a gang in sentences which parts of its wishes are read and not kept."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.jobs.gang import Dialect
from turnout.jobs.wishes.model import Mode
from turnout.scheduler_ext.cache.gang import Gang
from turnout.scheduler_ext.cache.pod_info import Member

_WHY = {
    "ResourceClaims": "its devices come from resource claims alone, whose room we do not know",
    "PodLevelGpus": "it asks for GPUs at the level of the pod",
}


def unkept_wishes(gang: Gang | None, member: Member) -> Iterator[str]:
    """Yield a sentence for each part of a member's wish that is not kept. gang: None for a pod that is in none."""
    wish = member.belongs.wish
    if wish.source and member.silence in _WHY:
        yield f"{wish.source} is not kept: {_WHY[member.silence]}"
        return
    alone = member.belongs.key.dialect == Dialect.ALONE.value
    if alone and wish.source and wish.mode is Mode.NEAR:
        yield f"{wish.source} is not kept: the pod belongs to no gang, and has no index among pods of one owner"
    if gang is not None:
        yield from gang.unkept()
