"""Tell what becomes of a job that has lost pods and waits for room near those that run, as its pods say themselves."""

from __future__ import annotations

from collections.abc import Sequence

from turnout.jobs.repair import Remedy, most_patient, repair_of
from turnout.kube import labels
from turnout.kube.objects import Pod


def repair_of_job(pods: Sequence[Pod], least: int) -> str | None:
    """Return a sentence; None unless some of its pods run, but fewer than its min, while others wait.

    pods: those that exist. least: how many must run together.
    """
    living = [pod for pod in pods if pod.metadata.deletion_timestamp is None]
    running = [pod for pod in living if pod.spec.node_name]
    if not 0 < len(running) < least or len(running) == len(living):
        return None
    faults: list[str] = []
    repairs = [found for pod in living if (found := repair_of(pod.metadata.annotations or {}, faults)) is not None]
    repair = most_patient(repairs)
    holds = f"{len(running)} of the {least} that must run together have a node"
    if repair.remedy is Remedy.WAIT:
        how = "none of them moves" if repairs else f"none of them moves, since no pod says {labels.REPAIR}"
        return f"{holds}, and the rest waits for room near them: {how}"
    where = ", and as soon as all of it fits elsewhere" if repair.remedy is Remedy.MOVE else ""
    then = f"after {repair.after_s} s without room for the rest{where}, those that run are evicted"
    return f"{holds}; {then} ({labels.REPAIR}: {repair.remedy.value}, by turnout-nominator --repair)"
