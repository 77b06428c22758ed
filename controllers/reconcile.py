"""Decides what a job needs written, as a pure function of its object, its children and the time.

In order: an invalid object gets a condition that names the field; an ended job is cleaned up; a suspended job owns no
pods; a job past its limits fails; any other job gets its missing children, loses those above its size, the highest
index first, and gets the conditions that follow from its pods. Source: docs/facts/job-kinds.md 1.2, 1.7
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
    JobVerdict,
    Object,
    OwnedObjects,
    PodPhase,
    Reason,
    ReconcileOutcome,
    RefusedJob,
    Role,
    Setup,
    StatusContext,
    Write,
    as_mapping,
)
from turnout.controllers.role_pods import Reconciliation, RoleDecision, decide_role, not_offered, soonest
from turnout.jobs.kinds.job_kind import CleanPods, Restart
from turnout.kube.times import rfc3339, unix_s

NOTHING = ReconcileOutcome()
NO_GANGS = Setup()
_DELETED_AT_END = ("PodGroup", "HorizontalPodAutoscaler")
_TIMES = ("startTime", "completionTime")


@dataclass(slots=True)
class _Status:
    """The next status of a job, in the core's terms."""

    kind: ControlledKind
    raw: Object
    before: Object
    known: OwnedObjects
    now_s: float
    conditions: list[Object]
    replicas: dict[str, Object]
    start: str | None
    completion: str | None
    events: list[EventOnJob] = field(default_factory=list)
    view: ControlledJob | None = None  # None for an object that is refused

    def add_condition(self, type_: Reason, text: str, *, why: Reason | None = None, on: bool = True) -> None:
        """Add a condition."""
        kind = self.kind.kind
        self.conditions = conditions.with_condition(self.conditions, type_, kind, text, self.now_s, why=why, on=on)

    def end(self, verdict: JobVerdict, why: Reason | None = None) -> None:
        """Add the job's end. why: the reason of its condition, None for the verdict's own."""
        self.completion = self.completion or rfc3339(self.now_s)
        self.add_condition(verdict.reason, verdict.text, why=why)

    def patch(self) -> Object | None:
        """Return a merge patch of the status, None if the object has it already."""
        core_status: dict[str, Any] = {"conditions": self.conditions}
        if self.replicas or "replicaStatuses" in self.before:
            core_status["replicaStatuses"] = self.replicas
        core_status |= {name: each for name, each in zip(_TIMES, (self.start, self.completion), strict=True) if each}
        words = self.kind.vocabulary
        status = words.write(core_status, self.view, self.known, StatusContext(self.raw, self.now_s))
        status_before = {name: self.raw[name] for name in words.fields if name in self.raw}
        return None if status == status_before else children.merge_patch(status_before, status)


def reconcile(
    kind: ControlledKind, raw: Object, known: OwnedObjects, now_s: float, setup: Setup = NO_GANGS
) -> ReconcileOutcome:
    """Return what has to be written for one job. now_s: seconds since 1970. Never raises for what a user writes."""
    if raw["metadata"].get("deletionTimestamp"):
        return NOTHING  # the API server deletes what it owns
    status = _next_status(kind, raw, known, now_s)
    view = kind.read(raw)
    if isinstance(view, RefusedJob):
        return _report_refusal(status, view)
    if view.other_controller:
        return NOTHING
    if kind.lifecycle is not None:
        return NOTHING if known.unread else kind.lifecycle(kind, view, raw, known, now_s, setup)
    status.view = view
    return _decide(Reconciliation(kind, view, known, setup, now_s), status)


def _decide(now: Reconciliation, status: _Status) -> ReconcileOutcome:
    """Return what has to be written for a valid job of ours."""
    view, known = now.view, now.known
    if conditions.ended(status.conditions):
        return _clean_up_ended(view, status, known, now.now_s)
    if known.unread:
        return _outcome(status, ()) if status.raw else NOTHING  # nothing is decided on stale pods
    if not status.conditions:
        _note_created(status, view)
    if view.policy.suspended:
        return _suspend(now, status)
    if conditions.is_true(status.conditions, Reason.SUSPENDED):
        text = f"{now.kind.kind} {view.name} is resumed."
        _add_condition_and_event(status, Reason.RESUMED, text, type_=Reason.SUSPENDED, on=False)
        status.start = rfc3339(now.now_s)
    if why := _limit_reached(view, status):
        return _fail(status, why)
    return _run(now, status)


