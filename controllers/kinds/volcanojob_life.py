"""The lifecycle of a Volcano Job: its phases, their transitions, its policies, and its status.

A phase is written first and carried out by the reconciliations that follow, so a restarted controller continues where
it was. A policy says which event of a pod ends or restarts the job; policies of a task come before those of the job.
Events are read from the pods that exist, so a restarted controller misses only the end of a pod that was deleted
meanwhile. Source: docs/facts/job-kinds.md 1.5; VE-27; Volcano's pkg/controllers/job/state
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from turnout.controllers import children, conditions
from turnout.controllers.children import CreateBudget
from turnout.controllers.model import (
    JUMP_S,
    ControlledJob,
    ControlledKind,
    Delete,
    EventOnJob,
    GangSettings,
    JobPhase,
    Object,
    OwnedObjects,
    PodPhase,
    PodState,
    Reason,
    ReconcileOutcome,
    Replica,
    RestartReason,
    Role,
    StatusContext,
    Write,
    as_mapping,
)
from turnout.controllers.role_pods import restart_reason
from turnout.jobs.kinds.volcanojob import (
    ABORTED,
    ABORTING,
    COMPLETED,
    COMPLETING,
    ENDS,
    FAILED,
    NEXT,
    PENDING,
    RESTARTING,
    RUNNING,
    TERMINATED,
    TERMINATING,
    VolcanoPolicy,
)
from turnout.jobs.model import BadJob
from turnout.kube.times import rfc3339, unix_s

POD_FAILED, POD_EVICTED, TASK_COMPLETED = "PodFailed", "PodEvicted", "TaskCompleted"
EVENTS = (POD_FAILED, POD_EVICTED, TASK_COMPLETED)
RESTART_JOB, ABORT_JOB, TERMINATE_JOB, COMPLETE_JOB = "RestartJob", "AbortJob", "TerminateJob", "CompleteJob"
ACTIONS = (RESTART_JOB, ABORT_JOB, TERMINATE_JOB, COMPLETE_JOB)


@dataclass(frozen=True, slots=True)
class LifecyclePolicy:
    """One policy: the action that follows an event of a pod."""

    events: frozenset[str]  # words of EVENTS; empty where an exit code is named
    exit_code: int | None  # of a container, not 0; None where events are named
    action: str  # a word of ACTIONS

    def matches(self, event: _Event) -> bool:
        """Return True if the policy names this event; with an exit code, if the pod has failed with this code."""
        if self.exit_code is not None:
            return event.word == POD_FAILED and event.pod.training_container.exit_code == self.exit_code
        return event.word in self.events


class _Event(NamedTuple):
    """An event of a pod."""

    word: str  # of EVENTS
    pod: PodState


class DueAction(NamedTuple):
    """The action that a policy calls for now."""

    action: str = ""  # a word of ACTIONS; "" for none
    why: str = ""  # text about the event, for the status and the Event
    restart: RestartReason = RestartReason.TASK_COMPLETED  # the reason, if the action is a restart


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of a job."""

    of_job: Sequence[LifecyclePolicy] = ()
    by_role: Mapping[str, Sequence[LifecyclePolicy]] = field(default_factory=dict)  # by the label of the role


def read_policies(policies: Sequence[VolcanoPolicy], where: str) -> tuple[LifecyclePolicy, ...]:
    """Return the policies of a job or of one of its tasks. where: their path in the object.

    Raises BadJob for an invalid policy, and for an event or exit code that two policies name.
    """
    lifecycle_policies = tuple(_read_policy(each, f"{where}[{number}]") for number, each in enumerate(policies))
    events = [event for policy in lifecycle_policies for event in policy.events]
    if duplicates := sorted({event for event in events if events.count(event) > 1}):
        raise BadJob(f"{where} has {duplicates[0]} twice")
    codes = [policy.exit_code for policy in lifecycle_policies if policy.exit_code is not None]
    if len(codes) > len(set(codes)):
        raise BadJob(f"{where} has an exitCode twice")
    return lifecycle_policies


