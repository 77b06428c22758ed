"""What a kubelet keeps of one pod: its containers, and what is to be done with them now.

Level-based: `to_start` and `to_stop` read the present state, whatever happened before. Times are in seconds since
1970. Sources: Kubernetes' pod lifecycle, and KEP-753 for init containers that stay (sidecars).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

Object = Mapping[str, Any]
TERM, KILL = "SIGTERM", "SIGKILL"
KILLED = 137  # the exit code of what had to be killed
_STEADY_S = 600.0  # a container that ran so long starts with a fresh back-off


class Part(Enum):
    """What a container is for."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


class State(Enum):
    """Where a container stands."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class End:
    """How a run of a container ended. message: what it left as its termination message."""

    code: int
    began_s: float
    ended_s: float
    message: str = ""


@dataclass(frozen=True, slots=True)
class Container:
    """One container. last: its run before this one. not_before_s: when it may start again. told: its last signal."""

    name: str
    part: Part
    state: State = State.WAITING
    why: str = "ContainerCreating"
    message: str = ""
    restarts: int = 0
    began_s: float = 0.0
    end: End | None = None
    last: End | None = None
    not_before_s: float = 0.0
    crashes: int = 0
    told: str = ""


@dataclass(frozen=True, slots=True)
class PodLifecycle:
    """One pod. policy: Always, OnFailure or Never. leaves_s: when it was told to leave, with grace_s to do so."""

    policy: str
    containers: tuple[Container, ...]
    backoff_s: tuple[float, float]
    leaves_s: float | None = None
    grace_s: float = 0.0

    def named(self, name: str) -> Container:
        """Raises KeyError."""
        for each in self.containers:
            if each.name == name:
                return each
        raise KeyError(name)

    def of(self, *parts: Part) -> Iterator[Container]:
        """The containers of these parts, in order."""
        return (each for each in self.containers if each.part in parts)


def opened(pod: Object, backoff_s: tuple[float, float] = (10.0, 300.0)) -> PodLifecycle:
    """A book for a pod that has just been bound. backoff_s: the second pause before a restart, and the longest."""
    spec = pod["spec"]
    first = [
        Container(each["name"], Part.SIDECAR if each.get("restartPolicy") == "Always" else Part.INIT)
        for each in spec.get("initContainers") or ()
    ]
    waiting = "PodInitializing" if first else "ContainerCreating"
    main = [Container(each["name"], Part.MAIN, why=waiting) for each in spec["containers"]]
    return PodLifecycle(spec.get("restartPolicy", "Always"), (*first, *main), backoff_s)


# What is to be done.


def to_start(book: PodLifecycle, now_s: float) -> list[str]:
    """The containers to start now, by name."""
    if book.leaves_s is not None or over(book):
        return []
    due = [each for each in _wanted(book) if each.state is not State.RUNNING and each.not_before_s <= now_s]
    return [each.name for each in due]


def to_stop(book: PodLifecycle, now_s: float) -> list[tuple[str, str]]:
    """Who gets which signal now: (name, SIGTERM or SIGKILL). Sidecars go last, once all others have ended."""
    running = [each for each in book.containers if each.state is State.RUNNING]
    if book.leaves_s is None:
        late = [each for each in running if each.part is Part.SIDECAR] if _mains_are_done(book) else []
        return [(each.name, TERM) for each in late if not each.told]
    if now_s >= book.leaves_s + book.grace_s:
        return [(each.name, KILL) for each in running if each.told != KILL]
    others = [each for each in running if each.part is not Part.SIDECAR]
    return [(each.name, TERM) for each in (others or running) if not each.told]


def next_look_s(book: PodLifecycle, now_s: float) -> float | None:
    """When something is to be done that only time brings; None: nothing."""
    if book.leaves_s is not None:
        until_s = book.leaves_s + book.grace_s
        return until_s if until_s > now_s else None
    later = [each.not_before_s for each in _wanted(book) if each.not_before_s > now_s]
    return min(later, default=None)


def over(book: PodLifecycle) -> bool:
    """Has every main container ended for good, or an init container in vain?"""
    return _init_failed(book) or _mains_are_done(book)


def at_rest(book: PodLifecycle) -> bool:
    """Does no process of it run?"""
    return all(each.state is not State.RUNNING for each in book.containers)


def phase(book: PodLifecycle) -> str:
    """The pod's phase."""
    if _init_failed(book):
        return "Failed"
    if _mains_are_done(book):
        if not at_rest(book):
            return "Running"  # its sidecars are on their way out
        return "Failed" if any(each.end and each.end.code for each in book.of(Part.MAIN)) else "Succeeded"
    begun = any(each.state is not State.WAITING or each.last for each in book.of(Part.MAIN))
    return "Running" if begun else "Pending"


