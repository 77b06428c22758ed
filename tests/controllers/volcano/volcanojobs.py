"""Volcano Jobs for the tests of the controllers, and what they own."""

from __future__ import annotations

from tests.controllers.jobs import NOW_S, pod_state, with_status
from turnout.controllers import children
from turnout.controllers.kinds.volcanojob import VOLCANOJOB
from turnout.controllers.model import (
    ChildState,
    ControlledJob,
    Create,
    GangDialect,
    GangSettings,
    OwnedObjects,
    PodPhase,
    Replica,
)
from turnout.controllers.reconcile import reconcile

VOLCANO = GangSettings(GangDialect.VOLCANO)
CONTAINER = {"name": "main", "image": "train:1"}


def task(name="worker", replicas=3, minimum=None, spec=None, container=None, **more):
    """A task of a job. minimum: its minAvailable. spec: of its pods. container: further fields of theirs."""
    pod = {"containers": [{**CONTAINER, **(container or {})}], **(spec or {})}
    own = {} if minimum is None else {"minAvailable": minimum}
    return {"name": name, "replicas": replicas, "template": {"spec": pod}, **own, **more}


def job(*tasks, status=None, notes=None, marks=None, **spec):
    """A job as an API server has it. notes, marks: its annotations and labels."""
    meta = {"name": "bert", "namespace": "ns", "uid": "uid-bert", "resourceVersion": "1"}
    meta |= {"annotations": notes} if notes else {}
    meta |= {"labels": marks} if marks else {}
    head = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": meta}
    return {**head, "spec": {"tasks": list(tasks or (task(),)), **spec}, "status": status or {}}


def phased(phase, *tasks, status=None, **more):
    """A job that has come to this phase."""
    state = {"phase": phase, "lastTransitionTime": "2027-01-15T07:59:00Z"}
    return job(*tasks, status={"state": state, **(status or {})}, **more)


def view(raw) -> ControlledJob:
    """A job as its kind reads it."""
    found = VOLCANOJOB.read(raw)
    assert isinstance(found, ControlledJob), found
    return found


def pod(index=0, phase=PodPhase.RUNNING, task="worker", **more):
    """A pod that a job owns."""
    more.setdefault("ready", phase is PodPhase.RUNNING)
    return pod_state(f"bert-{task}-{index}", f"pod-{task}-{index}", task, index, phase, **more)


def others(raw, phase="Inqueue"):
    """All that a job owns beside its pods, as it is wanted. phase: of its PodGroup."""
    view_of_job, found = view(raw), {}
    for body in (children.pod_group(view_of_job, VOLCANO), *VOLCANOJOB.children.others(view_of_job, OwnedObjects())):
        key = children.child_key(body)
        group_phase = phase if key.kind == "PodGroup" else ""
        found[key] = ChildState(key, f"uid-{key.name}", "", -1, body.get("spec", {}), body.get("data", {}), group_phase)
    return {key: each for key, each in found.items() if key.kind != "Secret"}


def looked(raw, *pods, now_s=NOW_S, owned=None, setup=VOLCANO, **more):
    """Decide on a job that owns these pods, and all else that it has to own. more: of what is seen."""
    return reconcile(VOLCANOJOB, raw, OwnedObjects(pods, others(raw) if owned is None else owned, **more), now_s, setup)


def after(raw, *pods, rounds=1, **more):
    """The job once the statuses of so many looks are written."""
    for _ in range(rounds):
        raw = with_status(raw, looked(raw, *pods, **more))
    return raw


def phase(raw):
    """The phase that a job has come to."""
    return raw["status"]["state"]["phase"]


def made(outcome):
    """The names of the pods that are made."""
    return [each.body["metadata"]["name"] for each in outcome.writes if _is_new(each, "Pod")]


def deleted(outcome):
    """The names of what is deleted, in order."""
    return [each.key.name for each in outcome.writes if hasattr(each, "uid")]


def _is_new(write, kind):
    return isinstance(write, Create) and write.body["kind"] == kind


def pod_of(raw, task="worker", index=0, setup=VOLCANO):
    """The pod that a job makes for one index of a task."""
    view_of_job = view(raw)
    (role,) = [each for each in view_of_job.roles if each.name == task]
    return children.pod_body(VOLCANOJOB, view_of_job, role, Replica(index, index), OwnedObjects(), setup)


def env_of(body):
    """The variables of a pod's first container, by name."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in body["spec"]["containers"][0]["env"]}
