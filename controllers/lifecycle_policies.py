"""Lifecycle policies of a Volcano Job: which event of its pods ends or restarts the job.

Policies of a task come before those of the job. Events are read from the pods that exist, so a restarted controller
misses only the end of a pod that was deleted meanwhile. Source: docs/facts/job-kinds.md 1.5
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from turnout.controllers.children import by_role
from turnout.controllers.model import JobPhase, KnownChildren, PodState, Role
from turnout.jobs.model import BadJob
from turnout.jobs.typed_fields import Part

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
        """True if the policy is about this event."""
        if self.exit_code is not None:
            return event.word == POD_FAILED and event.pod.exit_code == self.exit_code
        return event.word in self.events


class _Event(NamedTuple):
    """An event of a pod."""

    word: str  # of EVENTS
    pod: PodState


class Due(NamedTuple):
    """The action that a policy calls for now."""

    action: str = ""  # a word of ACTIONS; "" for none
    why: str = ""


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of a job."""

    of_job: Sequence[LifecyclePolicy] = ()
    by_role: Mapping[str, Sequence[LifecyclePolicy]] = field(default_factory=dict)  # by the label of the role


def read(part: Part) -> tuple[LifecyclePolicy, ...]:
    """Read the policies of a job or of one of its tasks. Raises BadJob."""
    policies = tuple(_policy(each) for each in part.parts("policies"))
    events = [event for policy in policies for event in policy.events]
    if duplicates := sorted({event for event in events if events.count(event) > 1}):
        raise BadJob(f"{part.at('policies')} has {duplicates[0]} twice")
    codes = [policy.exit_code for policy in policies if policy.exit_code is not None]
    if len(codes) > len(set(codes)):
        raise BadJob(f"{part.at('policies')} has an exitCode twice")
    return policies


def _policy(part: Part) -> LifecyclePolicy:
    events, code = {each for each in (part.text("event"), *part.texts("events")) if each}, part.value.get("exitCode")
    if unknown := sorted(events - {*EVENTS}):
        raise BadJob(f"{part.where} has the event {unknown[0]!r:.40}: {', '.join(EVENTS)} are known")
    if code is not None and (isinstance(code, bool) or not isinstance(code, int) or not 0 < abs(code) < 2**31):
        raise BadJob(f"{part.at('exitCode')} is {code!r:.40}: a whole number other than 0 is needed")
    if bool(events) == (code is not None):
        raise BadJob(f"{part.where} needs either events or an exitCode")
    if (action := part.text("action")) not in ACTIONS:
        raise BadJob(f"{part.at('action')} is {action!r:.40}: {', '.join(ACTIONS)} are known")
    if part.text("timeout"):
        raise BadJob(f"{part.at('timeout')} is not supported: a policy acts at once")
    return LifecyclePolicy(frozenset(events), code, action)


def decide(policies: Policies, roles: Sequence[Role], known: KnownChildren) -> Due:
    """Return the action of the first policy that matches an event."""
    for event in _events(roles, known):
        for policy in (*policies.by_role.get(event.pod.role, ()), *policies.of_job):
            if policy.matches(event):
                code = f" with {event.pod.exit_code}" if event.word == POD_FAILED and event.pod.exit_code else ""
                return Due(policy.action, f"{event.word} of {event.pod.name}{code}")
    return Due()


def _events(roles: Sequence[Role], known: KnownChildren) -> Iterator[_Event]:
    """Yield the events of the pods in the order of their names, then those of the tasks."""
    for pod in sorted(known.pods, key=lambda each: each.name):
        if pod.deleting:
            yield _Event(POD_EVICTED, pod)
        elif pod.phase is JobPhase.FAILED:
            yield _Event(POD_FAILED, pod)
    pods = by_role(known.pods)
    for role in roles:
        mine = pods.get(role.label, [])
        if len(mine) == role.replicas > 0 and all(_succeeded(pod) for pod in mine):
            yield _Event(TASK_COMPLETED, max(mine, key=lambda pod: pod.since_s))


def _succeeded(pod: PodState) -> bool:
    return pod.phase is JobPhase.SUCCEEDED and not pod.deleting
