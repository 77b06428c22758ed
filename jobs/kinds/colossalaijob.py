"""ColossalAIJobs of T9k. They are never resized, but they count in their queue and have a priority. Contract: CA-29."""

from __future__ import annotations

from turnout.jobs.kinds import common
from turnout.jobs.model import BadJob, Job, JobKind, Life, Object
from turnout.jobs.pod_identity import PodIdentity, PodValues
from turnout.jobs.typed_fields import Part
from turnout.kube import labels

KIND, PATH = "ColossalAIJob", "/apis/batch.tensorstack.dev/v1beta1/colossalaijobs"
WHY = "colossalai run starts on the hosts of one list: another size is another start"


def read(raw: Object) -> Job:
    """Return the job. Raises BadJob."""
    head = common.head(raw, KIND)
    spec, turn = head.spec, head.spec.part("scheduler").part("t9kScheduler")
    worker = spec.part("worker")
    if not worker.has("template"):
        raise BadJob("spec.worker.template is missing")
    replicas = worker.count("replicas", 1, 1)
    starter = {"spec": {"containers": [{"name": "launcher", **spec.part("launcher").value}]}}
    return common.job(
        head,
        common.SizeFields(replicas, replicas, replicas, worker.part("template")),
        queue=turn.text("queue") or head.first_value(labels.QUEUE),
        priority=turn.count("priority", 0),
        role="worker",
        other_roles=((common.worker_shape(Part(starter, "spec.launcher")), 1),),
        life=_life(head),
        refused=WHY,
    )


def _life(head: common.Head) -> Life:
    if head.status.text("phase") in ("Succeeded", "Failed"):
        return Life.DONE
    return Life.SUSPENDED if head.spec.part("runMode").part("pause").flag("enabled") else Life.LIVE


def _role(values: PodValues, name: str) -> str:
    """Return the role by the label of T9k's scheduler, else by the pod names of its manual."""
    return values.get("scheduler.tensorstack.dev/role") or ("launcher" if name.endswith("-launcher") else "worker")


COLOSSALAI_JOB = JobKind(KIND, PATH, read, common.resize_refused(WHY), pods=PodIdentity(role=_role))
