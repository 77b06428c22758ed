"""Decide on the pods of one role: which are created, deleted and recreated, at once or after a back-off.

Restarts, numbers and back-offs are kept in the role's part of the job's status, so another controller continues with
them: if a controller ends after counting a failed pod and before deleting it, the next controller does not count it
again. Numbers are given upwards and never twice, as in DLRover. The back-off is like the kubelet's for containers: the
first RETRIES_AT_ONCE failures of an index in a row have no pause, then the pause doubles from FIRST_BACKOFF_S up to
MAX_BACKOFF_S. An owner who edits these fields affects only the recreation of that job's pods. Source: DL-15, DL-94,
MS-36
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Self

from turnout.controllers import children
from turnout.controllers.children import CreateBudget
from turnout.controllers.model import (
    JUMP_S,
    ControlledJob,
    ControlledKind,
    Counts,
    EventOnJob,
    GangSettings,
    Object,
    OwnedObjects,
    PodPhase,
    PodState,
    Reason,
    Replica,
    RestartReason,
    Role,
    Write,
)
from turnout.jobs.kinds.job_kind import Restart
from turnout.kube.errors import BadQuantity
from turnout.kube.pod_shape import amount

_MAX_INDICES = 8  # indices in a text


@dataclass(frozen=True, slots=True)
class RoleDecision:
    """The decision on the pods of one role."""

    writes: Sequence[Write]
    counts: Counts
    recreates_failed_pods: bool
    failure: str  # why the job fails by these pods, "" if it does not
    status_fields: Object  # fields of the role's part of the status, for later decisions
    requeue_s: float | None = None  # until the first index in a back-off may have a pod; None without a back-off
    events: Sequence[EventOnJob] = ()
    restarts: Sequence[RestartReason] = ()  # one for each failed pod whose recreation was not counted before


def soonest(decisions: Iterable[RoleDecision], *bounds: float) -> float | None:
    """Return the shortest of the decisions' `requeue_s` and of `bounds`, in seconds; None without any."""
    return min(
        (*bounds, *(decision.requeue_s for decision in decisions if decision.requeue_s is not None)), default=None
    )


@dataclass(frozen=True, slots=True)
class ReconcileContext:
    """What all decisions of one reconciliation of a job read."""

    kind: ControlledKind
    job: ControlledJob
    owned: OwnedObjects
    gang_settings: GangSettings
    now_s: float  # seconds since 1970
    create_budget: CreateBudget = field(default_factory=CreateBudget)  # the children that may still be created


class _RolePods(NamedTuple):
    """The pods of one role, by index."""

    all: list[PodState]
    of_other_mode: list[PodState]  # created for another mode of the job
    # Terminating pods of a numbered kind: each has its successor already, and was counted if we deleted it.
    replaced: list[PodState]
    # Above the size of the role, as after a shrink, or with an unreadable index, and not of another mode.
    surplus: list[PodState]
    failed: list[PodState]  # neither of another mode nor replaced nor surplus


def decide_role(context: ReconcileContext, role: Role, before: Object) -> RoleDecision:
    """Return the decision on the pods of one role. before: the role's part of the stored status, {} for none."""
    kind, job = context.kind, context.job
    pods = _pods_of_role(context, role)
    history = RoleHistory.read(
        role,
        before,
        pods.all,
        unique_pod_names=kind.children.unique_pod_names,
        faulty_node_exit_code=kind.restarts.faulty_node_exit_code,
    )
    recreated = [pod for pod in pods.failed if history.may_recreate(pod) and _is_recreated(kind, job, role, pod)]
    failure = _failure(kind, job, role, history, pods.failed, recreated)
    new_failures = history.uncounted(recreated)
    history = history.with_counted(recreated)
    back_off = BackOff.read(before, context.now_s).with_failures(new_failures)
    pods_to_delete = [pod for pod in (*pods.surplus, *recreated, *pods.of_other_mode) if not pod.deleting]
    waiting_s = back_off.waiting_s(role.replicas, JUMP_S if context.owned.jumped_s else 0.0)
    creations, history = _creations(context, role, history, pods, waiting_s)
    uncounted_pods = recreated if kind.children.unique_pod_names else ()
    return RoleDecision(
        [*(children.delete_pod(pod) for pod in pods_to_delete), *creations],
        _counts(pod for pod in pods.all if 0 <= pod.index < role.replicas and pod not in uncounted_pods),
        bool(recreated),
        failure,
        {**history.status_fields(), **back_off.status_fields(role.replicas)},
        min(waiting_s.values(), default=None),
        _back_off_events(role, waiting_s, new_failures),
        [restart_reason(pod, kind.restarts.faulty_node_exit_code) for pod in new_failures],
    )