def _read_policy(policy: VolcanoPolicy, where: str) -> LifecyclePolicy:
    """Return one policy of a job or task. where: its path in the object.

    Raises BadJob unless it has either known events or an exitCode other than 0, a known action, and no timeout.
    """
    events, code = {each for each in (policy.event, *policy.events) if each}, policy.exit_code
    if unknown := sorted(events - {*EVENTS}):
        raise BadJob(f"{where} has the event {unknown[0]!r:.40}: {', '.join(EVENTS)} are known")
    if code is not None and not 0 < abs(code) < 2**31:
        raise BadJob(f"{where}.exitCode is {code!r:.40}: a whole number other than 0 is needed")
    if bool(events) == (code is not None):
        raise BadJob(f"{where} needs either events or an exitCode")
    if policy.action not in ACTIONS:
        raise BadJob(f"{where}.action is {policy.action!r:.40}: {', '.join(ACTIONS)} are known")
    if policy.timeout:
        raise BadJob(f"{where}.timeout is not supported: a policy acts at once")
    return LifecyclePolicy(frozenset(events), code, policy.action)


def due_action(policies: Policies, roles: Sequence[Role], owned: OwnedObjects) -> DueAction:
    """Return the action of the first policy that matches an event; its `action` is "" if none matches.

    The first event, in the order of `_events`, for which there is a policy decides. For one event, policies of its task
    come before those of the job.
    """
    for event in _events(roles, owned):
        for policy in (*policies.by_role.get(event.pod.role, ()), *policies.of_job):
            if policy.matches(event):
                exit_code = event.pod.training_container.exit_code
                code = f" with {exit_code}" if event.word == POD_FAILED and exit_code else ""
                restart = RestartReason.TASK_COMPLETED if event.word == TASK_COMPLETED else restart_reason(event.pod)
                return DueAction(policy.action, f"{event.word} of {event.pod.name}{code}", restart)
    return DueAction()


def _events(roles: Sequence[Role], owned: OwnedObjects) -> Iterator[_Event]:
    """Yield the events of failed and terminating pods, by name of the pod, then an event for each completed task.

    Pods above the size of their task have events, too, as in Volcano. So a shrink is a PodEvicted event.
    """
    for pod in sorted(owned.pods, key=lambda each: each.name):
        if pod.deleting:
            yield _Event(POD_EVICTED, pod)
        elif pod.phase is PodPhase.FAILED:
            yield _Event(POD_FAILED, pod)
    pods = children.by_role(owned.pods)
    for role in roles:
        task_pods = pods.get(role.label, [])
        if len(task_pods) == role.replicas > 0 and all(_succeeded(pod) for pod in task_pods):
            yield _Event(TASK_COMPLETED, max(task_pods, key=lambda pod: pod.state_since_s))


def _succeeded(pod: PodState) -> bool:
    """Return True if a pod has succeeded and does not terminate."""
    return pod.phase is PodPhase.SUCCEEDED and not pod.deleting


_PHASES = {
    RUNNING: JobPhase.RUNNING,
    COMPLETING: JobPhase.RUNNING,
    RESTARTING: JobPhase.RESTARTING,
    ABORTING: JobPhase.SUSPENDED,
    ABORTED: JobPhase.SUSPENDED,
    COMPLETED: JobPhase.SUCCEEDED,
    TERMINATING: JobPhase.FAILED,
    TERMINATED: JobPhase.FAILED,
    FAILED: JobPhase.FAILED,
}


def job_phase(status: Object) -> JobPhase:
    """Return the phase of a job by its status; PENDING for a new job and for an unknown word."""
    return _PHASES.get(_phase(status), JobPhase.PENDING)


# The phase that each action of a policy leads to.
_PHASE_OF_ACTION = {
    ABORT_JOB: ABORTING,
    TERMINATE_JOB: TERMINATING,
    COMPLETE_JOB: COMPLETING,
    RESTART_JOB: RESTARTING,
}
# Fields of the status that count pods.
_COUNTS = ("pending", "running", "succeeded", "failed", "unknown", "terminating")
_OTHER_FIELDS = ("taskStatusCount", "version", "retryCount", "conditions", "controlledResources")
FIELDS: tuple[str, ...] = ("state", "minAvailable", *_COUNTS, *_OTHER_FIELDS)
_MAX_CONDITIONS = 32  # in a status, the newest
_SUSPENDED = Reason.SUSPENDED.value