def _note_created(status: _Status, view: ControlledJob) -> None:
    """Add the condition of a new job, and say what its owner should know."""
    status.add_condition(Reason.CREATED, f"{status.kind.kind} {view.name} is created.")
    status.events += [EventOnJob(Reason.ADVICE, text, warning=True) for text in status.kind.advice(view)]
    if status.known.offered is not None:
        status.events += [
            EventOnJob(Reason.NOT_OFFERED, text, True) for text in not_offered(view, status.known.offered)
        ]


def _limit_reached(view: ControlledJob, status: _Status) -> str:
    """Return why a job fails by one of its limits, "" if it does not. A clock jump delays limits of time."""
    late = _time_limit_reason(view, status, status.known, status.now_s)
    if late is not None and status.known.jumped_s:
        status.events.append(status.known.delay_event("its end"))
        return ""
    if late is None and _failed_too_often(view, status, status.known):
        return f"Job {view.name} has failed because it has reached the specified backoff limit"
    return late or ""


def _fail(status: _Status, why: str) -> ReconcileOutcome:
    """Delete all children of a job that has failed."""
    writes = [*children.delete_pods(status.known.pods), *children.delete_others(status.known)]
    status.end(JobVerdict(Reason.FAILED, why))
    status.events.append(EventOnJob(Reason.FAILED, why, warning=True))
    return _outcome(status, writes)


def _next_status(kind: ControlledKind, raw: Object, known: OwnedObjects, now_s: float) -> _Status:
    """Return the working copy of a job's status. Invalid parts of the stored status are left out."""
    status = as_mapping(raw.get("status"))
    before = kind.vocabulary.read(status)
    roles = as_mapping(before.get("replicaStatuses"))
    replicas = {name: each for name, each in roles.items() if isinstance(each, Mapping)}
    start, completion = (before.get(name) if unix_s(before.get(name)) else None for name in _TIMES)
    return _Status(kind, status, before, known, now_s, conditions.valid_conditions(before), replicas, start, completion)


def _report_refusal(status: _Status, refused: RefusedJob) -> ReconcileOutcome:
    """Report an invalid object. A job that has begun keeps its pods, and its change is not carried out."""
    if not status.conditions:
        why = refused.reason if refused.reason is Reason.TOO_LARGE else None
        status.end(JobVerdict(Reason.FAILED, refused.why), why)
    status.events.append(EventOnJob(refused.reason, refused.why, warning=True))
    return _outcome(status, ())


def _add_condition_and_event(status: _Status, why: Reason, text: str, *, type_: Reason, on: bool) -> None:
    status.add_condition(type_, text, why=why, on=on)
    status.events.append(EventOnJob(why, text))


def _clean_up_ended(view: ControlledJob, status: _Status, known: OwnedObjects, now_s: float) -> ReconcileOutcome:
    """Clean up after a job. Its PodGroup and HPA are deleted in any case: they hold room and scale nothing."""
    children_to_delete = (each for each in known.others.values() if each.key.kind in _DELETED_AT_END)
    writes = [*_pod_deletions_at_end(view, known), *(Delete(each.key, each.uid) for each in children_to_delete)]
    if conditions.is_true(status.conditions, Reason.SUCCEEDED):
        status.replicas = {
            name: {**each, "succeeded": each.get("succeeded", 0) + each.get("active", 0), "active": 0}
            if each.get("active")
            else each
            for name, each in status.replicas.items()
        }
    if view.policy.ttl_s is None:
        return _outcome(status, writes)
    left_s = (unix_s(status.completion) or now_s) + view.policy.ttl_s - now_s
    if left_s <= 0 and known.jumped_s:
        status.events.append(known.delay_event("its deletion"))
        left_s = JUMP_S
    return replace(_outcome(status, writes), delete_job=left_s <= 0, requeue_s=max(left_s, 0.0))


