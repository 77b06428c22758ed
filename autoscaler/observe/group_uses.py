"""Tell how the pods of a job use native PodGroups, and which uses a resize has left with a wrong minCount."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from turnout.autoscaler.observe.job_states import JobStates
from turnout.autoscaler.observe.job_table import JobTable
from turnout.autoscaler.observe.native_gangs import (
    MAX_GROUPS_OF_JOB,
    GroupName,
    GroupUse,
    NativeGangs,
    group_name_of,
    is_alive,
    min_of_settled,
    obstacle_of,
)
from turnout.autoscaler.observe.pod_index import PodIndex
from turnout.jobs.model import JobKey


class GroupUses:
    """The uses of native PodGroups by jobs. native: the PodGroups."""

    def __init__(self, native: NativeGangs, jobs: JobTable, pods: PodIndex, states: JobStates) -> None:
        """Read these tables, which the caller keeps current."""
        self.native, self._jobs, self._pods, self._states = native, jobs, pods, states

    def of_job(self, key: JobKey, size: int) -> list[GroupUse]:
        """Return how the pods of a job at a size, in workers, use native PodGroups, sorted by name; [] for an unknown
        job.

        Only pods that are not over, not terminating and below the size count, and only PodGroups with a gang policy: at
        most MAX_GROUPS_OF_JOB.
        """
        uid = self._jobs.uid(key)
        job, state = self._jobs.by_uid.get(uid), self._states.by_uid.get(uid)
        if job is None or state is None:
            return []
        leaving = {worker.name for worker in state.workers if worker.leaving or worker.index >= size}
        pods, running = Counter[GroupName](), Counter[GroupName]()
        for pod in self._pods.of_job(uid):
            name = group_name_of(pod)
            if name is not None and is_alive(pod) and pod.metadata.name not in leaving:
                pods[name] += 1
                running[name] += pod.status.phase == "Running"
        uses: list[GroupUse] = []
        for name in sorted(pods):
            if (group := self.native.group(name)) is not None and len(uses) < MAX_GROUPS_OF_JOB:
                obstacle = obstacle_of(group, job, (self._job_of(each) for each in self.native.pods(name)))
                uses.append(GroupUse(group, pods[name], running[name], obstacle))
        return uses

    def settled(self, changes: Callable[[JobKey], bool]) -> list[tuple[JobKey, GroupUse]]:
        """Return (job, use) of native PodGroups whose minCount does not fit the pods of a resized job, which all run.

        Each changed PodGroup is checked once. It is checked again at the next call if its job lacks pods, if some of
        its pods do not run, or if `changes` returns True for the job: the job's size is about to change. A PodGroup
        with an obstacle, or of a job that we have never resized, is left out.
        """
        settled: list[tuple[JobKey, GroupUse]] = []
        unsettled: list[GroupName] = []
        uses_of_jobs: dict[JobKey, list[GroupUse]] = {}  # the pods of a job are gone through once
        for name in self.native.take_unsettled():
            key = self._job_of(next(iter(self.native.pods(name)), ""))
            state = self._states.by_uid.get(self._jobs.uid(key)) if key is not None else None
            if key is None or state is None:
                continue
            if key not in uses_of_jobs:
                uses_of_jobs[key] = self.of_job(key, state.job.replicas)
            use = next((each for each in uses_of_jobs[key] if (each.group.namespace, each.group.name) == name), None)
            if use is None or use.obstacle is not None:
                continue
            is_complete = (
                len(state.living) + state.finished >= state.job.replicas == len(state.workers) + state.finished
            )
            if changes(key) or not is_complete or use.running < use.pods:
                unsettled.append(name)
            elif min_of_settled(use) is not None and self._jobs.is_resized(key):
                settled.append((key, use))
        self.native.check_again(unsettled)
        return settled

    def _job_of(self, pod: str) -> JobKey | None:
        """Return the job of a pod, by the pod's uid; None for an unknown pod, or a pod of no job."""
        job = self._pods.job_of(pod)
        return None if job is None else job.key
