"""Decides what a job needs written, as a pure function of its object, what it owns and the time.

In order: an object that cannot be obeyed is told so; a job that has ended is cleaned up; a suspended one owns no pods;
one past its limits fails; any other gets the children that it lacks, loses those above its size, the highest index
first, and is judged by its pods. Source: docs/facts/job-kinds.md 1.2, 1.7
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from turnout.controllers import children, conditions, diff
from turnout.controllers.kind import Kind, Moment
from turnout.controllers.model import (
    JUMP_S,
    ChildKey,
    CleanPods,
    Counts,
    Delete,
    JobView,
    Object,
    Outcome,
    Phase,
    Reason,
    Refused,
    Restart,
    Role,
    Say,
    Seen,
    Setup,
    Verdict,
    Write,
)
from turnout.controllers.portion import Portion
from turnout.controllers.roles.devices import not_offered
from turnout.controllers.roles.pods import RoleLook, look_at, soonest
from turnout.kube.times import rfc3339, unix_s

NOTHING = Outcome()
NO_GANGS = Setup()
_HELD = ("PodGroup", "HorizontalPodAutoscaler")
_TIMES = ("startTime", "completionTime")


@dataclass(slots=True)
class _Status:
    """A status as it becomes, in the core's words. raw: as the object has it. was: the same in the core's words."""

    kind: Kind
    raw: Object
    was: Object
    seen: Seen
    now_s: float
    conditions: list[Object]
    replicas: dict[str, Object]
    start: str | None
    completion: str | None
    says: list[Say] = field(default_factory=list)
    view: JobView | None = None  # None for an object that is refused

    def note(self, type_: Reason, text: str, *, why: Reason | None = None, on: bool = True) -> None:
        """Take in a condition."""
        kind = self.kind.kind
        self.conditions = conditions.with_condition(self.conditions, type_, kind, text, self.now_s, why=why, on=on)

    def end(self, verdict: Verdict, why: Reason | None = None) -> None:
        """Take in the job's end. why: the reason of its condition, None for the verdict's own."""
        self.completion = self.completion or rfc3339(self.now_s)
        self.note(verdict.reason, verdict.text, why=why)

    def written(self) -> Object | None:
        """Return a merge patch of the status, None where the object has it already."""
        made: dict[str, Any] = {"conditions": self.conditions}
        if self.replicas or "replicaStatuses" in self.was:
            made["replicaStatuses"] = self.replicas
        made |= {name: each for name, each in zip(_TIMES, (self.start, self.completion), strict=True) if each}
        words = self.kind.vocabulary
        said = words.write(made, self.view, self.seen, Moment(self.raw, self.now_s))
        was = {name: self.raw[name] for name in words.fields if name in self.raw}
        return None if said == was else diff.merge_patch(was, said)


def reconcile(kind: Kind, raw: Object, seen: Seen, now_s: float, setup: Setup = NO_GANGS) -> Outcome:
    """Return what has to be written for one job. now_s: seconds since 1970. Never raises for what a user writes."""
    if raw["metadata"].get("deletionTimestamp"):
        return NOTHING  # the API server deletes what it owns
    status = _status(kind, raw, seen, now_s)
    view = kind.read(raw)
    if isinstance(view, Refused):
        return _refused(status, view)
    status.view = view
    if view.elsewhere:
        return NOTHING
    if kind.life is not None:
        return NOTHING if seen.unread else kind.life(kind, view, raw, seen, now_s, setup)
    if conditions.ended(status.conditions):
        return _ended(view, status, seen, now_s)
    if seen.unread:
        return _outcome(status, ()) if status.raw else NOTHING  # nothing is decided on pods as they were a while ago
    if not status.conditions:
        status.note(Reason.CREATED, f"{kind.kind} {view.name} is created.")
        status.says += [Say(Reason.ADVICE, text, warning=True) for text in kind.advice(view)]
        if seen.offered is not None:
            status.says += [Say(Reason.NOT_OFFERED, text, True) for text in not_offered(view, seen.offered)]
    if view.policy.suspended:
        return _suspended(kind, view, status, seen, setup)
    if conditions.is_true(status.conditions, Reason.SUSPENDED):
        _told(status, Reason.RESUMED, f"{kind.kind} {view.name} is resumed.", type_=Reason.SUSPENDED, on=False)
        status.start = rfc3339(now_s)
    if (late := _too_late(view, status, seen, now_s)) is not None and seen.jumped_s:
        status.says.append(seen.put_off("its end"))
    elif late is not None or _failed_too_often(view, status, seen):
        why = late or f"Job {view.name} has failed because it has reached the specified backoff limit"
        writes = [*diff.all_pods(seen.pods), *diff.all_others(seen)]
        status.end(Verdict(Reason.FAILED, why))
        status.says.append(Say(Reason.FAILED, why, warning=True))
        return _outcome(status, writes)
    return _running(kind, view, status, seen, setup)


def _status(kind: Kind, raw: Object, seen: Seen, now_s: float) -> _Status:
    there = _mapping(raw.get("status"))
    was = kind.vocabulary.read(there)
    told = _mapping(was.get("replicaStatuses"))
    replicas = {name: each for name, each in told.items() if isinstance(each, Mapping)}
    start, completion = (was.get(name) if unix_s(was.get(name)) else None for name in _TIMES)
    return _Status(kind, there, was, seen, now_s, conditions.listed(was), replicas, start, completion)


def _mapping(value: Any) -> Object:
    return value if isinstance(value, Mapping) else {}


def _refused(status: _Status, refused: Refused) -> Outcome:
    """Tell what cannot be obeyed. A job that has begun keeps its pods: its change is not taken."""
    if not status.conditions:
        why = refused.reason if refused.reason is Reason.TOO_LARGE else None
        status.end(Verdict(Reason.FAILED, refused.why), why)
    status.says.append(Say(refused.reason, refused.why, warning=True))
    return _outcome(status, ())


def _told(status: _Status, why: Reason, text: str, *, type_: Reason, on: bool) -> None:
    status.note(type_, text, why=why, on=on)
    status.says.append(Say(why, text))


def _ended(view: JobView, status: _Status, seen: Seen, now_s: float) -> Outcome:
    """Clean up after a job. Its PodGroup and HPA go in any case: they hold room and scale nothing."""
    held = (each for each in seen.others.values() if each.key.kind in _HELD)
    writes = [*_cleaned(view, seen), *(Delete(each.key, each.uid) for each in held)]
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
    if left_s <= 0 and seen.jumped_s:
        status.says.append(seen.put_off("its deletion"))
        left_s = JUMP_S
    return replace(_outcome(status, writes), gone=left_s <= 0, again_s=max(left_s, 0.0))


def _cleaned(view: JobView, seen: Seen) -> Iterator[Write]:
    """Give the deletions of pods, each with the Service of its name, that the job's policy wants after its end."""
    if view.policy.clean_pods is CleanPods.NONE:
        return
    kept = {role.label for role in view.roles if role.kept}
    for pod in seen.pods:
        if pod.role in kept:
            continue
        if view.policy.clean_pods is CleanPods.ALL or pod.phase in (Phase.RUNNING, Phase.PENDING):
            if not pod.deleting:
                yield diff.delete_pod(pod)
            if (other := seen.others.get(ChildKey("Service", pod.name))) is not None:
                yield Delete(other.key, other.uid)


