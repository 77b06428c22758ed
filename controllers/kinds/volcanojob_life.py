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
from turnout.controllers.children import Portion
from turnout.controllers.model import (
    JUMP_S,
    ControlledJob,
    ControlledKind,
    Delete,
    EventOnJob,
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
    Setup,
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
    """One of a list of policies."""

    events: frozenset[str]  # words of EVENTS; empty where an exit code is named
    exit_code: int | None  # of a container, not 0; None where events are named
    action: str  # a word of ACTIONS

    def matches(self, event: _Event) -> bool:
        """Return True if the policy is about this event."""
        if self.exit_code is not None:
            return event.word == POD_FAILED and event.pod.exit_code == self.exit_code
        return event.word in self.events


class _Event(NamedTuple):
    """An event of a pod."""

    word: str  # of EVENTS
    pod: PodState


class DueAction(NamedTuple):
    """The action that a policy calls for now."""

    action: str = ""  # a word of ACTIONS; "" for none
    why: str = ""
    restart: RestartReason = RestartReason.TASK_COMPLETED  # the reason, if the action is a restart


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of a job."""

    of_job: Sequence[LifecyclePolicy] = ()
    by_role: Mapping[str, Sequence[LifecyclePolicy]] = field(default_factory=dict)  # by the label of the role


def read_policies(policies: Sequence[VolcanoPolicy], where: str) -> tuple[LifecyclePolicy, ...]:
    """Return the policies of a job or of one of its tasks. where: their path. Raises BadJob."""
    found = tuple(_read_policy(each, f"{where}[{number}]") for number, each in enumerate(policies))
    events = [event for policy in found for event in policy.events]
    if duplicates := sorted({event for event in events if events.count(event) > 1}):
        raise BadJob(f"{where} has {duplicates[0]} twice")
    codes = [policy.exit_code for policy in found if policy.exit_code is not None]
    if len(codes) > len(set(codes)):
        raise BadJob(f"{where} has an exitCode twice")
    return found


def _read_policy(policy: VolcanoPolicy, where: str) -> LifecyclePolicy:
    """Return one policy of a job or task. where: its path. Raises BadJob."""
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


def due_action(policies: Policies, roles: Sequence[Role], known: OwnedObjects) -> DueAction:
    """Return the action of the first policy that matches an event."""
    for event in _events(roles, known):
        for policy in (*policies.by_role.get(event.pod.role, ()), *policies.of_job):
            if policy.matches(event):
                code = f" with {event.pod.exit_code}" if event.word == POD_FAILED and event.pod.exit_code else ""
                restart = RestartReason.TASK_COMPLETED if event.word == TASK_COMPLETED else restart_reason(event.pod)
                return DueAction(policy.action, f"{event.word} of {event.pod.name}{code}", restart)
    return DueAction()


def _events(roles: Sequence[Role], known: OwnedObjects) -> Iterator[_Event]:
    """Yield the events of the pods in the order of their names, then those of the tasks."""
    for pod in sorted(known.pods, key=lambda each: each.name):
        if pod.deleting:
            yield _Event(POD_EVICTED, pod)
        elif pod.phase is PodPhase.FAILED:
            yield _Event(POD_FAILED, pod)
    pods = children.by_role(known.pods)
    for role in roles:
        mine = pods.get(role.label, [])
        if len(mine) == role.replicas > 0 and all(_succeeded(pod) for pod in mine):
            yield _Event(TASK_COMPLETED, max(mine, key=lambda pod: pod.since_s))


def _succeeded(pod: PodState) -> bool:
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


_BY_ACTION = {
    ABORT_JOB: ABORTING,
    TERMINATE_JOB: TERMINATING,
    COMPLETE_JOB: COMPLETING,
    RESTART_JOB: RESTARTING,
}
_COUNTS = ("pending", "running", "succeeded", "failed", "unknown", "terminating")
_NOTED = ("taskStatusCount", "version", "retryCount", "conditions", "controlledResources")
FIELDS: tuple[str, ...] = ("state", "minAvailable", *_COUNTS, *_NOTED)
_MOST_CONDITIONS = 32
_SUSPENDED = Reason.SUSPENDED.value


@dataclass(frozen=True, slots=True)
class _JobAtPhase:
    """A job at one reconciliation. before: its status."""

    kind: ControlledKind
    view: ControlledJob
    before: Object
    known: OwnedObjects
    now_s: float
    setup: Setup

    @property
    def phase(self) -> str:
        return _phase(self.before) or PENDING

    @property
    def alive(self) -> list[PodState]:
        return [pod for pod in self.known.pods if pod.phase not in (PodPhase.SUCCEEDED, PodPhase.FAILED)]

    @property
    def members(self) -> list[PodState]:
        """Return the pods that belong to the job as it is now."""
        sizes = {role.label: role.replicas for role in self.view.roles}
        return [pod for pod in self.known.pods if not pod.deleting and 0 <= pod.index < sizes.get(pod.role, 0)]


def lifecycle(
    kind: ControlledKind, view: ControlledJob, raw: Object, known: OwnedObjects, now_s: float, setup: Setup
) -> ReconcileOutcome:
    """Decide the next phase of a job, and the writes that lead there."""
    at = _JobAtPhase(kind, view, as_mapping(raw.get("status")), known, now_s, setup)
    if at.phase in (ABORTING, ABORTED) and _state_text(at.before, "reason") == _SUSPENDED and not view.policy.suspended:
        return _outcome(at, RESTARTING, "it is resumed", version=view.spec["version"] + 1)
    if at.phase in ENDS:
        return _clean_up(at)
    if at.phase in NEXT:
        writes = tuple(children.delete_pods(at.alive))
        why, reason = _state_text(at.before, "message"), _state_text(at.before, "reason")
        return _outcome(at, at.phase, writes=writes) if at.alive else _outcome(at, NEXT[at.phase], why, reason=reason)
    if view.policy.suspended:
        return _outcome(at, ABORTING, "it is suspended", reason=_SUSPENDED, version=view.spec["version"] + 1)
    if at.phase == RESTARTING:
        return _restart(at)
    due = due_action(view.spec["policies"], view.roles, known)
    if due.action:
        return _carry_out_policy(at, due)
    if end := _end_by_results(at):
        return _outcome(at, *end)
    return _keep_running(at)


def _carry_out_policy(at: _JobAtPhase, due: DueAction) -> ReconcileOutcome:
    """Enter the phase that a due action of a policy leads to. The job's version rises; a restart is counted."""
    phase = _BY_ACTION[due.action]
    counted = {"version": at.view.spec["version"] + 1}
    if phase == RESTARTING:
        counted["retryCount"] = at.view.spec["retried"] + 1
    outcome = _outcome(at, phase, f"{due.action}: {due.why}", **counted)
    return replace(outcome, restarts=(due.restart,)) if phase == RESTARTING else outcome


def _restart(at: _JobAtPhase) -> ReconcileOutcome:
    """Delete all pods, then create them again. After the last retry, ended pods stay for their log.

    maxRetry restarts are made; the next one fails the job.
    """
    past = at.view.spec["retried"] > at.view.spec["retries"]
    if left := (at.alive if past else at.known.pods):
        return _outcome(at, RESTARTING, writes=tuple(children.delete_pods(left)))
    if past:
        why = f"{_state_text(at.before, 'message')}; it was restarted {at.view.spec['retries']} times already"
        return _outcome(at, FAILED, why)
    return _outcome(at, PENDING)


def _end_by_results(at: _JobAtPhase) -> tuple[str, str] | None:
    """Return the phase that follows from the pods' results, and why; None if the job continues.

    Terminating pods, and pods above the job's size, do not count. An elastic job succeeds with as many pods as its gang
    needs. Source: VE-27
    """
    spec, total = at.view.spec, sum(role.replicas for role in at.view.roles)
    staying = at.members
    good = sum(pod.phase is PodPhase.SUCCEEDED for pod in staying)
    bad = sum(pod.phase is PodPhase.FAILED for pod in staying)
    if at.phase != RUNNING or not total or good + bad < total:
        return None
    least = at.view.gang.min_member
    if least >= sum(spec["least"].values()) and (why := _lacks_successes(at, staying)):
        return FAILED, why
    if good >= least:
        return COMPLETED, f"{good} of {total} pods have succeeded"
    return FAILED, f"{good} pods succeeded, {least} are needed"


def _lacks_successes(at: _JobAtPhase, pods: Iterable[PodState]) -> str:
    """Return which task has too few successful pods, "" if none has."""
    needed = at.view.spec["least"]
    succeeded = Counter(pod.role for pod in pods if pod.phase is PodPhase.SUCCEEDED)
    for role in at.view.roles:
        if (count := succeeded[role.label]) < needed[role.label]:
            return f"{count} pods of task {role.name} succeeded, {needed[role.label]} are needed"
    return ""


def _keep_running(at: _JobAtPhase) -> ReconcileOutcome:
    """Bring the children to what is needed, and set whether the job runs."""
    kind, view, known = at.kind, at.view, at.known
    group = children.pod_group(view, at.setup)
    portion, pods = Portion(), children.by_role(known.pods)
    writes = [*children.others([*([] if group is None else [group]), *kind.extras(view, known)], known, portion)]
    tasks = {role.label for role in view.roles}
    waits_for_admission = children.waits_for_admission(known, at.setup)
    for role in view.roles:
        mine = pods.get(role.label, [])
        writes += children.delete_pods(children.surplus(role, mine))
        if waits_for_admission:
            continue
        for index in children.missing(role, mine):
            if portion.is_full():
                break
            replica = Replica(index, index)
            writes.append(portion.create(partial(children.pod, kind, view, role, replica, known, at.setup)))
    writes += children.delete_pods(pod for pod in known.pods if pod.role not in tasks)
    return _outcome(at, _running_or_pending(at), writes=tuple(writes), requeue_s=min(portion.requeue_s(), default=None))


def _running_or_pending(at: _JobAtPhase) -> str:
    """Return Running once as many pods as the gang needs have begun, and Pending again if too many wait."""
    counts = _counts(at.members)
    begun = counts["running"] + counts["succeeded"] + counts["failed"]
    total = sum(role.replicas for role in at.view.roles)
    least = at.view.gang.min_member
    if at.phase == RUNNING:
        return PENDING if counts["pending"] > total - least else RUNNING
    return RUNNING if begun and begun >= least else PENDING


def _clean_up(at: _JobAtPhase) -> ReconcileOutcome:
    """Delete running pods and the PodGroup, which holds room, and the job once its time to live is over."""
    writes: list[Write] = [*children.delete_pods(at.alive)]
    writes += [Delete(each.key, each.uid) for each in at.known.others.values() if each.key.kind == "PodGroup"]
    if at.view.policy.ttl_s is None or _state_text(at.before, "reason") == _SUSPENDED:
        return _outcome(at, at.phase, writes=tuple(writes))
    ended_s = unix_s(as_mapping(at.before.get("state")).get("lastTransitionTime"))
    left_s = (at.now_s if ended_s is None else ended_s) + at.view.policy.ttl_s - at.now_s
    if at.known.jumped_s:
        left_s = max(left_s, JUMP_S)
    return _outcome(at, at.phase, writes=tuple(writes), requeue_s=max(left_s, 0.0), delete_job=left_s <= 0)


def _outcome(
    at: _JobAtPhase,
    phase: str,
    why: str = "",
    *,
    writes: Sequence[Write] = (),
    requeue_s: float | None = None,
    delete_job: bool = False,
    reason: str = "",
    **counted: int,
) -> ReconcileOutcome:
    """Return the writes, with the status that follows. why, reason: of a new phase."""
    before, new = at.before, phase != _phase(at.before)
    status: dict[str, Any] = {
        "state": before.get("state"),
        "minAvailable": at.view.gang.min_member,
        **_counts(at.known.pods),
        "taskStatusCount": _by_task(at.known.pods),
        "version": at.view.spec["version"],
        "retryCount": at.view.spec["retried"],
        **counted,
    }
    listed = conditions.valid_conditions(before)
    if new:
        status["state"] = _state(phase, why, at.now_s, reason)
        listed = [*listed, {"status": phase, "lastTransitionTime": rfc3339(at.now_s)}][-_MOST_CONDITIONS:]
    status["conditions"] = listed
    status["controlledResources"] = {f"plugin-{name}": name for name in at.view.spec["plugins"]}
    status_before = {name: before[name] for name in FIELDS if name in before}
    patch = None if status == status_before else children.merge_patch(status_before, status)
    return ReconcileOutcome(
        tuple(writes),
        _events_of_phase(at, phase, why) if new else (),
        patch,
        requeue_s=requeue_s,
        delete_job=delete_job,
    )


def _events_of_phase(at: _JobAtPhase, phase: str, why: str) -> tuple[EventOnJob, ...]:
    """Return the Events for a job that has just reached a phase. why: the reason, "" for none."""
    text = f"Job {at.view.name} is {phase}{f': {why}' if why else '.'}"
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


def _state(phase: str, why: str, now_s: float, reason: str = "") -> dict[str, Any]:
    texts = {"message": why, "reason": reason}
    return {"phase": phase, "lastTransitionTime": rfc3339(now_s), **{key: each for key, each in texts.items() if each}}


def _counts(pods: Iterable[PodState]) -> dict[str, int]:
    counts = Counter("terminating" if pod.deleting else pod.phase.value.lower() for pod in pods)
    return {word: counts[word] for word in _COUNTS}


def _by_task(pods: Iterable[PodState]) -> dict[str, Any]:
    """Count the pods of each task by phase, as the job's status shows them."""
    found: dict[str, Any] = {}
    for pod in pods:
        phases = found.setdefault(pod.role, {"phase": {}})["phase"]
        phases[pod.phase.value] = phases.get(pod.phase.value, 0) + 1
    return found


def _phase(status: Object) -> str:
    return _state_text(status, "phase")


def _state_text(status: Object, key: str) -> str:
    """Return a text of the state, "" for none."""
    text = as_mapping(status.get("state")).get(key)
    return text if isinstance(text, str) else ""


def to_core_status(status: Object) -> Object:
    """Return the status in the core's terms, as far as a refused object needs it: whether its job has begun."""
    begun = {"type": Reason.CREATED.value, "status": "True"}
    return {"conditions": [begun] if _phase(status) else []}


def to_volcano_status(
    status: Object, _view: ControlledJob | None, _known: OwnedObjects, moment: StatusContext
) -> Object:
    """Return the status of a refused object: Failed, and why, unless its job has begun."""
    before = {name: moment.before[name] for name in FIELDS if name in moment.before}
    failed = [each for each in conditions.valid_conditions(status) if each.get("type") == Reason.FAILED.value]
    return {**before, "state": _state(FAILED, str(failed[0].get("message")), moment.now_s)} if failed else before
