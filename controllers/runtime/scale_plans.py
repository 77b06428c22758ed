"""Watch ScalePlans and carry each of them out once: its job is changed first, then the status of the plan."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import msgspec

from turnout.controllers.kinds.elasticjob import ELASTICJOB
from turnout.controllers.model import JobKey, Object, Reason
from turnout.controllers.runtime.controller import Metrics
from turnout.controllers.runtime.owned_objects import JobObject
from turnout.controllers.runtime.work_queue import WorkQueue
from turnout.controllers.runtime.writer import FIELD_MANAGER
from turnout.controllers.scale_plan import DONE, Scaling, is_pending, owner_of, scale_job, superseded_status
from turnout.jobs.kinds.elasticjob import GROUP as API
from turnout.kube.client.clock import Clock
from turnout.kube.client.events import EventRecorder, ObjectRef
from turnout.kube.client.leased_calls import Calls
from turnout.kube.client.run_until_signal import run_together
from turnout.kube.errors import CallError, Conflict, NotFound
from turnout.kube.status import decode_json_object
from turnout.kube.times import unix_s
from turnout.kube.watch_events import Key

log = logging.getLogger("turnout.controllers")

PATH, PLURAL, KIND = f"/apis/{API}", "scaleplans", "ScalePlan"
CONCURRENT_NAMESPACES = 8  # whose plans are carried out at the same time
_MERGE = "application/merge-patch+json"


class _PlanAge(NamedTuple):
    """The place of a plan in the order of its job's plans, and its name."""

    created_s: float  # its creation, seconds since 1970; 0 if it has no such time
    number: int  # how many plans were pending here before it; 0 if it was never pending here
    name: str  # the name of the plan


