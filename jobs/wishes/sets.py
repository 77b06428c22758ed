"""Placement terms of JobSet and LeaderWorkerSet: each child job, group or subgroup has a domain for itself."""

from __future__ import annotations

from collections.abc import Mapping

from turnout.jobs.fields import annotation_level
from turnout.jobs.wishes.model import GroupRule, Wish

JOBSET = "alpha.jobset.sigs.k8s.io/exclusive-topology"
LWS = "leaderworkerset.sigs.k8s.io/exclusive-topology"
LWS_SUBGROUP = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"
LWS_SUBGROUP_INDEX = "leaderworkerset.sigs.k8s.io/subgroup-index"


def read(notes: Mapping[str, str], faults: list[str]) -> Wish | None:
    """Return the terms in the annotations of a pod; None without any."""
    source = next((key for key in (JOBSET, LWS, LWS_SUBGROUP) if key in notes), None)
    if source is None:
        return None
    inner = annotation_level(notes, LWS_SUBGROUP, faults)
    groups = () if inner is None else (GroupRule("subgroup", keys=(LWS_SUBGROUP_INDEX,), level=inner, exclusive=True),)
    at = None if source == LWS_SUBGROUP else annotation_level(notes, source, faults)
    unkept = (f"{LWS} is not read beside {JOBSET}",) if source == JOBSET and LWS in notes else ()
    return Wish(source, at, groups=groups, exclusive_level=at, ignored=unkept)
