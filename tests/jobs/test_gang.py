"""Which gang a pod belongs to, and what it says of it, in every dialect."""

import pytest

from tests.kit import cluster, world
from turnout.jobs.gang import Dialect, GangKey, membership
from turnout.jobs.wishes import kai
from turnout.kube import labels
from turnout.kube.objects import EnvVar


def owned(name, owner, marks, env=None):
    """A pod of a controller, as Kubernetes 1.35 and training-operator 1.8.1 write it."""
    pod = world.pod(name, 8, marks=marks, owner=owner)
    pod.spec.containers[0].env = [EnvVar(name=key, value=value) for key, value in (env or {}).items()]
    return pod


@pytest.mark.contract("CS-11", "DL-123")
@pytest.mark.parametrize(
    ("pods", "dialect"),
    [
        pytest.param(cluster.volcano_gang("bert", 1), Dialect.VOLCANO, id="Volcano's annotation"),
        pytest.param(cluster.koordinator_gang("bert", 1), Dialect.KOORDINATOR, id="koordinator's annotations"),
        pytest.param(cluster.plugins_gang("bert", 1), Dialect.PLUGINS, id="scheduler-plugins' label"),
        pytest.param(cluster.native_gang("bert", 1), Dialect.NATIVE, id="Kubernetes' own field"),
        pytest.param(cluster.kai_gang("bert", 1), Dialect.KAI, id="KAI's annotation"),
        pytest.param(
            [cluster.make_pod("bert-0", notes={labels.VOLCANO_GROUP_NEW: "bert"})],
            Dialect.VOLCANO,
            id="Volcano's new annotation",
        ),
        pytest.param(
            [cluster.make_pod("bert-0", marks={labels.KOORD_POD_GROUP: "bert"})],
            Dialect.KOORDINATOR,
            id="koordinator's label",
        ),
    ],
)
def test_all_dialects_make_one_noun(pods, dialect):
    """CS-11."""
    read = membership(world.see(pods[0]))
    assert read.key == GangKey("default", "bert", dialect.value)
    assert read.rank == 0
    assert not read.faults


KAI_TOO = {labels.KAI_GROUP: "pg-bert-uid"}  # as KAI's pod-grouper writes it on pods that have a group already


@pytest.mark.parametrize(("pods", "dialect", "name"), [
    pytest.param(cluster.volcano_gang("bert", 1, notes=KAI_TOO), Dialect.VOLCANO, "bert", id="Volcano's comes first"),
    pytest.param(cluster.koordinator_gang("bert", 1, notes=KAI_TOO), Dialect.KOORDINATOR, "bert", id="koordinator's"),
    pytest.param(cluster.plugins_gang("bert", 1, notes=KAI_TOO), Dialect.PLUGINS, "bert", id="scheduler-plugins'"),
    pytest.param(cluster.native_gang("bert", 1, notes=KAI_TOO), Dialect.NATIVE, "bert", id="Kubernetes' own"),
    pytest.param([cluster.make_pod("bert-0", notes=KAI_TOO, marks={labels.JOB_INDEX: "0"})], Dialect.KAI,
        "pg-bert-uid", id="KAI's before the owner"),
    pytest.param([cluster.make_pod("bert-0", notes=KAI_TOO, marks={labels.LWS_NAME: "s", labels.LWS_GROUP: "0"})],
        Dialect.KAI, "pg-bert-uid", id="KAI's before a LeaderWorkerSet's group"),
    pytest.param([cluster.make_pod("bert-0", notes={labels.KAI_GROUP: ""})], Dialect.ALONE, "bert-0",
        id="an empty name names nothing"),
])  # fmt: skip
def test_of_two_groups_that_a_pod_names_kais_is_the_last(pods, dialect, name):
    assert membership(world.see(pods[0])).key == GangKey("default", name, dialect.value)


def kai_member(subgroup="", queue=None, **marks):
    own = {kai.SUBGROUP: subgroup} if subgroup else {}
    queued = {labels.KAI_QUEUE: queue} if queue else {}
    (raw_pod,) = cluster.kai_gang("g", 1, marks={**own, **queued, **marks})
    return membership(world.see(raw_pod))


def test_pods_of_kais_subgroups_sort_masters_first_and_by_number():
    names = ["worker-10", "worker-2", "master", "worker"]
    assert sorted(names, key=lambda name: kai_member(name).role) == ["master", "worker", "worker-2", "worker-10"]
    assert kai_member("worker").group_labels == ((kai.SUBGROUP, "worker"),)
    assert kai_member(**{labels.TRAINING_TYPE: "worker"}).role == "worker"


def test_kais_queue_is_read_where_no_other_is_named():
    assert kai_member(queue="train").queue == "train"
    assert kai_member(queue="train", **{labels.KUEUE_QUEUE: "other"}).queue == "other"


JOB = {labels.JOB_INDEX: "3", "job-name": "train"}
WORKER = {labels.TRAINING_JOB: "train", labels.TRAINING_INDEX: "3", labels.TRAINING_TYPE: "worker"}
MASTER = {**WORKER, labels.TRAINING_INDEX: "0", labels.TRAINING_TYPE: "master"}


