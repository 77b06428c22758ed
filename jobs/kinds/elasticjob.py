"""DLRover ElasticJobs, resized by ScalePlans: one new object for each change. Source: docs/facts/dlrover.md 5; VE-16.

Only the owner's annotations make one elastic, since masters built after August 2025 (dlrover #1608) read no plans and
the job does not say which it has. A master leaves the job's replicas as they were, so what it was asked for last is
what we noted. Our own job controller changes them and notes the plan: from then on they say the size, as with any kind.

A change is two writes: our notes on the job, which only one writer of a version can make, then the plan, whose name
comes from that version. A plan that was lost in between is known by the notes, and written again under its name.
"""

from __future__ import annotations

from turnout.jobs import annotations as said_in
from turnout.jobs import command_line
from turnout.jobs.kinds import common
from turnout.jobs.model import BadJob, Change, Job, JobKind, Life, Object
from turnout.jobs.pod_identity import PodMarks, Said, first, number
from turnout.jobs.typed_fields import Part
from turnout.kube import labels

GROUP = "elastic.iml.github.io/v1alpha1"
KIND, PATH = "ElasticJob", f"/apis/{GROUP}/elasticjobs"
_ROLES, _ALL_REDUCE = "spec.replicaSpecs", "AllreduceStrategy"


def read(raw: Object) -> Job:
    """Read one; its size is the one that we wrote last, or its own replicas once our plan is carried out there.

    Raises BadJob.
    """
    head = common.head(raw, KIND)
    roles = head.spec.by_name("replicaSpecs")
    if "worker" not in roles:
        raise BadJob(f"{_ROLES}.worker is missing")
    worker = roles["worker"]
    planned = head.notes.get(labels.SCALE_PLAN)
    followed = planned is not None and head.notes.get(labels.SCALED_PLAN) == planned
    wrote = said_in.count(head.notes, labels.WROTE_WORKERS) if planned is not None and not followed else None
    replicas = worker.count("replicas", 1, 1) if wrote is None else wrote
    template = worker.part("template")
    said = command_line.words(template)
    span = command_line.between(command_line.flag(said, "--nnodes"))
    unit = command_line.between(command_line.flag(said, "--node_unit", "--node-unit"))
    told = labels.MIN_WORKERS in head.notes or labels.MAX_WORKERS in head.notes
    size = max(1, worker.count("replicas", 1, 1))
    least, most = span if span is not None and told else (size, size)
    return common.job(
        head,
        common.Sized(replicas, least, most, template, "--nnodes" if span else "", unit[0] if unit else 1),
        queue=head.said(labels.KUEUE_QUEUE, labels.VOLCANO_QUEUE, labels.QUEUE),
        role="worker",
        beside=tuple(
            (common.worker_shape(role.part("template")), role.count("replicas", 1))
            for name, role in sorted(roles.items())
            if name != "worker"
        ),
        life=_life(head),
        refused=_refused(head, worker, told),
    )


def resize(raw: Object, workers: int) -> Change:
    """Note the size on the job, then ask its master for it."""
    head = common.head(raw, KIND)
    name = f"{head.key.name[:200]}-turnout-{head.version}"
    noted = common.patch(read(raw), head.notes, PATH, workers, None, *common.BOTH)
    noted.body["metadata"]["annotations"][labels.SCALE_PLAN] = name
    return Change(noted.method, noted.path, noted.body, noted.form, then=_plan(head, name, workers))


def again(raw: Object) -> Change | None:
    """The plan of our last change, unless it is known to be carried out."""
    head = common.head(raw, KIND)
    name, workers = head.notes.get(labels.SCALE_PLAN), said_in.count(head.notes, labels.WROTE_WORKERS)
    done = not name or name == head.notes.get(labels.SCALED_PLAN)
    return None if done or name is None or workers is None else _plan(head, name, workers)


def _plan(head: common.Head, name: str, workers: int) -> Change:
    """A plan for the job's master, gone with the job. It finds its plans by labels, which were renamed once."""
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


def _refused(head: common.Head, worker: Part, told: bool) -> str:
    strategy = head.spec.text("distributionStrategy")
    if strategy != _ALL_REDUCE:
        return f"spec.distributionStrategy is {strategy or 'not set'}: only the workers of {_ALL_REDUCE} are alike"
    if head.spec.text("optimizeMode") == "cluster" or worker.flag("autoScale"):
        return "DLRover resizes it by itself (optimizeMode cluster, or autoScale), and two hands on one size fight"
    if not told:
        return f"it does not say that its master reads ScalePlans: {labels.MIN_WORKERS} and {labels.MAX_WORKERS} do"
    return ""


def _role(said: Said, _: str) -> str:
    return first(said, "elasticjob.dlrover/replica-type", "replica-type")


def _index(said: Said, _: str) -> int:
    """Its master deletes the highest ids first; a pod that takes the place of another has a new one."""
    return number(first(said, "elasticjob.dlrover/replica-index", "replica-index"))


ELASTIC_JOB = JobKind(KIND, PATH, read, resize, again=again, pods=PodMarks(role=_role, index=_index, ordered=True))