def _suspended(kind: Kind, view: JobView, status: _Status, seen: Seen, setup: Setup) -> Outcome:
    text = f"{view.kind} {view.name} is suspended."
    if conditions.is_true(status.conditions, Reason.RUNNING):
        status.note(Reason.RUNNING, text, why=Reason.SUSPENDED, on=False)
    if not conditions.is_true(status.conditions, Reason.SUSPENDED):
        _told(status, Reason.SUSPENDED, text, type_=Reason.SUSPENDED, on=True)
    status.replicas = {name: {**each, "active": 0} for name, each in status.replicas.items()}
    status.start = None
    if (left := kind.asleep(view)) is None:
        return _outcome(status, [*diff.all_pods(seen.pods), *diff.all_others(seen)])
    named, looks = {role.label for role in left.roles}, list[RoleLook]()
    portion = Portion()
    writes = [*diff.others(kind.extras(left, seen), seen, portion)]
    writes += diff.all_pods(pod for pod in seen.pods if pod.role not in named)
    for role in left.roles:
        look = look_at(kind, left, role, seen, status.replicas.get(role.name, {}), setup, status.now_s, portion)
        writes += look.writes
        looks.append(look)
        status.says += look.says
        status.replicas = {**status.replicas, role.name: {**status.replicas.get(role.name, {}), **look.kept}}
    again_s = soonest(looks, *portion.again_s())
    return replace(_outcome(status, writes), again_s=again_s, status_first=any(each.restarted for each in looks))


