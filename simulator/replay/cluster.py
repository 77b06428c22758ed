"""The replayed cluster: running and waiting jobs, a scheduler that starts gangs in turn, and the effects of resizes.

The autoscaler's observation is made here; its decisions are not.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum

import numpy as np

from turnout.autoscaler.capacity import Capacity
from turnout.autoscaler.model import Observation, Policy, Reason, Step
from turnout.autoscaler.scaling.resize_cost import after_change_s
from turnout.jobs.model import ResizeBudget
from turnout.jobs.queues.model import QueueShare
from turnout.simulator.replay.job_run import EPOCH_S, GPU, QUEUE, JobRun, WorkerPod, shape_of
from turnout.simulator.replay.model import Eviction, JobResult, ReplayRules, Submission


class Event(IntEnum):
    """A kind of event. Events of one instant happen in this order."""

    END = 0
    GONE = 1
    ARRIVAL = 2


_PlannedEvent = tuple[float, Event, str, int]  # (time, kind, job, version of the job's end)


class ReplayWorld:
    """The whole state of the replayed cluster at the moment `now_s`."""

    def __init__(self, submissions: Sequence[Submission], rules: ReplayRules) -> None:
        """Make a cluster in which nothing has been submitted yet.

        Raises ValueError for a job that an empty cluster cannot hold, and for no submissions.
        """
        self.rules, self.now_s = rules, 0.0
        self.free = list(rules.nodes)
        self.running: dict[str, JobRun] = {}  # by name, in the order of starts
        self.waiting: list[JobRun] = []  # in the order in which they may start
        self.ended: dict[str, JobResult] = {}
        self.evictions: list[Eviction] = []
        self.worked_gpu_s = 0.0
        self._window_s = max(each.at_s for each in submissions)
        self._events: list[_PlannedEvent] = []
        self._future_submissions = {each.name: each for each in submissions}
        sizes = {each.gpus for each in submissions}
        self._takes = {shape_of(gpus): np.array([gpus], dtype=np.int64) for gpus in sizes}
        self._admits = {shape_of(gpus): np.ones(len(rules.nodes), dtype=np.bool_) for gpus in sizes}
        for each in submissions:
            _check_fits_empty_cluster(each, rules)
            heapq.heappush(self._events, (each.at_s, Event.ARRIVAL, each.name, 0))

    # Time.

    def next_s(self) -> float | None:
        """Return the time of the next event, in seconds since the begin of the replay; None if none is left."""
        while self._events and _is_outdated(self._events[0], self.running):
            heapq.heappop(self._events)
        return self._events[0][0] if self._events else None

    def advance(self, to_s: float) -> None:
        """Carry out all events up to the time `to_s`, in seconds since the begin of the replay, then run the
        scheduler.
        """
        self.now_s = to_s
        while (at_s := self.next_s()) is not None and at_s <= to_s:
            _, event, name, _ = heapq.heappop(self._events)
            if event is Event.ARRIVAL:
                submission = self._future_submissions.pop(name)
                job_run = JobRun(submission, submission.minimum, submission.work_s, known_curve=self.rules.known_curves)
                insort(self.waiting, job_run, key=lambda each: each.submission.turn)
            elif event is Event.END:
                job_run = self.running.pop(name)
                self.worked_gpu_s += job_run.progress(self.now_s, self._window_s)
                for pod in job_run.pods:
                    _free_gpus(self.free, job_run, pod)
                self.ended[name] = job_run.result(self.now_s)
            else:
                self._remove_leavers(self.running[name])
        self.schedule()

    def _remove_leavers(self, job_run: JobRun) -> None:
        """Remove the job's pods whose grace time is over, and free their GPUs."""
        for pod in [pod for pod in job_run.pods if pod.leaves_at_s is not None and pod.leaves_at_s <= self.now_s]:
            _free_gpus(self.free, job_run, pod)
            job_run.pods.remove(pod)
        job_run.last_state = None

    # The scheduler.

    def schedule(self) -> None:
        """Start waiting gangs in turn, each at its min, and place new workers of running jobs.

        Only with backfill may a gang pass one before it in the queue that does not fit.
        """
        still_waiting: list[JobRun] = []
        for at, job_run in enumerate(self.waiting):
            rows = place(self.free, job_run.submission.gpus, job_run.submission.minimum)
            if rows is not None:
                self._start(job_run, rows)
                continue
            still_waiting.append(job_run)
            if not self.rules.backfill:
                still_waiting += self.waiting[at + 1 :]
                break
        self.waiting = still_waiting
        for job_run in self.running.values():
            if any(pod.row is None for pod in job_run.pods):  # the autoscaler never lets that happen; others do
                self._find_nodes(job_run)

    def _start(self, job_run: JobRun, rows: Sequence[int]) -> None:
        """Start a waiting job now, worker i on the node with row `rows[i]`, and plan its end."""
        job_run.started_s = job_run.at_s = job_run.idle_until_s = self.now_s
        job_run.pods = [WorkerPod(index, row, self.now_s) for index, row in enumerate(rows)]
        job_run.last_state = None
        self.running[job_run.submission.name] = job_run
        self._plan_end(job_run)

    def _find_nodes(self, job_run: JobRun) -> None:
        """Place workers of a running job that have no node, one by one, while there is room. Restart the job if one
        got a node.
        """
        found_place = False
        for pod in (pod for pod in job_run.pods if pod.row is None):
            rows = place(self.free, job_run.submission.gpus, 1)
            if rows is None:
                break
            if not found_place:
                self.worked_gpu_s += job_run.progress(self.now_s, self._window_s)
            pod.row, found_place, job_run.last_state = rows[0], True, None
        if found_place:
            self._restart(job_run)

    def _restart(self, job_run: JobRun) -> None:
        """Restart a job after a resize, and plan its end again.

        A job that has run for at most min(start_s, restart_s) begins its work again, and pays no restart.
        """
        ran_s = self.now_s - (job_run.started_s or 0.0)
        if ran_s <= min(self.rules.start_s, self.rules.restart_s):
            job_run.left_s, job_run.idle_until_s = job_run.submission.work_s, self.now_s
        else:
            job_run.restarts += 1
            job_run.idle_until_s = self.now_s + self.rules.restart_s
        self._plan_end(job_run)

    def _plan_end(self, job_run: JobRun) -> None:
        """Plan the end of a job by its present speed. The event of an earlier plan is then outdated."""
        job_run.version += 1
        heapq.heappush(
            self._events, (max(self.now_s, job_run.ends_s()), Event.END, job_run.submission.name, job_run.version)
        )

    # The autoscaler.

    def observation(self) -> Observation:
        """Return the observation that the autoscaler decides on now: visible jobs, the queue and the free room.

        In a strict queue (no backfill) it sees the startable_jobs() and the first waiting job after these, unless
        `all_seen` is set.
        """
        visible = self.waiting
        if not (self.rules.backfill or self.rules.all_seen):  # a strict queue: those that could start, and one more
            startable = list(startable_jobs(self.waiting, self.running.values(), self.free))
            visible = self.waiting[: len(startable) + 1]
        visible_runs = sorted((*self.running.values(), *visible), key=lambda job_run: job_run.submission.name)
        jobs = [job_run.job_state() for job_run in visible_runs]
        used = self.rules.gpus - sum(self.free)
        free = np.array(self.free, dtype=np.int64).reshape(-1, 1)
        room = Capacity((GPU,), free, self._takes, self._admits)
        return Observation(tuple(jobs), {QUEUE: QueueShare(used={GPU: used})}, room)

    def carry_out(self, steps: Sequence[Step], policy: Policy) -> bool:
        """Apply the autoscaler's steps to the jobs, then run the scheduler. Return True if a size changed.

        steps: those that change no size are ignored. policy: of the autoscaler. Raises KeyError for a change of a job
        that does not run.
        """
        changes = [step for step in steps if step.changes]
        for step in changes:
            job_run = self.running[step.key.name]
            gained_s = after_change_s(job_run.job_state().job, policy, self.now_s + EPOCH_S, step.at_start)
            job_run.resize_budget = ResizeBudget(gained_s, self.now_s + EPOCH_S, at_start=step.at_start)
            self._resize(job_run, step)
        if changes:
            self.schedule()
        return bool(changes)

    def _resize(self, job_run: JobRun, step: Step) -> None:
        """Set the size of a job to `step.target`, after its GPU time until now is counted.

        Growth adds pods without a node; the job restarts later, when they get nodes. A shrink removes the pods of the
        highest indices. A pod without a node is removed at once. A pod with a node keeps it for the grace period, and
        the job restarts at once without it. A shrink that makes room for another job (`step.beneficiary`) is recorded
        as an eviction.
        """
        self.worked_gpu_s += job_run.progress(self.now_s, self._window_s)
        before, job_run.last_state = job_run.staying_workers, None
        if step.target > job_run.replicas:
            job_run.pods += [WorkerPod(index, None, self.now_s) for index in range(job_run.replicas, step.target)]
        else:
            leaves_at_s = self.now_s + self.rules.grace_s
            job_run.pods = [pod for pod in job_run.pods if pod.row is not None or pod.index < step.target]
            for pod in (pod for pod in job_run.pods if pod.index >= step.target and pod.leaves_at_s is None):
                pod.leaves_at_s = leaves_at_s
            if step.reason is Reason.MAKES_ROOM and step.beneficiary is not None:
                job_run.shrinks_for_others += 1
                surplus = job_run.replicas - step.target
                self.evictions.append(Eviction(self.now_s, job_run.submission.name, surplus, step.beneficiary.name))
            heapq.heappush(self._events, (leaves_at_s, Event.GONE, job_run.submission.name, 0))
            if job_run.staying_workers != before:
                self._restart(job_run)
        job_run.replicas = step.target


