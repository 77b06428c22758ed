"""The pods of one role: who is made, who leaves, the highest index first, and who is made anew, at once or later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from turnout.controllers import children, diff
from turnout.controllers.kind import Kind
from turnout.controllers.model import (
    JUMP_S,
    Counts,
    JobView,
    KnownChildren,
    Object,
    Phase,
    PodState,
    Reason,
    Restart,
    Role,
    Say,
    Setup,
    Write,
)
from turnout.controllers.portion import Portion
from turnout.controllers.roles.back_off import BackOff
from turnout.controllers.roles.replicas import Past

_NAMED = 8  # indices in a text


@dataclass(frozen=True, slots=True)
class RoleDecision:
    """The decision on the pods of one role."""

    writes: Sequence[Write]
    counts: Counts
    restarted: bool  # failed pods are recreated
    failure: str  # why the job fails by these pods, "" if it does not
    status_fields: Object  # what the role's part of the status has to remember
    requeue_s: float | None = None  # until the first index in a back-off may have a pod, None if none is
    says: Sequence[Say] = ()


def soonest(decisions: Iterable[RoleDecision], *bounds: float) -> float | None:
    """Return the first of these waits, in seconds; None where nothing is waited for."""
    return min(
        (*bounds, *(decision.requeue_s for decision in decisions if decision.requeue_s is not None)), default=None
    )


def decide_role(
    kind: Kind,
    view: JobView,
    role: Role,
    known: KnownChildren,
    before: Object,
    setup: Setup,
    now_s: float,
    portion: Portion,
) -> RoleDecision:
    """Decide on the pods of one role. before: its part of the status. portion: what this reconciliation may create."""
    mine = sorted((pod for pod in known.pods if pod.role == role.label), key=lambda pod: pod.index)
    old = [pod for pod in mine if kind.outdated(view, pod)]
    # A deleted pod of a numbered kind has its successor already, and was counted if we deleted it.
    replaced = [pod for pod in mine if kind.numbered and pod.deleting]
    failed = [pod for pod in mine if pod.phase is Phase.FAILED and pod not in old and pod not in replaced]
    past = Past.read(role, before, mine, numbered=kind.numbered, faulty_node_exit_code=kind.faulty_node_exit_code)
    recreated = [pod for pod in failed if past.may(pod) and _is_recreated(kind, view, role, pod)]
    failure = _failure(kind, view, role, past, failed, recreated)
    fresh = past.fresh(recreated)
    past, back_off = past.counted(recreated), BackOff.read(before, now_s).failed(fresh)
    leave = [pod for pod in (*diff.surplus(role, mine), *recreated, *old) if not pod.deleting]
    writes: list[Write] = [diff.delete_pod(pod) for pod in leave]
    waiting_s = back_off.waiting_s(role.replicas, JUMP_S if known.jumped_s else 0.0)
    is_admitted = role.outside_gang or not diff.waits_for_admission(known, setup)
    if is_admitted and role.name not in kind.waiting_roles(view, known):
        staying = [pod for pod in mine if pod not in replaced]
        missing = [index for index in diff.missing(role, staying) if index not in waiting_s]
        for index in missing:
            if portion.is_full():
                break
            replica, past = past.replica(index)
            writes.append(portion.create(partial(children.pod, kind, view, role, replica, known, setup)))
    counted = [pod for pod in mine if pod.index < role.replicas and not (kind.numbered and pod in recreated)]
    status_fields = {**past.status_fields(), **back_off.status_fields(role.replicas)}
    says = _back_off_events(role, waiting_s, fresh)
    return RoleDecision(
        writes, _counted(counted), bool(recreated), failure, status_fields, min(waiting_s.values(), default=None), says
    )


def _failure(
    kind: Kind, view: JobView, role: Role, past: Past, failed: Sequence[PodState], recreated: Sequence[PodState]
) -> str:
    """Return why the job fails by the failed pods of a role, "" if it does not."""
    if any(not past.may(pod) for pod in failed):
        return f'job "{view.name}" is failing because one "{role.name}" failed {role.most_restarts} times and again.'
    if any(_is_final(kind, view, role, pod) for pod in failed if pod not in recreated):
        return f'job "{view.name}" is failing because "{role.name}" replica(s) failed.'
    return ""


def _back_off_events(role: Role, waiting_s: Mapping[int, float], fresh: Iterable[PodState]) -> list[Say]:
    """Return one Event for each new failure whose pod is recreated after a back-off."""
    late = sorted({pod.index for pod in fresh} & waiting_s.keys())
    if not late:
        return []
    named = ", ".join(map(str, late[:_NAMED])) + (f" and {len(late) - _NAMED} others" if len(late) > _NAMED else "")
    until = f"{max(waiting_s[index] for index in late):.0f} s"
    return [Say(Reason.BACK_OFF, f"{role.name} {named} failed again and again: made anew in {until}", warning=True)]


def _is_recreated(kind: Kind, view: JobView, role: Role, pod: PodState) -> bool:
    if (decision := kind.recreate(view, role, pod)) is not None:
        return decision
    if role.restart is Restart.EXIT_CODE:
        return pod.exit_code is not None and pod.exit_code >= kind.restarts_at
    return role.restart is not Restart.NEVER


def _is_final(kind: Kind, view: JobView, role: Role, pod: PodState) -> bool:
    """True if a pod's failure is the job's, without asking how many others there are."""
    return role.restart is Restart.EXIT_CODE or kind.recreate(view, role, pod) is False


def _counted(pods: Iterable[PodState]) -> Counts:
    active = succeeded = failed = 0
    for pod in pods:
        active += pod.phase is Phase.RUNNING and not pod.deleting
        failed += pod.phase is Phase.FAILED or (pod.phase is Phase.RUNNING and pod.deleting)
        succeeded += pod.phase is Phase.SUCCEEDED
    return Counts(active, succeeded, failed)
