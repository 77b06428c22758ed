"""The loop of the job controllers: take a job from the queue, decide, write, report. A fault stops one job only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from turnout.controllers.children import path_prefixes
from turnout.controllers.conditions import job_phase
from turnout.controllers.model import (
    JUMP_S,
    ControlledKind,
    Create,
    Delete,
    EventOnJob,
    GangSettings,
    JobKey,
    JobPhase,
    Object,
    OwnedObjects,
    Reason,
    ReconcileOutcome,
    RestartReason,
    Update,
    as_mapping,
)
from turnout.controllers.reconcile import reconcile
from turnout.controllers.runtime.owned_objects import ChildCache
from turnout.controllers.runtime.work_queue import WorkQueue
from turnout.controllers.runtime.writer import ChildWriter, NameTaken
from turnout.kube.client.clock import Clock, SteadyTime
from turnout.kube.client.events import EventRecorder, ObjectRef
from turnout.kube.client.run_until_signal import run_together
from turnout.kube.errors import CallError, Conflict, Forbidden, Rejected
from turnout.kube.server.client_metrics import ClientMetrics, Watch, start_at_zero
from turnout.kube.server.probes import leading_gauge, register_build_info
from turnout.kube.times import unix_s

log = logging.getLogger("turnout.controllers")

CONCURRENT_JOBS = 16  # that are reconciled at the same time


class JobController:
    """The controller of the jobs of some kinds, while it leads. kinds: by the path of their group, as in a JobKey."""

    def __init__(
        self,
        cache: ChildCache,
        queue: WorkQueue,
        writer: ChildWriter,
        kinds: Mapping[str, ControlledKind],
        gang_settings: GangSettings,
        clock: Clock,
        events: EventRecorder,
        metrics: Metrics,
        time: SteadyTime | None = None,
    ) -> None:
        """Prepare the controller; `run` starts it. time: the wall clock with its jumps; None for one of `clock`."""
        self._cache, self._queue, self._writer, self._kinds, self._gang_settings = (
            cache,
            queue,
            writer,
            kinds,
            gang_settings,
        )
        self._clock, self._events, self._metrics = clock, events, metrics
        self._plurals = {child: plural for child, (_, plural) in path_prefixes(gang_settings).items()}
        self._time = time or SteadyTime(clock)
        self._moment, self._moment_read_s = self._time.now(), clock.monotonic()
        self._new_jobs: dict[JobKey, str] = {}  # uids of new jobs without pods so far

    async def run(self) -> None:
        """Reconcile every job once, then each job that changes, until cancelled."""
        self._queue_all()
        await run_together(self._queue.run, self._follow_clock, *([self._work] * CONCURRENT_JOBS))

    def _queue_all(self) -> None:
        """Queue every job."""
        for key in list(self._cache.jobs()):
            self._queue.add(key)

    async def _follow_clock(self) -> None:
        """Read the wall clock every JUMP_S until cancelled, and show jumps as a metric.

        After a jump is over, every job is queued.
        """
        while True:
            before, self._moment, self._moment_read_s = self._moment, self._time.now(), self._clock.monotonic()
            if before.jumped_s and not self._moment.jumped_s:  # decisions that depend on time are due again
                self._queue_all()
            self._metrics.jumped_s.set(self._moment.jumped_s)
            await self._clock.sleep(JUMP_S)

    async def _work(self) -> None:
        """Reconcile queued jobs until cancelled.

        If a reconciliation fails, its job is queued again after a back-off. An internal error is reported as well.
        """
        while True:
            key = await self._queue.next()
            failed, retry_after_s = True, 0.0
            try:
                await self.reconcile_job(key)
                failed = False
            except Conflict:
                log.debug("changed_meanwhile", extra={"job": str(key)})
            except CallError as error:
                retry_after_s = error.retry_after_s
            except Exception as error:
                self._report_fault(key, error)
            finally:
                self._queue.done(key, failed=failed, retry_after_s=retry_after_s)

    async def reconcile_job(self, key: JobKey) -> None:
        """Decide on one job, write, and record Events and metrics; a job that is not in the cache is skipped.

        Raises CallError, or any exception of an internal error; the caller has to retry the job. A name that is taken
        is reported, and the job is queued again, after 30 s at the latest. The decision's own Events and restarts are
        recorded once its status is written, so that a retry does not record them again.
        """
        if (cached_job := self._cache.job(key)) is None:
            return
        raw, owned = cached_job
        kind = self._kinds[key.api]
        with self._metrics.decide_s.time():
            now_s = self._moment.now_s + self._clock.monotonic() - self._moment_read_s
            outcome = reconcile(kind, raw, replace(owned, jumped_s=self._moment.jumped_s), now_s, self._gang_settings)
        meta = raw["metadata"]
        self._note_first_pod(key, kind, raw, owned)
        on_decided = partial(self._record_decision, kind, raw, outcome)
        try:
            await self._writer.carry_out(key, meta["uid"], meta["resourceVersion"], outcome, on_decided)
        except NameTaken as error:
            self._emit_events(kind, raw, [EventOnJob(Reason.NAME_TAKEN, str(error), warning=True)])
            requeue_s = _NAME_TAKEN_RETRY_S if outcome.requeue_s is None else outcome.requeue_s
            self._queue.add_after(key, min(requeue_s, _NAME_TAKEN_RETRY_S))
            return  # not all was written, so the writes are not counted
        except (Forbidden, Rejected) as error:
            self._emit_events(kind, raw, [EventOnJob(Reason.NOT_CREATED, error.message[:500], warning=True)])
            raise
        for verb, resource in written_resources(kind, outcome, self._plurals):
            self._metrics.writes.labels(verb, resource).inc()
        if outcome.requeue_s is not None:
            self._queue.add_after(key, outcome.requeue_s)

    def _record_decision(self, kind: ControlledKind, raw: Object, outcome: ReconcileOutcome) -> None:
        """Record the Events of a decision and count its restarts. raw: the job's object."""
        self._emit_events(kind, raw, outcome.events)
        for reason in outcome.restarts:
            self._metrics.restarts.labels(kind.full_name, reason.value).inc()

    def _note_first_pod(self, key: JobKey, kind: ControlledKind, raw: Object, owned: OwnedObjects) -> None:
        """Observe the time from a job's creation to its first pod, by the API server's clock.

        Jobs that were suspended before, or that had a status when this process began to lead, are not observed.
        """
        meta, status = raw["metadata"], as_mapping(raw.get("status"))
        if not status and not owned.pods:
            self._new_jobs[key] = meta["uid"]
            if len(self._new_jobs) > len(jobs := self._cache.jobs()):
                self._new_jobs = {each: uid for each, uid in self._new_jobs.items() if each in jobs}
        if self._new_jobs.get(key) != meta["uid"]:
            return
        if owned.pods or job_phase(kind, status) is JobPhase.SUSPENDED:
            del self._new_jobs[key]
        created_s, first_s = (
            unix_s(meta.get("creationTimestamp")),
            min((pod.state_since_s for pod in owned.pods), default=0),
        )
        if created_s is not None and first_s:
            self._metrics.first_pod_s.labels(kind.full_name).observe(max(0.0, first_s - created_s))

    def _report_fault(self, key: JobKey, error: Exception) -> None:
        """Log, count and report to the owner an internal error that stops a job.

        The job is retried after its own back-off.
        """
        log.error("job_refused", extra={"job": f"{key.namespace}/{key.name}"}, exc_info=error)
        self._metrics.internal_errors.labels(self._kinds[key.api].full_name).inc()
        try:
            if (cached_job := self._cache.job(key)) is not None:
                text = f"turnout-controller failed on this job and will retry: {error!r:.200}"
                self._emit_events(self._kinds[key.api], cached_job[0], [EventOnJob(Reason.FAULT, text, warning=True)])
        except Exception:
            log.exception("fault_not_reported", extra={"job": f"{key.namespace}/{key.name}"})

    def _emit_events(self, kind: ControlledKind, raw: Object, events: Iterable[EventOnJob]) -> None:
        """Record Events on a job, count them, and log them. raw: the job's object."""
        meta = raw["metadata"]
        ref = ObjectRef(kind.kind, raw["apiVersion"], meta["namespace"], meta["name"], meta["uid"])
        for each in events:
            type_ = "Warning" if each.warning else "Normal"
            self._events.emit(ref, type_, each.reason.value, each.text, self._clock.wall())
            self._metrics.events.labels(kind.full_name, each.reason.value).inc()
            log.info(
                "event_recorded", extra={"job": f"{meta['namespace']}/{meta['name']}", "reason": each.reason.value}
            )


