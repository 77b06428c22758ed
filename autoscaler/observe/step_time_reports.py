"""Keeps the step times that a job's pods report, by the number of workers. Measured scaling curves are made of them."""

from __future__ import annotations

from turnout.jobs.annotations import points
from turnout.jobs.model import BadJob
from turnout.jobs.scaling_curve import Curve, capped
from turnout.kube import labels
from turnout.kube.objects import Pod

MOST_POINTS = 64  # of a job


class Reports:
    """The last report for each size of each job, by the job's uid."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[int, float]] = {}

    def put_pod(self, uid: str, pod: Pod) -> None:
        """Store the report of a job's pod, `workers:seconds`. An unreadable report counts as none.

        The last MOST_POINTS sizes of a job are kept.
        """
        text = (pod.metadata.annotations or {}).get(labels.STEP_SECONDS)
        if text is None:
            return
        try:
            reported = points(text, labels.STEP_SECONDS)
        except BadJob:
            return
        known = self._seconds.setdefault(uid, {})
        for workers, seconds in reported:
            known.pop(workers, None)
            known[workers] = seconds
        while len(known) > MOST_POINTS:
            del known[next(iter(known))]

    def forget(self, uid: str) -> None:
        """Forget a deleted job."""
        self._seconds.pop(uid, None)

    def curve(self, uid: str, noted: Curve) -> Curve:
        """Return the speed of a job by size: the noted curve, updated with the reports of its pods."""
        now = self._seconds.get(uid)
        if not now:
            return noted
        points = {**dict(noted), **{workers: 1.0 / seconds for workers, seconds in now.items()}}
        return capped(tuple(sorted(points.items())[:MOST_POINTS]), 1.0)
