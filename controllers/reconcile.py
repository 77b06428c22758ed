"""Decide what has to be written for a job, as a pure function of its object, its children and the time.

In order: an invalid object gets a condition that names the field; an ended job is cleaned up; a suspended job keeps
only the pods that its kind still runs; a job past its limits fails. Any other job gets its missing children, loses
those above its size, the highest index first, and gets the conditions that follow from its pods. Source:
docs/facts/job-kinds.md 1.2, 1.7
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from turnout.controllers import children, conditions
from turnout.controllers.model import (
    JUMP_S,
    ChildKey,
    ControlledJob,
    ControlledKind,
    Counts,
    Delete,
    EventOnJob,
    GangSettings,
    Object,
    OwnedObjects,
    PodDerivedCondition,
    PodPhase,
    Reason,
    ReconcileOutcome,
    RefusedJob,
    Role,
    StatusContext,
    Write,
    as_mapping,
)
from turnout.controllers.role_pods import ReconcileContext, RoleDecision, decide_role, missing_device_texts, soonest
from turnout.jobs.kinds.job_kind import CleanPods, Restart
from turnout.kube.times import rfc3339, unix_s

NOTHING = ReconcileOutcome()
NO_GANGS = GangSettings()
_DELETED_AT_END = ("PodGroup", "HorizontalPodAutoscaler")  # kinds of children that an ended job loses
_TIMES = ("startTime", "completionTime")  # fields of a status


@dataclass(slots=True)
class _StatusDraft:
    """The status that one reconciliation prepares: decisions change it, and add Events."""

    kind: ControlledKind
    raw: Object  # the status as stored, in the kind's own terms
    before: Object  # the same as a core status
    owned: OwnedObjects
    now_s: float  # seconds since 1970
    conditions: list[Object]
    replicas: dict[str, Object]  # by the name of the role
    start: str | None  # RFC 3339, None before the start
    completion: str | None  # RFC 3339, None before the end
    events: list[EventOnJob] = field(default_factory=list)  # to be recorded on the job
    job: ControlledJob | None = None  # None for an object that is refused

    def add_condition(self, type_: Reason, text: str, *, reason: Reason | None = None, status: bool = True) -> None:
        """Add or update a condition. status: of the condition.

        reason: the part of the condition's reason after the kind, such as Failed in PyTorchJobFailed; None for `type_`.
        """
        kind = self.kind.kind
        self.conditions = conditions.with_condition(
            self.conditions, type_, kind, text, self.now_s, reason=reason, status=status
        )

    def end(self, condition: PodDerivedCondition, reason: Reason | None = None) -> None:
        """Add the condition of the job's end, and the time of the end unless it is stored already.

        reason: of the condition, without the name of the kind in front, as in `add_condition`; None for the reason of
        `condition`.
        """
        self.completion = self.completion or rfc3339(self.now_s)
        self.add_condition(condition.reason, condition.text, reason=reason)

    def patch(self) -> Object | None:
        """Return a merge patch of the status in the kind's own terms; None if nothing changes."""
        core_status: dict[str, Any] = {"conditions": self.conditions}
        if self.replicas or "replicaStatuses" in self.before:
            core_status["replicaStatuses"] = self.replicas
        core_status |= {name: each for name, each in zip(_TIMES, (self.start, self.completion), strict=True) if each}
        translation = self.kind.status.translation
        status = translation.write(core_status, self.job, self.owned, StatusContext(self.raw, self.now_s))
        status_before = {name: self.raw[name] for name in translation.fields if name in self.raw}
        return None if status == status_before else children.merge_patch(status_before, status)


def reconcile(
    kind: ControlledKind, raw: Object, owned: OwnedObjects, now_s: float, gang_settings: GangSettings = NO_GANGS
) -> ReconcileOutcome:
    """Return what has to be written for one job.

    Nothing for a job that is being deleted, or that another controller controls. raw: the object of the job. now_s:
    seconds since 1970. Never raises for what a user writes: an invalid object is refused by a condition and an Event.
    """
    if raw["metadata"].get("deletionTimestamp"):
        return NOTHING  # the API server deletes its children
    status = _next_status(kind, raw, owned, now_s)
    job = kind.read(raw)
    if isinstance(job, RefusedJob):
        return _report_refusal(status, job)
    if job.other_controller:
        return NOTHING
    if kind.status.lifecycle is not None:
        return NOTHING if owned.pods_unreadable else kind.status.lifecycle(kind, job, raw, owned, now_s, gang_settings)
    status.job = job
    return _decide(ReconcileContext(kind, job, owned, gang_settings, now_s), status)