@pytest.mark.parametrize(
    ("pod", "name", "rank", "role"),
    [
        pytest.param(owned("train-3-l8wrg", "Job/train", JOB), "Job/train", 3, "", id="an Indexed Job"),
        pytest.param(
            owned("db-3", "StatefulSet/db", {labels.STATEFUL_INDEX: "3"}), "StatefulSet/db", 3, "", id="a StatefulSet"
        ),
        pytest.param(
            owned("train-worker-3", "PyTorchJob/train", WORKER),
            "PyTorchJob/train",
            3,
            "worker",
            id="a PyTorchJob's worker",
        ),
        pytest.param(
            owned("train-master-0", "PyTorchJob/train", MASTER), "PyTorchJob/train", 0, "", id="its master sorts first"
        ),
    ],
)
def test_plain_indexed_pods_of_one_owner_are_a_gang(pod, name, rank, role):
    read = membership(pod)
    assert (read.key.name, read.key.dialect) == (name, Dialect.OWNER.value)
    assert (read.rank, read.role) == (rank, role)


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(world.pod("web-7d5f-abcde"), id="a pod of its own"),
        pytest.param(owned("web-7d5f-abcde", "ReplicaSet/web-7d5f", {}), id="a Deployment's pod has no index"),
    ],
)
def test_a_pod_that_belongs_to_nobody_is_a_gang_of_its_own(pod):
    assert membership(pod).key == GangKey("default", "web-7d5f-abcde", Dialect.ALONE.value)


@pytest.mark.parametrize(
    ("env", "sizes"),
    [
        pytest.param({"PET_NNODES": "4", "WORLD_SIZE": "32", "PET_NPROC_PER_NODE": "8"}, (4, 4, None), id="4 replicas"),
        pytest.param({"PET_NNODES": "2:4"}, (2, None, 4), id="elastic: 2 up to 4"),
        pytest.param({"WORLD_SIZE": "32", "PET_NPROC_PER_NODE": "8"}, (4, 4, None), id="processes are counted a node"),
        pytest.param(
            {"WORLD_SIZE": "4", "PET_NPROC_PER_NODE": "auto"}, (4, 4, None), id="one process a node, as far as is said"
        ),
        pytest.param({"PET_NNODES": "many", "WORLD_SIZE": "-1"}, (None, None, None), id="nothing that can be read"),
        pytest.param({}, (None, None, None), id="nothing is said"),
    ],
)
def test_a_training_job_tells_its_sizes_in_the_environment(env, sizes):
    read = membership(owned("train-worker-3", "PyTorchJob/train", WORKER, env))
    assert (read.min_members, read.total, read.max_size) == sizes


@pytest.mark.contract("CS-11", "DL-123")
def test_koordinator_numbers_are_strings():
    read = membership(world.koordinator("bert", 1, minimum=4, total=6)[0])
    assert (read.min_members, read.total) == (4, 6)
    assert not read.faults


@pytest.mark.parametrize("text", ["", "0", "-4", "4.0", "four", " 4", "4 ", "١", "9999999", "1e3"])
def test_a_number_that_cannot_be_read_is_told_and_counts_as_absent(text):
    read = membership(world.pod(notes={labels.KOORD_NAME: "bert", labels.KOORD_MIN: text}))
    assert read.min_members is None
    assert read.faults == (f"{labels.KOORD_MIN} is {text!r}: it must be a whole number from 1 to 999999, as a string",)


def test_every_malformed_annotation_is_told_once():
    notes = {
        labels.KOORD_NAME: "bert",
        labels.KOORD_MIN: "x" * 5000,
        labels.TOPOLOGY: "please",
        labels.TOPOLOGY_TIER: "the leaf",
        labels.PODS_PER_HOST_MULTIPLE: "two",
        labels.MAX_WORKERS: "lots",
    }
    read = membership(world.pod(notes=notes))
    assert len(read.faults) == 5
    assert all(len(fault) < 200 for fault in read.faults)
    assert (read.wish.required, read.wish.multiple, read.max_size) == (None, 1, None)


@pytest.mark.parametrize(
    ("notes", "required", "tier"),
    [
        pytest.param({}, False, None, id="nothing said"),
        pytest.param(
            {labels.TOPOLOGY: "preferred", labels.TOPOLOGY_TIER: "2"}, False, None, id="preferred has no tier"
        ),
        pytest.param({labels.TOPOLOGY: "required"}, True, 1, id="required means one leaf"),
        pytest.param({labels.TOPOLOGY: "required", labels.TOPOLOGY_TIER: "2"}, True, 2, id="or the tier that is named"),
    ],
)
def test_how_much_topology_matters(notes, required, tier):
    read = membership(world.pod(notes=notes))
    assert (read.wish.required is not None, read.wish.required) == (required, tier)


@pytest.mark.parametrize(
    ("name", "marks", "rank"),
    [
        pytest.param("bert-worker-12", {}, 12, id="from the name"),
        pytest.param("bert-worker-12", {labels.RANK: "3"}, 3, id="our own label wins"),
        pytest.param("bert", {}, None, id="nothing tells"),
        pytest.param("bert-x1", {}, None, id="no number of its own"),
        pytest.param("bert-2", {labels.JOB_INDEX: "two"}, 2, id="a label that cannot be read is passed over"),
    ],
)
def test_a_rank(name, marks, rank):
    assert membership(world.pod(name, marks=marks)).rank == rank


@pytest.mark.contract("DL-129")
def test_a_master_without_the_annotation_is_no_member():
    """DL-129."""
    assert membership(world.pod("bert-edljob-master", 0)).key.dialect == Dialect.ALONE.value
