"""Lifecycle policies of a job: which event of its pods calls for which action, a role's before those of the job.

They are Volcano's, who calls a role a task. Events are read from what is there, so a controller that starts anew misses
none but the end of a pod that is gone without a trace. Source: docs/facts/job-kinds.md 1.5; Volcano's applyPolicies
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from turnout.controllers.diff import by_role
from turnout.controllers.model import JUMP_S, Phase, PodSeen, Role, Seen
from turnout.jobs.model import BadJob
from turnout.jobs.typed_fields import Part

ANY, POD_FAILED, POD_EVICTED, POD_PENDING = "*", "PodFailed", "PodEvicted", "PodPending"
TASK_COMPLETED, TASK_FAILED, UNKNOWN, JOB_UPDATED = "TaskCompleted", "TaskFailed", "Unknown", "JobUpdated"
EVENTS = (ANY, POD_FAILED, POD_EVICTED, POD_PENDING, UNKNOWN, TASK_COMPLETED, TASK_FAILED, JOB_UPDATED)
RESTART_JOB, RESTART_TASK, RESTART_POD = "RestartJob", "RestartTask", "RestartPod"
RESTART_PARTITION = "RestartPartition"
RESTARTS = (RESTART_JOB, RESTART_TASK, RESTART_POD, RESTART_PARTITION)
ABORT_JOB, TERMINATE_JOB, COMPLETE_JOB = "AbortJob", "TerminateJob", "CompleteJob"
ACTIONS = (*RESTARTS, ABORT_JOB, TERMINATE_JOB, COMPLETE_JOB)
_NOTHING = ("SyncJob", "ResumeJob")  # of a job that is neither aborted nor out of date
_NOT_BY_ANY = (TASK_COMPLETED,)  # an end that is wished for
_RETRIES = 3  # of a task's containers
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(h|ms|us|µs|ns|m|s)")
_UNIT_S = {"h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True)
class Policy:
    """One of a list of policies. exit_code: of a container, None where events are named. timeout_s: until it acts."""

    events: frozenset[str]
    exit_code: int | None
    action: str
    timeout_s: float | None

    def meets(self, event: _Event) -> bool:
        """True if it is about this event."""
        if self.exit_code is not None:
            return event.word == POD_FAILED and event.code == self.exit_code
        if event.word == POD_PENDING and self.timeout_s is None:
            return False  # every pod is pending once
        return event.word in self.events or (ANY in self.events and event.word not in _NOT_BY_ANY)


class _Event(NamedTuple):
    """An event of a pod, or of the job where it is None. since_s: since 1970, 0 where nothing says it."""

    word: str
    pod: PodSeen | None = None
    code: int | None = None
    since_s: float = 0.0


class Due(NamedTuple):
    """The word of the policies now. action: "" for nothing. pods: those that a restart is about, none for all.

    wait_s: until a policy with a timeout acts, None where none waits.
    """

    action: str = ""
    why: str = ""
    pods: frozenset[str] = frozenset()
    wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of a job. by_role, retries, partitions: by the role's label.

    retries: after how many restarts of its containers a role has failed, 3 unless said, -1 for never. partitions: how
    many indices in a row are one partition.
    """

    of_job: Sequence[Policy] = ()
    by_role: Mapping[str, Sequence[Policy]] = field(default_factory=dict)
    retries: Mapping[str, int] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)


def read(part: Part) -> tuple[Policy, ...]:
    """Read the policies of a job or of one of its tasks. Raises BadJob."""
    found = tuple(_policy(each) for each in part.parts("policies"))
    told = [event for policy in found for event in policy.events]
    if twice := sorted({event for event in told if told.count(event) > 1}):
        raise BadJob(f"{part.at('policies')} has {twice[0]} twice")
    if ANY in told and len(told) > 1:
        raise BadJob(f"{part.at('policies')} has * beside other events")
    codes = [policy.exit_code for policy in found if policy.exit_code is not None]
    if len(codes) > len(set(codes)):
        raise BadJob(f"{part.at('policies')} has an exitCode twice")
    return found


