"""LeaderWorkerSets and MPIJobs: sizes, hazards and the exact change; XD-02."""

import pytest

from tests.jobs.kinds.manifests import BOUNDS, HOROVOD, lws, mpi
from tests.jobs.test_kinds import GPU, template
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import BadJob, Bounds, Sizes
from turnout.kube import labels

LWS, MPI = KINDS["LeaderWorkerSet"], KINDS["MPIJob"]

# LeaderWorkerSet: a worker is a pod, and groups come and go whole.


def test_a_group_is_the_unit():
    job = LWS.read(lws(groups=2, size=2))
    assert (job.replicas, job.bounds, job.sizes, job.role) == (4, Bounds(2, 8), Sizes(2), "")
    assert LWS.change(lws(), 6).body["spec"] == {"replicas": 3}


def test_an_owner_may_ask_for_several_groups_at_a_time():
    assert LWS.read(lws(notes={**BOUNDS, labels.MIN_WORKERS: "4", labels.UNIT: "4"})).sizes == Sizes(4)
    assert LWS.read(lws(notes={**BOUNDS, labels.UNIT: "powers-of-two"})).sizes == Sizes(2, doubles=True)
    with pytest.raises(BadJob, match="unit is 3: it must be a multiple of 2"):
        LWS.read(lws(notes={**BOUNDS, labels.UNIT: "3"}))


def test_without_annotations_it_is_rigid():
    assert LWS.read(lws(notes={})).bounds == Bounds(4, 4)


def test_leaders_of_another_shape_are_no_workers():
    job = LWS.read(lws(notes={}, groups=2, size=3, each={"leaderTemplate": template(0)}))
    assert "leaders request other resources" in job.refused
    assert (job.role, job.replicas, [count for _, count in job.other_roles]) == ("worker", 4, [2])
    alike = LWS.read(lws(each={"leaderTemplate": template()}))
    assert (alike.refused, alike.replicas) == ("", 4)


def test_a_group_of_a_leader_alone_asks_for_what_its_leader_does():
    job = LWS.read(lws(notes={}, groups=3, size=1, each={"leaderTemplate": template(1)}))
    assert (job.replicas, dict(job.shape.requests)[GPU], job.refused) == (3, 1, "")


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (lws(rolloutStrategy={"rollingUpdateConfiguration": {"partition": 1}}), "stands at a partition"),
        (lws(marks={labels.KUEUE_QUEUE: "lq"}), "Kueue holds it"),
    ],
)
def test_each_hazard_of_a_leader_worker_set_is_a_refusal(raw, why):
    assert why in LWS.read(raw).refused


# MPIJob: only a program that reads its hosts again and again.


def test_an_mpi_job_is_bounded_by_its_written_slots():
    job = MPI.read(mpi(slotsPerWorker=2, notes={labels.MIN_WORKERS: "1", labels.MAX_WORKERS: "4"}))
    assert (job.bounds, job.refused, job.role) == (Bounds(1, 4), "", "worker")
    with pytest.raises(BadJob, match=r"ask for 2..8 workers, and its --min-np and --max-np allows 1..4"):
        MPI.read(mpi(slotsPerWorker=2))


def test_a_script_hides_its_slots_and_the_owners_word_counts():
    assert MPI.read(mpi(command="bash /run.sh")).bounds == Bounds(2, 8)


def test_an_mpi_jobs_change_is_of_its_workers_alone():
    change = MPI.change(mpi(), 6)
    assert change.body["spec"] == {"mpiReplicaSpecs": {"Worker": {"replicas": 6}}}
    assert change.path == "/apis/kubeflow.org/v2beta1/namespaces/ns/mpijobs/j"


def test_its_launcher_is_part_of_its_least():
    job = MPI.read(mpi(runPolicy={"schedulingPolicy": {"minAvailable": 3, "queue": "q"}}))
    assert (job.queue, job.refused, [count for _, count in job.other_roles]) == ("q", "", [1])


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (mpi(notes={}), "it is unknown if its program reads discover_hosts.sh"),
        (mpi(command="mpirun -np 4 python t.py"), "MPI's own starter"),
        (mpi(command="/usr/bin/mpiexec -n 4 python t.py"), "MPI's own starter"),
        (mpi(runLauncherAsWorker=True), "numbered from 1"),
        (mpi(runPolicy={"schedulingPolicy": {"queue": "q"}}), "minAvailable is not set"),
        (
            mpi(runPolicy={"schedulingPolicy": {"minAvailable": 2}}),
            "minAvailable is 2, and the job's min with all roles is 3 pods",
        ),
        (mpi(runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"}), "its pods are made elsewhere"),
    ],
)
def test_each_hazard_of_an_mpi_job_is_a_refusal(raw, why):
    assert why in MPI.read(raw).refused


def test_kueue_resizes_no_mpi_job():
    raw = mpi(command=HOROVOD)
    raw["metadata"]["labels"] = {labels.KUEUE_QUEUE: "lq"}
    assert "Kueue holds it" in MPI.read(raw).refused


@pytest.mark.parametrize("name", ["Launcher", "Worker"])
def test_an_mpi_job_needs_both_roles(name):
    raw = mpi()
    del raw["spec"]["mpiReplicaSpecs"][name]
    with pytest.raises(BadJob, match=f"spec.mpiReplicaSpecs.{name} is missing"):
        MPI.read(raw)
