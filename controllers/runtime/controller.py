"""The loop: takes a job from the queue, decides, writes, tells. A fault in one job is that job's."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from turnout.controllers.kind import Kind
from turnout.controllers.model import JUMP_S, JobKey, Object, Reason, Say, Setup
from turnout.controllers.reconcile import reconcile
from turnout.controllers.runtime.cache import Cache
from turnout.controllers.runtime.metrics import Metrics
from turnout.controllers.runtime.work_queue import WorkQueue
from turnout.controllers.runtime.writer import NameTaken, Writer
from turnout.kube.client.clock import Clock, SteadyTime
from turnout.kube.client.events import EventRecorder, ObjectRef
from turnout.kube.client.run_until_signal import run_together
from turnout.kube.errors import CallError, Conflict, Forbidden, Rejected

log = logging.getLogger("turnout.controllers")

AT_ONCE = 16  # jobs that are looked at side by side


class JobController:
    """Controls the jobs of some kinds while it leads. kinds: by the path of their group, as a JobKey has it."""

    def __init__(
        self,
        cache: Cache,
        queue: WorkQueue,
        writer: Writer,
        kinds: Mapping[str, Kind],
        setup: Setup,
        clock: Clock,
        events: EventRecorder,
        metrics: Metrics,
        time: SteadyTime | None = None,
    ) -> None:
        """time: of day, for decisions; without it the wall clock's, whose jumps are seen."""
        self._cache, self._queue, self._writer, self._kinds, self._setup = cache, queue, writer, kinds, setup
        self._clock, self._events, self._metrics = clock, events, metrics
        self._time = time or SteadyTime(clock)
        self._moment, self._looked_s = self._time.now(), clock.monotonic()

    async def run(self) -> None:
        """Look at every job once, then at each that changes, until cancelled."""
        self._look_at_all()
        await run_together(self._queue.run, self._follow_clock, *([self._work] * AT_ONCE))

    def _look_at_all(self) -> None:
        for key in list(self._cache.jobs()):
            self._queue.add(key)

    async def _follow_clock(self) -> None:
        """Look at the clock now and then. Between two looks time goes on as the monotonic clock does."""
        while True:
            before, self._moment, self._looked_s = self._moment, self._time.now(), self._clock.monotonic()
            if before.jumped_s and not self._moment.jumped_s:  # another time of day may count from now on
                self._look_at_all()
            self._metrics.jumped_s.set(self._moment.jumped_s)
            await self._clock.sleep(JUMP_S)

    async def _work(self) -> None:
        while True:
            key = await self._queue.next()
            failed, asked_s = True, 0.0
            try:
                await self.look(key)
                failed = False
            except Conflict:
                log.debug("changed_meanwhile", extra={"job": str(key)})
            except CallError as error:
                asked_s = error.retry_after_s
            except Exception as error:
                self._refuse(key, error)
            finally:
                self._queue.done(key, failed=failed, asked_s=asked_s)

    async def look(self, key: JobKey) -> None:
        """Decide on one job and write what follows. What it raises means that the job has to be tried again."""
        if (found := self._cache.job(key)) is None:
            return
        raw, known = found
        kind = self._kinds[key.api]
        with self._metrics.look_s.time():
            now_s = self._moment.now_s + self._clock.monotonic() - self._looked_s
            outcome = reconcile(kind, raw, replace(known, jumped_s=self._moment.jumped_s), now_s, self._setup)
        meta = raw["metadata"]
        self._tell(kind, raw, outcome.says)
        try:
            await self._writer.carry_out(key, meta["uid"], meta["resourceVersion"], outcome)
        except NameTaken as error:
            self._tell(kind, raw, [Say(Reason.NAME_TAKEN, str(error), warning=True)])
            self._queue.add_after(key, _NAME_AGAIN_S)
        except (Forbidden, Rejected) as error:
            self._tell(kind, raw, [Say(Reason.NOT_CREATED, error.message[:500], warning=True)])
            raise
        self._metrics.writes.inc(len(outcome.writes) + (outcome.status is not None))
        if outcome.requeue_s is not None:
            self._queue.add_after(key, outcome.requeue_s)

    def _refuse(self, key: JobKey, error: Exception) -> None:
        """Tell that a fault of ours has kept a job from what it needs. It comes again after a back-off of its own."""
        log.error("job_refused", extra={"job": f"{key.namespace}/{key.name}"}, exc_info=error)
        self._metrics.faults.inc()
        try:
            if (found := self._cache.job(key)) is not None:
                text = f"a fault of turnout-controller keeps it waiting: {error!r:.200}"
                self._tell(self._kinds[key.api], found[0], [Say(Reason.FAULT, text, warning=True)])
        except Exception:
            log.exception("fault_not_reported", extra={"job": f"{key.namespace}/{key.name}"})

    def _tell(self, kind: Kind, raw: Object, says: Iterable[Say]) -> None:
        meta = raw["metadata"]
        ref = ObjectRef(kind.kind, raw["apiVersion"], meta["namespace"], meta["name"], meta["uid"])
        for each in says:
            type_ = "Warning" if each.warning else "Normal"
            self._events.emit(ref, type_, each.reason.value, each.text, self._clock.wall())
            self._metrics.events.labels(kind.full_name, each.reason.value).inc()
            log.info(
                "event_recorded", extra={"job": f"{meta['namespace']}/{meta['name']}", "reason": each.reason.value}
            )


_NAME_AGAIN_S = 30.0