def ready(book: PodLifecycle) -> bool:
    """Do all that should be running run?"""
    return book.leaves_s is None and all(each.state is State.RUNNING for each in book.of(Part.MAIN, Part.SIDECAR))


def initialized(book: PodLifecycle) -> bool:
    """Have the init containers done their work, and do the sidecars run?"""
    return next(_pending_init(book), None) is None


# What has happened.


def started(book: PodLifecycle, name: str, now_s: float) -> PodLifecycle:
    """A container runs."""
    was = book.named(name)
    again = 1 if was.end else 0
    run = Container(name, was.part, State.RUNNING, "", "", was.restarts + again, now_s)
    return _with(book, replace(run, last=was.end or was.last, crashes=was.crashes))


def not_started(book: PodLifecycle, name: str, why: str, message: str, now_s: float) -> PodLifecycle:
    """A container could not be started; it is tried again. why: a reason word of a kubelet."""
    pause_s = book.backoff_s[0]
    return _with(book, replace(book.named(name), why=why, message=message, not_before_s=now_s + pause_s))


def ended(book: PodLifecycle, name: str, code: int, now_s: float, message: str = "") -> PodLifecycle:
    """A container's process has ended."""
    was = book.named(name)
    end = End(code, was.began_s, now_s, message)
    gone = replace(was, state=State.ENDED, end=end, told="")
    if book.leaves_s is not None or not _again(book, gone):
        return _with(book, gone)
    crashes = 0 if now_s - was.began_s >= _STEADY_S else was.crashes
    pause_s = min(book.backoff_s[0] * 2 ** (crashes - 1), book.backoff_s[1]) if crashes else 0.0
    return _with(book, replace(gone, crashes=crashes + 1, not_before_s=now_s + pause_s))


def signalled(book: PodLifecycle, name: str, signal: str) -> PodLifecycle:
    """A container was told to end."""
    return _with(book, replace(book.named(name), told=signal))


def leaves(book: PodLifecycle, now_s: float, grace_s: float) -> PodLifecycle:
    """The pod is told to leave. Again: only a shorter grace counts."""
    if book.leaves_s is None:
        return replace(book, leaves_s=now_s, grace_s=grace_s)
    return replace(book, grace_s=min(book.grace_s, now_s + grace_s - book.leaves_s))


# Inside.


def _wanted(book: PodLifecycle) -> list[Container]:
    """The containers that should be running and may be started, the pauses apart."""
    if over(book):
        return []
    held = next(_pending_init(book), None)
    sidecars = [each for each in book.of(Part.SIDECAR) if each.state is State.ENDED]
    if held is not None:
        return [*sidecars, *([held] if held not in sidecars and held.state is not State.RUNNING else [])]
    mains = [each for each in book.of(Part.MAIN) if each.state is State.WAITING or _returns(book, each)]
    return [*sidecars, *mains]


def _pending_init(book: PodLifecycle) -> Iterator[Container]:
    """The init containers that are not through, in order; the first of them holds the rest up."""
    for each in book.of(Part.INIT, Part.SIDECAR):
        through = each.state is State.ENDED and each.end is not None and each.end.code == 0
        if each.part is Part.SIDECAR:
            through = each.state is not State.WAITING
        if not through:
            yield each


def _returns(book: PodLifecycle, each: Container) -> bool:
    return each.state is State.ENDED and _again(book, each)


def _again(book: PodLifecycle, each: Container) -> bool:
    """Is a container that has ended to be started again?"""
    code = each.end.code if each.end else 0
    if each.part is Part.SIDECAR:
        return not _mains_are_done(book)
    if each.part is Part.INIT:
        return code != 0 and book.policy != "Never"
    return book.policy == "Always" or (book.policy == "OnFailure" and code != 0)


def _init_failed(book: PodLifecycle) -> bool:
    lost = (each for each in book.of(Part.INIT) if each.state is State.ENDED and each.end and each.end.code)
    return book.policy == "Never" and next(lost, None) is not None


def _mains_are_done(book: PodLifecycle) -> bool:
    mains = list(book.of(Part.MAIN))
    return all(each.state is State.ENDED and not (_again(book, each) and book.leaves_s is None) for each in mains)


def _with(book: PodLifecycle, new: Container) -> PodLifecycle:
    return replace(book, containers=tuple(new if each.name == new.name else each for each in book.containers))