def _pods_of_role(context: ReconcileContext, role: Role) -> _RolePods:
    """Return the pods of a role, sorted by index and grouped as _RolePods documents."""
    role_pods = sorted((pod for pod in context.owned.pods if pod.role == role.label), key=lambda pod: pod.index)
    of_other_mode = [pod for pod in role_pods if context.kind.is_of_other_mode(context.job, pod)]
    replaced = [pod for pod in role_pods if context.kind.children.unique_pod_names and pod.deleting]
    surplus = children.surplus_pods(role, _without(role_pods, of_other_mode))
    other_pods = _without(role_pods, (*of_other_mode, *replaced, *surplus))
    failed = [pod for pod in other_pods if pod.phase is PodPhase.FAILED]
    return _RolePods(role_pods, of_other_mode, replaced, surplus, failed)


def _without(pods: Iterable[PodState], excluded: Iterable[PodState]) -> list[PodState]:
    """Return the pods that are not among `excluded`, in their order. Pods of one job are equal if their names are."""
    names = {pod.name for pod in excluded}
    return [pod for pod in pods if pod.name not in names]


def _creations(
    context: ReconcileContext, role: Role, history: RoleHistory, pods: _RolePods, waiting_s: Mapping[int, float]
) -> tuple[list[Write], RoleHistory]:
    """Return the writes that create missing pods, and the history with the numbers of these pods marked as used.

    Nothing is created for a gang that is not admitted, a postponed role, an index in a back-off, or beyond the budget.
    waiting_s: index -> seconds that it still waits.
    """
    creations: list[Write] = []
    waits_for_admission = not role.outside_gang and children.waits_for_admission(context.owned, context.gang_settings)
    if waits_for_admission or role.name in context.kind.postponed_roles(context.job, context.owned):
        return creations, history
    for index in children.missing_indices(role, (pod for pod in pods.all if pod not in pods.replaced)):
        if index in waiting_s:
            continue
        if context.create_budget.leave_out_next():
            break
        replica, history = history.give_number(index)
        build_pod = partial(
            children.pod_body, context.kind, context.job, role, replica, context.owned, context.gang_settings
        )
        creations.append(context.create_budget.create(build_pod))
    return creations, history


def _failure(
    kind: ControlledKind,
    job: ControlledJob,
    role: Role,
    history: RoleHistory,
    failed: Sequence[PodState],
    recreated: Sequence[PodState],
) -> str:
    """Return why the job fails by the failed pods of a role, "" if it does not.

    history: restarts so far. failed: all failed pods. recreated: those of them that are created again.
    """
    if any(not history.may_recreate(pod) for pod in failed):
        return f'job "{job.name}" is failing because one "{role.name}" failed more than {role.max_restarts} times.'
    if any(_is_final(kind, job, role, pod) for pod in failed if pod not in recreated):
        return f'job "{job.name}" is failing because "{role.name}" replica(s) failed.'
    return ""


