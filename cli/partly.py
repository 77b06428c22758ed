"""Tells of a job what can be told by somebody who may see only a part of the cluster: the job and its own pods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from turnout.autoscaler.model import JobState
from turnout.cli.why import Row, count, lasting
from turnout.kube.objects import Pod
from turnout.kube.times import unix_s

_MOST_SAID = 3


@dataclass(frozen=True, slots=True)
class Partly:
    """A job by itself, in pods. there: that exist; has: with a node. said: what its scheduler says of the others.

    missing: what may not be listed in the whole cluster.
    """

    job: str
    least: int
    there: int
    has: int
    said: tuple[str, ...]
    missing: tuple[str, ...]
    waits_s: float | None

    @classmethod
    def of(cls, seen: JobState, pods: Iterable[Pod], there: int, missing: tuple[str, ...], now_s: float) -> Partly:
        """Gather what a job's own pods tell."""
        pods = list(pods)
        created_s = unix_s(seen.job.created)
        said = dict.fromkeys(message for pod in pods if not pod.spec.node_name and (message := refusal(pod)))
        least, has = seen.job.bounds.least, sum(bool(pod.spec.node_name) for pod in pods)
        waits_s = max(0.0, now_s - created_s) if created_s is not None and has < least else None
        return cls(str(seen.job.key), least, there, has, tuple(said)[:_MOST_SAID], missing, waits_s)


def refusal(pod: Pod) -> str:
    """Return what the scheduler says of a pod that it has not placed; "" for nothing."""
    conditions = (each for each in pod.status.conditions or () if each.type == "PodScheduled")
    return next((each.message for each in conditions if each.status == "False"), "")


def title(told: Partly) -> str:
    """The job, and how it stands as far as its own pods tell."""
    stands = "waits for its min" if told.has < told.least else "runs"
    since = "" if told.waits_s is None else f", for {lasting(told.waits_s)}"
    return f"{told.job} {stands}{since}, as far as you may see"


def rows(told: Partly) -> list[Row]:
    """Tell what is known, and what is not."""
    gang = f"it needs {count(told.least, 'worker')}; {count(told.there, 'pod')} exist, {told.has} with a node"
    if 0 < told.there < told.least:
        gang += f": it waits for {count(told.least - told.there, 'more member')}"
    found = [("gang", gang)]
    found += [("scheduler", text) for text in told.said]
    return found
