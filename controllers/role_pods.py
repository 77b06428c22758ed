"""Decides on the pods of one role: which are created, deleted and recreated, at once or after a back-off.

Restarts, numbers and back-offs are kept in the role's part of the job's status, so another controller continues with
them, and a controller that ends between counting a pod and deleting it counts it once. Numbers are given upwards and
never twice, as in DLRover. The back-off is the kubelet's for containers: at once the first times, then after a pause
that doubles. An owner who changes these fields only changes when the pods of that job are recreated. Source: DL-15,
DL-94, MS-36
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Self

from turnout.controllers import children
from turnout.controllers.children import Portion
from turnout.controllers.model import (
    JUMP_S,
    ControlledJob,
    ControlledKind,
    Counts,
    EventOnJob,
    Object,
    OwnedObjects,
    PodPhase,
    PodState,
    Reason,
    Replica,
    RestartReason,
    Role,
    Setup,
    Write,
)
from turnout.jobs.kinds.job_kind import Restart
from turnout.kube.errors import BadQuantity
from turnout.kube.pod_shape import amount

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
    events: Sequence[EventOnJob] = ()
    restarts: Sequence[RestartReason] = ()  # one for each failed pod whose recreation was not counted before


def soonest(decisions: Iterable[RoleDecision], *bounds: float) -> float | None:
    """Return the shortest of these times, in seconds; None without any."""
    return min(
        (*bounds, *(decision.requeue_s for decision in decisions if decision.requeue_s is not None)), default=None
    )


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The input of all decisions of one reconciliation of a job."""

    kind: ControlledKind
    view: ControlledJob
    known: OwnedObjects
    setup: Setup
    now_s: float
    portion: Portion = field(default_factory=Portion)  # the children that may still be created


class _RolePods(NamedTuple):
    """The pods of one role, by index."""

    all: list[PodState]
    outdated: list[PodState]
    # A deleted pod of a numbered kind has its successor already, and was counted if we deleted it.
    replaced: list[PodState]
    failed: list[PodState]  # neither outdated nor replaced


def decide_role(now: Reconciliation, role: Role, before: Object) -> RoleDecision:
    """Decide on the pods of one role. before: its part of the status."""
    kind, view = now.kind, now.view
    pods = _pods_of(now, role)
    past = RoleHistory.read(
        role, before, pods.all, numbered=kind.numbered, faulty_node_exit_code=kind.faulty_node_exit_code
    )
    recreated = [pod for pod in pods.failed if past.may_recreate(pod) and _is_recreated(kind, view, role, pod)]
    failure = _failure(kind, view, role, past, pods.failed, recreated)
    fresh = past.uncounted(recreated)
    past, back_off = past.with_counted(recreated), BackOff.read(before, now.now_s).with_failures(fresh)
    leave = [pod for pod in (*children.surplus(role, pods.all), *recreated, *pods.outdated) if not pod.deleting]
    waiting_s = back_off.waiting_s(role.replicas, JUMP_S if now.known.jumped_s else 0.0)
    creations, past = _creations(now, role, past, pods, waiting_s)
    left_out = recreated if kind.numbered else ()
    return RoleDecision(
        [*(children.delete_pod(pod) for pod in leave), *creations],
        _counts(pod for pod in pods.all if pod.index < role.replicas and pod not in left_out),
        bool(recreated),
        failure,
        {**past.status_fields(), **back_off.status_fields(role.replicas)},
        min(waiting_s.values(), default=None),
        _back_off_events(role, waiting_s, fresh),
        [restart_reason(pod, kind.faulty_node_exit_code) for pod in fresh],
    )


def _pods_of(now: Reconciliation, role: Role) -> _RolePods:
    """Sort the pods of a role into all, outdated, about to be replaced, and failed."""
    mine = sorted((pod for pod in now.known.pods if pod.role == role.label), key=lambda pod: pod.index)
    outdated = [pod for pod in mine if now.kind.outdated(now.view, pod)]
    replaced = [pod for pod in mine if now.kind.numbered and pod.deleting]
    failed = [pod for pod in mine if pod.phase is PodPhase.FAILED and pod not in outdated and pod not in replaced]
    return _RolePods(mine, outdated, replaced, failed)


def _creations(
    now: Reconciliation, role: Role, past: RoleHistory, pods: _RolePods, waiting_s: Mapping[int, float]
) -> tuple[list[Write], RoleHistory]:
    """Return the creations of missing pods that do not wait, and the past with their numbers given."""
    creations: list[Write] = []
    waits_for_admission = not role.outside_gang and children.waits_for_admission(now.known, now.setup)
    if waits_for_admission or role.name in now.kind.postponed_roles(now.view, now.known):
        return creations, past
    for index in children.missing(role, (pod for pod in pods.all if pod not in pods.replaced)):
        if index in waiting_s:
            continue
        if now.portion.is_full():
            break
        replica, past = past.give_number(index)
        body = partial(children.pod, now.kind, now.view, role, replica, now.known, now.setup)
        creations.append(now.portion.create(body))
    return creations, past