def _back_off_events(role: Role, waiting_s: Mapping[int, float], new_failures: Iterable[PodState]) -> list[EventOnJob]:
    """Return one Event about new failures whose pods are recreated after a back-off; [] without any.

    waiting_s: index -> seconds that it still waits. new_failures: failed pods that were not counted before.
    """
    delayed = sorted({pod.index for pod in new_failures} & waiting_s.keys())
    if not delayed:
        return []
    indices_text = ", ".join(map(str, delayed[:_MAX_INDICES])) + (
        f" and {len(delayed) - _MAX_INDICES} others" if len(delayed) > _MAX_INDICES else ""
    )
    wait_text = f"{max(waiting_s[index] for index in delayed):.0f} s"
    return [
        EventOnJob(
            Reason.BACK_OFF,
            f"{role.name} {indices_text} failed several times in a row: recreated in {wait_text}",
            warning=True,
        )
    ]


def _is_recreated(kind: ControlledKind, job: ControlledJob, role: Role, pod: PodState) -> bool:
    """Return True if a failed pod is created again: by the rule of its kind, else by the restart policy of its role.

    With Restart.EXIT_CODE, a pod without a known exit code is not created again.
    """
    if (decision := kind.restarts.should_recreate(job, role, pod)) is not None:
        return decision
    if role.restart is Restart.EXIT_CODE:
        exit_code = pod.training_container.exit_code
        return exit_code is not None and exit_code >= kind.restarts.lowest_retryable_exit_code
    return role.restart is not Restart.NEVER


def _is_final(kind: ControlledKind, job: ControlledJob, role: Role, pod: PodState) -> bool:
    """Return True if the failure of this pod, which is not recreated, fails the job, however many other pods there
    are.
    """
    return role.restart is Restart.EXIT_CODE or kind.restarts.should_recreate(job, role, pod) is False


def _counts(pods: Iterable[PodState]) -> Counts:
    """Return the number of active pods (Running, not terminating), succeeded pods and failed pods.

    A Running pod that terminates counts as failed. Pending pods, and pods of an unknown phase, are in none of the
    three.
    """
    active = succeeded = failed = 0
    for pod in pods:
        active += pod.phase is PodPhase.RUNNING and not pod.deleting
        failed += pod.phase is PodPhase.FAILED or (pod.phase is PodPhase.RUNNING and pod.deleting)
        succeeded += pod.phase is PodPhase.SUCCEEDED
    return Counts(active, succeeded, failed)


_MAX_NUMBER = 2**31 - 1  # bound of a number or a count in a status
_MAX_FAULTY_NODES = 16  # that a role avoids, the newest
_OUT_OF_MEMORY = "OOMKilled"  # reason of a pod
_EVICTED = frozenset({"Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Preempting", "Terminated"})  # of the kubelet


def restart_reason(pod: PodState, faulty_node_exit_code: int | None = None) -> RestartReason:
    """Return why a pod is recreated. faulty_node_exit_code: the exit code that reports a faulty node; None for no such
    code.
    """
    if pod.reason == _OUT_OF_MEMORY:
        return RestartReason.OUT_OF_MEMORY
    if pod.deleting or pod.reason in _EVICTED:
        return RestartReason.EVICTED
    if faulty_node_exit_code is not None and pod.training_container.exit_code == faulty_node_exit_code:
        return RestartReason.FAULTY_NODE
    return RestartReason.PROCESS_FAILED


