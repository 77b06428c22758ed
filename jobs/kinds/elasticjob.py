"""DLRover ElasticJobs, resized by ScalePlans: one new object for each change. Source: docs/facts/dlrover.md 5; VE-16.

Only annotations of the owner make a job elastic, because masters built after August 2025 (dlrover #1608) read no plans,
and the job does not tell which master it has. A master does not change the job's replicas, so our annotation holds the
requested size. Our own job controller changes the replicas and records the plan; then the replicas are the size, as
with any kind.

A change is two writes: our annotations on the job, which only one writer of a version can make, then the plan, whose
name contains that version. A plan that was lost in between is recreated from the annotations, under the same name.
"""

from __future__ import annotations

from turnout.jobs import annotations as job_annotations
from turnout.jobs import command_line
from turnout.jobs.kinds import common
from turnout.jobs.model import BadJob, Change, Job, JobKind, Life, Object
from turnout.jobs.pod_identity import PodIdentity, PodValues, first_value, number_of
from turnout.jobs.typed_fields import Part
from turnout.kube import labels

GROUP = "elastic.iml.github.io/v1alpha1"
KIND, PATH = "ElasticJob", f"/apis/{GROUP}/elasticjobs"
_ROLES, _ALL_REDUCE = "spec.replicaSpecs", "AllreduceStrategy"


def read(raw: Object) -> Job:
    """Return the job. Its size is the one that we wrote last; after our plan was carried out, its own replicas.

    Raises BadJob.
    """
    head = common.head(raw, KIND)
    roles = head.spec.by_name("replicaSpecs")
    if "worker" not in roles:
        raise BadJob(f"{_ROLES}.worker is missing")
    worker = roles["worker"]
    plan_name = head.notes.get(labels.SCALE_PLAN)
    plan_is_done = plan_name is not None and head.notes.get(labels.SCALED_PLAN) == plan_name
    has_open_plan = plan_name is not None and not plan_is_done
    written_size = job_annotations.count(head.notes, labels.WROTE_WORKERS) if has_open_plan else None
    replicas = worker.count("replicas", 1, 1) if written_size is None else written_size
    template = worker.part("template")
    words = command_line.command_words(template)
    nnodes = command_line.number_range(command_line.flag_value(words, "--nnodes"))
    unit = command_line.number_range(command_line.flag_value(words, "--node_unit", "--node-unit"))
    has_bounds = labels.MIN_WORKERS in head.notes or labels.MAX_WORKERS in head.notes
    size = max(1, worker.count("replicas", 1, 1))
    least, most = nnodes if nnodes is not None and has_bounds else (size, size)
    return common.job(
        head,
        common.SizeFields(replicas, least, most, template, "--nnodes" if nnodes else "", unit[0] if unit else 1),
        queue=head.first_value(labels.KUEUE_QUEUE, labels.VOLCANO_QUEUE, labels.QUEUE),
        role="worker",
        other_roles=tuple(
            (common.worker_shape(role.part("template")), role.count("replicas", 1))
            for name, role in sorted(roles.items())
            if name != "worker"
        ),
        life=_life(head),
        refused=_refused(head, worker, has_bounds),
    )


def resize(raw: Object, workers: int) -> Change:
    """Return the change that writes the size on the job, then creates a ScalePlan for its master."""
    head = common.head(raw, KIND)
    name = f"{head.key.name[:200]}-turnout-{head.version}"
    change = common.patch(read(raw), head.notes, PATH, workers, None, *common.BOUND_ANNOTATIONS)
    change.body["metadata"]["annotations"][labels.SCALE_PLAN] = name
    return Change(change.method, change.path, change.body, change.form, then=_plan(head, name, workers))


def recreate(raw: Object) -> Change | None:
    """Return the ScalePlan of our last change, None if it was carried out."""
    head = common.head(raw, KIND)
    name, workers = head.notes.get(labels.SCALE_PLAN), job_annotations.count(head.notes, labels.WROTE_WORKERS)
    plan_is_done = not name or name == head.notes.get(labels.SCALED_PLAN)
    return None if plan_is_done or name is None or workers is None else _plan(head, name, workers)


def _plan(head: common.Head, name: str, workers: int) -> Change:
    """Return the creation of a ScalePlan owned by the job. Both label names are set, because DLRover renamed them."""
    body = {
        "apiVersion": GROUP,
        "kind": "ScalePlan",
        "metadata": {
            "name": name,
            "namespace": head.key.namespace,
            "labels": {
                "elasticjob-name": head.key.name,
                "elasticjob.dlrover/name": head.key.name,
                "scale-type": "manual",
            },
            "ownerReferences": [{"apiVersion": GROUP, "kind": KIND, "name": head.key.name, "uid": head.uid}],
        },
        "spec": {"ownerJob": head.key.name, "replicaResourceSpecs": {"worker": {"replicas": workers}}},
    }
    path = f"/apis/{GROUP}/namespaces/{head.key.namespace}/scaleplans"
    return Change("POST", path, body, "application/json")


def _life(head: common.Head) -> Life:
    if head.status.text("phase") in ("Succeeded", "Failed"):
        return Life.DONE
    return Life.SUSPENDED if head.spec.flag("suspend") else Life.LIVE


def _refused(head: common.Head, worker: Part, has_bounds: bool) -> str:
    strategy = head.spec.text("distributionStrategy")
    if strategy != _ALL_REDUCE:
        return f"spec.distributionStrategy is {strategy or 'not set'}: only the workers of {_ALL_REDUCE} are alike"
    if head.spec.text("optimizeMode") == "cluster" or worker.flag("autoScale"):
        return "DLRover resizes it by itself (optimizeMode cluster, or autoScale), and two hands on one size fight"
    if not has_bounds:
        return f"it does not say that its master reads ScalePlans: {labels.MIN_WORKERS} and {labels.MAX_WORKERS} do"
    return ""


def _role(values: PodValues, _: str) -> str:
    return first_value(values, "elasticjob.dlrover/replica-type", "replica-type")


def _index(values: PodValues, _: str) -> int:
    """Return the pod's index. The master deletes the highest first; a replacement pod gets a new index."""
    return number_of(first_value(values, "elasticjob.dlrover/replica-index", "replica-index"))


ELASTIC_JOB = JobKind(
    KIND, PATH, read, resize, recreate=recreate, pods=PodIdentity(role=_role, index=_index, index_is_order=True)
)
