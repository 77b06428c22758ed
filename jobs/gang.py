"""The gang of a pod in every dialect, by the pod itself, whether the pod waits behind our gate, and the gang's repair.

Only a PodGroup or an owner knows some of the numbers (min, replicas). Contract: CS-11, DL-123…129.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from turnout.jobs.fields import annotation_count
from turnout.jobs.wishes import kai, koordinator, sets
from turnout.jobs.wishes.merge import wish_of_pod
from turnout.jobs.wishes.model import NOTHING, Wish
from turnout.kube import labels
from turnout.kube.errors import BadQuantity, TooComplex
from turnout.kube.labels import GPU_RESOURCES, PLACEMENT_GATE
from turnout.kube.objects import OwnerReference, Pod
from turnout.kube.pod_shape import shape_of

_MAX_LABELS = 32  # labels of one pod that may divide its gang into groups
LEADER_WORKER_SET = "LeaderWorkerSet/"  # the prefix of the names of gangs that are groups of a LeaderWorkerSet


class Dialect(Enum):
    """The dialect that describes a gang. The value is the API group of its PodGroup, if it has one."""

    VOLCANO = "scheduling.volcano.sh"
    KOORDINATOR = "scheduling.sigs.k8s.io"
    PLUGINS = "scheduling.x-k8s.io"
    KAI = "scheduling.run.ai"
    NATIVE = "scheduling.k8s.io"  # of Kubernetes itself, from 1.37 on, where it is off by default
    OWNER = "owner"  # plain indexed pods of one Job, StatefulSet or PyTorchJob
    ALONE = "alone"  # a single pod


# The API version of each dialect's PodGroup, and the path that lists them.
POD_GROUP_VERSIONS = {
    dialect: f"{dialect.value}/{version}"
    for dialect, version in (
        (Dialect.VOLCANO, "v1beta1"),
        (Dialect.KOORDINATOR, "v1alpha1"),
        (Dialect.PLUGINS, "v1alpha1"),
        (Dialect.NATIVE, "v1beta1"),
        (Dialect.KAI, "v2alpha2"),
    )
}
# The groups of PodGroups of Kubernetes: alpha in 1.37, behind the gate CompositePodGroup.
COMPOSITE_GROUP_PATH = f"/apis/{Dialect.NATIVE.value}/v1alpha3/compositepodgroups"
POD_GROUP_PATHS = {dialect: f"/apis/{version}/podgroups" for dialect, version in POD_GROUP_VERSIONS.items()}


@dataclass(frozen=True, slots=True, order=True)
class GangKey:
    """The identity of a gang."""

    namespace: str  # of its pods
    name: str  # the name of the PodGroup, else kind/name of the owner, else the name of the single pod
    dialect: str  # the value of a Dialect

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Membership:
    """The description of a gang by one of its pods. A field that cannot be read counts as absent."""

    key: GangKey  # the identity of the gang
    rank: int | None = None  # the pod's index among the members, >= 0; None if unknown
    role: str = ""  # the pod's role, such as worker; "" for a master or for the only role
    min_members: int | None = None  # pods that start together, >= 1; None if the pod does not state it
    total: int | None = None  # pods of the gang, >= 1; None if the pod does not state it
    max_size: int | None = None  # the largest size that the job may grow to, in pods; None if the pod does not state it
    wish: Wish = NOTHING  # the placement terms of its gang
    queue: str = ""  # the queue in which it waits, "" if the pod names none
    repair: Repair | None = None  # the remedy for a gang below its min; None if the pod does not state one
    parent_set: str = ""  # the JobSet or LeaderWorkerSet that its gang belongs to, "" for none
    faults: tuple[str, ...] = ()  # a sentence for each unreadable field
    group_labels: tuple[tuple[str, str], ...] = ()  # labels that may divide its gang into groups
    names_pod_group: bool = False  # True if a PodGroup with terms for its gang must exist


def membership(pod: Pod) -> Membership:
    """Return the gang of a pod as the pod itself describes it. A pod without a gang is a gang of one, of Dialect.ALONE.

    Raises nothing: each unreadable field counts as absent, and `faults` of the result has a sentence about it.
    """
    faults: list[str] = []
    annotations = pod.metadata.annotations or {}
    key = _key(pod)
    is_koordinator = key.dialect == Dialect.KOORDINATOR.value
    min_members = annotation_count(annotations, labels.KOORD_MIN, faults) if is_koordinator else None
    total = annotation_count(annotations, labels.KOORD_TOTAL, faults) if is_koordinator else None
    if min_members is None:
        min_members = annotation_count(annotations, labels.MIN_WORKERS, faults)
    max_size = annotation_count(annotations, labels.MAX_WORKERS, faults)
    if key.dialect == Dialect.OWNER.value:
        env_min, env_total, env_max = _sizes_in_env(pod)
        total = annotation_count(annotations, labels.LWS_SIZE, faults)
        min_members, total, max_size = min_members or env_min, total or env_total, max_size or env_max
    wish = wish_of_pod(annotations, faults)
    return Membership(
        key=key,
        rank=_rank(pod),
        role=_role(pod, key),
        min_members=min_members,
        total=total,
        max_size=max_size,
        wish=wish,
        queue=_queue(pod),
        repair=repair_of(annotations, faults),
        parent_set=_parent_set(pod),
        faults=tuple(faults),
        group_labels=_grouping_labels(pod, key),
        names_pod_group=_names_pod_group(pod, key),
    )


def _names_pod_group(pod: Pod, key: GangKey) -> bool:
    """Return True if a PodGroup with terms for the gang `key` of the pod must exist.

    False if the gang's dialect has no PodGroups, and for a koordinator gang whose pods themselves state the name and
    the min.
    """
    annotations = pod.metadata.annotations or {}
    if (
        key.dialect == Dialect.KOORDINATOR.value
        and annotations.get(labels.KOORD_NAME)
        and annotations.get(labels.KOORD_MIN)
    ):
        return False
    return key.dialect in {dialect.value for dialect in POD_GROUP_VERSIONS}


def _key(pod: Pod) -> GangKey:
    """Return the identity of a pod's gang: by the first dialect of _gang_names() that names it, else the pod alone."""
    own_gang = (pod.metadata.name, Dialect.ALONE)
    name, dialect = next(((name, dialect) for name, dialect in _gang_names(pod) if name), own_gang)
    return GangKey(pod.metadata.namespace, name, dialect.value)


