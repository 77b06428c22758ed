"""Compute the state of each job from its object, its pods and their nodes, again after each change.

Also tell how its pods use native PodGroups, and which uses a resize has left with a wrong minCount.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from turnout.autoscaler.model import JobState, Worker
from turnout.autoscaler.observe import job_pods
from turnout.autoscaler.observe.job_pods import PodIndex, StepTimeReports, unbindable_reason
from turnout.autoscaler.observe.job_reader import JobTable, plausible_budget
from turnout.autoscaler.observe.native_gangs import (
    MAX_GROUPS_OF_JOB,
    GroupName,
    GroupUse,
    NativeGangs,
    group_name_of,
    is_alive,
    min_after_resize,
    obstacle_of,
)
from turnout.autoscaler.observe.node_cache import NodeCache
from turnout.autoscaler.observe.queues import QueueMins, QueueUsage
from turnout.jobs.kinds.job_kind import JobKind
from turnout.jobs.model import Job, JobKey, JobLifecycle
from turnout.kube.objects import Pod

_OVER = ("Succeeded", "Failed")  # phases of pods that have ended


class JobStates:
    """The states of the readable jobs that are not over.

    by_uid: the states; `update` computes those of `changed`. changed: uids of jobs whose state is to be computed again,
    or of other objects, which are ignored. The other arguments are tables that the caller keeps current; `mins` gets
    each job's min.
    """

    def __init__(
        self,
        kinds: Mapping[str, JobKind],
        jobs: JobTable,
        pods: PodIndex,
        nodes: NodeCache,
        usage: QueueUsage,
        mins: QueueMins,
        reports: StepTimeReports,
        schedulers: Collection[str],
    ) -> None:
        """Start without states. kinds: by name. schedulers: those that run in this cluster."""
        self._kinds, self._jobs, self._pods, self._nodes, self._usage = kinds, jobs, pods, nodes, usage
        self._mins, self._reports, self._schedulers = mins, reports, schedulers
        self.by_uid: dict[str, JobState] = {}
        self.changed: set[str] = set()
        self._is_sorted = True  # the states are in queue order, so sorting is fast
        self._ahead_s = 0.0  # wall clock minus monotonic clock at the last update
        self._classes: dict[str, int] = {}  # PriorityClass -> its value
        # Since when workers lack a node, by the monotonic clock. Key: namespace and name of the pod.
        self._without_node_since_s: dict[tuple[str, str], float] = {}

    def put_class(self, name: str, value: int | None) -> None:
        """Store the value of a PriorityClass; None for a deleted one, which counts as 0."""
        if self._classes.get(name) != value:
            self.changed.update(uid for uid, job in self._jobs.by_uid.items() if job.priority_class == name)
        self._classes[name] = value or 0

    def class_value(self, name: str) -> int:
        """Return the value of a PriorityClass by its name; 0 for an unknown one."""
        return self._classes.get(name, 0)

    def forget_wait(self, pod: Pod) -> None:
        """Forget since when a pod lacks a node, because it has one or is deleted."""
        self._without_node_since_s.pop((pod.metadata.namespace, pod.metadata.name), None)

    def update(self, now_s: float, monotonic_s: float) -> dict[str, Exception]:
        """Compute the states of changed jobs, and of all jobs after a jump of the wall clock or if rows have moved.

        Return uid -> exception of the jobs whose state cannot be computed; their states are the earlier ones. now_s:
        seconds since 1970. monotonic_s: by the monotonic clock.
        """
        if abs(now_s - monotonic_s - self._ahead_s) > 1.0:
            self._ahead_s = now_s - monotonic_s
            self.changed.update(self._jobs.by_uid)  # the wall clock has jumped, waiting times have not
        if self._nodes.assign_rows():
            self.changed.update(self._jobs.by_uid)  # rows have moved
        errors: dict[str, Exception] = {}
        for uid in self.changed & self._jobs.by_uid.keys():
            try:
                job = self._jobs.by_uid[uid]
                self.set(uid, None if job.lifecycle is JobLifecycle.DONE else self._state_of(job, now_s, monotonic_s))
            except Exception as error:
                errors[uid] = error
        self.changed.clear()
        if not self._is_sorted:
            self.by_uid = dict(sorted(self.by_uid.items(), key=lambda each: each[1].queue_order))
            self._is_sorted = True
        return errors

    def set(self, uid: str, state: JobState | None) -> None:
        """Store the state of a job, and count its min in its queue. state: None forgets a job that is over or
        unreadable.
        """
        before = self.by_uid.get(uid)
        self._mins.replace(before, state)
        if state is None:
            self.by_uid.pop(uid, None)
            if before is not None:
                self._usage.ungranted.pop(before.job.key, None)
            return
        self.by_uid[uid] = state
        self._is_sorted &= before is not None and before.queue_order == state.queue_order

    def resizable(self) -> Iterable[JobState]:
        """Return the states of jobs that are not a part of another known job."""
        parts = self._jobs.parts()
        return (state for uid, state in self.by_uid.items() if uid not in parts) if parts else self.by_uid.values()

    def _state_of(self, job: Job, now_s: float, monotonic_s: float) -> JobState:
        """Return the state of a job. now_s: seconds since 1970. monotonic_s: now by the monotonic clock."""
        pods = self._pods.of_job(job.uid)
        identity = self._kinds[job.key.kind].pods
        worker_pods, other_role_pods = job_pods.split_by_role(identity, job.role, pods)
        workers = job_pods.workers(
            identity, (pod for pod in worker_pods if pod.status.phase not in _OVER), self._nodes.row
        )
        workers = tuple(
            each if each.row is not None else self._worker_without_node(job, each, now_s, monotonic_s)
            for each in workers
        )
        bound_shapes = (self._pods.shapes[pod.metadata.uid] for pod in other_role_pods if pod.spec.node_name)
        other_pods = job_pods.count_other_roles(job.other_roles, bound_shapes)
        finished = sum(pod.status.phase == "Succeeded" for pod in worker_pods)
        began_s = min([worker.since_s for worker in workers if not worker.leaving], default=0.0)
        job = replace(
            job,
            resize_budget=plausible_budget(job.resize_budget, job.created, began_s, now_s),
            queue=self._usage.resolve_for_job(job.key, job.queue),
            order=job.order.with_class_value(self.class_value(job.priority_class)),
            curve=self._reports.curve(job.uid, job.curve) if job.curve_measured else job.curve,
        )
        state = JobState(job, workers, other_pods, finished)
        return (
            replace(state, unbindable=why)
            if state.is_waiting and (why := _unbindable(state, worker_pods, other_role_pods, self._schedulers))
            else state
        )

    def _worker_without_node(self, job: Job, worker: Worker, now_s: float, monotonic_s: float) -> Worker:
        """Return a copy of a worker without a node, with `since_s` set to when we first saw it without one (since
        1970).

        That time is kept by the monotonic clock, so that a jump of the wall clock changes no waiting time. now_s:
        seconds since 1970. monotonic_s: by the monotonic clock.
        """
        age_s = max(0.0, now_s - worker.since_s)
        known_s = self._without_node_since_s.setdefault((job.key.namespace, worker.name), monotonic_s - age_s)
        return replace(worker, since_s=now_s - (monotonic_s - known_s))


def _unbindable(
    state: JobState, worker_pods: Collection[Pod], other_role_pods: Collection[Pod], schedulers: Collection[str]
) -> str:
    """Return why no scheduler binds what a waiting job lacks to its min, "" if one can. Missing workers count as
    bindable.

    worker_pods: pods of its resized role. other_role_pods: of its other roles. schedulers: those that run in this
    cluster.
    """
    reasons = [unbindable_reason(pod, schedulers) for pod in worker_pods if not pod.spec.node_name]
    bindable = state.bound_workers + state.finished + reasons.count("") + max(0, state.job.replicas - len(worker_pods))
    if bindable >= state.job.bounds.minimum:
        reasons = []
    reasons += [unbindable_reason(pod, schedulers) for pod in other_role_pods if not pod.spec.node_name]
    return next(filter(None, reasons), "")


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

    def uses_to_correct(self, changes: Callable[[JobKey], bool]) -> list[tuple[JobKey, GroupUse]]:
        """Return (job, use) of native PodGroups whose minCount does not fit the pods of a resized job, which all run.

        Each changed PodGroup is checked once. It is checked again at the next call if its job lacks pods, if some of
        its pods do not run, or if `changes` returns True for the job: the job's size is about to change. A PodGroup
        with an obstacle, or of a job that we have never resized, is left out.
        """
        to_correct: list[tuple[JobKey, GroupUse]] = []
        to_check_again: list[GroupName] = []
        uses_of_jobs: dict[JobKey, list[GroupUse]] = {}  # the pods of a job are gone through once
        for name in self.native.take_groups_to_check():
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
                to_check_again.append(name)
            elif min_after_resize(use) is not None and self._jobs.is_resized(key):
                to_correct.append((key, use))
        self.native.check_again(to_check_again)
        return to_correct

    def _job_of(self, pod: str) -> JobKey | None:
        """Return the job of a pod, by the pod's uid; None for an unknown pod, or a pod of no job."""
        job = self._pods.job_of(pod)
        return None if job is None else job.key