def _decide(context: ReconcileContext, status: _StatusDraft) -> ReconcileOutcome:
    """Return what has to be written for a valid job that we control.

    While pods cannot be read, a job that has not ended gets only its status updated, and a new job gets nothing.
    """
    job, owned = context.job, context.owned
    if conditions.has_ended(status.conditions):
        return _clean_up_ended(job, status, owned, context.now_s)
    if owned.pods_unreadable:
        return _outcome(status, ()) if status.raw else NOTHING  # nothing is decided on stale pods
    if not status.conditions:
        _note_created(status, job)
    if job.policy.suspended:
        return _suspended_outcome(context, status)
    if conditions.is_true(status.conditions, Reason.SUSPENDED):
        text = f"{context.kind.kind} {job.name} is resumed."
        _add_condition_and_event(status, Reason.RESUMED, text, type_=Reason.SUSPENDED, value=False)
        status.start = rfc3339(context.now_s)
    if _gang_has_started(job, status):
        _note_gang_start(status, job)
    if why := _reason_of_reached_limit(job, status):
        return _failed_outcome(status, why)
    return _running_outcome(context, status)


def _note_created(status: _StatusDraft, job: ControlledJob) -> None:
    """Add the condition Created, and warning Events for the owner.

    The warnings are about unexpected effects of the spec and, once nodes have been listed, about devices that no node
    offers.
    """
    status.add_condition(Reason.CREATED, f"{status.kind.kind} {job.name} is created.")
    status.events += [EventOnJob(Reason.ADVICE, text, warning=True) for text in status.kind.creation_warnings(job)]
    if status.owned.offered is not None:
        status.events += [
            EventOnJob(Reason.NOT_OFFERED, text, True) for text in missing_device_texts(job, status.owned.offered)
        ]


def _gang_has_started(job: ControlledJob, status: _StatusDraft) -> bool:
    """Return True if as many pods as the gang's min have started, whatever became of them. Pending pods have not."""
    return sum(pod.phase is not PodPhase.PENDING for pod in status.owned.pods) >= job.gang.min_member


def _note_gang_start(status: _StatusDraft, job: ControlledJob) -> None:
    """Add the condition GangStarted to a job with a limit for its start.

    It is the first condition, because kubectl shows the type of the last one as the job's state.
    """
    if job.policy.start_s is not None and not conditions.is_true(status.conditions, Reason.GANG_STARTED):
        status.add_condition(Reason.GANG_STARTED, f"{job.gang.min_member} pods of job {job.name} have started.")
        status.conditions = [status.conditions[-1], *status.conditions[:-1]]


def _reason_of_reached_limit(job: ControlledJob, status: _StatusDraft) -> str:
    """Return why a job fails by its deadline, start time or backoff limit; "" if it does not.

    Just after a clock jump, a time limit does not end the job; an Event states the delay.
    """
    time_reason = _time_limit_reason(job, status, status.now_s)
    if time_reason is not None and status.owned.jumped_s:
        status.events.append(status.owned.delay_event("its end"))
        return ""
    if time_reason is None and _failed_too_often(job, status, status.owned):
        return f"Job {job.name} has failed because it has reached the specified backoff limit"
    return time_reason or ""


def _failed_outcome(status: _StatusDraft, why: str) -> ReconcileOutcome:
    """Return the outcome of a job that fails: its children are deleted, and its status and an Event state why."""
    writes = [*children.delete_pods(status.owned.pods), *children.delete_others(status.owned)]
    status.end(PodDerivedCondition(Reason.FAILED, why))
    status.events.append(EventOnJob(Reason.FAILED, why, warning=True))
    return _outcome(status, writes)