class ScalePlans:
    """The pending ScalePlans, carried out in turn, and the newest plan of each job that was carried out.

    A plan that has to be retried does not delay the others of its namespace. If a newer plan of its job was carried out
    meanwhile, it fails. queue: for plans only, with one plan of a namespace at a time.
    """

    def __init__(self, calls: Calls, queue: WorkQueue, clock: Clock, events: EventRecorder, metrics: Metrics) -> None:
        self._calls, self._queue, self._clock = calls, queue, clock
        self._events, self._metrics = events, metrics
        self._pending_plans: dict[JobKey, Object] = {}
        self._ages: dict[JobKey, _PlanAge] = {}  # of the pending plans
        self._numbered_plans = 0
        self._newest_done: dict[tuple[str, str], _PlanAge] = {}  # by namespace and job
        self._job_of_done: dict[tuple[str, str], str] = {}  # by namespace and name of a plan that was carried out

    def store_plan(self, obj: JobObject) -> None:
        """Store and queue a pending plan; of a plan that was carried out, keep only that it was."""
        plan: Object = msgspec.json.decode(msgspec.json.encode(obj))
        key = JobKey(PATH, obj.metadata.namespace, obj.metadata.name)
        if is_pending(plan):
            self._pending_plans[key] = plan
            if key not in self._ages:
                self._numbered_plans += 1
                self._ages[key] = _age(plan, self._numbered_plans)
            self._queue.add(key)
            return
        self._pending_plans.pop(key, None)
        age = self._ages.pop(key, _age(plan, 0))
        if (plan.get("status") or {}).get("phase") == DONE:
            self._note_done(key.namespace, owner_of(plan), age)

    def drop_plan(self, key: Key) -> None:
        """Drop a deleted plan."""
        self._pending_plans.pop(JobKey(PATH, key.namespace, key.name), None)
        self._ages.pop(JobKey(PATH, key.namespace, key.name), None)
        job = self._job_of_done.pop((key.namespace, key.name), "")
        if (newest := self._newest_done.get((key.namespace, job))) is not None and newest.name == key.name:
            del self._newest_done[key.namespace, job]

    def _note_done(self, namespace: str, job: str, age: _PlanAge) -> None:
        """Note that a plan was carried out. namespace, job: of the plan."""
        newest = self._newest_done.get((namespace, job))
        if newest is None or newest[:2] <= age[:2]:
            self._newest_done[namespace, job] = age
            self._job_of_done[namespace, age.name] = job

    async def run(self) -> None:
        """Queue all pending plans and carry plans out, one of a namespace at a time, until cancelled."""
        for key in list(self._pending_plans):
            self._queue.add(key)
        await run_together(self._queue.run, *([self._work] * CONCURRENT_NAMESPACES))

    async def _work(self) -> None:
        """Carry out queued plans until cancelled.

        A failed plan is queued again after a back-off. If the failure is an internal error, it is reported as well.
        """
        while True:
            key = await self._queue.next()
            failed, retry_after_s = True, 0.0
            try:
                await self.carry_out(key)
                failed = False
            except CallError as error:
                retry_after_s = error.retry_after_s
                log.info("scale_plan_waits", extra={"plan": f"{key.namespace}/{key.name}", "why": error.message})
            except Exception as error:
                self._report_fault(key, error)
            finally:
                self._queue.done(key, failed=failed, retry_after_s=retry_after_s)

    async def carry_out(self, key: JobKey) -> None:
        """Carry out one plan, if it is still pending: change its job, then write the result into its status.

        If a newer plan of the job was carried out before, only the status changes: the plan has failed. A plan that was
        deleted meanwhile is skipped. Raises CallError if it has to be retried.
        """
        if (plan := self._pending_plans.get(key)) is None:
            return
        name, age = owner_of(plan), self._ages[key]
        jobs = f"{PATH}/namespaces/{key.namespace}/{ELASTICJOB.plural}"
        newest = self._newest_done.get((key.namespace, name))
        if newest is not None and newest[:2] > age[:2]:
            result = Scaling(None, superseded_status(plan, newest.name, self._clock.wall()))
        else:
            result = scale_job(plan, await self._job(f"{jobs}/{name}") if name else None, self._clock.wall())
        if result.job is not None:
            await self._patch(f"{jobs}/{name}", result.job)
        uid = {"metadata": {"uid": plan["metadata"]["uid"]}}  # another plan may have its name by now
        path = f"{PATH}/namespaces/{key.namespace}/{PLURAL}/{key.name}/status"
        try:
            await self._patch(path, {**uid, "status": result.status})
        except (NotFound, Conflict):
            log.debug("scale_plan_gone", extra={"plan": f"{key.namespace}/{key.name}"})
        self._pending_plans.pop(key, None)
        self._ages.pop(key, None)
        if result.status["phase"] == DONE:
            self._note_done(key.namespace, name, age)
        fields = {"plan": f"{key.namespace}/{key.name}", "job": name, "phase": result.status["phase"]}
        log.info("scale_plan_done", extra={**fields, "why": result.status["message"]})

    def _report_fault(self, key: JobKey, error: Exception) -> None:
        """Log, count and report an internal error that stops a plan. The plan is retried after its own back-off."""
        log.error("scale_plan_refused", extra={"plan": f"{key.namespace}/{key.name}"}, exc_info=error)
        self._metrics.internal_errors.labels(KIND).inc()
        if (plan := self._pending_plans.get(key)) is None:
            return
        ref = ObjectRef(KIND, API, key.namespace, key.name, plan["metadata"].get("uid", ""))
        text = f"turnout-controller failed on this plan and will retry: {error!r:.200}"
        self._events.emit(ref, "Warning", Reason.FAULT.value, text, self._clock.wall())
        self._metrics.events.labels(KIND, Reason.FAULT.value).inc()

    async def _job(self, path: str) -> Object | None:
        """Return a job from the API server, since a plan may be seen before its job; None if it does not exist.

        path: of the job. Raises other CallErrors.
        """
        try:
            return decode_json_object(path, await self._calls.get(path))
        except NotFound:
            return None

    async def _patch(self, path: str, body: Any) -> None:
        """Write a merge patch. Raises CallError."""
        await self._calls.patch(path, body, _MERGE, FIELD_MANAGER)


def _age(plan: Object, number: int) -> _PlanAge:
    """Return the age of a plan. number: how many plans were pending here up to it; 0 if it was never pending here."""
    metadata = plan["metadata"]
    return _PlanAge(unix_s(metadata.get("creationTimestamp")) or 0.0, number, metadata["name"])
