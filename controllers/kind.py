"""A kind of jobs as data and plain functions: what the core asks of PyTorchJobs, ElasticJobs and the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from turnout.controllers.model import (
    KUBEFLOW,
    ChildLabels,
    Counts,
    JobView,
    KnownChildren,
    Object,
    Outcome,
    PodState,
    Refused,
    Replica,
    Role,
    Setup,
    Verdict,
    Wanted,
    replica_name,
)


def _no_waiting_roles(_view: JobView, _known: KnownChildren) -> Collection[str]:
    return ()


def _nothing_left(_view: JobView) -> JobView | None:
    return None


def _no_advice(_view: JobView) -> Sequence[str]:
    return ()


def _is_current(_view: JobView, _pod: PodState) -> bool:
    return False


def _by_policy(_view: JobView, _role: Role, _pod: PodState) -> bool | None:
    return None


def _no_notes(_view: JobView, _role: Role, _replica: Replica) -> Mapping[str, str]:
    return {}


class Moment(NamedTuple):
    """When a status is put into words. before: the status in the kind's own words as it is."""

    before: Object
    now_s: float


class Vocabulary(NamedTuple):
    """A kind's own words for a status. The core's are conditions, replicaStatuses, startTime and completionTime.

    fields: those that are written. read: takes a status of the kind to the core's words. write: the other way; the
    view is None for an object that is refused.
    """

    fields: tuple[str, ...] = ("conditions", "replicaStatuses", "startTime", "completionTime")
    read: Callable[[Object], Object] = lambda status: status
    write: Callable[[Object, JobView | None, KnownChildren, Moment], Object] = lambda status, _view, _known, _moment: (
        status
    )


CORE_WORDS = Vocabulary()


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of jobs as data and plain functions.

    api: `GROUP/VERSION`s that serve it, equal but for the group. plural: in paths. container: that trains, "" for any.
    labels: of the child of one replica. selector: of all pods of one role. pod_spec: what is seen matters where an
    address is only known once a Service is there. judge: by the counts of each role, by its name.

    held: names of the roles whose missing pods are not made yet. asleep: what of a suspended job still runs, None for
    nothing. again: whether a failed pod is made anew, None where the role's policy says it. numbered: a pod's name is
    never given twice. faulty: the exit code by which a pod says that its node is faulty, None for no such code; with
    one, a Replica tells what its index and role have met. advice: what the owner of a new job is told. outdated:
    whether a pod was made for another mode of the job, and another takes its place. tells_containers: its status has
    the containers' own. notes: annotations of the pod of one replica. title: its name among kinds, where `kind` alone
    is another's too. life: decides on a job
    whose life is a table of phases of its own; without it conditions come and go as kubeflow/common has them.
    """

    kind: str
    apis: tuple[str, ...]
    plural: str
    container: str
    read: Callable[[Object], JobView | Refused]
    labels: Callable[[JobView, Role, Replica], dict[str, str]]
    selector: Callable[[JobView, Role], dict[str, str]]
    pod_spec: Callable[[JobView, Role, Replica, KnownChildren], dict[str, Any]]
    extras: Callable[[JobView, KnownChildren], Sequence[Wanted]]
    judge: Callable[[JobView, Mapping[str, Counts], KnownChildren], Sequence[Verdict]]
    restarts_at: int = 128  # the least exit code that Restart.EXIT_CODE makes anew
    child_labels: ChildLabels = KUBEFLOW
    owns: tuple[str, ...] = ("Pod", "Service", "HorizontalPodAutoscaler")
    name: Callable[[JobView, Role, Replica], str] = replica_name
    waiting_roles: Callable[[JobView, KnownChildren], Collection[str]] = _no_waiting_roles
    suspended_view: Callable[[JobView], JobView | None] = _nothing_left
    recreate: Callable[[JobView, Role, PodState], bool | None] = _by_policy
    vocabulary: Vocabulary = CORE_WORDS
    advice: Callable[[JobView], Sequence[str]] = _no_advice
    outdated: Callable[[JobView, PodState], bool] = _is_current
    tells_containers: bool = False
    numbered: bool = False
    faulty_node_exit_code: int | None = None
    notes: Callable[[JobView, Role, Replica], Mapping[str, str]] = _no_notes
    title: str = ""
    lifecycle: Callable[[Kind, JobView, Object, KnownChildren, float, Setup], Outcome] | None = None

    @property
    def full_name(self) -> str:
        """The kind's name in settings and commands."""
        return self.title or self.kind