def _gang_names(pod: Pod) -> Iterator[tuple[str | None, Dialect]]:
    """Yield (name of the pod's gang, dialect) in the order of precedence: the caller uses the first name.

    The name is "" or None if the pod has no gang in a dialect. OWNER comes only for a pod in a group of a
    LeaderWorkerSet, and for a pod with an indexed controller; so it may come twice. ALONE never comes. KAI comes after
    the others, because its pod-grouper annotates every pod that it handles, under a key without a domain. OWNER comes
    last, because no field names the gang.
    """
    annotations, pod_labels = pod.metadata.annotations or {}, pod.metadata.labels or {}
    yield annotations.get(labels.VOLCANO_GROUP) or annotations.get(labels.VOLCANO_GROUP_NEW), Dialect.VOLCANO
    yield annotations.get(labels.KOORD_NAME) or pod_labels.get(labels.KOORD_POD_GROUP), Dialect.KOORDINATOR
    yield pod_labels.get(labels.PLUGINS_POD_GROUP), Dialect.PLUGINS
    native = pod.spec.scheduling_group
    name = native.get("podGroupName") if isinstance(native, dict) else None
    yield name if isinstance(name, str) else None, Dialect.NATIVE
    yield annotations.get(labels.KAI_GROUP), Dialect.KAI
    if pod_labels.get(labels.LWS_NAME) and pod_labels.get(labels.LWS_GROUP):
        yield f"{LEADER_WORKER_SET}{pod_labels[labels.LWS_NAME]}/{pod_labels[labels.LWS_GROUP]}", Dialect.OWNER
    if (owner := _indexed_owner(pod)) is not None:
        yield f"{owner.kind}/{owner.name}", Dialect.OWNER


def _queue(pod: Pod) -> str:
    """Return the queue that a pod names, in the dialect that comes first; "" for none."""
    pod_labels, annotations = pod.metadata.labels or {}, pod.metadata.annotations or {}
    queue_names = (
        pod_labels.get(labels.KUEUE_QUEUE),
        annotations.get(labels.VOLCANO_QUEUE),
        pod_labels.get(labels.KOORD_QUOTA),
    )
    return next(
        (name for name in (*queue_names, pod_labels.get(labels.KAI_QUEUE), annotations.get(labels.QUEUE)) if name), ""
    )


