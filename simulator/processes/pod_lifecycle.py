"""Decide from one pod's containers what a kubelet must do now, and which status it reports.

The functions are level-based: `starts_due` and `signals_due` read the present state, whatever happened before. Times
are in seconds since 1970. Sources: Kubernetes' pod lifecycle, and KEP-753 for init containers that stay (sidecars).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from turnout.kube.times import rfc3339

Object = Mapping[str, Any]
TERM, KILL = "SIGTERM", "SIGKILL"
KILLED = 137  # the exit code of a container that was killed
_RESET_S = 600.0  # a container that ran for so long starts with a new back-off


class ContainerRole(Enum):
    """The role of a container in its pod."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


class ContainerState(Enum):
    """The state of a container."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """The end of one run of a container."""

    code: int  # exit code, 128 + n for signal n
    began_s: float  # start of the run
    ended_s: float
    message: str = ""  # its termination message


@dataclass(frozen=True, slots=True)
class Container:
    """One container."""

    name: str
    role: ContainerRole
    state: ContainerState = ContainerState.WAITING
    # Why it waits or why its restart failed, as in its status; "" while it runs and after its end.
    waiting_reason: str = "ContainerCreating"
    message: str = ""  # of the reason
    restarts: int = 0  # starts after the first
    began_s: float = 0.0  # of its present or last run, 0 before the first
    end: ContainerEnd | None = None  # of its last run, None while it runs or before the first
    last_end: ContainerEnd | None = None  # of the run before that; None without one
    not_before_s: float = 0.0  # earliest time of its next start
    crashes: int = 0  # ends since the last run of at least _RESET_S, the end of that run included
    last_signal: str = ""  # sent in its present run, "" for none
    ready: bool = True  # False while its readiness probe has not succeeded; True without one


@dataclass(frozen=True, slots=True)
class PodLifecycle:
    """The containers of one pod, and its deletion."""

    policy: str  # Always, OnFailure or Never
    containers: tuple[Container, ...]  # init containers first
    backoff_s: tuple[float, float]  # (pause before the second restart, longest pause), in seconds
    deletion_began_s: float | None = None  # when its deletion began, None before
    grace_s: float = 0.0  # how long it may take to end, in seconds

    def container(self, name: str) -> Container:
        """Return the container or init container of this name. Raises KeyError if the pod has none of this name."""
        for each in self.containers:
            if each.name == name:
                return each
        raise KeyError(name)

    def of(self, *roles: ContainerRole) -> Iterator[Container]:
        """Return an iterator over the containers with one of these roles, in the order of `containers`."""
        return (each for each in self.containers if each.role in roles)


def new_lifecycle(pod: Object, backoff_s: tuple[float, float] = (10.0, 300.0)) -> PodLifecycle:
    """Return the lifecycle of a pod that was just bound: no container has started.

    backoff_s: (pause before the second restart, longest pause), in seconds; the first restart has none.
    """
    spec = pod["spec"]
    first = [
        Container(each["name"], ContainerRole.SIDECAR if each.get("restartPolicy") == "Always" else ContainerRole.INIT)
        for each in spec.get("initContainers") or ()
    ]
    waiting = "PodInitializing" if first else "ContainerCreating"
    main = [Container(each["name"], ContainerRole.MAIN, waiting_reason=waiting) for each in spec["containers"]]
    return PodLifecycle(spec.get("restartPolicy", "Always"), (*first, *main), backoff_s)


# Queries.


def starts_due(lifecycle: PodLifecycle, now_s: float) -> list[str]:
    """Return the names of the containers to start now: those whose turn it is, and whose back-off is over.

    [] if none is due, the pod is being deleted, or it has ended.
    """
    if lifecycle.deletion_began_s is not None or has_ended(lifecycle):
        return []
    due = [
        each
        for each in _runnable_containers(lifecycle)
        if each.state is not ContainerState.RUNNING and each.not_before_s <= now_s
    ]
    return [each.name for each in due]


def signals_due(lifecycle: PodLifecycle, now_s: float) -> list[tuple[str, str]]:
    """Return the signals to send now: (name of the container, SIGTERM or SIGKILL). [] if none is due.

    A signal that was recorded by record_signal() is not due again. Without a deletion, only sidecars get SIGTERM, once
    the pod has ended (has_ended). In a deletion, sidecars get it last, once all other containers have ended, and
    SIGKILL is due for every container at the end of the grace period.
    """
    running = [each for each in lifecycle.containers if each.state is ContainerState.RUNNING]
    if lifecycle.deletion_began_s is not None and now_s >= lifecycle.deletion_began_s + lifecycle.grace_s:
        return [(each.name, KILL) for each in running if each.last_signal != KILL]
    if lifecycle.deletion_began_s is None and not has_ended(lifecycle):
        return []
    others = (
        [each for each in running if each.role is not ContainerRole.SIDECAR]
        if lifecycle.deletion_began_s is not None
        else []
    )
    ending = others or [each for each in running if each.role is ContainerRole.SIDECAR]
    return [(each.name, TERM) for each in ending if not each.last_signal]


def next_due_s(lifecycle: PodLifecycle, now_s: float) -> float | None:
    """Return the time at which a start or signal becomes due without any event; None if nothing becomes due later.

    What is due now already does not count.
    """
    if lifecycle.deletion_began_s is not None:
        until_s = lifecycle.deletion_began_s + lifecycle.grace_s
        return until_s if until_s > now_s else None
    later = [each.not_before_s for each in _runnable_containers(lifecycle) if each.not_before_s > now_s]
    return min(later, default=None)


def has_ended(lifecycle: PodLifecycle) -> bool:
    """Return True if every main container has ended for good, or an init container has failed for good.

    In a deletion an ended main container is never restarted, so it has ended for good.
    """
    return _init_failed(lifecycle) or _mains_are_done(lifecycle)


def has_no_process(lifecycle: PodLifecycle) -> bool:
    """Return True if no process of the pod runs."""
    return all(each.state is not ContainerState.RUNNING for each in lifecycle.containers)


def phase(lifecycle: PodLifecycle) -> str:
    """Return the phase of the pod for its status: Pending, Running, Succeeded or Failed.

    Pending until a main container has started. After the main containers have ended for good, Running until the
    sidecars have ended, too. Failed at once if an init container has failed for good.
    """
    if _init_failed(lifecycle):
        return "Failed"
    if _mains_are_done(lifecycle):
        if not has_no_process(lifecycle):
            return "Running"  # its sidecars are on their way out
        return "Failed" if any(each.end and each.end.code for each in lifecycle.of(ContainerRole.MAIN)) else "Succeeded"
    begun = any(each.state is not ContainerState.WAITING or each.last_end for each in lifecycle.of(ContainerRole.MAIN))
    return "Running" if begun else "Pending"


def is_ready(lifecycle: PodLifecycle) -> bool:
    """Return True if every main container and sidecar runs, and its readiness probe has succeeded.

    False once the pod's deletion has begun.
    """
    return lifecycle.deletion_began_s is None and all(
        each.state is ContainerState.RUNNING and each.ready
        for each in lifecycle.of(ContainerRole.MAIN, ContainerRole.SIDECAR)
    )


def is_initialized(lifecycle: PodLifecycle) -> bool:
    """Return True if the init containers have succeeded and every sidecar has started."""
    return next(_pending_init(lifecycle), None) is None


# Events.


def record_start(lifecycle: PodLifecycle, name: str, now_s: float, ready: bool = True) -> PodLifecycle:
    """Return the lifecycle after a container has started. Raises KeyError for an unknown container.

    name: of the container. ready: False if it has a readiness probe.
    """
    before = lifecycle.container(name)
    restart = 1 if before.end else 0
    started = Container(
        name, before.role, ContainerState.RUNNING, "", "", before.restarts + restart, now_s, ready=ready
    )
    return _with(lifecycle, replace(started, last_end=before.end or before.last_end, crashes=before.crashes))


def record_failed_start(lifecycle: PodLifecycle, name: str, reason: str, message: str, now_s: float) -> PodLifecycle:
    """Return the lifecycle after a container could not be started; it is due again after the shortest back-off.

    reason: of a kubelet, such as ErrImagePull. message: for people. Raises KeyError for an unknown container.
    """
    pause_s = lifecycle.backoff_s[0]
    return _with(
        lifecycle,
        replace(lifecycle.container(name), waiting_reason=reason, message=message, not_before_s=now_s + pause_s),
    )


def record_end(lifecycle: PodLifecycle, name: str, code: int, now_s: float, message: str = "") -> PodLifecycle:
    """Return the lifecycle after a container's process has ended, with its back-off if the container restarts.

    code: exit code, 128 + n for signal n. message: its termination message. The first restart has no pause. The second
    has backoff_s[0], and the pause then doubles with each restart up to backoff_s[1]. After a run of at least _RESET_S
    this begins again. Raises KeyError for an unknown container.
    """
    before = lifecycle.container(name)
    end = ContainerEnd(code, before.began_s, now_s, message)
    ended_container = replace(before, state=ContainerState.ENDED, end=end, last_signal="")
    if lifecycle.deletion_began_s is not None or not _restarts_after_end(lifecycle, ended_container):
        return _with(lifecycle, ended_container)
    crashes = 0 if now_s - before.began_s >= _RESET_S else before.crashes
    shortest_s, longest_s = lifecycle.backoff_s
    pause_s = min(shortest_s * 2 ** min(crashes - 1, 32), longest_s) if crashes else 0.0
    return _with(lifecycle, replace(ended_container, crashes=crashes + 1, not_before_s=now_s + pause_s))


def record_probe(lifecycle: PodLifecycle, name: str, ready: bool) -> PodLifecycle:
    """Return the lifecycle with the readiness that a probe has found. name: of the container. ready: True if it is
    ready.

    Raises KeyError for an unknown container.
    """
    return _with(lifecycle, replace(lifecycle.container(name), ready=ready))


def record_signal(lifecycle: PodLifecycle, name: str, signal: str) -> PodLifecycle:
    """Return the lifecycle after a signal was sent to a container. name: of the container. signal: SIGTERM or SIGKILL.

    Raises KeyError for an unknown container.
    """
    return _with(lifecycle, replace(lifecycle.container(name), last_signal=signal))


def begin_deletion(lifecycle: PodLifecycle, now_s: float, grace_s: float) -> PodLifecycle:
    """Return the lifecycle after the pod's deletion was requested.

    If it is requested again, only a shorter grace counts. grace_s: seconds from now_s.
    """
    if lifecycle.deletion_began_s is None:
        return replace(lifecycle, deletion_began_s=now_s, grace_s=grace_s)
    return replace(lifecycle, grace_s=min(lifecycle.grace_s, now_s + grace_s - lifecycle.deletion_began_s))


# Helpers.


def _runnable_containers(lifecycle: PodLifecycle) -> list[Container]:
    """Return the containers to start, by their order and restart policy, whatever their back-off. [] if the pod is
    over.

    These are ended sidecars, and the first init container or sidecar that has not finished or started; or else the main
    containers that wait or are restarted. An init container that runs delays all others.
    """
    if has_ended(lifecycle):
        return []
    pending_init = next(_pending_init(lifecycle), None)
    sidecars = [each for each in lifecycle.of(ContainerRole.SIDECAR) if each.state is ContainerState.ENDED]
    if pending_init is not None:
        return [
            *sidecars,
            *(
                [pending_init]
                if pending_init not in sidecars and pending_init.state is not ContainerState.RUNNING
                else []
            ),
        ]
    mains = [
        each
        for each in lifecycle.of(ContainerRole.MAIN)
        if each.state is ContainerState.WAITING or _is_to_restart(lifecycle, each)
    ]
    return [*sidecars, *mains]


def _pending_init(lifecycle: PodLifecycle) -> Iterator[Container]:
    """Yield the init containers that have not succeeded, and the sidecars that have never started, in order.

    The first one delays all after it, and the main containers.
    """
    for each in lifecycle.of(ContainerRole.INIT, ContainerRole.SIDECAR):
        is_done = each.state is ContainerState.ENDED and each.end is not None and each.end.code == 0
        if each.role is ContainerRole.SIDECAR:
            is_done = each.state is not ContainerState.WAITING
        if not is_done:
            yield each


def _is_to_restart(lifecycle: PodLifecycle, each: Container) -> bool:
    """Return True if a container has ended and is to be started again."""
    return each.state is ContainerState.ENDED and _restarts_after_end(lifecycle, each)


def _restarts_after_end(lifecycle: PodLifecycle, each: Container) -> bool:
    """Return True if an ended container is to be started again, by its role, its exit code and the pod's restart
    policy.
    """
    code = each.end.code if each.end else 0
    if each.role is ContainerRole.SIDECAR:
        return not has_ended(lifecycle)
    if each.role is ContainerRole.INIT:
        return code != 0 and lifecycle.policy != "Never"
    return lifecycle.policy == "Always" or (lifecycle.policy == "OnFailure" and code != 0)


def _init_failed(lifecycle: PodLifecycle) -> bool:
    """Return True if an init container has failed and the pod's policy does not restart it."""
    failed = (
        each
        for each in lifecycle.of(ContainerRole.INIT)
        if each.state is ContainerState.ENDED and each.end and each.end.code
    )
    return lifecycle.policy == "Never" and next(failed, None) is not None