def _pod_deletions_at_end(view: ControlledJob, known: OwnedObjects) -> Iterator[Write]:
    """Yield the deletions of pods, each with the Service of its name, that the job's policy requires after its end."""
    if view.policy.clean_pods is CleanPods.NONE:
        return
    surviving = {role.label for role in view.roles if role.survives_cleanup}
    for pod in known.pods:
        if pod.role in surviving:
            continue
        if view.policy.clean_pods is CleanPods.ALL or pod.phase in (PodPhase.RUNNING, PodPhase.PENDING):
            if not pod.deleting:
                yield children.delete_pod(pod)
            if (other := known.others.get(ChildKey("Service", pod.name))) is not None:
                yield Delete(other.key, other.uid)


def _suspend(now: Reconciliation, status: _Status) -> ReconcileOutcome:
    """Return the writes that suspend a job: its pods are deleted, except those that its kind keeps."""
    kind, view, known = now.kind, now.view, now.known
    text = f"{view.kind} {view.name} is suspended."
    if conditions.is_true(status.conditions, Reason.RUNNING):
        status.add_condition(Reason.RUNNING, text, why=Reason.SUSPENDED, on=False)
    if not conditions.is_true(status.conditions, Reason.SUSPENDED):
        _add_condition_and_event(status, Reason.SUSPENDED, text, type_=Reason.SUSPENDED, on=True)
    status.replicas = {name: {**each, "active": 0} for name, each in status.replicas.items()}
    status.start = None
    if (left := kind.suspended_view(view)) is None:
        return _outcome(status, [*children.delete_pods(known.pods), *children.delete_others(known)])
    now = replace(now, view=left)
    named = {role.label for role in left.roles}
    writes = [*children.others(kind.extras(left, known), known, now.portion)]
    writes += children.delete_pods(pod for pod in known.pods if pod.role not in named)
    decisions = _decide_roles(now, status)
    for name, decision in decisions.items():
        status.replicas = {**status.replicas, name: {**status.replicas.get(name, {}), **decision.status_fields}}
    return _outcome_of_roles(now, status, writes, decisions)


def _decide_roles(now: Reconciliation, status: _Status) -> dict[str, RoleDecision]:
    """Return the decisions on the pods of all roles, by the name of the role."""
    decisions = {role.name: decide_role(now, role, status.replicas.get(role.name, {})) for role in now.view.roles}
    for decision in decisions.values():
        status.events += decision.events
    return decisions


def _outcome_of_roles(
    now: Reconciliation,
    status: _Status,
    writes: Iterable[Write],
    decisions: Mapping[str, RoleDecision],
    left_s: Iterable[float] = (),
) -> ReconcileOutcome:
    """Return the outcome with the writes of the roles. left_s: seconds until other decisions are due."""
    all_writes = [*writes, *(write for decision in decisions.values() for write in decision.writes)]
    requeue_s = soonest(decisions.values(), *left_s, *now.portion.requeue_s())
    restarted = any(decision.restarted for decision in decisions.values())
    restarts = tuple(reason for decision in decisions.values() for reason in decision.restarts)
    outcome = _outcome(status, all_writes)
    return replace(outcome, requeue_s=requeue_s, status_first=restarted, restarts=restarts)


def _failed_too_often(view: ControlledJob, status: _Status, known: OwnedObjects) -> bool:
    """Return True if a job's pods and containers have failed as often as its limit."""
    if view.policy.backoff_limit is None:
        return False
    tries = {role.label: role.restart in (Restart.ON_FAILURE, Restart.ALWAYS) for role in view.roles}
    restarts = sum(pod.restarts for pod in known.pods if tries.get(pod.role) and pod.phase is PodPhase.RUNNING)
    restarts_of_roles = [each.get("restarts") for each in status.replicas.values()]
    failed = sum(each for each in restarts_of_roles if isinstance(each, int))
    return restarts + failed >= max(1, view.policy.backoff_limit)


