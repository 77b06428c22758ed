"""Write the sizes of jobs: a patch of one job that is valid for one version of its object only.

A dry run reports the plan and writes nothing. The Lease is checked before each write, so a paused leader that continues
writes nothing. A refused change is retried after a back-off. A size that a person set before our first write is noted
on the job for the next leader.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from turnout.autoscaler.model import Observation, Reason, Step
from turnout.autoscaler.scaling.resize_cost import is_overruled
from turnout.jobs.kinds.job_kind import JobKind
from turnout.jobs.model import Change, JobKey
from turnout.kube import labels
from turnout.kube.backoff import Backoff
from turnout.kube.client.leased_calls import Calls
from turnout.kube.errors import CallError, Conflict, Forbidden, NotFound, NotLeading, Rejected
from turnout.kube.status import decode_json_object

log = logging.getLogger("turnout.autoscaler")

FIELD_MANAGER = "turnout-autoscaler"
RETRY_BACKOFF = Backoff(first_s=1.0, max_s=60.0)  # between retries of a refused change
_NOT_COMPARED = (Reason.RIGID, Reason.REFUSED, Reason.SUSPENDED)  # jobs in which we look for no manual size
_MAX_DELETED = 1000  # deleted jobs that are remembered
TOGETHER = 16  # writes that run at the same time
MAX_CONSECUTIVE_CONFLICTS = 5  # of one job; then it counts as refused, and other jobs give workers
MAX_GROWTHS = 128  # that are written of one decision, so that jobs that begin to wait are served soon
Object = Mapping[str, Any]
AnnotationsOf = Callable[[Step], Mapping[str, str]]


async def _not_confirmed() -> bool:
    """Return False, since there is no Lease to read: the default of `confirm_lease`."""
    return False


async def _no_gang(_key: JobKey, _size: int, _now_s: float) -> str:
    """Return "", so that every job may shrink: the default of `before_shrink`."""
    return ""


def _no_pods(_: Step) -> tuple[str, ...]:
    """Return no names of leaving pods."""
    return ()


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A change that was not written."""

    uid: str  # of the job
    times: int  # consecutive failures, >= 1
    at_s: float  # last time, in seconds since 1970
    wait_s: float  # back-off from then on
    why: str  # the message of the API server, "" if it has not refused the change

    def holds(self, raw: Object, now_s: float) -> bool:
        """Return True if it is too early to retry on the same job. A clock that was set back delays no retry.

        raw: the job's object. now_s: seconds since 1970.
        """
        return self.uid == raw["metadata"].get("uid", "") and 0 <= now_s - self.at_s < self.wait_s


class RefusedWrites:
    """The changes of jobs that were not written, each with its back-off."""

    def __init__(self) -> None:
        self._refusals: dict[JobKey, _Refusal] = {}

    def messages(self, raw: Mapping[JobKey, Object], now_s: float) -> dict[JobKey, str]:
        """Return job -> why it was not written, for jobs with a back-off: a message of the API server or an error.

        Jobs with a back-off without such a text are left out. raw: all jobs. now_s: seconds since 1970. Refusals of
        deleted jobs are forgotten.
        """
        for key in self._refusals.keys() - raw.keys():
            del self._refusals[key]
        return {
            key: refusal.why
            for key, refusal in self._refusals.items()
            if refusal.why and refusal.holds(raw[key], now_s)
        }

    def holds(self, key: JobKey, raw: Object, now_s: float) -> bool:
        """Return True if it is too early to retry a change of a job. raw: its object. now_s: seconds since 1970."""
        refusal = self._refusals.get(key)
        return refusal is not None and refusal.holds(raw, now_s)

    def note(self, key: JobKey, raw: Object, why: str, now_s: float, retry_after_s: float = 0.0) -> None:
        """Store that a change was not written. Each consecutive failure has a longer back-off.

        raw: the job's object. why: the message of the API server, "" if it did not refuse. now_s: seconds since 1970.
        retry_after_s: the shortest back-off.
        """
        uid, before = raw["metadata"].get("uid", ""), self._refusals.get(key)
        times = 1 + (before.times if before is not None and before.uid == uid else 0)
        self._refusals[key] = _Refusal(uid, times, now_s, RETRY_BACKOFF.wait_s(times, 1.0, retry_after_s), why)

    def forget(self, key: JobKey) -> None:
        """Forget the refusals of a job, because a change was written."""
        self._refusals.pop(key, None)