def _mains_are_done(lifecycle: PodLifecycle) -> bool:
    """Return True if all main containers have ended and none restarts."""
    mains = list(lifecycle.of(ContainerRole.MAIN))
    return all(
        each.state is ContainerState.ENDED
        and not (_restarts_after_end(lifecycle, each) and lifecycle.deletion_began_s is None)
        for each in mains
    )


def _with(lifecycle: PodLifecycle, new: Container) -> PodLifecycle:
    """Return the lifecycle in which `new` replaces the container of its name."""
    return replace(lifecycle, containers=tuple(new if each.name == new.name else each for each in lifecycle.containers))


def status_of(pod: dict[str, Any], lifecycle: PodLifecycle, now_s: float, pod_ip: str, host_ip: str) -> dict[str, Any]:
    """Return the whole status of a pod as a patch.

    pod: with the stored status, whose start time and unchanged conditions are kept. now_s: time of conditions that
    change. pod_ip, host_ip: addresses, "" if unknown.
    """
    images = {each["name"]: each.get("image", "") for each in _containers(pod)}
    pod_phase = phase(lifecycle)
    started_at = (pod.get("status") or {}).get("startTime") or rfc3339(now_s)
    has_ended = pod_phase in ("Succeeded", "Failed")
    status: dict[str, Any] = {
        "phase": pod_phase,
        "startTime": started_at,
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}] if host_ip else [],
        "podIP": pod_ip,
        "podIPs": [{"ip": pod_ip}],
        "conditions": _conditions(pod, lifecycle, now_s, has_ended),
        "containerStatuses": [_container_status(each, images) for each in lifecycle.of(ContainerRole.MAIN)],
    }
    if init_statuses := [
        _container_status(each, images) for each in lifecycle.of(ContainerRole.INIT, ContainerRole.SIDECAR)
    ]:
        status["initContainerStatuses"] = init_statuses
    return status


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the containers of a pod's spec, init containers first."""
    return [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]