@dataclass(frozen=True, slots=True)
class _PhaseContext:
    """The input of all decisions of one reconciliation of a Volcano Job."""

    kind: ControlledKind
    job: ControlledJob
    before: Object  # the stored status
    owned: OwnedObjects
    now_s: float  # seconds since 1970
    gang_settings: GangSettings

    @property
    def phase(self) -> str:
        """The phase of the stored status, Pending for a new job."""
        return _phase(self.before) or PENDING

    @property
    def living_pods(self) -> list[PodState]:
        """The pods that have neither succeeded nor failed."""
        return [pod for pod in self.owned.pods if pod.phase not in (PodPhase.SUCCEEDED, PodPhase.FAILED)]

    @property
    def members(self) -> list[PodState]:
        """The pods of the job's present tasks and sizes that do not terminate."""
        sizes = {role.label: role.replicas for role in self.job.roles}
        return [pod for pod in self.owned.pods if not pod.deleting and 0 <= pod.index < sizes.get(pod.role, 0)]


def lifecycle(
    kind: ControlledKind,
    job: ControlledJob,
    raw: Object,
    owned: OwnedObjects,
    now_s: float,
    gang_settings: GangSettings,
) -> ReconcileOutcome:
    """Return the outcome for a job: the next phase of the table, and the writes that lead there.

    raw: the job's object. now_s: seconds since 1970.
    """
    context = _PhaseContext(kind, job, as_mapping(raw.get("status")), owned, now_s, gang_settings)
    if (
        context.phase in (ABORTING, ABORTED)
        and _state_text(context.before, "reason") == _SUSPENDED
        and not job.policy.suspended
    ):
        return _outcome(context, RESTARTING, "it is resumed", version=job.spec["version"] + 1)
    if context.phase in ENDS:
        return _clean_up(context)
    if context.phase in NEXT:
        writes = tuple(children.delete_pods(context.living_pods))
        message, reason = _state_text(context.before, "message"), _state_text(context.before, "reason")
        return (
            _outcome(context, context.phase, writes=writes)
            if context.living_pods
            else _outcome(context, NEXT[context.phase], message, reason=reason)
        )
    if job.policy.suspended:
        return _outcome(context, ABORTING, "it is suspended", reason=_SUSPENDED, version=job.spec["version"] + 1)
    if context.phase == RESTARTING:
        return _restart(context)
    action = due_action(job.spec["policies"], job.roles, owned)
    if action.action:
        return _carry_out_policy(context, action)
    if end := _end_by_results(context):
        return _outcome(context, *end)
    return _keep_running(context)


def _carry_out_policy(context: _PhaseContext, action: DueAction) -> ReconcileOutcome:
    """Return the outcome that enters the phase of a due action. The job's version rises; a restart is counted."""
    phase = _PHASE_OF_ACTION[action.action]
    counters = {"version": context.job.spec["version"] + 1}
    if phase == RESTARTING:
        counters["retryCount"] = context.job.spec["retry_count"] + 1
    outcome = _outcome(context, phase, f"{action.action}: {action.why}", **counters)
    return replace(outcome, restarts=(action.restart,)) if phase == RESTARTING else outcome


def _restart(context: _PhaseContext) -> ReconcileOutcome:
    """Return the outcome of a restarting job: all pods are deleted first, then the job is Pending again.

    At most maxRetry restarts are made; the next one fails the job, and its ended pods stay for their logs.
    """
    is_exhausted = context.job.spec["retry_count"] > context.job.spec["max_retry"]
    if remaining := (context.living_pods if is_exhausted else context.owned.pods):
        return _outcome(context, RESTARTING, writes=tuple(children.delete_pods(remaining)))
    if is_exhausted:
        why = (
            f"{_state_text(context.before, 'message')}; it was restarted {context.job.spec['max_retry']} times already"
        )
        return _outcome(context, FAILED, why)
    return _outcome(context, PENDING)


def _end_by_results(context: _PhaseContext) -> tuple[str, str] | None:
    """Return (phase, why) if the pods' results end the job; None if it continues.

    Terminating pods, and pods above the job's size, do not count. An elastic job succeeds with as many pods as its gang
    needs. Source: VE-27
    """
    spec, total = context.job.spec, sum(role.replicas for role in context.job.roles)
    members = context.members
    succeeded = sum(pod.phase is PodPhase.SUCCEEDED for pod in members)
    failed = sum(pod.phase is PodPhase.FAILED for pod in members)
    if context.phase != RUNNING or not total or succeeded + failed < total:
        return None
    min_pods = context.job.gang.min_member
    if min_pods >= sum(spec["min_by_task"].values()) and (why := _missing_successes_text(context, members)):
        return FAILED, why
    if succeeded >= min_pods:
        return COMPLETED, f"{succeeded} of {total} pods have succeeded"
    return FAILED, f"{succeeded} pods succeeded, {min_pods} are needed"


