"""PyTorchJobs for the tests of the controllers, and what they own."""

from __future__ import annotations

from turnout.controllers import children
from turnout.controllers.kinds.pytorchjob import PYTORCHJOB
from turnout.controllers.model import (
    KUBEFLOW,
    ChildState,
    ControlledJob,
    OwnedObjects,
    PodPhase,
    PodState,
    TrainingContainer,
)
from turnout.controllers.reconcile import reconcile

NOW_S = 1_800_000_000.0
CONTAINER = {"name": "pytorch", "image": "train:1"}


def role(replicas=1, restart="OnFailure", containers=(CONTAINER,), **more):
    """A role of a job."""
    return {
        "replicas": replicas,
        "restartPolicy": restart,
        "template": {"spec": {"containers": list(containers)}},
        **more,
    }


def job(name="bert", worker=None, master=None, elastic=None, run=None, status=None, api="kubeflow.org/v1", **spec):
    """A job as an API server has it. run: its runPolicy."""
    roles = {key: each for key, each in (("Master", master), ("Worker", worker)) if each is not None}
    spec = {"pytorchReplicaSpecs": roles, **spec}
    if elastic is not None:
        spec["elasticPolicy"] = elastic
    if run is not None:
        spec["runPolicy"] = run
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": "1"}
    return {"apiVersion": api, "kind": "PyTorchJob", "metadata": meta, "spec": spec, "status": status or {}}


def view(raw) -> ControlledJob:
    """A job as its kind reads it."""
    found = PYTORCHJOB.read(raw)
    assert isinstance(found, ControlledJob), found
    return found


def pod_state(name, uid, role, index, phase, **more):
    """A pod of a job of any kind. more: fields of PodState and of its training container."""
    container = {key: more.pop(key) for key in TrainingContainer.__dataclass_fields__ if key in more}
    return PodState(name, uid, role, index, phase, training_container=TrainingContainer(**container), **more)


def pod(index=0, phase=PodPhase.RUNNING, role="worker", name="bert", **more):
    """A pod that a job owns."""
    return pod_state(f"{name}-{role}-{index}", f"pod-{role}-{index}", role, index, phase, **more)


def others(raw):
    """All that a job owns beside its pods, as it is wanted."""
    found = {}
    for body in map(children.child_body, PYTORCHJOB.children.others(view(raw), OwnedObjects())):
        labels = body["metadata"].get("labels") or {}
        index = int(labels.get(KUBEFLOW.index, -1))
        key = children.child_key(body)
        found[key] = ChildState(key, f"uid-{key.name}", labels.get(KUBEFLOW.role, ""), index, body["spec"])
    return found


def looked(raw, *pods, now_s=NOW_S, **more):
    """Decide on a job that owns these pods, and all else that it has to own."""
    return reconcile(PYTORCHJOB, raw, OwnedObjects(pods, others(raw)), now_s, **more)


def with_status(raw, outcome):
    """The job once the status that was decided is written."""
    return {**raw, "status": merged(raw.get("status") or {}, outcome.status or {})}


def merged(stored, patch):
    """An object after a merge patch."""
    result_object = dict(stored)
    for key, value in patch.items():
        if value is None:
            result_object.pop(key, None)
        else:
            under = stored.get(key) if isinstance(stored.get(key), dict) else {}
            result_object[key] = merged(under, value) if isinstance(value, dict) else value
    return result_object


def conditions(raw):
    """The conditions that are true of a job."""
    return [each["type"] for each in raw["status"].get("conditions", ()) if each["status"] == "True"]