@dataclass(frozen=True, slots=True)
class RoleHistory:
    """The history of one role: its restarts, and the numbers of its pods. Methods return a changed copy."""

    role: Role
    unique_pod_names: bool  # as in ChildRules
    total: int  # restarts of all indices
    uids: frozenset[str]  # uids of pods that are counted and may still exist
    by_index: Mapping[int, int]  # restarts of each index, if the role bounds them
    next_number: int  # the first number that was never given
    faulty_node_exit_code: int | None = None  # as in RestartRules
    oom_kills: Mapping[int, int] = field(default_factory=dict)  # restarts after an OOM kill, by index
    faulty_nodes: tuple[str, ...] = ()  # names of faulty nodes, the newest last
    first_unrecorded: int = 0  # `nextNumber` of the stored status: lower numbers were used before
    used_numbers: frozenset[int] = frozenset()  # of pods that exist or are created

    @classmethod
    def read(
        cls,
        role: Role,
        before: Object,
        pods: Sequence[PodState],
        *,
        unique_pod_names: bool,
        faulty_node_exit_code: int | None = None,
    ) -> Self:
        """Return the history of a role.

        before: the role's part of a status, whose invalid fields are left out. pods: those that exist.
        unique_pod_names, faulty_node_exit_code: of the ControlledKind.
        """
        uids = before.get("restartedPods")
        counted = frozenset(uids) if isinstance(uids, list) and all(isinstance(uid, str) for uid in uids) else ()
        node_names = before.get("faultyNodes") if faulty_node_exit_code is not None else ()
        nodes = tuple(each for each in node_names if isinstance(each, str)) if isinstance(node_names, list) else ()
        used_numbers = frozenset(map(_number_of, pods)) if unique_pod_names else frozenset()
        recorded = _number_or_zero(before.get("nextNumber"))
        next_ = max(recorded, *(number + 1 for number in used_numbers), 0)
        indices, killed = _by_index(before.get("restartCounts")), _by_index(before.get("memoryKills"))
        total = _number_or_zero(before.get("restarts"))
        return cls(
            role,
            unique_pod_names,
            total,
            frozenset(counted),
            indices,
            next_,
            faulty_node_exit_code,
            killed,
            nodes,
            recorded,
            used_numbers,
        )

    def may_recreate(self, pod: PodState) -> bool:
        """Return True if a failed pod's index may be recreated once more, or if this pod is counted already."""
        max_restarts = self.role.max_restarts
        return max_restarts is None or pod.uid in self.uids or self.by_index.get(pod.index, 0) < max_restarts

    def uncounted(self, pods: Iterable[PodState]) -> list[PodState]:
        """Return the pods that are not counted as restarts yet."""
        return [pod for pod in pods if pod.uid not in self.uids]

    def with_counted(self, pods: Iterable[PodState]) -> RoleHistory:
        """Return the history with a restart for each of these failed pods that was not counted before.

        Their kills for lack of memory and their faulty nodes are added, too, if `faulty_node_exit_code` is set. pods:
        all failed pods that are recreated. The uids of other pods are forgotten; their restarts stay counted.
        """
        pods = list(pods)
        by_index = dict(self.by_index)
        new_failures = self.uncounted(pods)
        for pod in new_failures if self.role.max_restarts is not None else ():
            by_index[pod.index] = by_index.get(pod.index, 0) + 1
        killed, nodes = dict(self.oom_kills), list(self.faulty_nodes)
        for pod in new_failures if self.faulty_node_exit_code is not None else ():
            if pod.reason == _OUT_OF_MEMORY:
                killed[pod.index] = killed.get(pod.index, 0) + 1
            if pod.training_container.exit_code == self.faulty_node_exit_code and pod.node:
                nodes = [*(each for each in nodes if each != pod.node), pod.node][-_MAX_FAULTY_NODES:]
        uids = frozenset(pod.uid for pod in pods)
        total = self.total + len(new_failures)
        return replace(self, total=total, uids=uids, by_index=by_index, oom_kills=killed, faulty_nodes=tuple(nodes))

    def give_number(self, index: int) -> tuple[Replica, RoleHistory]:
        """Return the replica that fills an index, and the history with the replica's number marked as used.

        Without `unique_pod_names` the number is the index, and the history is returned unchanged. Else the first pod of
        an index has the index as its number, also when it is created late (a quota may have refused it) and higher
        numbers are used already; each later pod gets a number that no pod has had.
        """
        counts = self.by_index.get(index, 0), self.oom_kills.get(index, 0), self.faulty_nodes
        if not self.unique_pod_names:
            return Replica(index, index, *counts), self
        first = index >= self.first_unrecorded and index not in self.used_numbers
        number = index if first else max(index, self.next_number)
        return Replica(index, number, *counts), replace(
            self, next_number=max(self.next_number, number + 1), used_numbers=self.used_numbers | {number}
        )

    def status_fields(self) -> Object:
        """Return the fields of the role's part of the status from which `read` restores the history.

        Empty ones are left out.
        """
        fields: dict[str, Any] = {"restarts": self.total, "restartedPods": sorted(self.uids)} if self.total else {}
        for name, counts in (("restartCounts", self.by_index), ("memoryKills", self.oom_kills)):
            if counts:
                fields[name] = {str(index): count for index, count in sorted(counts.items())}
        if self.faulty_nodes:
            fields["faultyNodes"] = list(self.faulty_nodes)
        return {**fields, "nextNumber": self.next_number} if self.unique_pod_names and self.next_number else fields


