"""KAI's words on a pod: `topology-required-placement`, whose levels are keys of node labels."""

from __future__ import annotations

from collections.abc import Mapping

from turnout.jobs.wishes.model import Wish
from turnout.jobs.wishes.notes import level

REQUIRED = "kai.scheduler/topology-required-placement"
PREFERRED = "kai.scheduler/topology-preferred-placement"
TREE = "kai.scheduler/topology"
SUBGROUP = "kai.scheduler/subgroup-name"


def read(notes: Mapping[str, str], faults: list[str]) -> Wish | None:
    """Return what the annotations of a pod say; None when they say nothing."""
    source = next((key for key in (REQUIRED, PREFERRED, TREE) if key in notes), None)
    if source is None:
        return None
    unkept = (f"{TREE} is not kept: the tree is that of our own map",) if TREE in notes else ()
    return Wish(source, level(notes, REQUIRED, faults), unkept=unkept)