def _conditions(pod: dict[str, Any], lifecycle: PodLifecycle, now_s: float, has_ended: bool) -> list[dict[str, Any]]:
    """Return the conditions of a pod. has_ended: its phase is Succeeded or Failed."""
    ready = is_ready(lifecycle)
    states = {
        "PodReadyToStartContainers": not has_ended,
        "Initialized": is_initialized(lifecycle),
        "Ready": ready,
        "ContainersReady": ready,
    }
    before = {each["type"]: each for each in (pod.get("status") or {}).get("conditions") or ()}
    return [_condition(before.get(kind, {}), kind, is_true, now_s, has_ended) for kind, is_true in states.items()]


def _condition(before: Mapping[str, Any], kind: str, is_true: bool, now_s: float, has_ended: bool) -> dict[str, Any]:
    """Return one condition of a pod. Its transition time changes only with its status.

    before: the stored condition, {} for none. kind: its type. now_s: time of a change. has_ended: True if the pod has
    ended.
    """
    status = "True" if is_true else "False"
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    reason = {} if is_true else {"reason": "PodCompleted" if has_ended else "ContainersNotReady"}
    fields = {"type": kind, "status": status, "lastProbeTime": None}
    return {**fields, "lastTransitionTime": since or rfc3339(now_s), **reason}