def _by_index(counts: Any) -> dict[int, int]:
    """Return index -> count from a mapping with text keys in the job's status.

    Invalid entries and zeros are left out.
    """
    return {
        int(index): _number_or_zero(count)
        for index, count in (counts.items() if isinstance(counts, Mapping) else ())
        if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 8 and _number_or_zero(count)
    }


def _number_of(pod: PodState) -> int:
    """Return the number at the end of a pod's name, 0 without one."""
    tail = pod.name.rpartition("-")[2]
    return int(tail) if tail.isascii() and tail.isdigit() and len(tail) < 8 else 0


def _number_or_zero(value: Any) -> int:
    """Return a number of a status, 0 for an invalid one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_NUMBER else 0


RETRIES_AT_ONCE = 3  # failures in a row after which a pod is still recreated at once
FIRST_BACKOFF_S, MAX_BACKOFF_S = 10.0, 300.0
RESET_S = 600.0  # a pod that ran for so long begins again without failures
_SKEW_S = 60.0  # the most that another controller's clock may be ahead of ours
_MAX_FAILURES = 64  # the largest count of consecutive failures
_MAX_TIME_S = 2**53  # bound of a time in a status


@dataclass(frozen=True, slots=True)
class BackOff:
    """The back-off of each index of one role."""

    now_s: float  # seconds since 1970
    failures: Mapping[int, int] = field(default_factory=dict)  # consecutive failures, by index
    last_s: Mapping[int, float] = field(default_factory=dict)  # time of the last failure, by index, since 1970

    @classmethod
    def read(cls, before: Object, now_s: float) -> Self:
        """Return the back-off in a role's part of a status. Invalid fields are left out.

        Times later than now count only within the allowed difference of clocks. now_s: seconds since 1970.
        """
        failures = _numbers_by_index(before.get("quickFailures"), _MAX_FAILURES)
        last_s = _numbers_by_index(before.get("lastFailures"), _MAX_TIME_S)
        return cls(now_s, failures, {index: at_s for index, at_s in last_s.items() if at_s <= now_s + _SKEW_S})

    def with_failures(self, pods: Iterable[PodState]) -> BackOff:
        """Return the back-off after these pods have failed. The caller passes each failed pod only once.

        A pod that ran for RESET_S or longer starts again at one failure.
        """
        failures, last = dict(self.failures), dict(self.last_s)
        for pod in pods:
            before = 0 if _run_time_s(pod, self.now_s) >= RESET_S else failures.get(pod.index, 0)
            failures[pod.index] = min(before + 1, _MAX_FAILURES)
            last[pod.index] = self.now_s
        return BackOff(self.now_s, failures, last)

    def left_s(self, index: int, min_wait_s: float = 0.0) -> float:
        """Return in how many seconds the index may have a pod, 0 for now.

        min_wait_s: the shortest wait of an index with a back-off, also after the back-off is over; other indices do not
        wait.
        """
        at_s, pause = self.last_s.get(index), pause_s(self.failures.get(index, 0))
        if at_s is None or not pause:
            return 0.0
        return max(min_wait_s, min(at_s, self.now_s) + pause - self.now_s)

    def waiting_s(self, size: int, min_wait_s: float) -> dict[int, float]:
        """Return index -> seconds > 0 that it still waits, for the indices in a back-off.

        size: of the role; higher indices are left out. min_wait_s: as for `left_s`.
        """
        left_s = {index: self.left_s(index, min_wait_s) for index in self.last_s if index < size}
        return {index: wait_s for index, wait_s in left_s.items() if wait_s > 0}

    def status_fields(self, size: int) -> Object:
        """Return the fields of the role's part of the status from which `read` restores the back-off.

        size: of the role; higher indices are dropped.
        """
        kept_failures = [(index, count) for index, count in sorted(self.failures.items()) if 0 <= index < size]
        counts = {str(index): count for index, count in kept_failures}
        last_s = {
            index: self.last_s[index]
            for index, count in kept_failures
            if count > RETRIES_AT_ONCE and index in self.last_s
        }
        times = {str(index): int(at_s) for index, at_s in last_s.items()}
        return {name: each for name, each in (("quickFailures", counts), ("lastFailures", times)) if each}


def pause_s(failures: int) -> float:
    """Return the pause after so many consecutive failures, in seconds; 0 for the first RETRIES_AT_ONCE."""
    return (
        0.0
        if failures <= RETRIES_AT_ONCE
        else min(FIRST_BACKOFF_S * 2 ** min(failures - RETRIES_AT_ONCE - 1, 16), MAX_BACKOFF_S)
    )


def _run_time_s(pod: PodState, now_s: float) -> float:
    """Return for how long a pod has run, in seconds; 0 if its start is unknown. A pod of unknown end ran until now."""
    started_s, ended_s = pod.training_container.started_s, pod.training_container.ended_s
    return 0.0 if started_s is None else (now_s if ended_s is None else ended_s) - started_s


def _numbers_by_index(entries: Any, largest: int) -> dict[int, int]:
    """Return index -> number, 1 to `largest`, from a mapping in the job's status. Invalid entries are left out."""
    return {
        int(index): number
        for index, number in (entries.items() if isinstance(entries, Mapping) else ())
        if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 8
        if isinstance(number, int) and not isinstance(number, bool) and 0 < number <= largest
    }