def _is_outdated(event: _PlannedEvent, running: Mapping[str, JobRun]) -> bool:
    """Return True if an event concerns a job that has ended, or an end that was computed again since.

    running: the running jobs by name.
    """
    _, kind, name, version = event
    job_run = running.get(name)
    if kind is Event.ARRIVAL:
        return False
    return job_run is None or (kind is Event.END and version != job_run.version)


def _free_gpus(free: list[int], job_run: JobRun, pod: WorkerPod) -> None:
    """Free the GPUs of a pod of this job, if the pod has a node. The pod itself is not changed.

    free: free GPUs of each node, which is changed.
    """
    if pod.row is not None:
        free[pod.row] += job_run.submission.gpus


def startable_jobs(waiting: Sequence[JobRun], running: Iterable[JobRun], free: Sequence[int]) -> Iterator[JobRun]:
    """Yield the waiting jobs, in queue order, that would fit together if every elastic worker, and every pod that is
    leaving, were gone.

    Stop at the first job that does not fit. free: free GPUs of each node.
    """
    free_without_elastic = list(free)
    for job_run in running if waiting else ():
        for pod in job_run.pods:
            if pod.row is not None and (pod.index >= job_run.submission.minimum or pod.leaves_at_s is not None):
                free_without_elastic[pod.row] += job_run.submission.gpus
    for job_run in waiting:
        if place(free_without_elastic, job_run.submission.gpus, job_run.submission.minimum) is None:
            return
        yield job_run


def _check_fits_empty_cluster(submission: Submission, rules: ReplayRules) -> None:
    """Raise ValueError for a job that an empty cluster could not hold."""
    if sum(node // submission.gpus for node in rules.nodes) < submission.minimum:
        raise ValueError(
            f"{submission.name} asks for {submission.minimum} x {submission.gpus} GPUs: an empty cluster has no room"
        )


def place(free: list[int], gpus: int, workers: int) -> list[int] | None:
    """Take room for a whole gang, and return the row of the node of each worker.

    Nodes with the least free GPUs come first. free: free GPUs of each node, which is changed. gpus: of one worker.
    workers: of the gang; 0 takes nothing and returns []. If the gang does not fit, take nothing and return None.
    """
    if sum(left // gpus for left in free if left >= gpus) < workers:
        return None
    rows: list[int] = []
    for row in sorted((row for row, left in enumerate(free) if left >= gpus), key=lambda row: (free[row], row)):
        while free[row] >= gpus and len(rows) < workers:
            free[row] -= gpus
            rows.append(row)
    return rows