def _missing_successes_text(context: _PhaseContext, pods: Iterable[PodState]) -> str:
    """Return a text about the first task of which fewer pods have succeeded than `min_by_task` says; "" if there is
    none.
    """
    needed = context.job.spec["min_by_task"]
    succeeded = Counter(pod.role for pod in pods if pod.phase is PodPhase.SUCCEEDED)
    for role in context.job.roles:
        if (count := succeeded[role.label]) < needed[role.label]:
            return f"{count} pods of task {role.name} succeeded, {needed[role.label]} are needed"
    return ""


def _keep_running(context: _PhaseContext) -> ReconcileOutcome:
    """Return the outcome of a job that continues, Running or Pending: children are created, updated and deleted as
    needed.

    Pods are created only once Volcano has admitted the PodGroup, and within one reconciliation's budget.
    """
    kind, job, owned = context.kind, context.job, context.owned
    group = children.pod_group(job, context.gang_settings)
    budget, pods = CreateBudget(), children.by_role(owned.pods)
    writes = [
        *children.other_writes([*([] if group is None else [group]), *kind.children.others(job, owned)], owned, budget)
    ]
    tasks = {role.label for role in job.roles}
    waits_for_admission = children.waits_for_admission(owned, context.gang_settings)
    for role in job.roles:
        task_pods = pods.get(role.label, [])
        writes += children.delete_pods(children.surplus_pods(role, task_pods))
        if waits_for_admission:
            continue
        for index in children.missing_indices(role, task_pods):
            if budget.leave_out_next():
                break
            replica = Replica(index, index)
            writes.append(
                budget.create(partial(children.pod_body, kind, job, role, replica, owned, context.gang_settings))
            )
    writes += children.delete_pods(pod for pod in owned.pods if pod.role not in tasks)
    return _outcome(
        context,
        _running_or_pending(context),
        writes=tuple(writes),
        requeue_s=min(budget.requeue_s(), default=None),
    )


def _running_or_pending(context: _PhaseContext) -> str:
    """Return the phase of a job that continues: Running once at least the gang's min of pods, and at least 1, has
    started.

    A running job becomes Pending again if more of its pods are Pending than it has above the gang's min.
    """
    counts = _counts(context.members)
    begun = counts["running"] + counts["succeeded"] + counts["failed"]
    total = sum(role.replicas for role in context.job.roles)
    min_pods = context.job.gang.min_member
    if context.phase == RUNNING:
        return PENDING if counts["pending"] > total - min_pods else RUNNING
    return RUNNING if begun and begun >= min_pods else PENDING


def _clean_up(context: _PhaseContext) -> ReconcileOutcome:
    """Return the outcome of an ended job: pods that have not ended, and the PodGroup, are deleted.

    After its TTL the job itself is deleted; a suspended job is not. A clock jump delays the deletion.
    """
    writes: list[Write] = [*children.delete_pods(context.living_pods)]
    writes += [Delete(each.key, each.uid) for each in context.owned.others.values() if each.key.kind == "PodGroup"]
    if context.job.policy.ttl_s is None or _state_text(context.before, "reason") == _SUSPENDED:
        return _outcome(context, context.phase, writes=tuple(writes))
    ended_s = unix_s(as_mapping(context.before.get("state")).get("lastTransitionTime"))
    left_s = (context.now_s if ended_s is None else ended_s) + context.job.policy.ttl_s - context.now_s
    if context.owned.jumped_s:
        left_s = max(left_s, JUMP_S)
    return _outcome(context, context.phase, writes=tuple(writes), requeue_s=max(left_s, 0.0), delete_job=left_s <= 0)


