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
    Object,
    Phase,
    PodSeen,
    Reason,
    Restart,
    Role,
    Say,
    Seen,
    Setup,
    Write,
)
from turnout.controllers.portion import Portion
from turnout.controllers.roles import replicas
from turnout.controllers.roles.back_off import BackOff

_NAMED = 8  # indices in a text


@dataclass(frozen=True, slots=True)
class RoleLook:
    """The pods of one role. kept: what its status remembers. failure: why the job fails by them, "" if it does not.

    again_s: until the first index that waits may have a pod, None where none waits.
    """

    writes: Sequence[Write]
    counts: Counts
    restarted: bool
    failure: str
    kept: Object
    again_s: float | None = None
    says: Sequence[Say] = ()


def soonest(looks: Iterable[RoleLook], *bounds: float) -> float | None:
    """Return the first of these waits, in seconds; None where nothing is waited for."""
    return min((*bounds, *(look.again_s for look in looks if look.again_s is not None)), default=None)


def look_at(
    kind: Kind, view: JobView, role: Role, seen: Seen, before: Object, setup: Setup, now_s: float, portion: Portion
) -> RoleLook:
    """Decide on the pods of one role. before: its part of the status. portion: what this look may still make."""
    mine = sorted((pod for pod in seen.pods if pod.role == role.label), key=lambda pod: pod.index)
    old = [pod for pod in mine if kind.outdated(view, pod)]
    # One of a numbered kind that is deleted has its successor already, and was counted if we deleted it.
    gone = [*old, *(pod for pod in mine if kind.numbered and pod.deleting)]
    failed = [pod for pod in mine if pod.phase is Phase.FAILED and pod not in gone]
    past = replicas.Past.read(role, before, mine, numbered=kind.numbered, faulty=kind.faulty)
    again = [pod for pod in failed if past.may(pod) and _made_anew(kind, view, role, pod)]
    failure = ""
    if any(not past.may(pod) for pod in failed):
        failure = f'job "{view.name}" is failing because one "{role.name}" failed {role.most_restarts} times and again.'
    elif any(_is_final(kind, view, role, pod) for pod in failed if pod not in again):
        failure = f'job "{view.name}" is failing because "{role.name}" replica(s) failed.'
    fresh = past.fresh(again)
    past, waits = past.counted(again), BackOff.read(before, now_s).failed(fresh)
    leave = [pod for pod in (*diff.surplus(role, mine), *again, *old) if not pod.deleting]
    writes: list[Write] = [diff.delete_pod(pod) for pod in leave]
    there = [pod for pod in mine if not (kind.numbered and pod.deleting)]
    least_s = JUMP_S if seen.jumped_s else 0.0
    lefts_s = {index: waits.left_s(index, least_s) for index in waits.last_s if index < role.replicas}
    held = {index: left_s for index, left_s in lefts_s.items() if left_s > 0}
    if role.name not in kind.held(view, seen) and (role.alone or not diff.waits(seen, setup)):
        for index in diff.missing(role, there):
            if index in held:
                continue
            if portion.is_full():
                break
            replica, past = past.replica(index)
            writes.append(portion.create(partial(children.pod, kind, view, role, replica, seen, setup)))
    counted = [pod for pod in mine if pod.index < role.replicas and not (kind.numbered and pod in again)]
    kept = {**past.kept(), **waits.kept(role.replicas)}
    says = _paused(role, held, fresh)
    return RoleLook(writes, _counted(counted), bool(again), failure, kept, min(held.values(), default=None), says)


def _paused(role: Role, held: Mapping[int, float], fresh: Iterable[PodSeen]) -> list[Say]:
    """Tell, once a failure, who is made anew later."""
    late = sorted({pod.index for pod in fresh} & held.keys())
    if not late:
        return []
    named = ", ".join(map(str, late[:_NAMED])) + (f" and {len(late) - _NAMED} others" if len(late) > _NAMED else "")
    until = f"{max(held[index] for index in late):.0f} s"
    return [Say(Reason.BACK_OFF, f"{role.name} {named} failed again and again: made anew in {until}", warning=True)]


def _made_anew(kind: Kind, view: JobView, role: Role, pod: PodSeen) -> bool:
    if (said := kind.again(view, role, pod)) is not None:
        return said
    if role.restart is Restart.EXIT_CODE:
        return pod.exit_code is not None and pod.exit_code >= kind.restarts_at
    return role.restart is not Restart.NEVER


def _is_final(kind: Kind, view: JobView, role: Role, pod: PodSeen) -> bool:
    """True if a pod's failure is the job's, without asking how many others there are."""
    return role.restart is Restart.EXIT_CODE or kind.again(view, role, pod) is False


def _counted(pods: Iterable[PodSeen]) -> Counts:
    active = succeeded = failed = 0
    for pod in pods:
        active += pod.phase is Phase.RUNNING and not pod.deleting
        failed += pod.phase is Phase.FAILED or (pod.phase is Phase.RUNNING and pod.deleting)
        succeeded += pod.phase is Phase.SUCCEEDED
    return Counts(active, succeeded, failed)
