"""The autoscaler at work: whenever something changes, and every few seconds, one look and one plan carried out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence

from turnout.autoscaler.cache import Cache
from turnout.autoscaler.controller.decision_log_writer import DecisionLogWriter
from turnout.autoscaler.controller.informers import Sight
from turnout.autoscaler.controller.metrics import Metrics
from turnout.autoscaler.controller.scale_writer import ScaleWriter, without
from turnout.autoscaler.decide import decide
from turnout.autoscaler.decision_dedup import Decisions
from turnout.autoscaler.model import Observation, Policy, Reason, Step
from turnout.autoscaler.observe.idle import Idle
from turnout.autoscaler.reporting.forecast import Outlook
from turnout.autoscaler.reporting.runtime_stats import Ended
from turnout.autoscaler.scaling.fence import decided
from turnout.autoscaler.scaling.job_annotations import notes_of
from turnout.jobs.model import JobKey, Life
from turnout.kube.client.clock import Clock

log = logging.getLogger("turnout.autoscaler")

LOOK_EACH_S = 5.0  # cooldowns end without anybody changing anything
GATHER_S = 0.05  # changes come in bursts: one look for all of them
MOST_GATHER_S = 0.5  # and for as long as a look takes others have their turn: watches, the Lease, probes


class AutoscalerController:
    """Decides and acts while `run` runs. seen, steps: of the last look."""

    def __init__(
        self,
        view: Cache,
        sight: Sight,
        hands: ScaleWriter,
        policy: Policy,
        clock: Clock,
        told: Callable[[Step], None],
        metrics: Metrics,
        journal: DecisionLogWriter | None = None,
    ) -> None:
        self._view, self._sight, self._hands, self._policy = view, sight, hands, policy
        self._clock, self._told, self._metrics = clock, told, metrics
        self._journal, self._outlook = journal, Outlook()
        self._decisions = Decisions()
        self._idle = Idle(policy.settle_s)
        self._faults: dict[JobKey, str] = {}
        self.steps: Sequence[Step] = ()
        self.seen: Observation | None = None

    async def run(self) -> None:
        """Until cancelled."""
        self._metrics.leading.set(1)
        try:
            while True:
                began_s = self._clock.monotonic()
                await self.look(time.time())
                took_s = self._clock.monotonic() - began_s
                try:
                    async with asyncio.timeout(LOOK_EACH_S):
                        await self._sight.news.wait()
                except TimeoutError:
                    continue
                await self._clock.sleep(min(max(GATHER_S, took_s), MOST_GATHER_S))
        finally:
            self._metrics.leading.set(0)

    async def look(self, now_s: float) -> int:
        """One look; how many jobs were written."""
        self._sight.news.clear()
        held = self._hands.held_back(self._view.raw, now_s)
        seen = without(self._view.observation(now_s, self._sight.age_s(), self._sight.has_synced), held)
        seen = self._idle.looked(seen, now_s)
        self._tell_faults()
        with self._metrics.decide_s.time():
            steps, undecided = decided(decide, seen, self._policy, now_s)
        for key, error in undecided.items():
            log.error("job_undecided", extra={"job": str(key), "why": repr(error)}, exc_info=error)
        self._metrics.seen(seen, steps)
        self.seen, self.steps = seen, steps
        news = self._decisions.new(steps)
        if news and self._journal is not None:
            self._journal.note(seen, self._policy, now_s, steps)
        for step in news:
            self._told(step)
        changing = {step.key for step in steps if step.changes}
        jobs = {each.job.key: each for each in seen.jobs if each.job.key in changing} if changing else {}

        def notes(step: Step) -> dict[str, str]:
            return notes_of(jobs[step.key].job, step, self._policy, now_s)

        def leaving(step: Step) -> tuple[str, ...]:
            return tuple(each.name for each in jobs[step.key].living if each.index >= step.workers)

        written = await self._hands.carry_out(steps, self._view.raw, notes, now_s, leaving)
        self._metrics.expects(self._outlook.starts(seen, steps, self._ended, now_s, acts=not self._hands.dry_run))
        return written

    def _tell_faults(self) -> None:
        """Tell of jobs that cannot be read, each fault once: in the log, and on the job."""
        for key, why in self._view.faults.items():
            if self._faults.get(key) != why:
                log.warning("job_unreadable", extra={"job": str(key), "why": why})
                self._told(Step(key, 0, 0, Reason.REFUSED, why))
        self._faults = dict(self._view.faults)

    def _ended(self) -> Iterator[Ended]:
        """Jobs that are over and still there."""
        for uid, job in self._view.jobs.items():
            if job.life is Life.DONE and (raw := self._view.raw.get(job.key)) is not None:
                yield uid, job.queue, raw
