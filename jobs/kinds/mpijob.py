"""MPIJobs of mpi-operator, kubeflow.org/v2beta1, as elastic Horovod runs them. Source: docs/facts/autoscaling.md 5.

New workers reach only a program that reads /etc/mpi/discover_hosts.sh repeatedly. The job does not tell whether its
program does, so annotations of its owner must. MPIJobs of training-operator, kubeflow.org/v1, are another kind.
"""

from __future__ import annotations

from turnout.jobs.fields import decode
from turnout.jobs.kinds import job_kind
from turnout.jobs.kinds.job_kind import JobKind, PodIdentity, PodValues, RunPolicySpec, first_value, pod_index
from turnout.jobs.model import BadJob, Change, Job, Object
from turnout.kube import labels

KIND, PATH = "MPIJob", "/apis/kubeflow.org/v2beta1/mpijobs"
_STARTERS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun")


def read(raw: Object) -> Job:
    """Return the job that an MPIJob describes: the Workers, and the launcher as another role. Raises BadJob.

    Without annotations that set its bounds, the job is returned with a reason in `refused` why it must not be resized,
    and its size is both its min and its max. With them, --min-np and --max-np of horovodrun (in slots) limit the bounds
    if the command has both.
    """
    fields = job_kind.read_head(raw, KIND)
    roles, run = fields.spec.parts_by_name("mpiReplicaSpecs"), decode(RunPolicySpec, fields.spec.part("runPolicy"))
    for name in ("Launcher", "Worker"):
        if name not in roles:
            raise BadJob(f"spec.mpiReplicaSpecs.{name} is missing")
    worker, launcher = roles["Worker"], roles["Launcher"]
    replicas = worker.count("replicas", 1)
    declared_workers = max(1, replicas)
    has_bounds = labels.MIN_WORKERS in fields.annotations or labels.MAX_WORKERS in fields.annotations
    words, slots = job_kind.command_words(launcher.part("template")), fields.spec.count("slotsPerWorker", 1, 1)
    min_range = job_kind.number_range(job_kind.flag_value(words, "--min-np", "--min-num-proc"))
    max_range = job_kind.number_range(job_kind.flag_value(words, "--max-np", "--max-num-proc"))
    command_bounds = has_bounds and min_range is not None and max_range is not None
    job = job_kind.build_job(
        fields,
        job_kind.SizeFields(
            replicas,
            -(-min_range[0] // slots) if command_bounds and min_range else declared_workers,
            max(1, max_range[0] // slots) if command_bounds and max_range else declared_workers,
            worker.part("template"),
            fixed_field="its --min-np and --max-np" if command_bounds else "",
        ),
        queue=run.scheduling_policy.queue or fields.first_value(labels.KUEUE_QUEUE, labels.VOLCANO_QUEUE, labels.QUEUE),
        priority_class=run.scheduling_policy.priority_class,
        role="worker",
        other_roles=((job_kind.worker_shape(launcher.part("template")), 1),),
        lifecycle=job_kind.state_by_conditions(fields, run.suspend, ("Succeeded", "Failed")),
        refused=_resize_refusal(fields, run, words, has_bounds),
    )
    return job_kind.refuse_if_gang_differs(job, run.scheduling_policy, "all workers and the launcher")


def resize(raw: Object, workers: int) -> Change:
    """Return the patch to this number of workers. mpi-operator updates the list of hosts. raw: the MPIJob.

    Raises BadJob.
    """
    size = {"mpiReplicaSpecs": {"Worker": {"replicas": workers}}}
    return job_kind.resize_patch(
        read(raw), job_kind.read_head(raw, KIND).annotations, PATH, workers, size, *job_kind.BOUND_ANNOTATIONS
    )


def _resize_refusal(fields: job_kind.JobFields, run: RunPolicySpec, words: tuple[str, ...], has_bounds: bool) -> str:
    """Return a sentence why the autoscaler must not resize the job; "" if it may.

    words: the command line of its launcher. has_bounds: annotations set its bounds.
    """
    if not has_bounds:
        return (
            "it is unknown if its program reads discover_hosts.sh while it runs, as elastic Horovod does: "
            f"set {labels.MIN_WORKERS} and {labels.MAX_WORKERS} if it does"
        )
    if any(word.rpartition("/")[2] in _STARTERS for word in words):
        return "its launcher runs MPI's own starter, which keeps the hosts that it read first"
    if fields.spec.flag("runLauncherAsWorker"):
        return "spec.runLauncherAsWorker: rank 0 is then the launcher, and its workers are numbered from 1"
    if fields.labels.get(labels.KUEUE_QUEUE):
        return "Kueue holds it, and can resize no MPIJob: it would evict the whole job"
    return job_kind.manager_refusal(run.managed_by, "spec.runPolicy.managedBy", "kubeflow.org/mpi-operator")


def _job(values: PodValues) -> str:
    """Return the name of a pod's MPIJob by its labels, because a batch/v1 Job owns the launcher; "" for other pods.

    values: labels and annotations of the pod, by key.
    """
    return (
        values.get(labels.TRAINING_JOB, "")
        if values.get("training.kubeflow.org/operator-name") == "mpi-operator"
        else ""
    )


def _role(values: PodValues, _: str) -> str:
    """Return the role of a pod, "" if no label states it."""
    return first_value(values, "training.kubeflow.org/job-role")


MPI_JOB = JobKind(
    KIND,
    PATH,
    read,
    resize,
    pods=PodIdentity(job=_job, role=_role, index=pod_index),
    sizes=("spec.mpiReplicaSpecs.Worker.replicas",),
)
