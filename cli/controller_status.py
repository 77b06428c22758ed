"""What the controller says of a job - refused, ignored, delayed or ended - and what the owner can do.

Source: the job's object, its pods, its PodGroup and its Events. Free GPUs and the queue are in why.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnout.cli.why import count, duration_text
from turnout.controllers import conditions
from turnout.controllers.kinds.colossalaijob import ANSWER_S
from turnout.controllers.model import ControlledJob, ControlledKind, Object, Reason, RefusedJob, Role
from turnout.controllers.role_pods import BackOff
from turnout.jobs.kinds.colossalaijob import KIND as COLOSSALAI
from turnout.jobs.kinds.colossalaijob import LAUNCHER
from turnout.jobs.kinds.msjob import KIND as MINDSPORE
from turnout.jobs.kinds.msjob import SCHEDULER
from turnout.kube import labels
from turnout.kube.client.logs import printable
from turnout.kube.times import unix_s

SILENT_S = 30.0  # a controller that works has written a status by then
_MAX_TEXT = 400
_REMEDIES = (  # what a failed job's condition says, and what helps
    ("longer than specified deadline", "raise spec.runPolicy.activeDeadlineSeconds and make the job again"),
    ("backoff limit", "its pods' logs tell why they failed; more tries are spec.runPolicy.backoffLimit"),
    ("pods started in", "its gang needs nodes: see room; more time is schedulingPolicy.scheduleTimeoutSeconds"),
    ("times and again", "its pods' logs tell why they failed; more tries are restartCount of the role"),
    ("out of the launcher's host list", "the log of that worker's last container tells why it started again"),
)


@dataclass(frozen=True, slots=True)
class JobPod:
    """A pod of the job."""

    role: str  # value of its role label
    index: int  # of the replica in its role, >= 0
    phase: str  # such as "Running"
    scheduler_message: str = ""  # of the scheduler, on a pod without a node


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An Event on the job."""

    reason: str
    text: str
    at_s: float  # when it was last reported, in seconds since 1970


