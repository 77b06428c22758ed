"""Words of JobSet and LeaderWorkerSet: each child job, or each group, has a domain to itself."""

from __future__ import annotations

from collections.abc import Mapping

from turnout.jobs.wishes.model import Wish
from turnout.jobs.wishes.notes import level

JOBSET = "alpha.jobset.sigs.k8s.io/exclusive-topology"
LWS = "leaderworkerset.sigs.k8s.io/exclusive-topology"
LWS_SUBGROUP = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"


def read(notes: Mapping[str, str], faults: list[str]) -> Wish | None:
    """Return what the annotations of a pod say; None when they say nothing."""
    source = next((key for key in (JOBSET, LWS, LWS_SUBGROUP) if key in notes), None)
    if source is None:
        return None
    at = level(notes, source, faults)
    if source == LWS_SUBGROUP:
        return Wish(source, unkept=(f"{source} is not kept: a group is placed as one, without its subgroups",))
    return Wish(source, at, apart=at)
