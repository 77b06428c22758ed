"""Control Volcano Jobs by the rules of turnout.controllers, as Volcano's own controller does in a cluster that has it.

This module only converts: this cluster's objects to those of turnout.controllers, and its outcome back to writes.
Source: docs/facts/job-kinds.md 1.5
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from turnout.controllers.kinds.volcanojob import VOLCANOJOB
from turnout.controllers.model import (
    ChildKey,
    Delete,
    GangDialect,
    GangSettings,
    OwnedObjects,
    ReconcileOutcome,
    Update,
)
from turnout.controllers.model import Create as CreateChild
from turnout.controllers.reconcile import reconcile
from turnout.controllers.runtime.owned_objects import Owned, OwnedPod, child_state, pod_state
from turnout.jobs.kinds.volcanojob import ENDS as ENDS
from turnout.jobs.kinds.volcanojob import VOLCANO_JOB
from turnout.simulator.cluster.controllers.model import (
    ControllerResult,
    CreateWrite,
    DeleteWrite,
    Object,
    PatchWrite,
    Write,
)

JOBS = "jobs.batch.volcano.sh"
GROUPS = "podgroups.scheduling.volcano.sh"
GROUP = "scheduling.k8s.io/group-name"
CHILDREN = {"Pod": "pods", "PodGroup": GROUPS, "Service": "services", "ConfigMap": "configmaps"}
T = TypeVar("T")
_SETUP = GangSettings(GangDialect.VOLCANO)


def reconcile_job(
    job: Object,
    pods: Sequence[Object],
    group: Object | None,
    now_s: float,
    others: Mapping[str, Sequence[Object]] | None = None,
) -> ControllerResult:
    """Return the writes that a Volcano Job needs now, and when to look again.

    pods: those that it owns. group: its PodGroup; None if it does not exist. now_s: seconds since 1970. others: its
    Services and ConfigMaps, by resource ("services", "configmaps"); None for none. Raises msgspec.ValidationError for
    an owned object that cannot be read.
    """
    raw = {**job, "apiVersion": VOLCANO_JOB.api_version, "kind": VOLCANO_JOB.object_kind}
    listed = {**(others or {}), GROUPS: [] if group is None else [group]}
    children = {
        ChildKey(kind, each["metadata"]["name"]): each
        for kind, resource in CHILDREN.items()
        for each in listed.get(resource, ())
    }
    observation = OwnedObjects(
        tuple(pod_state(VOLCANOJOB, _read(pod, OwnedPod)) for pod in pods),
        {key: child_state(VOLCANOJOB, key.kind, _read(each, Owned)) for key, each in children.items()},
    )
    children |= {ChildKey("Pod", pod["metadata"]["name"]): pod for pod in pods}
    return _to_controller_result(job, children, reconcile(VOLCANOJOB, raw, observation, now_s, _SETUP), now_s)


def _read(obj: Object, type_: type[T]) -> T:
    """Return an object as the job controllers read it, without managedFields, which they do not use.

    Raises msgspec.ValidationError if it does not fit `type_`.
    """
    meta = {key: each for key, each in obj["metadata"].items() if key != "managedFields"}
    return msgspec.convert({**obj, "metadata": meta}, type_)


def _to_controller_result(
    job: Object, children: dict[ChildKey, Object], outcome: ReconcileOutcome, now_s: float
) -> ControllerResult:
    """Convert an outcome of the job controllers to this cluster's writes, those of children first.

    children: the existing children by key. now_s: seconds since 1970, from which the next look is counted.
    """
    writes: list[Write] = []
    for write in outcome.writes:
        match write:
            case CreateChild(body):
                new = {"status": {"phase": "Pending"}} if body["kind"] == "PodGroup" else {}
                writes.append(
                    CreateWrite(CHILDREN[body["kind"]], copy.deepcopy({**body, **new}))
                )  # parts are the job's own
            case Delete(key):
                writes.append(DeleteWrite(CHILDREN[key.kind], children[key]))
            case Update(key, content, field):
                writes.append(PatchWrite(CHILDREN[key.kind], children[key], {field: content}, part=""))
    if outcome.status is not None:
        writes.append(PatchWrite(JOBS, job, {"status": outcome.status}))
    if outcome.delete_job:
        writes.append(DeleteWrite(JOBS, job))
    return ControllerResult(writes, None if outcome.requeue_s is None else now_s + outcome.requeue_s)