def _failure(
    kind: ControlledKind,
    view: ControlledJob,
    role: Role,
    past: RoleHistory,
    failed: Sequence[PodState],
    recreated: Sequence[PodState],
) -> str:
    """Return why the job fails by the failed pods of a role, "" if it does not.

    past: restarts so far. recreated: failed pods that are created again.
    """
    if any(not past.may_recreate(pod) for pod in failed):
        return f'job "{view.name}" is failing because one "{role.name}" failed {role.most_restarts} times and again.'
    if any(_is_final(kind, view, role, pod) for pod in failed if pod not in recreated):
        return f'job "{view.name}" is failing because "{role.name}" replica(s) failed.'
    return ""


def _back_off_events(role: Role, waiting_s: Mapping[int, float], fresh: Iterable[PodState]) -> list[EventOnJob]:
    """Return one Event for each new failure whose pod is recreated after a back-off."""
    late = sorted({pod.index for pod in fresh} & waiting_s.keys())
    if not late:
        return []
    named = ", ".join(map(str, late[:_NAMED])) + (f" and {len(late) - _NAMED} others" if len(late) > _NAMED else "")
    until = f"{max(waiting_s[index] for index in late):.0f} s"
    return [
        EventOnJob(Reason.BACK_OFF, f"{role.name} {named} failed again and again: made anew in {until}", warning=True)
    ]


def _is_recreated(kind: ControlledKind, view: ControlledJob, role: Role, pod: PodState) -> bool:
    """Return True if a failed pod is created again: by the rule of the kind, its exit code, or the restart policy."""
    if (decision := kind.recreate(view, role, pod)) is not None:
        return decision
    if role.restart is Restart.EXIT_CODE:
        return pod.exit_code is not None and pod.exit_code >= kind.restarts_at
    return role.restart is not Restart.NEVER


def _is_final(kind: ControlledKind, view: ControlledJob, role: Role, pod: PodState) -> bool:
    """Return True if a pod's failure is the job's, however many other pods there are."""
    return role.restart is Restart.EXIT_CODE or kind.recreate(view, role, pod) is False


def _counts(pods: Iterable[PodState]) -> Counts:
    """Count active, succeeded and failed pods. A running pod that is being deleted counts as failed."""
    active = succeeded = failed = 0
    for pod in pods:
        active += pod.phase is PodPhase.RUNNING and not pod.deleting
        failed += pod.phase is PodPhase.FAILED or (pod.phase is PodPhase.RUNNING and pod.deleting)
        succeeded += pod.phase is PodPhase.SUCCEEDED
    return Counts(active, succeeded, failed)


_MAX_NUMBER = 2**31 - 1  # of a number or a count in a status
_MOST_NODES = 16  # that are avoided, the newest
_STARVED = "OOMKilled"
_EVICTED = frozenset({"Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Preempting", "Terminated"})  # of the kubelet


def restart_reason(pod: PodState, faulty_node_exit_code: int | None = None) -> RestartReason:
    """Return why a pod is recreated. faulty_node_exit_code: as in ControlledKind."""
    if pod.reason == _STARVED:
        return RestartReason.OUT_OF_MEMORY
    if pod.deleting or pod.reason in _EVICTED:
        return RestartReason.EVICTED
    if faulty_node_exit_code is not None and pod.exit_code == faulty_node_exit_code:
        return RestartReason.FAULTY_NODE
    return RestartReason.PROCESS_FAILED


