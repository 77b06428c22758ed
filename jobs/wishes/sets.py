"""Placement terms of JobSet and LeaderWorkerSet: each child job, group or subgroup has a domain for itself."""

from __future__ import annotations

from collections.abc import Mapping

from turnout.jobs.fields import annotation_level
from turnout.jobs.wishes.model import Exclusion, GroupRule, Wish

JOBSET = "alpha.jobset.sigs.k8s.io/exclusive-topology"
LWS = "leaderworkerset.sigs.k8s.io/exclusive-topology"
LWS_SUBGROUP = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"
LWS_SUBGROUP_INDEX = "leaderworkerset.sigs.k8s.io/subgroup-index"


def read(annotations: Mapping[str, str], faults: list[str]) -> Wish | None:
    """Return the terms in the annotations of JobSet and LeaderWorkerSet on a pod; None without such an annotation.

    faults: receives a sentence for each unreadable value, whose term is absent.
    """
    source = next((key for key in (JOBSET, LWS, LWS_SUBGROUP) if key in annotations), None)
    if source is None:
        return None
    subgroup_level = annotation_level(annotations, LWS_SUBGROUP, faults)
    groups = (
        ()
        if subgroup_level is None
        else (GroupRule("subgroup", keys=(LWS_SUBGROUP_INDEX,), level=subgroup_level, exclusive=True),)
    )
    level = None if source == LWS_SUBGROUP else annotation_level(annotations, source, faults)
    ignored = (f"{LWS} is not read, because {JOBSET} is set, too",) if source == JOBSET and LWS in annotations else ()
    return Wish(source, level, groups=groups, exclusion=Exclusion(level), ignored=ignored)
