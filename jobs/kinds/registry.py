"""All known kinds of jobs. A new kind needs a module and a line here: its rights and its definition follow (XD-01)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from turnout.jobs.kinds.colossalaijob import COLOSSALAI_JOB
from turnout.jobs.kinds.crd import crd_manifest
from turnout.jobs.kinds.elasticjob import ELASTIC_JOB, PLANS_PATH, SCALE_PLAN_CRD
from turnout.jobs.kinds.indexedjob import INDEXED_JOB
from turnout.jobs.kinds.leaderworkerset import LEADER_WORKER_SET
from turnout.jobs.kinds.mpijob import MPI_JOB
from turnout.jobs.kinds.msjob import MS_JOB
from turnout.jobs.kinds.pytorchjob import CTYUN_PYTORCH_JOB, PYTORCH_JOB
from turnout.jobs.kinds.raycluster import RAY_CLUSTER
from turnout.jobs.kinds.volcanojob import VOLCANO_JOB

# The kinds by their unique names.
KINDS = {
    kind.kind: kind
    for kind in (
        INDEXED_JOB,
        PYTORCH_JOB,
        CTYUN_PYTORCH_JOB,
        MS_JOB,
        VOLCANO_JOB,
        MPI_JOB,
        RAY_CLUSTER,
        LEADER_WORKER_SET,
        ELASTIC_JOB,
        COLOSSALAI_JOB,
    )
}


def definitions() -> Iterator[dict[str, Any]]:
    """Yield the CustomResourceDefinitions of the kinds that we define, in the order of KINDS, then of ScalePlans."""
    for kind in KINDS.values():
        if kind.crd is not None:
            yield crd_manifest(kind.object_kind or kind.kind, kind.path, kind.crd)
    yield crd_manifest("ScalePlan", PLANS_PATH, SCALE_PLAN_CRD)
