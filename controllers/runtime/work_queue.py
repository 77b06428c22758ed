"""A queue of jobs to reconcile: each job once however often it changes, and never twice at the same time.

If a reconciliation fails, its job is retried after its own back-off and delays no other. Like client-go's workqueue,
but namespaces take turns: a namespace with 10,000 jobs delays another one by one job.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Callable

from turnout.controllers.model import JobKey
from turnout.kube.backoff import Backoff
from turnout.kube.client.clock import Clock


class WorkQueue:
    """The queue of jobs.

    backoff: of one job's consecutive failures. random_fraction: returns a number in [0, 1), for jitter.
    one_per_namespace: jobs of one namespace are never reconciled at the same time. They keep their order, but a job
    whose reconciliation failed comes after those that are reconciled during its back-off. len() is the number of queued
    jobs, without busy jobs and those of `add_after` that are not due.
    """

    def __init__(
        self, clock: Clock, backoff: Backoff, random_fraction: Callable[[], float], *, one_per_namespace: bool = False
    ) -> None:
        """Start empty. The class docstring explains the arguments."""
        self._clock, self._backoff, self._random_fraction, self._one_per_namespace = (
            clock,
            backoff,
            random_fraction,
            one_per_namespace,
        )
        self._waiting: OrderedDict[str, dict[JobKey, None]] = OrderedDict()  # by namespace, the next turn first
        self._blocked: dict[str, dict[JobKey, None]] = {}  # jobs that wait for another job of their namespace
        self._busy_namespaces: set[str] = set()  # with a busy job, if `one_per_namespace`
        self._busy: set[JobKey] = set()  # jobs that are being reconciled
        self._changed_while_busy: set[JobKey] = set()  # busy jobs that were added again
        self._failures: dict[JobKey, int] = {}  # consecutive
        self._later: list[tuple[float, JobKey]] = []  # heap of times, by the monotonic clock, and jobs
        self._due: dict[JobKey, float] = {}  # the time of `_later` that counts, by job
        self._added, self._due_sooner = asyncio.Event(), asyncio.Event()

    def __len__(self) -> int:
        return sum(map(len, (*self._waiting.values(), *self._blocked.values())))

    def add(self, key: JobKey) -> None:
        """Queue a job now; a job that waits already stays in its place.

        A busy job is queued again when `done` is called.
        """
        if key in self._busy:
            self._changed_while_busy.add(key)
        else:
            waiting = self._blocked if key.namespace in self._busy_namespaces else self._waiting
            waiting.setdefault(key.namespace, {})[key] = None
            self._added.set()

    def add_after(self, key: JobKey, wait_s: float) -> None:
        """Queue a job in `wait_s` seconds, unless it is already due earlier. A later call may only shorten the wait.

        Jobs are queued only while `run` runs. wait_s: >= 0.
        """
        at_s = self._clock.monotonic() + wait_s
        if self._due.get(key, at_s) < at_s:
            return
        self._due[key] = at_s
        heapq.heappush(self._later, (at_s, key))
        self._due_sooner.set()

    async def next(self) -> JobKey:
        """Wait for the next job, mark it as busy, and return it. The caller calls `done` with it afterwards.

        Namespaces take turns.
        """
        while not self._waiting:
            self._added.clear()
            await self._added.wait()
        namespace, namespace_jobs = self._waiting.popitem(last=False)
        key = next(iter(namespace_jobs))
        del namespace_jobs[key]
        if self._one_per_namespace:
            self._busy_namespaces.add(namespace)
        if namespace_jobs:
            (self._blocked if self._one_per_namespace else self._waiting)[namespace] = namespace_jobs
        self._busy.add(key)
        return key

    def done(self, key: JobKey, *, failed: bool = False, retry_after_s: float = 0.0) -> None:
        """End the reconciliation of a job.

        failed: the reconciliation failed; then the job is queued again after its back-off, also if it changed
        meanwhile. Any other job that changed meanwhile is queued at once. retry_after_s: the shortest wait that the API
        server asks for, 0 for none.
        """
        self._busy.discard(key)
        self._release_namespace(key.namespace)
        if failed:
            self._failures[key] = self._failures.get(key, 0) + 1
            self.add_after(key, self._backoff.wait_s(self._failures[key], self._random_fraction(), retry_after_s))
        else:
            self._failures.pop(key, None)
        if key in self._changed_while_busy:
            self._changed_while_busy.discard(key)
            if not failed:
                self.add(key)

    def _release_namespace(self, namespace: str) -> None:
        """Move the jobs that wait for another job of their namespace to the end of the queue of namespaces."""
        self._busy_namespaces.discard(namespace)
        if (namespace_jobs := self._blocked.pop(namespace, None)) is not None:
            self._waiting[namespace] = namespace_jobs
            self._added.set()

    async def run(self) -> None:
        """Queue the jobs of `add_after` when they are due, until cancelled."""
        while True:
            now_s = self._clock.monotonic()
            while self._later and self._later[0][0] <= now_s:
                at_s, key = heapq.heappop(self._later)
                if self._due.get(key) == at_s:
                    del self._due[key]
                    self.add(key)
            self._due_sooner.clear()
            if not self._later:
                await self._due_sooner.wait()
                continue
            sleep_task = asyncio.ensure_future(self._clock.sleep(max(0.0, self._later[0][0] - now_s)))
            wake_task = asyncio.ensure_future(self._due_sooner.wait())
            try:
                await asyncio.wait((sleep_task, wake_task), return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleep_task.cancel()
                wake_task.cancel()