@dataclass(frozen=True, slots=True)
class RoleHistory:
    """The past of one role."""

    role: Role
    numbered: bool
    total: int  # restarts of all indices
    uids: frozenset[str]  # pods that are counted and may still exist
    by_index: Mapping[int, int]  # restarts of each index, if the role bounds them
    next_number: int  # the first number that was never given
    faulty_node_exit_code: int | None = None  # as in ControlledKind
    memory_kills: Mapping[int, int] = field(default_factory=dict)  # restarts for lack of memory, by index
    faulty_nodes: tuple[str, ...] = ()  # names of faulty nodes, the newest last
    first_unrecorded: int = 0  # the first number that the status does not know as given
    used_numbers: frozenset[int] = frozenset()  # of pods that exist or are created

    @classmethod
    def read(
        cls,
        role: Role,
        before: Object,
        pods: Sequence[PodState],
        *,
        numbered: bool,
        faulty_node_exit_code: int | None = None,
    ) -> Self:
        """Return the past of the role's part of a status, and of the pods that exist."""
        uids = before.get("restartedPods")
        counted = frozenset(uids) if isinstance(uids, list) and all(isinstance(uid, str) for uid in uids) else ()
        node_names = before.get("faultyNodes") if faulty_node_exit_code is not None else ()
        nodes = tuple(each for each in node_names if isinstance(each, str)) if isinstance(node_names, list) else ()
        used_numbers = frozenset(map(_number_of, pods)) if numbered else frozenset()
        noted = _number_or_zero(before.get("nextNumber"))
        next_ = max(noted, *(number + 1 for number in used_numbers), 0)
        indices, starved = _by_index(before.get("restartCounts")), _by_index(before.get("memoryKills"))
        total = _number_or_zero(before.get("restarts"))
        return cls(
            role,
            numbered,
            total,
            frozenset(counted),
            indices,
            next_,
            faulty_node_exit_code,
            starved,
            nodes,
            noted,
            used_numbers,
        )

    def may_recreate(self, pod: PodState) -> bool:
        """Return True if this pod's index may be recreated once more, or is counted already."""
        most = self.role.most_restarts
        return most is None or pod.uid in self.uids or self.by_index.get(pod.index, 0) < most

    def uncounted(self, pods: Iterable[PodState]) -> list[PodState]:
        """Return the pods that are not counted yet."""
        return [pod for pod in pods if pod.uid not in self.uids]

    def with_counted(self, pods: Iterable[PodState]) -> RoleHistory:
        """Return the past with these pods counted, each once."""
        pods = list(pods)
        by_index = dict(self.by_index)
        fresh = self.uncounted(pods)
        for pod in fresh if self.role.most_restarts is not None else ():
            by_index[pod.index] = by_index.get(pod.index, 0) + 1
        starved, nodes = dict(self.memory_kills), list(self.faulty_nodes)
        for pod in fresh if self.faulty_node_exit_code is not None else ():
            if pod.reason == _STARVED:
                starved[pod.index] = starved.get(pod.index, 0) + 1
            if pod.exit_code == self.faulty_node_exit_code and pod.node:
                nodes = [*(each for each in nodes if each != pod.node), pod.node][-_MOST_NODES:]
        uids = frozenset(pod.uid for pod in pods)
        total = self.total + len(fresh)
        return replace(self, total=total, uids=uids, by_index=by_index, memory_kills=starved, faulty_nodes=tuple(nodes))

    def give_number(self, index: int) -> tuple[Replica, RoleHistory]:
        """Return the replica that fills an index, and the past with its number given.

        The first pod of an index has its number, though others were made before it: a quota may have refused it.
        """
        met = self.by_index.get(index, 0), self.memory_kills.get(index, 0), self.faulty_nodes
        if not self.numbered:
            return Replica(index, index, *met), self
        first = index >= self.first_unrecorded and index not in self.used_numbers
        number = index if first else max(index, self.next_number)
        return Replica(index, number, *met), replace(
            self, next_number=max(self.next_number, number + 1), used_numbers=self.used_numbers | {number}
        )

    def status_fields(self) -> Object:
        """Return what the status has to remember."""
        found: dict[str, Any] = {"restarts": self.total, "restartedPods": sorted(self.uids)} if self.total else {}
        for name, counts in (("restartCounts", self.by_index), ("memoryKills", self.memory_kills)):
            if counts:
                found[name] = {str(index): count for index, count in sorted(counts.items())}
        if self.faulty_nodes:
            found["faultyNodes"] = list(self.faulty_nodes)
        return {**found, "nextNumber": self.next_number} if self.numbered and self.next_number else found


def _by_index(counts: Any) -> dict[int, int]:
    """Return index -> count from a mapping in the job's status. Invalid entries and zeros are left out."""
    return {
        int(index): _number_or_zero(count)
        for index, count in (counts.items() if isinstance(counts, Mapping) else ())
        if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 8 and _number_or_zero(count)
    }


def _number_of(pod: PodState) -> int:
    tail = pod.name.rpartition("-")[2]
    return int(tail) if tail.isascii() and tail.isdigit() and len(tail) < 8 else 0