def _parent_set(pod: Pod) -> str:
    """Return the name of the JobSet or LeaderWorkerSet of a pod, "" for none."""
    pod_labels = pod.metadata.labels or {}
    return pod_labels.get(labels.JOBSET_NAME) or pod_labels.get(labels.LWS_NAME) or ""


def _indexed_owner(pod: Pod) -> OwnerReference | None:
    """Return the controller of a pod that has an index among the pods of this controller.

    None for pods without an index, such as those of a Deployment, and for pods without a controller.
    """
    pod_labels, annotations = pod.metadata.labels or {}, pod.metadata.annotations or {}
    indexed = any(k in pod_labels for k in (labels.JOB_INDEX, labels.STATEFUL_INDEX, labels.TRAINING_INDEX))
    if not indexed and labels.JOB_INDEX not in annotations:
        return None
    return next((o for o in pod.metadata.owner_references or () if o.controller), None)


_INDEX_LABELS = (
    labels.RANK,
    koordinator.INDEX,
    labels.LWS_WORKER,
    labels.JOB_INDEX,
    labels.STATEFUL_INDEX,
    labels.TRAINING_INDEX,
    labels.VOLCANO_TASK_INDEX,
)


def _rank(pod: Pod) -> int | None:
    """Return a pod's index in its job, >= 0: from a label or annotation, else from the number at the end of its name.

    None without a number of at most nine digits.
    """
    pod_labels, annotations = pod.metadata.labels or {}, pod.metadata.annotations or {}
    for key in _INDEX_LABELS:
        text = pod_labels.get(key) or annotations.get(key)
        if text is not None and re.fullmatch(r"[0-9]{1,9}", text):
            return int(text)
    tail = re.search(r"-([0-9]{1,9})$", pod.metadata.name)
    return int(tail.group(1)) if tail else None


def _role(pod: Pod, key: GangKey) -> str:
    """Return the role of a pod, such as worker; "" for master, launcher and chief, and if no label states a role.

    key: of the pod's gang; only its dialect is used. In a KAI gang the subgroup is the role, with its number padded by
    subgroup_role().
    """
    pod_labels, annotations = pod.metadata.labels or {}, pod.metadata.annotations or {}
    if key.dialect == Dialect.KAI.value and pod_labels.get(kai.SUBGROUP):
        return subgroup_role(pod_labels[kai.SUBGROUP])
    role = (
        pod_labels.get(labels.TRAINING_TYPE)
        or annotations.get(labels.VOLCANO_TASK_SPEC)
        or pod_labels.get(labels.VOLCANO_TASK_SPEC)
    )
    return role_of(role or "")


def role_of(task: str) -> str:
    """Return the role of the pods of a task: the task itself, "" for master, launcher and chief.

    "" sorts before all other roles, so that masters get the first ranks.
    """
    return "" if task.lower() in ("master", "launcher", "chief") else task


def subgroup_role(name: str) -> str:
    """Return the role of a KAI subgroup's pods, padded so that worker-2 sorts before worker-10."""
    return role_of(re.sub(r"[0-9]{1,9}$", lambda match: match[0].zfill(9), name))


def _grouping_labels(pod: Pod, key: GangKey) -> tuple[tuple[str, str], ...]:
    """Return the labels of a pod that may divide its gang into groups, as (key, value).

    key: of the pod's gang. For Volcano these are the first _MAX_LABELS labels by name, for other dialects the labels of
    subgroups only.
    """
    pod_labels = pod.metadata.labels or {}
    if key.dialect == Dialect.VOLCANO.value:
        return tuple(sorted(pod_labels.items())[:_MAX_LABELS])
    return tuple((name, pod_labels[name]) for name in (kai.SUBGROUP, sets.LWS_SUBGROUP_INDEX) if name in pod_labels)