_MAX_NAMES = 8  # names in a text


def extended_resources(quantities: Any) -> frozenset[str]:
    """Return the names of the extended resources above 0 in requests, limits or allocatable amounts."""
    entries = quantities.items() if isinstance(quantities, Mapping) else ()
    return frozenset(name for name, quantity in entries if _is_extended(name) and _is_positive(name, quantity))


def missing_device_texts(job: ControlledJob, offered: frozenset[str]) -> list[str]:
    """Return a text for each role that requests devices which no node offers; [] if all are offered.

    offered: names of the extended resources of all nodes.
    """
    texts = []
    for role in job.roles:
        missing = sorted(_device_requests(role.template) - offered) if role.replicas else []
        if missing:
            offered_text = _names_text(sorted(offered)) or "no extended resource at all"
            texts.append(
                f"{role.name} asks for {_names_text(missing)}, which no node offers: nodes offer {offered_text}. Is "
                "the device plugin installed, with its container runtime, and is the name right?"
            )
    return texts


def _device_requests(template: Object) -> frozenset[str]:
    """Return the names of the extended resources that the containers of a pod template request or limit.

    Init containers do not count.
    """
    parts = [each.get("resources") for each in template["spec"]["containers"]]
    resources = [each for each in parts if isinstance(each, Mapping)]
    return frozenset(
        name for each in resources for part in ("limits", "requests") for name in extended_resources(each.get(part))
    )


def _is_extended(name: Any) -> bool:
    """Return True for the name of an extended resource: it has a domain, other than kubernetes.io."""
    domain, slash, _ = name.partition("/") if isinstance(name, str) else ("", "", "")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def _is_positive(name: str, quantity: Any) -> bool:
    """Return True if a quantity is above 0; False if it is invalid. name: of the resource."""
    try:
        return amount(name, quantity) > 0
    except (BadQuantity, TypeError, AttributeError):
        return False


def _names_text(names: Iterable[str]) -> str:
    """Return at most _MAX_NAMES names, each cut to 100 characters, and the number of the others; "" for none."""
    names = [each[:100] for each in names]
    rest_text = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + rest_text