def _number_or_zero(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_NUMBER else 0


RETRIES_AT_ONCE = 3  # failures in a row after which a pod is still recreated at once
FIRST_BACKOFF_S, MAX_BACKOFF_S = 10.0, 300.0
FORGOTTEN_S = 600.0  # a pod that ran for so long starts without failures
_SKEW_S = 60.0  # the most that another controller's clock may be ahead of ours
_MAX_FAILURES = 64  # the largest count of failures in a row
_MOST_TIME = 2**53


@dataclass(frozen=True, slots=True)
class BackOff:
    """The failures of one role by index. failures: in a row. last_s: since 1970, of those that make an index wait."""

    now_s: float
    failures: Mapping[int, int] = field(default_factory=dict)
    last_s: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def read(cls, before: Object, now_s: float) -> Self:
        """Return the back-off of the role's part of a status. Times in the future do not count."""
        failures = _numbers(before.get("quickFailures"), _MAX_FAILURES)
        last = _numbers(before.get("lastFailures"), _MOST_TIME)
        return cls(now_s, failures, {index: at for index, at in last.items() if at <= now_s + _SKEW_S})

    def with_failures(self, pods: Iterable[PodState]) -> BackOff:
        """Return the back-off after these pods have failed. Each is counted for the first time."""
        failures, last = dict(self.failures), dict(self.last_s)
        for pod in pods:
            before = 0 if _run_time_s(pod, self.now_s) >= FORGOTTEN_S else failures.get(pod.index, 0)
            failures[pod.index] = min(before + 1, _MAX_FAILURES)
            last[pod.index] = self.now_s
        return BackOff(self.now_s, failures, last)

    def left_s(self, index: int, least_s: float = 0.0) -> float:
        """Return in how many seconds the index may have a pod, 0 for now.

        least_s: the least wait of an index in a back-off.
        """
        at_s, pause = self.last_s.get(index), pause_s(self.failures.get(index, 0))
        if at_s is None or not pause:
            return 0.0
        return max(least_s, min(at_s, self.now_s) + pause - self.now_s)

    def waiting_s(self, size: int, least_s: float) -> dict[int, float]:
        """Return the seconds that each index in a back-off still waits. size: of the role. least_s: as for `left_s`."""
        left_s = {index: self.left_s(index, least_s) for index in self.last_s if index < size}
        return {index: wait_s for index, wait_s in left_s.items() if wait_s > 0}

    def status_fields(self, size: int) -> Object:
        """Return what the status has to remember. size: of the role; indices above it are forgotten."""
        known = [(index, count) for index, count in sorted(self.failures.items()) if 0 <= index < size]
        counts = {str(index): count for index, count in known}
        last = {index: self.last_s[index] for index, count in known if count > RETRIES_AT_ONCE and index in self.last_s}
        times = {str(index): int(at_s) for index, at_s in last.items()}
        return {name: each for name, each in (("quickFailures", counts), ("lastFailures", times)) if each}


def pause_s(failures: int) -> float:
    """Return the pause after so many failures in a row."""
    return (
        0.0
        if failures <= RETRIES_AT_ONCE
        else min(FIRST_BACKOFF_S * 2 ** min(failures - RETRIES_AT_ONCE - 1, 16), MAX_BACKOFF_S)
    )


def _run_time_s(pod: PodState, now_s: float) -> float:
    """Return how long a pod has run. A pod of unknown end has ended now; without a start the time is 0."""
    return 0.0 if pod.began_s is None else (now_s if pod.ended_s is None else pod.ended_s) - pod.began_s


def _numbers(found: Any, most: int) -> dict[int, int]:
    """Return index -> number, 1 to `most`, from a mapping in the job's status. Invalid entries are left out."""
    return {
        int(index): number
        for index, number in (found.items() if isinstance(found, Mapping) else ())
        if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 8
        if isinstance(number, int) and not isinstance(number, bool) and 0 < number <= most
    }


_MAX_NAMES = 8  # names in a text


def extended(quantities: Any) -> frozenset[str]:
    """Return the names of extended resources above 0: those of a domain other than Kubernetes's."""
    found = quantities.items() if isinstance(quantities, Mapping) else ()
    return frozenset(name for name, quantity in found if _is_extended(name) and _is_some(name, quantity))


def not_offered(view: ControlledJob, offered: frozenset[str]) -> list[str]:
    """Return, for each role, which requested devices no node offers. offered: by all nodes together."""
    texts = []
    for role in view.roles:
        missing = sorted(_device_requests(role.template) - offered) if role.replicas else []
        if missing:
            have = _names_text(sorted(offered)) or "no extended resource at all"
            texts.append(
                f"{role.name} asks for {_names_text(missing)}, which no node offers: nodes offer {have}. Is the device "
                "plugin installed, with its container runtime, and is the name right?"
            )
    return texts


def _device_requests(template: Object) -> frozenset[str]:
    parts = [each.get("resources") for each in template["spec"]["containers"]]
    resources = [each for each in parts if isinstance(each, Mapping)]
    return frozenset(name for each in resources for part in ("limits", "requests") for name in extended(each.get(part)))


def _is_extended(name: Any) -> bool:
    domain, slash, _ = name.partition("/") if isinstance(name, str) else ("", "", "")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def _is_some(name: str, quantity: Any) -> bool:
    """Return True if a quantity is above 0; False if it is invalid."""
    try:
        return amount(name, quantity) > 0
    except (BadQuantity, TypeError, AttributeError):
        return False


def _names_text(names: Iterable[str]) -> str:
    names = [each[:100] for each in names]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
