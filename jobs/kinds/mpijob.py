"""MPIJobs of mpi-operator, kubeflow.org/v2beta1, as elastic Horovod runs them. Source: docs/facts/autoscaling.md 5.

Only a program that reads /etc/mpi/discover_hosts.sh again and again learns of new workers. The job does not say whether
its program does: its owner's annotations do. Training-operator's MPIJob, kubeflow.org/v1, is another kind.
"""

from __future__ import annotations

from dataclasses import replace

from turnout.jobs import command_line
from turnout.jobs.kinds import common
from turnout.jobs.model import BadJob, Change, Job, JobKind, Object
from turnout.jobs.pod_identity import PodMarks, Said, first, index
from turnout.jobs.typed_fields import Part
from turnout.kube import labels

KIND, PATH = "MPIJob", "/apis/kubeflow.org/v2beta1/mpijobs"
_STARTERS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun")


def read(raw: Object) -> Job:
    """Read one; --min-np and --max-np of a horovodrun in plain sight bound it, in slots. Raises BadJob."""
    head = common.head(raw, KIND)
    roles, run = head.spec.by_name("mpiReplicaSpecs"), head.spec.part("runPolicy")
    for name in ("Launcher", "Worker"):
        if name not in roles:
            raise BadJob(f"spec.mpiReplicaSpecs.{name} is missing")
    worker, launcher = roles["Worker"], roles["Launcher"]
    replicas = worker.count("replicas", 1)
    own = max(1, replicas)
    told = labels.MIN_WORKERS in head.notes or labels.MAX_WORKERS in head.notes
    said, slots = command_line.words(launcher.part("template")), head.spec.count("slotsPerWorker", 1, 1)
    least = command_line.between(command_line.flag(said, "--min-np", "--min-num-proc"))
    most = command_line.between(command_line.flag(said, "--max-np", "--max-num-proc"))
    bounded = told and least is not None and most is not None
    gang = run.part("schedulingPolicy")
    job = common.job(
        head,
        common.Sized(
            replicas,
            -(-least[0] // slots) if bounded and least else own,
            max(1, most[0] // slots) if bounded and most else own,
            worker.part("template"),
            fixed="its --min-np and --max-np" if bounded else "",
        ),
        queue=gang.text("queue") or head.said(labels.KUEUE_QUEUE, labels.VOLCANO_QUEUE, labels.QUEUE),
        priority_class=gang.text("priorityClass"),
        role="worker",
        beside=((common.worker_shape(launcher.part("template")), 1),),
        life=common.life(head, run.flag("suspend"), ("Succeeded", "Failed")),
        refused=_refused(head, run, said, told),
    )
    if job.refused or not gang.value:
        return job
    return replace(job, refused=common.gang_differs(gang, job.bounds.least + 1, "all workers and the launcher"))


def resize(raw: Object, workers: int) -> Change:
    """Give it so many workers; its list of hosts follows by itself."""
    size = {"mpiReplicaSpecs": {"Worker": {"replicas": workers}}}
    return common.patch(read(raw), common.head(raw, KIND).notes, PATH, workers, size, *common.BOTH)


def _refused(head: common.Head, run: Part, said: tuple[str, ...], told: bool) -> str:
    if not told:
        return (
            "nothing says that its program reads discover_hosts.sh again and again, as elastic Horovod does: "
            f"{labels.MIN_WORKERS} and {labels.MAX_WORKERS} say it"
        )
    if any(word.rpartition("/")[2] in _STARTERS for word in said):
        return "its launcher runs MPI's own starter, which keeps the hosts that it read first"
    if head.spec.flag("runLauncherAsWorker"):
        return "spec.runLauncherAsWorker: rank 0 is then the launcher, and its workers are numbered from 1"
    if head.marks.get(labels.KUEUE_QUEUE):
        return "Kueue holds it, and can resize no MPIJob: it would evict it whole"
    return common.elsewhere(run, "kubeflow.org/mpi-operator")


def _job(said: Said) -> str:
    """Its launcher is owned by a Job of batch/v1, the workers by itself."""
    return (
        said.get(labels.TRAINING_JOB, "") if said.get("training.kubeflow.org/operator-name") == "mpi-operator" else ""
    )


def _role(said: Said, _: str) -> str:
    return first(said, "training.kubeflow.org/job-role")


MPI_JOB = JobKind(KIND, PATH, read, resize, pods=PodMarks(job=_job, role=_role, index=index))