class ManualSizes:
    """The sizes of jobs that we have never written, to find the sizes that a person changes."""

    def __init__(self) -> None:
        self._checked_objects: dict[JobKey, Object] = {}  # the last objects that were compared
        self._unwritten_sizes: dict[JobKey, tuple[str, int]] = {}  # uid, and the first size that was observed

    def changed_by_hand(self, steps: list[Step], raw: Mapping[JobKey, Object]) -> dict[JobKey, int]:
        """Return job -> its previous size, in workers, of the jobs whose size a person has changed.

        steps, raw: of all jobs. Only jobs that we have never written are compared; all others have an annotation with
        the size that we wrote. Suspended, rigid and refused jobs are skipped. A changed job is returned again until
        that annotation is written.
        """
        changed = {}
        for step in steps:
            obj = raw.get(step.key)
            if obj is None or step.reason in _NOT_COMPARED or step.current < 1:
                continue
            if self._checked_objects.get(step.key) is not obj and (size := self._size_before(step, obj)) is not None:
                changed[step.key] = size  # compared again until it is noted
        if len(self._checked_objects) > len(raw) + _MAX_DELETED:
            self._forget_deleted(raw)
        return changed

    def _size_before(self, step: Step, obj: Object) -> int | None:
        """Return the size before a person changed it, in workers; None if nobody has, or if we have written the job.

        The first observed size of a uid is stored, and counts as the size before in all later calls. None again if the
        size returns to it. obj: the job's object.
        """
        meta = obj["metadata"]
        if labels.WROTE_WORKERS in (meta.get("annotations") or {}):
            self._checked_objects[step.key] = obj
            self._unwritten_sizes.pop(step.key, None)
            return None
        uid = meta.get("uid", "")
        first_uid, first_size = self._unwritten_sizes.get(step.key, (uid, step.current))
        size = first_size if first_uid == uid else step.current
        self._unwritten_sizes[step.key] = uid, size
        if size != step.current:
            return size
        self._checked_objects[step.key] = obj
        return None

    def _forget_deleted(self, raw: Mapping[JobKey, Object]) -> None:
        """Forget the jobs that no longer exist. raw: all jobs."""
        self._checked_objects = {key: obj for key, obj in self._checked_objects.items() if key in raw}
        for key in self._unwritten_sizes.keys() - raw.keys():
            del self._unwritten_sizes[key]