def _next_status(kind: ControlledKind, raw: Object, owned: OwnedObjects, now_s: float) -> _StatusDraft:
    """Return the working copy of a job's status.

    Invalid parts of the stored status are left out. raw: the job's object. now_s: seconds since 1970.
    """
    status = as_mapping(raw.get("status"))
    before = kind.status.translation.read(status)
    roles = as_mapping(before.get("replicaStatuses"))
    replicas = {name: each for name, each in roles.items() if isinstance(each, Mapping)}
    start, completion = (before.get(name) if unix_s(before.get(name)) else None for name in _TIMES)
    return _StatusDraft(
        kind, status, before, owned, now_s, conditions.valid_conditions(before), replicas, start, completion
    )


def _report_refusal(status: _StatusDraft, refused: RefusedJob) -> ReconcileOutcome:
    """Return the outcome for an invalid object: a new job fails, a job that has begun keeps its pods and its old size.

    An Event states the fault in both cases.
    """
    if not status.conditions:
        reason = refused.reason if refused.reason is Reason.TOO_LARGE else None
        status.end(PodDerivedCondition(Reason.FAILED, refused.why), reason)
    status.events.append(EventOnJob(refused.reason, refused.why, warning=True))
    return _outcome(status, ())


def _add_condition_and_event(status: _StatusDraft, reason: Reason, text: str, *, type_: Reason, value: bool) -> None:
    """Add a condition of type `type_` and an Event. Both get the same reason and text.

    value: the status of the condition.
    """
    status.add_condition(type_, text, reason=reason, status=value)
    status.events.append(EventOnJob(reason, text))


def _clean_up_ended(job: ControlledJob, status: _StatusDraft, owned: OwnedObjects, now_s: float) -> ReconcileOutcome:
    """Return the outcome of an ended job: pods are deleted as cleanPodPolicy says; the job is deleted after its TTL.

    Its PodGroup and HPA are deleted in any case, since they hold room and scale nothing. After a clock jump the job is
    deleted later, and an Event says so. now_s: seconds since 1970.
    """
    children_to_delete = (each for each in owned.others.values() if each.key.kind in _DELETED_AT_END)
    writes = [*_pod_deletions_at_end(job, owned), *(Delete(each.key, each.uid) for each in children_to_delete)]
    if conditions.is_true(status.conditions, Reason.SUCCEEDED):
        status.replicas = {
            name: {**each, "succeeded": each.get("succeeded", 0) + each.get("active", 0), "active": 0}
            if each.get("active")
            else each
            for name, each in status.replicas.items()
        }
    if job.policy.ttl_s is None:
        return _outcome(status, writes)
    left_s = (unix_s(status.completion) or now_s) + job.policy.ttl_s - now_s
    if left_s <= 0 and owned.jumped_s:
        status.events.append(owned.delay_event("its deletion"))
        left_s = JUMP_S
    return replace(_outcome(status, writes), delete_job=left_s <= 0, requeue_s=max(left_s, 0.0))


def _pod_deletions_at_end(job: ControlledJob, owned: OwnedObjects) -> Iterator[Write]:
    """Yield the deletions of pods that cleanPodPolicy requires after the job's end, each with the Service of its name.

    Nothing for the policy None; with Running only pods that run or are pending. Roles with `survives_cleanup` keep
    their pods.
    """
    if job.policy.clean_pods is CleanPods.NONE:
        return
    surviving = {role.label for role in job.roles if role.survives_cleanup}
    for pod in owned.pods:
        if pod.role in surviving:
            continue
        if job.policy.clean_pods is CleanPods.ALL or pod.phase in (PodPhase.RUNNING, PodPhase.PENDING):
            if not pod.deleting:
                yield children.delete_pod(pod)
            if (service := owned.others.get(ChildKey("Service", pod.name))) is not None:
                yield Delete(service.key, service.uid)


