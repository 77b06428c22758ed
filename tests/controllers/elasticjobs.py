"""ElasticJobs for the tests of the controllers, and what they own."""

from __future__ import annotations

from tests.controllers.jobs import NOW_S, pod_state
from turnout.controllers import children
from turnout.controllers.kinds.elasticjob import ELASTICJOB, LABELS
from turnout.controllers.model import ChildState, ControlledJob, Create, Delete, OwnedObjects, PodPhase
from turnout.controllers.reconcile import reconcile

MAIN = {"name": "main", "image": "train:1", "command": ["bash", "-c", "dlrover-run --nnodes=$NODE_NUM train.py"]}


def worker(replicas=2, container=None, pod=None, meta=None, **more):
    """The workers of a job. container, pod: further fields of the training container, and of the pod's spec."""
    spec = {"restartPolicy": "Never", "containers": [{**MAIN, **(container or {})}], **(pod or {})}
    return {"replicas": replicas, "template": {"spec": spec, **({"metadata": meta} if meta else {})}, **more}


def master(container=None, pod=None, **more):
    """A master of the job's own."""
    containers = [] if container is None else [{"name": "main", **container}]
    return {"replicas": 1, "template": {"spec": {"containers": containers, **(pod or {})}}, **more}


def job(workers=None, lead=None, name="bert", notes=None, status=None, **spec):
    """A job as an API server has it. lead: its own master."""
    roles = {"worker": workers or worker(), **({"dlrover-master": lead} if lead else {})}
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": "1"}
    if notes:
        meta["annotations"] = notes
    spec = {"distributionStrategy": "AllreduceStrategy", "optimizeMode": "single-job", "replicaSpecs": roles, **spec}
    raw_job = {"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": "ElasticJob", "metadata": meta, "spec": spec}
    return {**raw_job, "status": status or {}}


def plan(owner="bert", workers=3, labels=None, status=None, **spec):
    """A ScalePlan as DLRover's samples have it."""
    meta = {"name": f"{owner}-plan", "namespace": "default", "labels": labels or {"scale-type": "manual"}}
    spec = {"ownerJob": owner, "replicaResourceSpecs": {"worker": {"replicas": workers}}, **spec}
    raw_plan = {"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": "ScalePlan", "metadata": meta, "spec": spec}
    return raw_plan if status is None else {**raw_plan, "status": status}


def view(raw) -> ControlledJob:
    """A job as its kind reads it."""
    found = ELASTICJOB.read(raw)
    assert isinstance(found, ControlledJob), found
    return found


def pod(number=0, rank=None, phase=PodPhase.RUNNING, name="bert", **more):
    """A worker that a job owns. rank: its number unless it has taken over another's."""
    rank = number if rank is None else rank
    return pod_state(f"{name}-edljob-worker-{number}", f"pod-{number}", "worker", rank, phase, **more)


def lead(number=0, phase=PodPhase.RUNNING, name="bert", **more):
    """A master that a job owns."""
    return pod_state(f"elasticjob-{name}-dlrover-master-{number}", f"lead-{number}", "dlrover-master", 0, phase, **more)


def others(raw):
    """All that a job owns beside its pods, as it is wanted."""
    found = {}
    for body in map(children.child_body, ELASTICJOB.children.others(view(raw), OwnedObjects())):
        labels, key = body["metadata"]["labels"], children.child_key(body)
        found[key] = ChildState(key, f"uid-{key.name}", labels[LABELS.role], int(labels[LABELS.index]), body["spec"])
    return found


def looked(raw, *pods, now_s=NOW_S, **more):
    """Decide on a job that owns these pods, and all else that it has to own."""
    return reconcile(ELASTICJOB, raw, OwnedObjects(pods, others(raw)), now_s, **more)


def made(outcome):
    """The bodies of the pods that are created."""
    return [each.body for each in outcome.writes if isinstance(each, Create) and each.body["kind"] == "Pod"]


def names(outcome):
    """The names of the pods that are created."""
    return [each["metadata"]["name"] for each in made(outcome)]


def gone(outcome):
    """The names of the pods that are deleted."""
    return [each.key.name for each in outcome.writes if isinstance(each, Delete) and each.key.kind == "Pod"]