class ScaleWriter:
    """The writer of decisions.

    jobs: the calls to the API server. kinds: by name. leader_term: returns the number of our term, None if we do not
    lead. report_outcome: called with each step that changes a job, and its outcome: Written, DryRun, NotLeading,
    Conflict or Refused. confirm_lease: reads the Lease, and returns True if we lead; called if a job carries a later
    term than ours, because its owner may have forged it. on_written: called with the annotations that were written on a
    job. before_shrink: writes what has to be written before pods leave, for a job, its new size in workers and the time
    in seconds since 1970; returns "" if the job may shrink now, else the outcome.
    """

    def __init__(
        self,
        jobs: Calls,
        kinds: Mapping[str, JobKind],
        leader_term: Callable[[], int | None],
        report_outcome: Callable[[Step, str], None],
        dry_run: bool = True,
        confirm_lease: Callable[[], Awaitable[bool]] = _not_confirmed,
        on_written: Callable[[JobKey, Mapping[str, str]], None] = lambda _key, _annotations: None,
        before_shrink: Callable[[JobKey, int, float], Awaitable[str]] = _no_gang,
    ) -> None:
        """Start without refusals. The class docstring explains the arguments."""
        self._jobs, self._kinds, self._leader_term, self._report_outcome, self.dry_run = (
            jobs,
            kinds,
            leader_term,
            report_outcome,
            dry_run,
        )
        self._confirm_lease, self._on_written, self._before_shrink = confirm_lease, on_written, before_shrink
        self._conflicts: dict[JobKey, int] = {}  # number of consecutive conflicts
        self._sent: dict[JobKey, str] = {}  # versions that we have overwritten, which the watch may still show
        self.refusals = RefusedWrites()
        self._created_plans: dict[JobKey, str] = {}  # the names of the ScalePlans of the last changes
        self._manual_sizes = ManualSizes()

    async def carry_out(
        self,
        steps: Iterable[Step],
        raw: Mapping[JobKey, Object],
        annotations_of: AnnotationsOf,
        now_s: float,
        leaving: Callable[[Step], tuple[str, ...]] = _no_pods,
    ) -> int:
        """Write the changes, shrinks first. Return the number of resized jobs.

        steps: of every job. raw: all jobs. annotations_of: returns the annotations to write on a changed job. leaving:
        returns the names of the pods that leave by a shrink. At most MAX_GROWTHS growths are written; the next decision
        makes the others, if they still fit. A job whose size a person has changed is not resized in this call. Lost
        ScalePlans are created again, and manual sizes are noted on their jobs. now_s: seconds since 1970.
        """
        steps = list(steps)
        by_hand = self._manual_sizes.changed_by_hand(steps, raw)
        _forget_deleted((self._sent, self._created_plans, self._conflicts), raw)
        # A job whose size a person has changed was decided on before that size was known.
        changes = [step for step in steps if step.changes and step.key not in by_hand]
        resized_jobs = 0
        for batch in _batches(changes):
            writes = (
                self._write_safely(step.key, raw, now_s, self._try_resize(step, leaving, raw, annotations_of, now_s))
                for step in batch
            )
            resized_jobs += sum(await asyncio.gather(*writes))
        for step in steps:
            if step.reason is Reason.NOT_READY and step.key in raw and not self.dry_run:
                await self._write_safely(
                    step.key, raw, now_s, self._create_missing_plan(step.key, raw[step.key], now_s)
                )
        for key, size in by_hand.items():
            if not self.dry_run:
                await self._write_safely(key, raw, now_s, self._note_manual_size(key, raw[key], size, now_s))
        return resized_jobs

    async def _write_safely(
        self, key: JobKey, raw: Mapping[JobKey, Object], now_s: float, write: Coroutine[None, None, bool]
    ) -> bool:
        """Return True if the write of one job was carried out; False if not, also after an exception.

        An exception delays no other job: it is logged, and counts as a refusal, so that it is reported on the job and
        retried after a back-off. raw: all jobs; an exception for a job that is missing here is only logged. write: the
        write of the job, which is awaited. now_s: seconds since 1970.
        """
        try:
            return await write
        except Exception as error:
            log.exception("job_not_written", extra={"job": str(key)})
            if key in raw:
                self.refusals.note(key, raw[key], f"it cannot be written: {error!r}", now_s)
            return False

    async def _note_manual_size(self, key: JobKey, raw: Object, size: int, now_s: float) -> bool:
        """Write the previous size in our annotations, so that every later reader sees that a person has set the present
        size.

        raw: the job's object. size: the previous one. now_s: seconds since 1970. Return True if it was written. A
        failure is logged, and the next decision retries.
        """
        if await self._term_to_write_with(raw, now_s) is None:
            return False
        change = self._kinds[key.kind].resize(raw, size)
        annotations = {labels.WROTE_WORKERS: str(size), labels.SUBMITTED_WORKERS: str(size)}
        meta = {"resourceVersion": raw["metadata"]["resourceVersion"], "annotations": annotations}
        try:
            await self._jobs.patch(change.path, {"metadata": meta}, change.media_type, FIELD_MANAGER)
        except CallError as error:
            log.info("manual_size_not_noted", extra={"job": str(key), "why": str(error)})
            return False
        log.info("manual_size_noted", extra={"job": str(key), "workers_before": size})
        return True

    def _may_try(self, key: JobKey, raw: Object, now_s: float) -> bool:
        """Return True if the watch shows our last write of a job, and no refusal delays a further one."""
        return not self.is_overwritten(key, raw) and not self.refusals.holds(key, raw, now_s)

    def is_overwritten(self, key: JobKey, raw: Object) -> bool:
        """Return True if we have written a job since this version of it, which the watch still shows."""
        return key in self._sent and self._sent[key] == raw["metadata"]["resourceVersion"]

    async def _try_resize(
        self,
        step: Step,
        leaving: Callable[[Step], tuple[str, ...]],
        jobs: Mapping[JobKey, Object],
        annotations_of: AnnotationsOf,
        now_s: float,
    ) -> bool:
        """Carry out one step, unless it is a dry run, another replica leads, or a refusal still holds. Return True if
        it was written.

        The outcome is reported, unless the job is missing in `jobs` or a retry is not due. leaving: returns the
        names of leaving pods. jobs: all objects. annotations_of: returns the annotations to write. now_s: seconds since
        1970.
        """
        raw = jobs.get(step.key)
        if self.dry_run:
            self._report_outcome(step, "DryRun")
        elif raw is not None and (term := await self._term_to_write_with(raw, now_s)) is None:
            self._report_outcome(step, "NotLeading")
        elif raw is not None and self._may_try(step.key, raw, now_s):
            annotations = {**annotations_of(step), labels.TERM: str(term)}
            names = leaving(step)
            shrinks = step.target < step.current
            if shrinks and (outcome := await self._before_shrink(step.key, step.target, now_s)):
                self._report_outcome(step, outcome)
                return False

            def change(of: Object) -> Change:
                return with_annotations(self._kinds[step.key.kind].change(of, step.target, names), annotations)

            if await self._write(step, raw, change, now_s):
                self._on_written(step.key, annotations)
                return True
        return False

    async def _term_to_write_with(self, raw: Object, now_s: float) -> int | None:
        """Return the number of our term as leader; None if we do not lead. To be called directly before a write.

        The Lease is read only if the job carries a later term of the last NEWER_S seconds: another replica may lead, or
        the job's owner has forged it. If the Lease cannot be read, we do not lead. raw: the job's object. now_s:
        seconds since 1970.
        """
        term = self._leader_term()
        annotations = raw["metadata"].get("annotations") or {}
        if term is None or not is_overruled(annotations, term, now_s):
            return term
        return term if await self._confirm_lease() else None

    async def _write(self, step: Step, raw: Object, change_of: Callable[[Object], Change], now_s: float) -> bool:
        """Write a change, and report its outcome. Return True if it was written, and the object that carries it out, if
        the kind needs one, was created.

        raw: the job's object. change_of: returns the change for a version of it. now_s: seconds since 1970. A failure
        of the API server is remembered, so that the retry waits; a conflict only after MAX_CONSECUTIVE_CONFLICTS. A job
        that was deleted meanwhile counts as a conflict.
        """
        change = change_of(raw)
        try:
            await self._patch(step, raw, change, change_of)
        except NotLeading:
            self._report_outcome(step, "NotLeading")
            return False
        except (Conflict, NotFound):
            self._report_outcome(step, "Conflict")  # the next decision uses the new version
            self._conflicts[step.key] = times = self._conflicts.get(step.key, 0) + 1
            if times >= MAX_CONSECUTIVE_CONFLICTS:
                self.refusals.note(step.key, raw, "it is changed by others faster than it can be written", now_s)
            return False
        except CallError as error:
            log.warning("resize_failed", extra={"job": str(step.key), "why": str(error)})
            self.refusals.note(step.key, raw, _refusal_message(error), now_s, error.retry_after_s)
            self._report_outcome(step, "Refused")
            return False
        self.refusals.forget(step.key)
        self._conflicts.pop(step.key, None)
        self._sent[step.key] = raw["metadata"]["resourceVersion"]
        if change.then is not None and not await self._create_plan(step.key, raw, change.then, now_s):
            self._report_outcome(step, "Refused")
            return False
        self._report_outcome(step, "Written")
        return True

    async def _patch(self, step: Step, raw: Object, change: Change, change_of: Callable[[Object], Change]) -> None:
        """Write a change. Raises CallError; Conflict if the job has changed.

        A shrink for which an earlier call got Conflict is retried at once on the newest version, if uid and spec are
        the same. Without that, an owner who changes annotations all the time could keep borrowed workers. raw: the
        job's object. change: for this version. change_of: returns the change for another version.
        """
        try:
            await self._jobs.patch(change.path, change.body, change.media_type, FIELD_MANAGER)
        except Conflict:
            if step.target > step.current or self._conflicts.get(step.key, 0) < 1:
                raise
            newer = decode_json_object(change.path, await self._jobs.get(change.path))
            if newer["metadata"].get("uid") != raw["metadata"].get("uid") or newer.get("spec") != raw.get("spec"):
                raise  # more than its annotations has changed
            newer_change = change_of(newer)
            await self._jobs.patch(newer_change.path, newer_change.body, newer_change.media_type, FIELD_MANAGER)

    async def _create_missing_plan(self, key: JobKey, raw: Object, now_s: float) -> bool:
        """Create the ScalePlan of a job's last change if it seems lost between the two writes. Return True if it exists
        now.

        False if none is missing, a retry is not due, or the write failed. raw: the job's object. now_s: seconds since
        1970.
        """
        recreate = self._kinds[key.kind].recreate_scale_plan
        change = recreate(raw) if recreate is not None and self._may_try(key, raw, now_s) else None
        if change is None or self._created_plans.get(key) == change.body["metadata"]["name"]:
            return False
        return await self._create_plan(key, raw, change, now_s)

    async def _create_plan(self, key: JobKey, raw: Object, change: Change, now_s: float) -> bool:
        """Create the object that carries out a change. Return True if it exists afterwards, also if it existed before.

        change: with the path and the object. False if another replica leads, or if the API server fails or refuses,
        which is logged and remembered. raw: the job's object. now_s: seconds since 1970.
        """
        try:
            if await self._term_to_write_with(raw, now_s) is None:
                return False
            await self._jobs.create(change.path, change.body)
        except Conflict:
            pass
        except NotLeading:
            return False
        except CallError as error:
            log.warning("scale_plan_not_created", extra={"job": str(key), "why": str(error)})
            self.refusals.note(key, raw, _refusal_message(error), now_s, error.retry_after_s)
            return False
        self._created_plans[key] = change.body["metadata"]["name"]
        return True