def _policy(part: Part) -> Policy:
    events, code = {each for each in (part.text("event"), *part.texts("events")) if each}, part.value.get("exitCode")
    if unknown := sorted(events - {*EVENTS}):
        raise BadJob(f"{part.where} has the event {unknown[0]!r:.40}: {', '.join(EVENTS)} are known")
    if code is not None and (isinstance(code, bool) or not isinstance(code, int) or not 0 < abs(code) < 2**31):
        raise BadJob(f"{part.at('exitCode')} is {code!r:.40}: a whole number other than 0 is needed")
    if bool(events) == (code is not None):
        raise BadJob(f"{part.where} needs either events or an exitCode")
    if (action := part.text("action")) not in (*ACTIONS, *_NOTHING):
        raise BadJob(f"{part.at('action')} is {action!r:.40}: {', '.join(ACTIONS)} are known")
    if part.text("timeout") and (timeless := sorted(events & {UNKNOWN, TASK_FAILED})):
        raise BadJob(f"{part.at('timeout')}: {timeless[0]} is acted on at once, since nothing says when it came")
    return Policy(frozenset(events), code, action, _seconds(part))


def _seconds(part: Part) -> float | None:
    """Read a timeout such as "10m" or "1h30m". Raises BadJob."""
    if not (text := part.text("timeout")):
        return None
    if _DURATION.sub("", text):
        raise BadJob(f"{part.at('timeout')} is {text!r:.40}: a duration such as 10m is needed")
    return sum(float(number) * _UNIT_S[unit] for number, unit in _DURATION.findall(text))


def decide(policies: Policies, roles: Sequence[Role], seen: Seen, now_s: float) -> Due:
    """Return what the first policy says that is met and whose time has come; and when the next one's comes."""
    waits_s: list[float] = []
    for event in _events(policies, roles, seen):
        role = event.pod.role if event.pod is not None else ""
        mine = (*policies.by_role.get(role, ()), *policies.of_job)
        policy = next((each for each in mine if each.meets(event)), None)
        if policy is None or policy.action in _NOTHING:
            continue
        left_s = event.since_s + (policy.timeout_s or 0.0) - now_s
        if policy.timeout_s is None or (left_s <= 0 and not seen.jumped_s):
            return Due(policy.action, _why(event), _about(policies, policy.action, event, seen))
        waits_s.append(max(left_s, JUMP_S) if seen.jumped_s else left_s)
    return Due(wait_s=min(waits_s, default=None))


def _why(event: _Event) -> str:
    code = f" with {event.code}" if event.code else ""
    return f"{event.word} of {event.pod.name}{code}" if event.pod is not None else event.word


def _about(policies: Policies, action: str, event: _Event, seen: Seen) -> frozenset[str]:
    """Return the uids of the pods that a restart is about; none for all of the job's."""
    pod = event.pod
    if pod is None or action not in (RESTART_TASK, RESTART_POD, RESTART_PARTITION):
        return frozenset()
    if action == RESTART_POD:
        return frozenset([pod.uid])
    size = policies.partitions.get(pod.role) if action == RESTART_PARTITION else None
    alike = [each for each in seen.pods if each.role == pod.role]
    return frozenset(each.uid for each in alike if size is None or each.index // size == pod.index // size)


def _events(policies: Policies, roles: Sequence[Role], seen: Seen) -> Iterator[_Event]:
    """Give what has become of the pods, in the order of their names, then of the job."""
    for pod in sorted(seen.pods, key=lambda each: each.name):
        if pod.deleting:
            yield _Event(POD_EVICTED, pod, since_s=pod.since_s)
        elif pod.phase is Phase.FAILED:
            yield _Event(POD_FAILED, pod, pod.exit_code, pod.since_s)
        elif pod.phase is Phase.PENDING:
            yield _Event(POD_PENDING, pod, since_s=pod.since_s)
    pods = by_role(seen.pods)
    for role in roles:
        mine = pods.get(role.label, [])
        if len(mine) == role.replicas > 0 and all(_succeeded(pod) for pod in mine):
            last = max(mine, key=lambda pod: pod.since_s)
            yield _Event(TASK_COMPLETED, last, since_s=last.since_s)
        alive = [pod for pod in mine if pod.phase in (Phase.PENDING, Phase.RUNNING) and not pod.deleting]
        most = policies.retries.get(role.label, _RETRIES)
        if alive and most >= 0 and sum(pod.restarts for pod in alive) >= (most or _RETRIES):
            yield _Event(TASK_FAILED, max(alive, key=lambda pod: pod.restarts))
    if any(child.key.kind == "PodGroup" and child.phase == UNKNOWN for child in seen.others.values()):
        yield _Event(UNKNOWN)


def _succeeded(pod: PodSeen) -> bool:
    return pod.phase is Phase.SUCCEEDED and not pod.deleting
