"""Every kind that is resized: adding one is a module and a line here (XD-01)."""

from __future__ import annotations

from jobs.kinds.indexedjob import INDEXED_JOB
from jobs.kinds.pytorchjob import PYTORCH_JOB
from jobs.kinds.volcanojob import VOLCANO_JOB

KINDS = {kind.kind: kind for kind in (VOLCANO_JOB, PYTORCH_JOB, INDEXED_JOB)}
