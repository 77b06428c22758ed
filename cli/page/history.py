"""The past of queues and jobs, as far as this page has observed it: three resolutions, bounded in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from turnout.cli.page.messages import JobItem, QueueItem, QueueSample, SizeSample

# By the name of a window: its seconds between two samples. Each window keeps MAX_SAMPLES.
WINDOWS = {"1h": 10.0, "12h": 60.0, "7d": 840.0}
MAX_SAMPLES = 720
MAX_QUEUES = 2_000
MAX_SIZES = 500  # changes of one job
MAX_JOBS = 10_000


@dataclass(slots=True)
class _Window:
    period_s: float
    last_s: float = float("-inf")
    samples: dict[str, deque[QueueSample]] = field(default_factory=dict)  # by queue


class PastSizes:
    """The sizes of queues and jobs over time."""

    def __init__(self) -> None:
        self._windows = {name: _Window(period_s) for name, period_s in WINDOWS.items()}
        self._sizes: dict[str, deque[SizeSample]] = {}

    def add(self, now_s: float, queues: Iterable[QueueItem], jobs: Iterable[JobItem]) -> None:
        """Append the present amounts of queues, and the sizes of jobs that have changed.

        Only the first MAX_JOBS of `jobs` count. Jobs that are not among them are removed. now_s: since 1970.
        """
        queue_items = list(queues)
        for window in self._windows.values():
            if now_s - window.last_s >= window.period_s:
                window.last_s = now_s
                _add_samples(window, now_s, queue_items)
        known: dict[str, deque[SizeSample]] = {}
        for job in jobs:
            if len(known) == MAX_JOBS:
                break
            sizes = self._sizes.get(job.job) or deque(maxlen=MAX_SIZES)
            if not sizes or sizes[-1].workers != job.workers:
                sizes.append(SizeSample(now_s, job.workers))
            known[job.job] = sizes
        self._sizes = known

    def queue(self, name: str, window: str) -> tuple[QueueSample, ...]:
        """Return the samples of the queue `name`, oldest first; () for an unknown one.

        window: a key of WINDOWS. Raises KeyError for another one.
        """
        return tuple(self._windows[window].samples.get(name, ()))

    def job(self, name: str) -> tuple[SizeSample, ...]:
        """Return the changes of a job's size, oldest first; () for an unknown job. name: the job's key as text."""
        return tuple(self._sizes.get(name, ()))


def _add_samples(window: _Window, now_s: float, queues: Iterable[QueueItem]) -> None:
    """Append the present GPUs of each queue to a window. Only the first MAX_QUEUES of `queues` count.

    Queues that are not among them are removed from the window. now_s: since 1970.
    """
    known: dict[str, deque[QueueSample]] = {}
    for queue in queues:
        if len(known) == MAX_QUEUES:
            break
        known[queue.queue] = window.samples.get(queue.queue) or deque(maxlen=MAX_SAMPLES)
        known[queue.queue].append(
            QueueSample(
                now_s,
                queue.quota_gpus,
                queue.min_gpus or 0,
                queue.elastic_gpus or 0,
                queue.lent_gpus or 0,
                queue.idle_gpus or 0,
                queue.borrowed_gpus or 0,
            )
        )
    window.samples = known
