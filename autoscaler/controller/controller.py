"""The loop of the autoscaler: after each change, and every few seconds, observe, decide and write."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from turnout.autoscaler.cache import Cache
from turnout.autoscaler.controller.decision_log_writer import DecisionLogWriter
from turnout.autoscaler.controller.gang_min_writer import GangMinWriter
from turnout.autoscaler.controller.informers import AutoscalerInformers
from turnout.autoscaler.controller.memory_writer import MemoryWriter
from turnout.autoscaler.controller.metrics import Metrics
from turnout.autoscaler.controller.scale_writer import ScaleWriter, mark_refused
from turnout.autoscaler.decide import decide, decide_safely
from turnout.autoscaler.memory import Memory
from turnout.autoscaler.model import Observation, Policy, Reason, Step
from turnout.autoscaler.observe.room_history import IdleRoom, Promises, UnusedRoom
from turnout.autoscaler.reporting.decision_log import LastDecisions
from turnout.autoscaler.reporting.forecast import Ended, ForecastCache
from turnout.autoscaler.scaling.resize_cost import resize_annotations
from turnout.jobs.model import JobKey, JobLifecycle
from turnout.kube.client.clock import Clock, SteadyTime

log = logging.getLogger("turnout.autoscaler")

LOOK_EACH_S = 5.0  # longest time between two decisions, since cooldowns end without any change
GATHER_S = 0.05  # shortest pause after a decision: changes come in bursts
MAX_GATHER_S = 0.5  # longest pause; it is as long as the decision took, so that watches, Lease and probes get time


class DecisionReporter(Protocol):
    """A receiver of new decisions, which reports them to people."""

    def report_decision(self, step: Step) -> None:
        """Report a decision that differs from the last one on the job."""

    def report_unknown_annotations(self, key: JobKey, names: tuple[str, ...]) -> None:
        """Report annotations with our prefix that nobody reads. key: the job. names: of the annotations."""


class AutoscalerController:
    """The decisions of one leader.

    cache: filled by `informers`. decision_log: None for none. time: the wall clock with its jumps. memory: the leader
    memory, None for none. gang_mins: the writer of minCount, None if PodGroups are left alone. observation, steps: of
    the last decision; None and empty before.
    """

    def __init__(
        self,
        cache: Cache,
        informers: AutoscalerInformers,
        scale_writer: ScaleWriter,
        policy: Policy,
        clock: Clock,
        reporter: DecisionReporter,
        metrics: Metrics,
        decision_log: DecisionLogWriter | None = None,
        time: SteadyTime | None = None,
        memory: MemoryWriter | None = None,
        gang_mins: GangMinWriter | None = None,
    ) -> None:
        """Prepare the controller; `run` starts it. The class docstring explains the arguments."""
        self._cache, self._informers, self._scale_writer, self._policy = cache, informers, scale_writer, policy
        self._clock, self._reporter, self._metrics = clock, reporter, metrics
        self._time = time or SteadyTime(clock)
        self._decision_log, self._memory, self._gang_mins = decision_log, memory, gang_mins
        self._forecasts = ForecastCache()
        self._decisions = LastDecisions()
        self._idle_room = IdleRoom(policy.idle_before_growth_s)
        self._promises = Promises(policy.promise_s)
        self._unused_room = UnusedRoom(policy.bind_s, cache.starts.has_started)
        self._reported_faults: dict[JobKey, str] = {}
        self._reported_annotations: dict[JobKey, tuple[str, ...]] = {}
        self._reported_queue_names: dict[JobKey, str] = {}
        self.steps: Sequence[Step] = ()
        self.observation: Observation | None = None

    async def run(self) -> None:
        """Restore the leader memory, then decide again and again until cancelled: after changes, at least every
        LOOK_EACH_S.

        The metrics show a leader meanwhile. At the end the usage so far goes to the decision log.
        """
        self._metrics.leading.set(1)
        self._cache.reader.forget_written()
        try:
            await self._restore_memory()
            while True:
                began_s = self._clock.monotonic()
                moment = self._time.now()
                await self.look(moment.now_s, moment.jumped_s)
                took_s = self._clock.monotonic() - began_s
                try:
                    async with asyncio.timeout(LOOK_EACH_S):
                        await self._informers.news.wait()
                except TimeoutError:
                    continue
                await self._clock.sleep(min(max(GATHER_S, took_s), MAX_GATHER_S))
        finally:
            now_s = self._time.now().now_s
            if (usage := self._metrics.usage.take_lines(now_s)) and self._decision_log is not None:
                self._decision_log.note(now_s, self.steps, usage)
            self._metrics.leading.set(0)

    async def look(self, now_s: float, jumped_s: float = 0.0) -> int:
        """Observe, decide, report and write once. Return the number of resized jobs. Stores `observation` and `steps`.

        now_s: seconds since 1970. jumped_s: by how much the wall clock has jumped since the last look, 0 for not at
        all; after a jump nothing is resized.
        """
        monotonic_s = self._clock.monotonic()
        self._informers.news.clear()
        observation = self._observe(now_s, monotonic_s, jumped_s)
        self._report_faults()
        with self._metrics.decide_s.time():
            steps, undecided = decide_safely(decide, observation, self._policy, now_s)
        for key, error in undecided.items():
            log.error("job_undecided", extra={"job": str(key), "why": repr(error)}, exc_info=error)
        self._unused_room.record_decision(observation, steps, monotonic_s)
        self._metrics.record_decision(observation, steps)
        self.observation, self.steps = observation, steps
        self._report_news(steps, now_s)
        await self._write_memory([step.key for step in steps if step.target > step.current], now_s)
        resized_jobs = await self._write_sizes(observation, steps, now_s)
        await self._correct_gang_mins({step.key for step in steps if step.changes}, now_s)
        self._metrics.set_starts(
            self._forecasts.start_times(observation, steps, self._ended_jobs, now_s, dry_run=self._scale_writer.dry_run)
        )
        return resized_jobs

    def _observe(self, now_s: float, monotonic_s: float, jumped_s: float) -> Observation:
        """Return the observation to decide on, and update what is known of idle, promised and unused room.

        Jobs that the API server refuses to resize are marked. now_s: seconds since 1970. monotonic_s: now by the
        monotonic clock. jumped_s: by how much the wall clock has jumped since the last look, 0 for not at all.
        """
        age_s, complete = self._informers.oldest_event_age_s(), self._informers.has_synced
        observation = self._cache.observation(now_s, age_s, complete, monotonic_s)
        observation = mark_refused(observation, self._scale_writer.refusals.messages(self._cache.jobs.raw, now_s))
        observation = replace(observation, jumped_s=jumped_s)
        for each in (self._idle_room, self._promises, self._unused_room):
            observation = each.update(observation, monotonic_s)
        return observation

    def _report_news(self, steps: Sequence[Step], now_s: float) -> None:
        """Report the steps that differ from the last ones, and write them and due usage lines to the decision log.

        now_s: seconds since 1970.
        """
        new_steps, usage = self._decisions.changed_steps(steps), self._metrics.usage.due_lines(now_s)
        if (new_steps or usage) and self._decision_log is not None:
            self._decision_log.note(now_s, steps, usage)
        for step in new_steps:
            self._reporter.report_decision(step)

    async def _write_sizes(self, observation: Observation, steps: Sequence[Step], now_s: float) -> int:
        """Write the new sizes, shrinks first. Return the number of resized jobs, 0 for a dry run.

        At most MAX_GROWTHS growths are written. A failed write is reported and counts as none. Lost ScalePlans are
        created again, and sizes that a person set are noted. steps: of all jobs. now_s: seconds since 1970.
        """
        changing = {step.key for step in steps if step.changes}
        jobs = {each.job.key: each for each in observation.jobs if each.job.key in changing} if changing else {}

        def annotations_of(step: Step) -> dict[str, str]:
            return resize_annotations(jobs[step.key].job, step, self._policy, now_s)

        def leaving(step: Step) -> tuple[str, ...]:
            return tuple(each.name for each in jobs[step.key].living if each.index >= step.target)

        return await self._scale_writer.carry_out(steps, self._cache.jobs.raw, annotations_of, now_s, leaving)

    async def _correct_gang_mins(self, changing: Collection[JobKey], now_s: float) -> None:
        """Write the minCount of native PodGroups whose jobs keep their size. A dry run writes none.

        changing: jobs whose size changes now. now_s: seconds since 1970.
        """
        if self._gang_mins is None or self._scale_writer.dry_run:
            return
        raw = self._cache.jobs.raw

        def changes(key: JobKey) -> bool:
            return key in changing or key not in raw or self._scale_writer.is_overwritten(key, raw[key])

        await self._gang_mins.correct_after_resize(changes, now_s)

    async def _restore_memory(self) -> None:
        """Restore what the previous leader stored: the lending terms, and who has left room unused.

        Retries until the API server answers. Restores nothing if there is no ConfigMap, or it must not be read. Does
        nothing without a leader memory.
        """
        if self._memory is not None:
            memory = await self._memory.read_memory(self._time.now().now_s)
            self._cache.reader.restore_terms(memory.terms)
            self._unused_room.restore_strikes(memory.strikes, self._clock.monotonic())

    async def _write_memory(self, growing: list[JobKey], now_s: float) -> None:
        """Write the leader memory before jobs grow. A dry run writes none. A failed write delays no growth.

        growing: jobs that are about to grow. now_s: seconds since 1970.
        """
        if self._memory is None or self._scale_writer.dry_run:
            return
        terms = self._cache.reader.lent_terms(growing)
        memory = Memory(terms, self._unused_room.strikes(self._clock.monotonic()))
        await self._memory.write_changes(memory, now_s)

    def _report_faults(self) -> None:
        """Report unreadable jobs, unknown annotations and queue names that are ignored.

        Each is reported when it appears or comes back, and when its text changes.
        """
        for key, why in self._cache.reader.faults.items():
            if self._reported_faults.get(key) != why:
                log.warning("job_unreadable", extra={"job": str(key), "why": why})
                self._reporter.report_decision(Step(key, 0, 0, Reason.REFUSED, why))
        self._reported_faults = dict(self._cache.reader.faults)
        for key, names in self._cache.reader.unknown.items():
            if self._reported_annotations.get(key) != names:
                self._reporter.report_unknown_annotations(key, names)
        self._reported_annotations = dict(self._cache.reader.unknown)
        for key, why in self._cache.usage.ungranted.items():
            if self._reported_queue_names.get(key) != why:
                log.warning("queue_not_granted", extra={"job": str(key), "why": why})
                self._reporter.report_decision(Step(key, 0, 0, Reason.REFUSED, why))
        self._reported_queue_names = dict(self._cache.usage.ungranted)

    def _ended_jobs(self) -> Iterator[Ended]:
        """Yield (uid, queue, object) of the readable jobs that have ended and still exist."""
        for uid, job in self._cache.jobs.by_uid.items():
            if job.lifecycle is JobLifecycle.DONE and (raw := self._cache.jobs.raw.get(job.key)) is not None:
                yield uid, job.queue, raw