def _outcome(
    context: _PhaseContext,
    phase: str,
    message: str = "",
    *,
    writes: Sequence[Write] = (),
    requeue_s: float | None = None,
    delete_job: bool = False,
    reason: str = "",
    **counters: int,
) -> ReconcileOutcome:
    """Return the outcome with the status of a phase. Events are added only if the phase changes.

    message: text of a new phase for people. reason: its reason in the status. Both are "" for none. writes: in order,
    as they are. requeue_s: seconds until the next reconciliation at the latest; None for no limit. delete_job: delete
    the job, too. counters: fields of the status by their names on the wire, such as `retryCount`.
    """
    before, is_new = context.before, phase != _phase(context.before)
    status: dict[str, Any] = {
        "state": before.get("state"),
        "minAvailable": context.job.gang.min_member,
        **_counts(context.owned.pods),
        "taskStatusCount": _by_task(context.owned.pods),
        "version": context.job.spec["version"],
        "retryCount": context.job.spec["retry_count"],
        **counters,
    }
    all_conditions = conditions.valid_conditions(before)
    if is_new:
        status["state"] = _state(phase, message, context.now_s, reason)
        all_conditions.append({"status": phase, "lastTransitionTime": rfc3339(context.now_s)})
    status["conditions"] = all_conditions[-_MAX_CONDITIONS:] if is_new else all_conditions
    status["controlledResources"] = {f"plugin-{name}": name for name in context.job.spec["plugins"]}
    status_before = {name: before[name] for name in FIELDS if name in before}
    patch = None if status == status_before else children.merge_patch(status_before, status)
    return ReconcileOutcome(
        tuple(writes),
        _events_of_phase(context, phase, message) if is_new else (),
        patch,
        requeue_s=requeue_s,
        delete_job=delete_job,
    )


def _events_of_phase(context: _PhaseContext, phase: str, message: str) -> tuple[EventOnJob, ...]:
    """Return the Event for a job that has just reached a phase; () for a phase that it only passes through.

    message: why it has reached the phase, "" for none.
    """
    text = f"Job {context.job.name} is {phase}{f': {message}' if message else '.'}"
    match phase:
        case "Running":
            return (EventOnJob(Reason.RUNNING, text),)
        case "Restarting":
            return (EventOnJob(Reason.RESTARTING, text, warning=True),)
        case "Completed":
            return (EventOnJob(Reason.SUCCEEDED, text),)
        case "Failed" | "Aborted" | "Terminated":
            return (EventOnJob(Reason.FAILED, text, warning=True),)
    return ()


def _state(phase: str, message: str, now_s: float, reason: str = "") -> dict[str, Any]:
    """Return the value of `state` in a status: phase, lastTransitionTime and, unless they are empty, message and
    reason.

    message: text for people. now_s: when the phase began, in seconds since 1970.
    """
    texts = {"message": message, "reason": reason}
    return {"phase": phase, "lastTransitionTime": rfc3339(now_s), **{key: each for key, each in texts.items() if each}}


def _counts(pods: Iterable[PodState]) -> dict[str, int]:
    """Return the number of pods by phase, as the fields of the status; terminating pods count as such."""
    counts = Counter("terminating" if pod.deleting else pod.phase.value.lower() for pod in pods)
    return {word: counts[word] for word in _COUNTS}


def _by_task(pods: Iterable[PodState]) -> dict[str, Any]:
    """Return label of a task -> {"phase": {phase: pods}}, as the status has it."""
    counts_of_task: dict[str, Any] = {}
    for pod in pods:
        phases = counts_of_task.setdefault(pod.role, {"phase": {}})["phase"]
        phases[pod.phase.value] = phases.get(pod.phase.value, 0) + 1
    return counts_of_task


def _phase(status: Object) -> str:
    """Return the phase of a status, "" for none."""
    return _state_text(status, "phase")


def _state_text(status: Object, key: str) -> str:
    """Return a text of the field `state` of a status, "" for none."""
    text = as_mapping(status.get("state")).get(key)
    return text if isinstance(text, str) else ""


def to_core_status(status: Object) -> Object:
    """Return the core status of a refused object: whether its job has begun. Nothing else is read from it."""
    begun = {"type": Reason.CREATED.value, "status": "True"}
    return {"conditions": [begun] if _phase(status) else []}


def to_volcano_status(
    status: Object, _job: ControlledJob | None, _owned: OwnedObjects, moment: StatusContext
) -> Object:
    """Return the status of a refused object: Failed, and why.

    If its job has begun, `status` has no Failed condition, and the stored status is returned with the fields of Volcano
    only. status: the core status. moment: has the stored status as `before`.
    """
    before = {name: moment.before[name] for name in FIELDS if name in moment.before}
    failed = [each for each in conditions.valid_conditions(status) if each.get("type") == Reason.FAILED.value]
    return {**before, "state": _state(FAILED, str(failed[0].get("message")), moment.now_s)} if failed else before