def _suspended_outcome(context: ReconcileContext, status: _StatusDraft) -> ReconcileOutcome:
    """Return the outcome of a suspended job: its children are deleted, except those of the part that its kind keeps.

    The start time and the condition GangStarted are removed, so that time limits begin again when the job is resumed.
    """
    kind, job, owned = context.kind, context.job, context.owned
    text = f"{job.kind} {job.name} is suspended."
    if conditions.is_true(status.conditions, Reason.RUNNING):
        status.add_condition(Reason.RUNNING, text, reason=Reason.SUSPENDED, status=False)
    if not conditions.is_true(status.conditions, Reason.SUSPENDED):
        _add_condition_and_event(status, Reason.SUSPENDED, text, type_=Reason.SUSPENDED, value=True)
    status.replicas = {name: {**each, "active": 0} for name, each in status.replicas.items()}
    status.conditions = [each for each in status.conditions if each.get("type") != Reason.GANG_STARTED.value]
    status.start = None
    if (kept_job := kind.part_while_suspended(job)) is None:
        return _outcome(status, [*children.delete_pods(owned.pods), *children.delete_others(owned)])
    context = replace(context, job=kept_job)
    kept_roles = {role.label for role in kept_job.roles}
    writes = [*children.other_writes(kind.children.others(kept_job, owned), owned, context.create_budget)]
    writes += children.delete_pods(pod for pod in owned.pods if pod.role not in kept_roles)
    decisions = _decide_roles(context, status)
    for name, decision in decisions.items():
        status.replicas = {**status.replicas, name: {**status.replicas.get(name, {}), **decision.status_fields}}
    return _outcome_of_roles(context, status, writes, decisions)


def _decide_roles(context: ReconcileContext, status: _StatusDraft) -> dict[str, RoleDecision]:
    """Return name of the role -> decision on its pods. The Events of the decisions are appended to status.events."""
    decisions = {
        role.name: decide_role(context, role, status.replicas.get(role.name, {})) for role in context.job.roles
    }
    for decision in decisions.values():
        status.events += decision.events
    return decisions


def _outcome_of_roles(
    context: ReconcileContext,
    status: _StatusDraft,
    writes: Iterable[Write],
    decisions: Mapping[str, RoleDecision],
    left_s: Iterable[float] = (),
) -> ReconcileOutcome:
    """Return the outcome with `writes`, the Events and patch of `status`, and the writes and restarts of the roles.

    Its wait is the shortest of all. The status is written first if failed pods are recreated. left_s: seconds until
    decisions that depend on time are due.
    """
    all_writes = [*writes, *(write for decision in decisions.values() for write in decision.writes)]
    requeue_s = soonest(decisions.values(), *left_s, *context.create_budget.requeue_s())
    recreates_failed_pods = any(decision.recreates_failed_pods for decision in decisions.values())
    restarts = tuple(reason for decision in decisions.values() for reason in decision.restarts)
    outcome = _outcome(status, all_writes)
    return replace(outcome, requeue_s=requeue_s, status_first=recreates_failed_pods, restarts=restarts)


def _failed_too_often(job: ControlledJob, status: _StatusDraft, owned: OwnedObjects) -> bool:
    """Return True if restarts reach backoffLimit (at least 1); False without a limit.

    Recreated pods count, and container restarts of running pods whose restart policy is OnFailure or Always.
    """
    if job.policy.backoff_limit is None:
        return False
    restarts_containers = {role.label: role.restart in (Restart.ON_FAILURE, Restart.ALWAYS) for role in job.roles}
    restarts = sum(
        pod.restarts for pod in owned.pods if restarts_containers.get(pod.role) and pod.phase is PodPhase.RUNNING
    )
    restarts_of_roles = [each.get("restarts") for each in status.replicas.values()]
    failed = sum(each for each in restarts_of_roles if isinstance(each, int))
    return restarts + failed >= max(1, job.policy.backoff_limit)


def _time_limit_reason(job: ControlledJob, status: _StatusDraft, now_s: float) -> str | None:
    """Return why the job fails now by a time limit; None if none is reached.

    The limits are activeDeadlineSeconds, and `start_s` for the start of its gang. Both count from the start time in
    `status`; None without one. now_s: seconds since 1970.
    """
    policy, began_s = job.policy, unix_s(status.start)
    if policy.active_deadline_s is not None and began_s is not None and now_s - began_s >= policy.active_deadline_s:
        return f"Job {job.name} has failed because it was active longer than specified deadline"
    if _starts_too_late(job, status, now_s):
        return f"Job {job.name} has failed because fewer than {job.gang.min_member} pods started in {policy.start_s} s"
    return None


