"""Name the job to which Prometheus attaches the series of a pod's launcher, by the pod's own metadata.

The chart's PodMonitor for launchers does the same with relabelings (deploy/charts/turnout/templates/monitoring). The
autoscaler joins such a name with a queue.
"""

from __future__ import annotations

from collections.abc import Mapping

from turnout.jobs.kinds.pytorchjob import CTYUN_PYTORCH_JOB, KIND
from turnout.jobs.model import JobKey
from turnout.kube import labels
from turnout.kube.objects import Pod

MPI_OPERATOR = "mpi-operator"
_ELASTIC_JOB_LABELS = ("elasticjob-name", "elasticjob.dlrover/name")


def scrape_key(pod: Pod) -> JobKey:
    """Return the kind, namespace and name of the job that a pod's series belong to.

    That is the pod's controller, unless labels of the pod name the job that owns this controller. A pod with neither is
    a job of kind Pod. The namespace is always the pod's, so a tenant's labels name jobs of its own namespaces only.
    """
    meta = pod.metadata
    ref = next((each for each in meta.owner_references or () if each.controller), None)
    kind, name = ("Pod", meta.name) if ref is None else (ref.kind, ref.name)
    kind, name = _job_of_labels(meta.labels or {}, kind, name, has_controller=ref is not None)
    return JobKey(kind, meta.namespace, name)


def _job_of_labels(pod_labels: Mapping[str, str], kind: str, name: str, *, has_controller: bool) -> tuple[str, str]:
    """Return (kind, name) of the job that the labels of a pod name; the given kind and name if the labels name none.

    pod_labels: of the pod. kind, name: of its controller, or of the pod itself if it has none. has_controller: True if
    the pod has a controller; then the labels of an ElasticJob do not count. The kind Job of a Volcano Job becomes
    VolcanoJob, and that of a ctyun.cn PyTorchJob its unique name.
    """
    if pod_labels.get(labels.VOLCANO_JOB) and kind == "Job":
        kind = "VolcanoJob"
    if kind == KIND and pod_labels.get(labels.JOB_KIND) == CTYUN_PYTORCH_JOB.kind:
        kind = CTYUN_PYTORCH_JOB.kind
    if group_set := pod_labels.get(labels.LWS_NAME):
        kind, name = "LeaderWorkerSet", group_set
    if pod_labels.get(labels.TRAINING_OPERATOR) == MPI_OPERATOR and (training := pod_labels.get(labels.TRAINING_JOB)):
        kind, name = "MPIJob", training
    elastic = next((pod_labels[each] for each in _ELASTIC_JOB_LABELS if pod_labels.get(each)), "")
    if not has_controller and elastic:  # DLRover's master does not declare itself the controller of its pods
        kind, name = "ElasticJob", elastic
    return kind, name
