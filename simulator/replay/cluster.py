"""The replayed cluster: running and waiting jobs, a scheduler that starts gangs in turn, and the effects of resizes.

The autoscaler's observation is made here; its decisions are not.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator, Sequence
from enum import IntEnum

import numpy as np

from turnout.autoscaler.capacity import Capacity
from turnout.autoscaler.model import Observation, Policy, Reason, Step
from turnout.autoscaler.scaling.resize_cost import after_change_s
from turnout.jobs.model import ResizeBudget
from turnout.jobs.queues.model import Queue
from turnout.simulator.replay.job_run import EPOCH_S, GPU, QUEUE, JobRun, WorkerPod, shape_of
from turnout.simulator.replay.model import Eviction, Ran, ReplayRules, Submission


class Event(IntEnum):
    """A kind of event. Events of one instant happen in this order."""

    END = 0
    GONE = 1
    ARRIVAL = 2


class ReplayWorld:
    """The whole state at the moment `now_s`.

    running: by name, in the order of starts. waiting: in turn.
    """

    def __init__(self, submissions: Sequence[Submission], rules: ReplayRules) -> None:
        self.rules, self.now_s = rules, 0.0
        self.free = list(rules.nodes)
        self.running: dict[str, JobRun] = {}
        self.waiting: list[JobRun] = []
        self.ended: dict[str, Ran] = {}
        self.evictions: list[Eviction] = []
        self.worked_gpu_s = 0.0
        self._window_s = max(each.at_s for each in submissions)
        self._events: list[tuple[float, Event, str, int]] = []
        self._coming = {each.name: each for each in submissions}
        sizes = {each.gpus for each in submissions}
        self._takes = {shape_of(gpus): np.array([gpus], dtype=np.int64) for gpus in sizes}
        self._admits = {shape_of(gpus): np.ones(len(rules.nodes), dtype=np.bool_) for gpus in sizes}
        for each in submissions:
            _check_fits_empty_cluster(each, rules)
            heapq.heappush(self._events, (each.at_s, Event.ARRIVAL, each.name, 0))

    # Time.

    def next_s(self) -> float | None:
        """Return the time of the next event; None if none is left."""
        while self._events and self._is_outdated(self._events[0]):
            heapq.heappop(self._events)
        return self._events[0][0] if self._events else None

    def advance(self, to_s: float) -> None:
        """Carry out all events up to the time `to_s`, then run the scheduler."""
        self.now_s = to_s
        while (at_s := self.next_s()) is not None and at_s <= to_s:
            _, event, name, _ = heapq.heappop(self._events)
            if event is Event.ARRIVAL:
                submission = self._coming.pop(name)
                life = JobRun(submission, submission.least, submission.work_s, told_curve=self.rules.told_curves)
                insort(self.waiting, life, key=lambda each: each.submission.turn)
            elif event is Event.END:
                self._end(self.running.pop(name))
            else:
                self._remove_leavers(self.running[name])
        self.schedule()

    def _is_outdated(self, event: tuple[float, Event, str, int]) -> bool:
        """Return True if an event concerns a job that has ended, or an end that was computed anew since.

        event: (time, kind, job, version).
        """
        _, kind, name, version = event
        life = self.running.get(name)
        if kind is Event.ARRIVAL:
            return False
        return life is None or (kind is Event.END and version != life.version)

    def _end(self, life: JobRun) -> None:
        """End a job: count its work, free its GPUs, and record its run time."""
        self.worked_gpu_s += life.progress(self.now_s, self._window_s)
        for pod in life.pods:
            self._give(life, pod)
        self.ended[life.submission.name] = life.ran(self.now_s)

    def _remove_leavers(self, life: JobRun) -> None:
        """Free the GPUs of the job's pods whose grace time is over."""
        for pod in [pod for pod in life.pods if pod.gone_s is not None and pod.gone_s <= self.now_s]:
            self._give(life, pod)
            life.pods.remove(pod)
        life.last_state = None

    def _give(self, life: JobRun, pod: WorkerPod) -> None:
        """Free the GPUs of a pod, if it has a node."""
        if pod.row is not None:
            self.free[pod.row] += life.submission.gpus

    # The scheduler.

    def schedule(self) -> None:
        """Start gangs in turn, each at its min. Only with backfill may one pass another that does not fit."""
        left: list[JobRun] = []
        for at, life in enumerate(self.waiting):
            rows = place(self.free, life.submission.gpus, life.submission.least)
            if rows is not None:
                self._start(life, rows)
                continue
            left.append(life)
            if not self.rules.backfill:
                left += self.waiting[at + 1 :]
                break
        self.waiting = left
        for life in self.running.values():
            if any(pod.row is None for pod in life.pods):  # the autoscaler never lets that happen; others do
                self._find_nodes(life)

    def _start(self, life: JobRun, rows: Sequence[int]) -> None:
        """Start a job on these rows of nodes, one pod each, and plan its end."""
        life.started_s = life.at_s = life.idle_until_s = self.now_s
        life.pods = [WorkerPod(index, row, self.now_s) for index, row in enumerate(rows)]
        life.last_state = None
        self.running[life.submission.name] = life
        self._plan_end(life)

    def _find_nodes(self, life: JobRun) -> None:
        """Place workers above the min that wait for a node, one by one, where there is room."""
        found_place = False
        for pod in (pod for pod in life.pods if pod.row is None):
            rows = place(self.free, life.submission.gpus, 1)
            if rows is None:
                break
            if not found_place:
                self.worked_gpu_s += life.progress(self.now_s, self._window_s)
            pod.row, found_place, life.last_state = rows[0], True, None
        if found_place:
            self._restart(life)

    def _restart(self, life: JobRun) -> None:
        """Restart a job after a resize. A job that only starts loses what it has run and loads nothing again."""
        ran_s = self.now_s - (life.started_s or 0.0)
        if ran_s <= min(self.rules.start_s, self.rules.restart_s):
            life.left_s, life.idle_until_s = life.submission.work_s, self.now_s
        else:
            life.restarts += 1
            life.idle_until_s = self.now_s + self.rules.restart_s
        self._plan_end(life)

    def _plan_end(self, life: JobRun) -> None:
        """Plan the end of a job again; the event of an earlier plan is then outdated."""
        life.version += 1
        heapq.heappush(self._events, (max(self.now_s, life.ends_s()), Event.END, life.submission.name, life.version))

    # The autoscaler.

    def observation(self) -> Observation:
        """Return the observation that the autoscaler decides on now."""
        lives = sorted((*self.running.values(), *self.let_through()), key=lambda life: life.submission.name)
        jobs = [life.job_state() for life in lives]
        used = self.rules.gpus - sum(self.free)
        free = np.array(self.free, dtype=np.int64).reshape(-1, 1)
        room = Capacity((GPU,), free, self._takes, self._admits)
        return Observation(tuple(jobs), {QUEUE: Queue(used={GPU: used})}, room)

    def let_through(self) -> list[JobRun]:
        """Return the waiting jobs that are shown. A strict queue hides those behind the first that does not fit."""
        if self.rules.backfill or self.rules.all_seen:
            return self.waiting
        fitting = list(self.startable_jobs())
        return self.waiting[: len(fitting) + 1]

    def startable_jobs(self) -> Iterator[JobRun]:
        """Yield the waiting jobs that would fit, one after another, if all elastic workers above the mins had left."""
        bare = list(self.free)
        for life in self.running.values() if self.waiting else ():
            for pod in life.pods:
                if pod.row is not None and (pod.index >= life.submission.least or pod.gone_s is not None):
                    bare[pod.row] += life.submission.gpus
        for life in self.waiting:
            if place(bare, life.submission.gpus, life.submission.least) is None:
                return
            yield life

    def carry_out(self, steps: Sequence[Step], policy: Policy) -> bool:
        """Apply the autoscaler's steps to the jobs. Return True if a size changed."""
        changes = [step for step in steps if step.changes]
        for step in changes:
            life = self.running[step.key.name]
            gained_s = after_change_s(life.job_state().job, policy, self.now_s + EPOCH_S, step.at_start)
            life.resize_budget = ResizeBudget(gained_s, self.now_s + EPOCH_S, at_start=step.at_start)
            self._resize(life, step)
        if changes:
            self.schedule()
        return bool(changes)

    def _resize(self, life: JobRun, step: Step) -> None:
        """Apply a step to a job: add pods, or let the last pods leave after the grace time.

        If the number of living pods changes, the job restarts.
        """
        self.worked_gpu_s += life.progress(self.now_s, self._window_s)
        before, life.last_state = life.living, None
        if step.target > life.replicas:
            life.pods += [WorkerPod(index, None, self.now_s) for index in range(life.replicas, step.target)]
        else:
            gone_s = self.now_s + self.rules.grace_s
            life.pods = [pod for pod in life.pods if pod.row is not None or pod.index < step.target]
            for pod in (pod for pod in life.pods if pod.index >= step.target and pod.gone_s is None):
                pod.gone_s = gone_s
            if step.reason is Reason.MAKES_ROOM and step.beneficiary is not None:
                life.robbed += 1
                surplus = life.replicas - step.target
                self.evictions.append(Eviction(self.now_s, life.submission.name, surplus, step.beneficiary.name))
            heapq.heappush(self._events, (gone_s, Event.GONE, life.submission.name, 0))
            if life.living != before:
                self._restart(life)
        life.replicas = step.target


def _check_fits_empty_cluster(submission: Submission, rules: ReplayRules) -> None:
    """Raise ValueError for a job that an empty cluster could not hold."""
    if sum(node // submission.gpus for node in rules.nodes) < submission.least:
        raise ValueError(
            f"{submission.name} asks for {submission.least} x {submission.gpus} GPUs: an empty cluster has no room"
        )


def place(free: list[int], gpus: int, workers: int) -> list[int] | None:
    """Take room for a whole gang and return the row of each worker.

    When it does not fit, take nothing and return None.
    """
    if sum(left // gpus for left in free if left >= gpus) < workers:
        return None
    rows: list[int] = []
    for row in sorted((row for row, left in enumerate(free) if left >= gpus), key=lambda row: (free[row], row)):
        while free[row] >= gpus and len(rows) < workers:
            free[row] -= gpus
            rows.append(row)
    return rows
