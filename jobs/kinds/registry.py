"""All known kinds of jobs. A new kind needs a module, a line here, and its rights (XD-01)."""

from __future__ import annotations

from turnout.jobs.kinds.colossalaijob import COLOSSALAI_JOB
from turnout.jobs.kinds.elasticjob import ELASTIC_JOB
from turnout.jobs.kinds.indexedjob import INDEXED_JOB
from turnout.jobs.kinds.leaderworkerset import LEADER_WORKER_SET
from turnout.jobs.kinds.mpijob import MPI_JOB
from turnout.jobs.kinds.msjob import MS_JOB
from turnout.jobs.kinds.pytorchjob import CTYUN_PYTORCH_JOB, PYTORCH_JOB
from turnout.jobs.kinds.raycluster import RAY_CLUSTER
from turnout.jobs.kinds.volcanojob import VOLCANO_JOB

KINDS = {
    kind.kind: kind
    for kind in (
        VOLCANO_JOB,
        PYTORCH_JOB,
        CTYUN_PYTORCH_JOB,
        INDEXED_JOB,
        ELASTIC_JOB,
        RAY_CLUSTER,
        LEADER_WORKER_SET,
        MPI_JOB,
        COLOSSALAI_JOB,
        MS_JOB,
    )
}