def _container_status(each: Container, images: Mapping[str, str]) -> dict[str, Any]:
    """Return the containerStatus of a container for the pod's status. images: by name of the container."""
    is_running = each.state is ContainerState.RUNNING
    image = images.get(each.name, "")
    is_completed = each.role is ContainerRole.INIT and each.end is not None and each.end.code == 0
    status: dict[str, Any] = {
        "name": each.name,
        "image": image,
        "imageID": image,
        "ready": (is_running and each.ready) if each.role is not ContainerRole.INIT else is_completed,
        "started": is_running,
        "restartCount": each.restarts,
        "state": _state(each),
    }
    last = each.end if _backs_off(each) else each.last_end
    return status | ({"lastState": {"terminated": _terminated_state(last)}} if last else {})


def _backs_off(each: Container) -> bool:
    """Return True if a container has ended and waits for its back-off."""
    return each.state is ContainerState.ENDED and each.end is not None and each.not_before_s > each.end.ended_s


def _state(each: Container) -> dict[str, Any]:
    """Return the state of a container: running, waiting with its reason, or terminated. During a back-off it is
    waiting.
    """
    if each.state is ContainerState.RUNNING:
        return {"running": {"startedAt": rfc3339(each.began_s)}}
    if each.state is ContainerState.WAITING:
        return _waiting_state(each)
    if _backs_off(each) and each.end is not None:
        if each.waiting_reason:  # the restart itself has failed
            return _waiting_state(each)
        pause_s = each.not_before_s - each.end.ended_s
        message = f"back-off {pause_s:g}s restarting failed container={each.name}"
        return {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
    return {"terminated": _terminated_state(each.end)} if each.end else {}


def _waiting_state(each: Container) -> dict[str, Any]:
    """Return the waiting state of a container with its own reason and message."""
    return {"waiting": {"reason": each.waiting_reason} | ({"message": each.message} if each.message else {})}


def _terminated_state(end: ContainerEnd) -> dict[str, Any]:
    """Return the terminated state of a container."""
    terminated: dict[str, Any] = {
        "exitCode": end.code,
        "reason": "Error" if end.code else "Completed",
        "startedAt": rfc3339(end.began_s),
        "finishedAt": rfc3339(end.ended_s),
    }
    return terminated | ({"message": end.message} if end.message else {})