_NAME_TAKEN_RETRY_S = 30.0


def written_resources(
    kind: ControlledKind, outcome: ReconcileOutcome, plurals: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield (verb, resource) of each write of an outcome, for metrics. plurals: kind of child -> its plural.

    If the outcome deletes the job, only that deletion.
    """
    if outcome.delete_job:
        yield "delete", kind.plural
        return
    for write in outcome.writes:
        match write:
            case Create(body):
                yield "create", plurals[body["kind"]]
            case Update(child):
                yield "patch", plurals[child.kind]
            case Delete(child):
                yield "delete", plurals[child.kind]
    if outcome.status is not None:
        yield "patch", f"{kind.plural}/status"


_DECIDE_BUCKETS_S = (0.0005, 0.001, 0.005, 0.02, 0.1, 0.5)
_FIRST_POD_S = (1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)


class Metrics:
    """The metrics page of the job controllers."""

    def __init__(
        self,
        waiting: Callable[[], int],
        kinds: Sequence[str] = (),
        jobs: Callable[[], Mapping[tuple[str, JobPhase], int] | None] = lambda: None,
    ) -> None:
        """Create the page.

        waiting: returns how many jobs wait for a decision. kinds: names of the controlled kinds. jobs: returns the
        number of jobs by kind and phase; None while this process does not lead.
        """
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        register_build_info(registry, "controller")
        self.decide_s = Histogram(
            "turnout_controller_decide_seconds",
            "Time for one decision on one job.",
            buckets=_DECIDE_BUCKETS_S,
            registry=registry,
        )
        self.writes = Counter(
            "turnout_controller_writes", "Objects created, changed or deleted.", ["verb", "resource"], registry=registry
        )
        self._add_job_series(kinds, jobs)
        self.jumped_s = Gauge(
            "turnout_controller_clock_jump_seconds",
            "Seconds by which a clock jumped just now; decisions that depend on time wait meanwhile. Else 0.",
            registry=registry,
        )
        self.leading = leading_gauge(registry, "controller")
        Gauge("turnout_controller_workqueue_depth", "Jobs that wait for a decision.", registry=registry).set_function(
            waiting
        )

    def _add_job_series(
        self, kinds: Sequence[str], jobs: Callable[[], Mapping[tuple[str, JobPhase], int] | None]
    ) -> None:
        """Create the series about jobs. kinds: their names. jobs: returns (kind, phase) -> jobs; None while not
        leading.
        """

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"turnout_controller_{name}", text, labels, registry=self.registry)

        self.internal_errors = counter(
            "internal_errors", "Decisions on a job or a ScalePlan that an internal error ended.", "job_kind"
        )
        start_at_zero(self.internal_errors, kinds)
        self.events = counter("events", "Events on jobs and ScalePlans, by reason.", "job_kind", "reason")
        self.restarts = counter(
            "restarts", "Pods recreated after a failure, and restarts of whole jobs, by reason.", "job_kind", "reason"
        )
        start_at_zero(self.restarts, kinds, (reason.value for reason in RestartReason))
        self.first_pod_s = Histogram(
            "turnout_controller_first_pod_seconds",
            "Time from the creation of a job to its first pod, in whole seconds of the API server's clock.",
            ["job_kind"],
            buckets=_FIRST_POD_S,
            registry=self.registry,
        )
        for kind in kinds:
            self.first_pod_s.labels(kind)
        self.registry.register(_JobCounts(kinds, jobs))

    def show_client(
        self,
        requests: Callable[[], Mapping[tuple[str, str], int]],
        watches: Callable[[], Iterable[tuple[str, Watch]]],
        clock: Clock,
    ) -> None:
        """Register the series about calls to the API server and about watches, read at each scrape.

        requests: returns (method, outcome) -> calls. watches: returns (kind, watch).
        """
        self.registry.register(ClientMetrics("controller", requests, watches, clock))

    def page(self) -> bytes:
        """Return the page as Prometheus reads it."""
        return generate_latest(self.registry)


class _JobCounts(Collector):
    """The jobs by kind and phase, counted only when the page is read."""

    def __init__(self, kinds: Iterable[str], jobs: Callable[[], Mapping[tuple[str, JobPhase], int] | None]) -> None:
        self._kinds, self._jobs = tuple(kinds), jobs

    def collect(self) -> Iterator[Metric]:
        """Yield the gauge turnout_controller_jobs, zeros included; without samples while this process does not lead."""
        gauge = GaugeMetricFamily("turnout_controller_jobs", "Jobs by phase.", labels=["job_kind", "phase"])
        if (jobs := self._jobs()) is not None:
            for kind in self._kinds:
                for phase in JobPhase:
                    gauge.add_metric([kind, phase.value], jobs.get((kind, phase), 0))
        yield gauge