def _forget_deleted(tables: Iterable[dict[JobKey, Any]], raw: Mapping[JobKey, Object]) -> None:
    """Forget deleted jobs in each table that has _MAX_DELETED more entries than there are jobs. raw: all jobs."""
    for table in tables:
        if len(table) > len(raw) + _MAX_DELETED:
            for key in table.keys() - raw.keys():
                table.pop(key)


def _refusal_message(error: CallError) -> str:
    """Return the message of a refusal; "" if the server did not answer, or did not refuse. error: of the failed
    call.
    """
    return error.message if isinstance(error, Forbidden | Rejected) else ""


def mark_refused(observation: Observation, refused: Mapping[JobKey, str]) -> Observation:
    """Return the observation with these jobs as jobs that cannot be resized; itself if there are none.

    Then no decision counts on their workers, and no room is kept for them. A job that is refused already keeps its own
    reason. refused: job -> the reason.
    """
    if not refused:
        return observation
    jobs = tuple(
        replace(each, job=replace(each.job, refused=each.job.refused or refused[each.job.key]))
        if each.job.key in refused
        else each
        for each in observation.jobs
    )
    return replace(observation, jobs=jobs)


def _batches(steps: list[Step]) -> Iterator[list[Step]]:
    """Yield lists of at most TOGETHER steps to write together: all shrinks first, then at most MAX_GROWTHS growths.

    A list has either shrinks or growths. Steps that keep the size are left out.
    """
    shrinks = [step for step in steps if step.target < step.current]
    growths = [step for step in steps if step.target > step.current][:MAX_GROWTHS]
    for ordered in (shrinks, growths):
        for first in range(0, len(ordered), TOGETHER):
            yield ordered[first : first + TOGETHER]


def with_annotations(change: Change, annotations: Mapping[str, str]) -> Change:
    """Return a copy of a change that also writes these annotations on the job. annotations: annotation -> value."""
    body = json.loads(json.dumps(change.body))
    body["metadata"].setdefault("annotations", {}).update(annotations)
    return replace(change, body=body)