def _sizes_in_env(pod: Pod) -> tuple[int | None, int | None, int | None]:
    """Return (min, total, max) in pods from the environment variables that training-operator sets.

    None for an unknown one. PET_NNODES is "2:4" or "4"; older versions set only WORLD_SIZE, in processes, and
    PET_NPROC_PER_NODE, by which it is divided. The total is unknown for an elastic job, the max for a job of fixed
    size. (None, None, None) without these variables.
    """
    env = {e.name: e.value or "" for c in pod.spec.containers for e in c.env or ()}
    if bounds := re.fullmatch(r"([1-9][0-9]{0,5})(?::([1-9][0-9]{0,5}))?", env.get("PET_NNODES", "")):
        minimum = int(bounds[1])
        return (minimum, minimum, None) if bounds[2] is None else (minimum, None, int(bounds[2]))
    if re.fullmatch(r"[1-9][0-9]{0,5}", env.get("WORLD_SIZE", "")):
        procs = env.get("PET_NPROC_PER_NODE", "")
        per_node = int(procs) if re.fullmatch(r"[1-9][0-9]{0,3}", procs) else 1
        size = max(1, int(env["WORLD_SIZE"]) // per_node)
        return size, size, None
    return None, None, None


def wants_gate(pod: Pod, gpu_resources: Collection[str] = GPU_RESOURCES) -> bool:
    """Return True if the webhook must add our placement gate: the pod has none yet, requests an accelerator and has a
    gang.

    gpu_resources: the names of resources that are accelerators. False for a pod whose requests cannot be read: the API
    server rejects it with its own message.
    """
    gates = (
        each for each in pod.spec.scheduling_gates or () if isinstance(each, Mapping)
    )  # others are the API server's
    if any(each.get("name") == PLACEMENT_GATE for each in gates):
        return False
    try:
        return membership(pod).key.dialect != Dialect.ALONE.value and shape_of(pod).gpus(tuple(gpu_resources)) > 0
    except (BadQuantity, TooComplex):
        return False


DEFAULT_AFTER_S = 120  # the delay of a repair whose annotation states none, in seconds
MIN_AFTER_S, MAX_AFTER_S = 10, 86_400  # bounds of the delay, in seconds


class Remedy(Enum):
    """A remedy for a gang below its min, the most patient first."""

    WAIT = "wait"  # its members stay until room becomes free near them
    MOVE = "move"  # its members are evicted when the whole gang fits elsewhere
    GIVE_UP = "give-up"  # its members are evicted, so that other gangs get the nodes; the whole gang waits again


_ORDER = tuple(Remedy)  # the most patient first


@dataclass(frozen=True, slots=True)
class Repair:
    """A remedy for a gang below its min, and its delay."""

    remedy: Remedy = Remedy.WAIT
    after_s: int = DEFAULT_AFTER_S  # seconds that the gang has to be below its min, MIN_AFTER_S to MAX_AFTER_S

    def __str__(self) -> str:
        return self.remedy.value if self.remedy is Remedy.WAIT else f"{self.remedy.value} after {self.after_s} s"


WAIT = Repair()


def repair_of(annotations: Mapping[str, str], faults: list[str]) -> Repair | None:
    """Return the repair in a pod's annotation, such as "move" or "move/300"; None if it is absent or unreadable.

    The number is the delay in seconds; without it the delay is DEFAULT_AFTER_S. annotations: of the pod. faults:
    receives a sentence if the value is unreadable.
    """
    text = annotations.get(labels.REPAIR)
    if text is None:
        return None
    name, slash, number = text.partition("/")
    delay_is_valid = re.fullmatch(r"[1-9][0-9]{0,5}", number) is not None and MIN_AFTER_S <= int(number) <= MAX_AFTER_S
    if name not in {each.value for each in _ORDER} or (slash and not delay_is_valid):
        words = ", ".join(each.value for each in _ORDER[:-1])
        expected = (
            f"{words} or {_ORDER[-1].value}, or one with seconds from {MIN_AFTER_S} to {MAX_AFTER_S}, as move/300"
        )
        faults.append(f"{labels.REPAIR} is {text[:40]!r}: it must be {expected}")
        return None
    return Repair(Remedy(name), int(number) if slash else DEFAULT_AFTER_S)


def most_patient(repairs: Iterable[Repair]) -> Repair:
    """Return the repair for a gang whose members disagree: the most patient remedy, of these the longest delay.

    Returns WAIT for no repairs.
    """
    return min(repairs, key=lambda each: (_ORDER.index(each.remedy), -each.after_s), default=WAIT)
