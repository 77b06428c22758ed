"""What the pods of a job have reported: how long a step takes with so many workers. Learnt curves are made of it."""

from __future__ import annotations

from turnout.jobs.kinds.annotations import points
from turnout.jobs.model import BadJob
from turnout.jobs.scaling_curve import Curve
from turnout.kube import labels
from turnout.kube.objects import Pod


class Reports:
    """The last report for each size of each job, by the job's uid."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[int, float]] = {}

    def put_pod(self, pod: Pod) -> None:
        """Take in a pod's report, `workers:seconds`; one that cannot be read is no report."""
        text = (pod.metadata.annotations or {}).get(labels.STEP_SECONDS)
        if text is None:
            return
        try:
            told = points(text, labels.STEP_SECONDS)
        except BadJob:
            return
        for owner in pod.metadata.owner_references or ():
            self._seconds.setdefault(owner.uid, {}).update(told)

    def forget(self, uid: str) -> None:
        """A job is gone."""
        self._seconds.pop(uid, None)

    def curve(self, uid: str, noted: Curve) -> Curve:
        """How fast a job is: what was noted on it before, with what its pods have reported since."""
        now = self._seconds.get(uid)
        if not now:
            return noted
        return tuple(sorted({**dict(noted), **{workers: 1.0 / seconds for workers, seconds in now.items()}}.items()))