def _time_limit_reason(view: ControlledJob, status: _Status, known: OwnedObjects, now_s: float) -> str | None:
    """Return why a job has to fail by the time that has passed; None if it has not to."""
    policy, began_s = view.policy, unix_s(status.start)
    if policy.deadline_s is not None and began_s is not None and now_s - began_s >= policy.deadline_s:
        return f"Job {view.name} has failed because it was active longer than specified deadline"
    if _starts_too_late(view, status, known, now_s):
        return f"Job {view.name} has failed because {view.gang.min_member} pods did not start in {policy.start_s} s"
    return None


def _starts_too_late(view: ControlledJob, status: _Status, known: OwnedObjects, now_s: float) -> bool:
    """Return True if too few pods have started within the job's limit. A job that ran once has started."""
    began_s, policy = unix_s(status.start), view.policy
    if policy.start_s is None or began_s is None or any(each.get("type") == "Running" for each in status.conditions):
        return False
    started = sum(pod.phase in (PodPhase.RUNNING, PodPhase.SUCCEEDED) for pod in known.pods)
    return now_s - began_s >= policy.start_s and started < view.gang.min_member


def _run(now: Reconciliation, status: _Status) -> ReconcileOutcome:
    """Return the writes of a job that is neither suspended nor over."""
    view, known = now.view, now.known
    group = children.pod_group(view, now.setup)
    extras = [*([] if group is None else [group]), *now.kind.extras(view, known)]
    writes = [*children.others(extras, known, now.portion)]
    decisions = _decide_roles(now, status)
    for role in view.roles:
        _note_role(now, status, role, decisions[role.name])
    failures = [decision.failure for decision in decisions.values() if decision.failure and not decision.restarted]
    counts = {name: decision.counts for name, decision in decisions.items()}
    status.start = status.start or rfc3339(status.now_s)
    verdicts = [JobVerdict(Reason.FAILED, failures[-1])] if failures else now.kind.judge(view, counts, known)
    for verdict in verdicts:
        _note_verdict(status, verdict)
    return _outcome_of_roles(now, status, writes, decisions, _limits_left_s(view, status))


def _limits_left_s(view: ControlledJob, status: _Status) -> list[float]:
    """Return the seconds until the limits of time are reached, and until a clock jump is over."""
    began_s = unix_s(status.start) or status.now_s
    bounds = [began_s + each for each in (view.policy.deadline_s, view.policy.start_s) if each is not None]
    left_s = [end - status.now_s for end in bounds if end > status.now_s]
    return [*left_s, JUMP_S] if status.known.jumped_s else left_s


def _note_role(now: Reconciliation, status: _Status, role: Role, decision: RoleDecision) -> None:
    """Add a role's restart, and its part of the status."""
    if decision.restarted:
        status.add_condition(
            Reason.RESTARTING, f"job {now.view.name} is restarting because {role.name} replica(s) failed."
        )
    found = _replica_status(now.kind, now.view, role, decision.counts)
    status.replicas = {**status.replicas, role.name: {**found, **decision.status_fields}}


def _note_verdict(status: _Status, verdict: JobVerdict) -> None:
    """Add a condition, and an Event if the job has ended."""
    if verdict.reason in (Reason.SUCCEEDED, Reason.FAILED):
        status.end(verdict)
        status.events.append(EventOnJob(verdict.reason, verdict.text, verdict.reason is Reason.FAILED))
    else:
        status.add_condition(verdict.reason, verdict.text)


def _replica_status(kind: ControlledKind, view: ControlledJob, role: Role, count: Counts) -> Object:
    found: dict[str, Any] = {"selector": ",".join(f"{k}={v}" for k, v in sorted(kind.selector(view, role).items()))}
    numbers = {"active": count.active, "succeeded": count.succeeded, "failed": count.failed}
    return {**found, **{name: number for name, number in numbers.items() if number}}


def _outcome(status: _Status, writes: Iterable[Write]) -> ReconcileOutcome:
    return ReconcileOutcome(tuple(writes), tuple(status.events), status.patch())