def _failed_too_often(view: JobView, status: _Status, seen: Seen) -> bool:
    """True if a job's pods and containers have failed as often as it bears."""
    if view.policy.backoff_limit is None:
        return False
    tries = {role.label: role.restart in (Restart.ON_FAILURE, Restart.ALWAYS) for role in view.roles}
    restarts = sum(pod.restarts for pod in seen.pods if tries.get(pod.role) and pod.phase is Phase.RUNNING)
    told = [each.get("restarts") for each in status.replicas.values()]
    failed = sum(each for each in told if isinstance(each, int))
    return restarts + failed >= max(1, view.policy.backoff_limit)


def _too_late(view: JobView, status: _Status, seen: Seen, now_s: float) -> str | None:
    """Say why a job has to fail by the time that has passed; None when it need not."""
    policy, began_s = view.policy, unix_s(status.start)
    if policy.deadline_s is not None and began_s is not None and now_s - began_s >= policy.deadline_s:
        return f"Job {view.name} has failed because it was active longer than specified deadline"
    if _starts_too_late(view, status, seen, now_s):
        return f"Job {view.name} has failed because {view.gang.min_member} pods did not start in {policy.start_s} s"
    return None


def _starts_too_late(view: JobView, status: _Status, seen: Seen, now_s: float) -> bool:
    """True if too few pods have started in the time that the job gives them. One that ran once has started."""
    began_s, policy = unix_s(status.start), view.policy
    if policy.start_s is None or began_s is None or any(each.get("type") == "Running" for each in status.conditions):
        return False
    started = sum(pod.phase in (Phase.RUNNING, Phase.SUCCEEDED) for pod in seen.pods)
    return now_s - began_s >= policy.start_s and started < view.gang.min_member


def _running(kind: Kind, view: JobView, status: _Status, seen: Seen, setup: Setup) -> Outcome:
    group, portion = children.pod_group(view, setup), Portion()
    extras = [*([] if group is None else [group]), *kind.extras(view, seen)]
    writes = [*diff.others(extras, seen, portion)]
    counts: dict[str, Counts] = {}
    failure: Verdict | None = None
    looks = list[RoleLook]()
    for role in view.roles:
        look = look_at(kind, view, role, seen, status.replicas.get(role.name, {}), setup, status.now_s, portion)
        writes += look.writes
        looks.append(look)
        counts[role.name] = look.counts
        status.says += look.says
        if look.restarted:
            status.note(Reason.RESTARTING, f"job {view.name} is restarting because {role.name} replica(s) failed.")
        elif look.failure:
            failure = Verdict(Reason.FAILED, look.failure)
        found = _replica_status(kind, view, role, look.counts)
        status.replicas = {**status.replicas, role.name: {**found, **look.kept}}
    status.start = status.start or rfc3339(status.now_s)
    for verdict in [failure] if failure is not None else kind.judge(view, counts, seen):
        if verdict.reason in (Reason.SUCCEEDED, Reason.FAILED):
            status.end(verdict)
            status.says.append(Say(verdict.reason, verdict.text, verdict.reason is Reason.FAILED))
        else:
            status.note(verdict.reason, verdict.text)
    began_s = unix_s(status.start) or status.now_s
    bounds = [began_s + each for each in (view.policy.deadline_s, view.policy.start_s) if each is not None]
    left_s = [end - status.now_s for end in bounds if end > status.now_s]
    again_s = soonest(looks, *left_s, *portion.again_s(), *([JUMP_S] if seen.jumped_s else []))
    return replace(_outcome(status, writes), again_s=again_s, status_first=any(each.restarted for each in looks))


def _replica_status(kind: Kind, view: JobView, role: Role, count: Counts) -> Object:
    found: dict[str, Any] = {"selector": ",".join(f"{k}={v}" for k, v in sorted(kind.selector(view, role).items()))}
    numbers = {"active": count.active, "succeeded": count.succeeded, "failed": count.failed}
    return {**found, **{name: number for name, number in numbers.items() if number}}


def _outcome(status: _Status, writes: Iterable[Write]) -> Outcome:
    return Outcome(tuple(writes), tuple(status.says), status.written())
