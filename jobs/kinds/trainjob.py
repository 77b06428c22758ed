"""TrainJobs of Kubeflow Trainer, trainer.kubeflow.org/v1alpha1: seen and told, never resized (trainer #2903).

What one holds is counted by the Jobs that its JobSet makes: a TrainJob itself asks for nothing.
"""

from __future__ import annotations

from turnout.jobs.kinds import common
from turnout.jobs.model import Job, JobKind, Object
from turnout.jobs.pod_identity import PodMarks, Said
from turnout.jobs.typed_fields import Part
from turnout.kube import labels

KIND, PATH = "TrainJob", "/apis/trainer.kubeflow.org/v1alpha1/trainjobs"
WHY = "spec.trainer of a TrainJob cannot be changed once it is made"


def read(raw: Object) -> Job:
    """Read one. Raises BadJob."""
    head = common.head(raw, KIND)
    nodes = head.spec.part("trainer").count("numNodes", 1, 1)
    return common.job(
        head,
        common.Sized(nodes, nodes, nodes, Part({}, "spec.trainer"), fixed="spec.trainer.numNodes"),
        queue=head.said(labels.KUEUE_QUEUE, labels.VOLCANO_QUEUE, labels.QUEUE),
        role="node",
        life=common.life(head, head.spec.flag("suspend"), ("Complete", "Failed")),
        refused=WHY,
    )


def _job(said: Said) -> str:
    return said.get("jobset.sigs.k8s.io/jobset-name", "")


def _role(said: Said, _: str) -> str:
    return said.get("jobset.sigs.k8s.io/replicatedjob-name", "")


TRAIN_JOB = JobKind(KIND, PATH, read, common.never(WHY), pods=PodMarks(job=_job, role=_role))