@dataclass(frozen=True, slots=True)
class JobChildren:
    """The objects that belong to a job."""

    pods: tuple[JobPod, ...] = ()
    group: str | None = None  # phase of its PodGroup, "" for a new one; None if it has none
    events: tuple[JobEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class ControllerReport:
    """What a controller reports of a job."""

    text: str
    next: str = ""  # what the owner can do, "" if nothing is to be done


def report_of_controller(
    kind: ControlledKind, raw: Object, name: str, children: JobChildren, now_s: float
) -> ControllerReport:
    """Return what the controller reports of a job, as bounded printable text.

    kind: of the job. raw: its object. name: KIND/NAMESPACE/NAME, used in the advised commands. children: what is known
    of its pods, PodGroup and Events. now_s: since 1970.
    """
    found = _report(kind, raw, name, children, now_s)
    return ControllerReport(printable(found.text)[:_MAX_TEXT], printable(found.next)[:_MAX_TEXT])


def _report(kind: ControlledKind, raw: Object, name: str, children: JobChildren, now_s: float) -> ControllerReport:
    """Return what a job waits for or how it ended, with a remedy.

    Of several facts the first in this order is reported: deletion, end, another controller, no status, an old status,
    an invalid change, a delay, the running pods. raw: the job's object. name: KIND/NAMESPACE/NAME. now_s: since 1970.
    """
    meta, view = raw["metadata"], kind.read(raw)
    if meta.get("deletionTimestamp"):
        return ControllerReport(
            "it is being deleted, and its pods with it", "wait; who set its finalizers has to end them"
        )
    status = _mapping(raw.get("status"))
    listed_conditions = conditions.valid_conditions(kind.status.translation.read(status))
    if (end := _end_report(listed_conditions, view, now_s)) is not None:
        return end
    if isinstance(view, ControlledJob) and view.other_controller:
        return ControllerReport(
            f"it is left to {view.other_controller}, which its managedBy names", "ask that controller"
        )
    if not listed_conditions:  # a status is written once the children are there
        held_up = _creation_failure(children.events, view, now_s) if isinstance(view, ControlledJob) else None
        return held_up or _unhandled_report(kind, view, meta, now_s)
    if (behind := _stale_report(meta, status)) is not None:
        return behind
    if isinstance(view, RefusedJob):
        return ControllerReport(
            f"its change is not taken: {view.why}", "mend that field: until then its pods stay as they are"
        )
    return _hold_report(kind, view, raw, name, children, now_s) or _running_report(view, status, children, now_s)


def _end_report(
    listed_conditions: Sequence[Object], view: ControlledJob | RefusedJob, now_s: float
) -> ControllerReport | None:
    """Return how a job ended, with a remedy if it failed. None if it has not ended.

    listed_conditions: of its status. view: the job as `kind.read` returned it. now_s: since 1970.
    """
    last = next(
        (each for each in listed_conditions if each.get("type") in _ENDS and each.get("status") == "True"), None
    )
    if last is None:
        return None
    since = _since(last.get("lastTransitionTime"), now_s)
    text = f"it has {str(last['type']).lower()}{since}: {last.get('message')}"
    if last["type"] == Reason.SUCCEEDED.value:
        return ControllerReport(text)
    if isinstance(view, RefusedJob):
        return ControllerReport(
            text, "mend that field and make the job again: one that has failed is not taken up again"
        )
    known = (remedy for phrase, remedy in _REMEDIES if phrase in str(last.get("message")))
    return ControllerReport(text, next(known, "its pods' logs tell why they failed"))


_ENDS = (Reason.SUCCEEDED.value, Reason.FAILED.value)


def _unhandled_report(
    kind: ControlledKind, view: ControlledJob | RefusedJob, meta: Object, now_s: float
) -> ControllerReport:
    """Return the report on a job that no controller has written a status for.

    SILENT_S seconds after its creation the remedy is to check that a controller runs for this kind. meta: its metadata.
    now_s: since 1970.
    """
    made_s = unix_s(meta.get("creationTimestamp"))
    age_s = 0.0 if made_s is None else now_s - made_s
    wrong = f"; it will be refused: {view.why}" if isinstance(view, RefusedJob) else ""
    if age_s < SILENT_S:
        return ControllerReport(f"no controller has looked at it yet{wrong}", "wait for a few seconds")
    text = f"no controller has written its status in {duration_text(age_s)}{wrong}"
    return ControllerReport(
        text, f"see that turnout-controller runs with --kinds {kind.kind}, or that kind's own operator"
    )


def _stale_report(meta: Object, status: Object) -> ControllerReport | None:
    """Return a report if status.observedGeneration is older than metadata.generation.

    None otherwise, or if one of them is missing. meta: the job's metadata.
    """
    observed, current = status.get("observedGeneration"), meta.get("generation")
    if not isinstance(observed, int) or not isinstance(current, int) or observed >= current:
        return None
    text = f"its controller has seen generation {observed} of {current}: it has not processed the last change"
    return ControllerReport(text, "see that its controller runs, and what its log says of this job")


def _hold_report(
    kind: ControlledKind, view: ControlledJob, raw: Object, name: str, children: JobChildren, now_s: float
) -> ControllerReport | None:
    """Return what delays a job, with a remedy: a suspension, a failed creation, the gang or a back-off.

    None if nothing does. raw: its object. name: KIND/NAMESPACE/NAME. now_s: since 1970.
    """
    if view.policy.suspended:
        if queue := _mapping(raw["metadata"].get("labels")).get(labels.KUEUE_QUEUE):
            return ControllerReport("it is suspended", f"Kueue lets it go on once its queue {queue} has room for it")
        return ControllerReport("it is suspended", f"turnout unsuspend {name}")
    if _lacks(view, children.pods):
        found = _creation_failure(children.events, view, now_s) or _unadmitted(view, children)
        if found is not None:
            return found
    return _waiting(kind, view, raw, name, children.pods, now_s)


def _lacks(view: ControlledJob, pods: Iterable[JobPod]) -> bool:
    """Return True if a replica of the job has no pod. pods: all of the job."""
    existing = {(pod.role, pod.index) for pod in pods}
    return any((role.label, index) not in existing for role in view.roles for index in range(role.replicas))


def _creation_failure(events: Iterable[JobEvent], view: ControlledJob, now_s: float) -> ControllerReport | None:
    """Return what the newest Event about a failed creation says, with a remedy. None if there is no such Event.

    Either the API server refused an object, or the object's name is in use. events: on the job. now_s: since 1970.
    """
    reasons = (Reason.NOT_CREATED.value, Reason.NAME_TAKEN.value)
    last = max((each for each in events if each.reason in reasons), key=lambda each: each.at_s, default=None)
    if last is None:
        return None
    when = f"{duration_text(now_s - last.at_s)} ago"
    if last.reason == Reason.NAME_TAKEN.value:
        return ControllerReport(f"{last.text} ({when})", "delete that object, or give this job another name")
    text = f"the API server refuses what it needs, last {when}: {last.text}"
    if "exceeded quota" in last.text:
        return ControllerReport(text, f"kubectl describe quota -n {view.namespace}; it is tried again by itself")
    return ControllerReport(
        text, "ask the administrator of the policy or webhook that refused it; the controller retries by itself"
    )


def _unadmitted(view: ControlledJob, children: JobChildren) -> ControllerReport | None:
    """Return the report on a job whose PodGroup is not admitted yet.

    None if it is, if there is none, or if pods exist.
    """
    if children.group is None or children.group not in ("", "Pending") or children.pods:
        return None
    where = f"PodGroup {view.namespace}/{view.name} is {children.group or 'new'}"
    queue = view.gang.queue or "default"
    return ControllerReport(
        f"its pods are made once its gang is admitted: {where}",
        f"queue {queue} needs room for {count(view.gang.min_member, 'pod')}; kubectl describe podgroup tells",
    )


def _waiting(
    kind: ControlledKind, view: ControlledJob, raw: Object, name: str, pods: Sequence[JobPod], now_s: float
) -> ControllerReport | None:
    """Return why a replica without a pod waits: for a back-off, or for another role. None if no replica waits.

    Only the first role with such a replica is reported. pods: all of the job. raw: the job's object. name:
    KIND/NAMESPACE/NAME. now_s: since 1970.
    """
    counts = _mapping(kind.status.translation.read(_mapping(raw.get("status"))).get("replicaStatuses"))
    for role in view.roles:
        lacking = set(range(role.replicas)) - {pod.index for pod in pods if pod.role == role.label}
        back_off = BackOff.read(_mapping(counts.get(role.name)), now_s)
        late = {index: left_s for index in lacking if (left_s := back_off.left_s(index)) > 0}
        if late:
            last = max(late, key=lambda index: (late[index], -index))
            times = count(back_off.failures[last], "time")
            text = f"{role.name} {last} has failed {times} in a row and is created again in {duration_text(late[last])}"
            more = f"; {len(late) - 1} more wait" if len(late) > 1 else ""
            return ControllerReport(
                f"{text}{more}", f"turnout logs {name} --rank {last} while it runs; kubectl get events"
            )
        if (lacking and role.name in (LAUNCHER, SCHEDULER)) or (lacking and kind.kind == MINDSPORE):
            return _ordered(kind, view, role, pods)
    return None


def _ordered(kind: ControlledKind, view: ControlledJob, role: Role, pods: Sequence[JobPod]) -> ControllerReport | None:
    """Return why a role has no pods yet, for the kinds whose roles start one after another.

    None if it does not wait for another role. pods: of all roles.
    """
    others = [each for each in view.roles if each is not role]
    run = sum(pod.phase == "Running" for pod in pods if pod.role != role.label)
    if kind.kind == COLOSSALAI:
        other_pods = sum(each.replicas for each in others)
        return ControllerReport(
            f"its launcher is made once all {count(other_pods, 'worker')} run: {run} of them",
            "; ".join(dict.fromkeys(pod.scheduler_message for pod in pods if pod.scheduler_message))
            or "wait for its workers' images",
        )
    if kind.kind == MINDSPORE and not pods:
        return ControllerReport("its pods wait for the address of its Scheduler's Service", "wait for a few seconds")
    return None


def _running_report(view: ControlledJob, status: Object, children: JobChildren, now_s: float) -> ControllerReport:
    """Return the report on a job that nothing delays: how many of its pods run. now_s: since 1970."""
    run = sum(pod.phase == "Running" for pod in children.pods)
    replicas = sum(role.replicas for role in view.roles)
    text = f"{run} of {count(replicas, 'pod')} run"
    if view.kind == COLOSSALAI and any(pod.role == LAUNCHER and pod.phase == "Running" for pod in children.pods):
        text += f"; its launcher begins once every sshd answers, after {ANSWER_S} s it gives up"
    if (begun_s := unix_s(status.get("startTime"))) is not None and view.policy.active_deadline_s is not None:
        left_s = begun_s + view.policy.active_deadline_s - now_s
        text += f"; it fails in {duration_text(left_s)} by its activeDeadlineSeconds"
    return ControllerReport(text)


def _since(moment: Any, now_s: float) -> str:
    at_s = unix_s(moment) if isinstance(moment, str) else None
    return "" if at_s is None else f", {duration_text(now_s - at_s)} ago"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