def _starts_too_late(job: ControlledJob, status: _StatusDraft, now_s: float) -> bool:
    """Return True if `start_s` has passed since the start time, and the job has never had the condition GangStarted.

    False for a job without such a limit, or without a start time. now_s: seconds since 1970.
    """
    began_s, start_s = unix_s(status.start), job.policy.start_s
    if start_s is None or began_s is None or conditions.is_true(status.conditions, Reason.GANG_STARTED):
        return False
    return now_s - began_s >= start_s


def _running_outcome(context: ReconcileContext, status: _StatusDraft) -> ReconcileOutcome:
    """Return the outcome of a job that is neither suspended nor over.

    Missing children are created, surplus children deleted, and the conditions follow from the pods, the job's end
    included.
    """
    job, owned = context.job, context.owned
    group = children.pod_group(job, context.gang_settings)
    other_children = [*([] if group is None else [group]), *context.kind.children.others(job, owned)]
    writes = [*children.other_writes(other_children, owned, context.create_budget)]
    decisions = _decide_roles(context, status)
    for role in job.roles:
        _note_role(context, status, role, decisions[role.name])
    failures = [
        decision.failure for decision in decisions.values() if decision.failure and not decision.recreates_failed_pods
    ]
    counts = {name: decision.counts for name, decision in decisions.items()}
    status.start = status.start or rfc3339(status.now_s)
    pod_conditions = (
        [PodDerivedCondition(Reason.FAILED, failures[-1])]
        if failures
        else context.kind.status.conditions_of_pods(job, counts, owned)
    )
    for condition in pod_conditions:
        _add_pod_condition(status, condition)
    return _outcome_of_roles(context, status, writes, decisions, _limits_left_s(job, status))


def _limits_left_s(job: ControlledJob, status: _StatusDraft) -> list[float]:
    """Return the seconds until each time limit that is still ahead, and JUMP_S after a clock jump; [] without any."""
    began_s = unix_s(status.start) or status.now_s
    bounds = [began_s + each for each in (job.policy.active_deadline_s, job.policy.start_s) if each is not None]
    left_s = [end - status.now_s for end in bounds if end > status.now_s]
    return [*left_s, JUMP_S] if status.owned.jumped_s else left_s


def _note_role(context: ReconcileContext, status: _StatusDraft, role: Role, decision: RoleDecision) -> None:
    """Store a role's part of the status, and add the condition Restarting if failed pods of the role are recreated."""
    if decision.recreates_failed_pods:
        status.add_condition(
            Reason.RESTARTING, f"job {context.job.name} is restarting because {role.name} replica(s) failed."
        )
    role_status = _replica_status(context.kind, context.job, role, decision.counts)
    status.replicas = {**status.replicas, role.name: {**role_status, **decision.status_fields}}


def _add_pod_condition(status: _StatusDraft, condition: PodDerivedCondition) -> None:
    """Add a condition to the status. If it ends the job, add the end time and an Event, too."""
    if condition.reason in (Reason.SUCCEEDED, Reason.FAILED):
        status.end(condition)
        status.events.append(EventOnJob(condition.reason, condition.text, condition.reason is Reason.FAILED))
    else:
        status.add_condition(condition.reason, condition.text)


def _replica_status(kind: ControlledKind, job: ControlledJob, role: Role, count: Counts) -> Object:
    """Return the part of the status about one role: its selector and the counts of its pods, zeros left out."""
    selector: dict[str, Any] = {
        "selector": ",".join(f"{k}={v}" for k, v in sorted(kind.children.selector(job, role).items()))
    }
    numbers = {"active": count.active, "succeeded": count.succeeded, "failed": count.failed}
    return {**selector, **{name: number for name, number in numbers.items() if number}}


def _outcome(status: _StatusDraft, writes: Iterable[Write]) -> ReconcileOutcome:
    """Return the outcome with these writes, the Events of the status, and the patch of the status."""
    return ReconcileOutcome(tuple(writes), tuple(status.events), status.patch())
