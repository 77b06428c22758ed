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
class LimitedView:
    """A job by itself, in pods. there: that exist; has: with a node. said: what its scheduler says of the others.

    missing: what may not be listed in the whole cluster.
    """

    job: str
    min_workers: int
    pods: int
    placed_pods: int
    scheduler_messages: tuple[str, ...]
    missing: tuple[str, ...]
    waited_s: float | None

    @classmethod
    def of(
        cls, job_state: JobState, pods: Iterable[Pod], pod_count: int, missing: tuple[str, ...], now_s: float
    ) -> LimitedView:
        """Gather what a job's own pods tell."""
        pods = list(pods)
        created_s = unix_s(job_state.job.created)
        messages = dict.fromkeys(message for pod in pods if not pod.spec.node_name and (message := refusal(pod)))
        least, has = job_state.job.bounds.least, sum(bool(pod.spec.node_name) for pod in pods)
        waits_s = max(0.0, now_s - created_s) if created_s is not None and has < least else None
        return cls(str(job_state.job.key), least, pod_count, has, tuple(messages)[:_MOST_SAID], missing, waits_s)


def refusal(pod: Pod) -> str:
    """Return what the scheduler says of a pod that it has not placed; "" for nothing."""
    conditions = (each for each in pod.status.conditions or () if each.type == "PodScheduled")
    return next((each.message for each in conditions if each.status == "False"), "")


def title(view: LimitedView) -> str:
    """The job, and how it stands as far as its own pods tell."""
    state = "waits for its min" if view.placed_pods < view.min_workers else "runs"
    since = "" if view.waited_s is None else f", for {lasting(view.waited_s)}"
    return f"{view.job} {state}{since}, as far as you may see"


def rows(view: LimitedView) -> list[Row]:
    """Tell what is known, and what is not."""
    gang = (
        f"it needs {count(view.min_workers, 'worker')}; {count(view.pods, 'pod')} exist, {view.placed_pods} with a node"
    )
    if 0 < view.pods < view.min_workers:
        gang += f": it waits for {count(view.min_workers - view.pods, 'more member')}"
    found = [("gang", gang)]
    found += [("scheduler", text) for text in view.scheduler_messages]
    return found
