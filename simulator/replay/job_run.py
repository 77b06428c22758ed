"""One job during a replay: its workers, its progress, and when it will end at this rate."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from turnout.autoscaler.model import JobState, Worker
from turnout.jobs.model import Bounds, Job, JobKey, Order, ResizeBudget
from turnout.kube import labels
from turnout.kube.pod_shape import PodShape
from turnout.simulator.replay.model import JobResult, Submission

EPOCH_S = 1_000_000.0  # a replay begins at 0, which means "never" to the autoscaler
QUEUE = "replayed"
GPU = labels.GPU_RESOURCES[0]


@dataclass(slots=True)
class WorkerPod:
    """One worker."""

    index: int  # the highest is removed first
    row: int | None  # of its node; None while it has none
    since_s: float  # when it was created, since the begin of the replay
    leaves_at_s: float | None = None  # when it leaves the job, for a worker that a shrink removes


@dataclass(slots=True)
class JobRun:
    """A job that was submitted and has not ended."""

    submission: Submission
    replicas: int  # its present size, in workers
    left_s: float  # work that is left, in seconds with `minimum` workers
    started_s: float | None = None  # None while it waits
    pods: list[WorkerPod] = field(default_factory=list)
    at_s: float = 0.0  # until when progress is counted
    idle_until_s: float = 0.0  # the end of its last restart; set by ReplayWorld when the job restarts
    resize_budget: ResizeBudget = field(default_factory=ResizeBudget)  # what the autoscaler has noted
    known_curve: bool = True  # True: its curve is known
    version: int = 0  # stands in its end event, so that an outdated end is recognised
    restarts: int = 0  # that it paid for
    shrinks_for_others: int = 0  # resizes that made room for another job
    last_state: JobState | None = None  # cached by job_state(); None if it has to be computed

    @property
    def key(self) -> JobKey:
        """The job's key as the autoscaler uses it."""
        return JobKey("Job", QUEUE, self.submission.name)

    @property
    def staying_workers(self) -> int:
        """The number of workers that have a node and stay."""
        return sum(pod.row is not None and pod.leaves_at_s is None for pod in self.pods)

    @property
    def rate(self) -> float:
        """The speed relative to that with `minimum` workers. Without a staying worker it is that of one worker."""
        return self.submission.speed(self.staying_workers) / self.submission.speed(self.submission.minimum)

    def progress(self, now_s: float, window_s: float) -> float:
        """Add the progress until now. Return the GPU-seconds in which it was made, up to the end of the window.

        now_s, window_s: now, and the end of the window, in seconds since the begin of the replay. 0 for a job that has
        not started, and for a time that is counted already.
        """
        if self.started_s is None or now_s <= self.at_s:
            return 0.0
        began = min(max(self.at_s, self.idle_until_s), now_s)
        self.left_s -= (now_s - began) * self.rate
        self.at_s = now_s
        return max(0.0, min(now_s, window_s) - began) * self.staying_workers * self.submission.gpus

    def ends_s(self) -> float:
        """Return the time at which the job ends if nothing changes, in seconds since the begin of the replay.

        A job without workers on nodes counts as one with one worker.
        """
        return max(self.at_s, self.idle_until_s) + max(0.0, self.left_s) / self.rate

    def job_state(self) -> JobState:
        """Return the state of the job as an observation has it.

        It is cached in `last_state` until that is set to None.
        """
        if self.last_state is None:
            workers = tuple(
                Worker(pod.index, pod.row, pod.leaves_at_s is not None, pod.since_s + EPOCH_S) for pod in self.pods
            )
            self.last_state = JobState(self._as_job(), workers)
        return self.last_state

    def result(self, now_s: float) -> JobResult:
        """Return the result of the job, which ends now. It must have started. now_s: seconds since the begin of the
        replay.
        """
        assert self.started_s is not None
        return JobResult(self.submission, self.started_s, now_s, self.restarts, self.shrinks_for_others)

    def _as_job(self) -> Job:
        """Return the job as an observation has it."""
        submission = self.submission
        return Job(
            key=self.key,
            uid=submission.name,
            version="1",
            queue=QUEUE,
            replicas=self.replicas,
            bounds=Bounds(submission.minimum, submission.maximum),
            shape=shape_of(submission.gpus),
            order=Order(priority=submission.priority),
            created=f"{submission.at_s:020.6f}",
            sizes=submission.sizes,
            resize_budget=self.resize_budget,
            curve=submission.curve if self.known_curve else (),
        )


@lru_cache(maxsize=256)
def shape_of(gpus: int) -> PodShape:
    """Return the shape of a worker."""
    return PodShape(requests=((GPU, gpus), ("pods", 1)))
