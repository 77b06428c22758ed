"""RayClusters: one group is resized, the pods that go are named, and whoever else resizes it is left alone; XD-02."""

import pytest

from tests.jobs.kinds.manifests import BOUNDS, group, ray
from tests.jobs.test_kinds import GPU
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import BadJob, Bounds, Sizes
from turnout.kube import labels

KIND = KINDS["RayCluster"]


def groups_of(change):
    return change.body["spec"]["workerGroupSpecs"]


@pytest.mark.parametrize(
    ("raw", "bounds"),
    [
        pytest.param(ray(), Bounds(2, 8), id="by our annotations"),
        pytest.param(ray(notes={}), Bounds(4, 4), id="without them and without bounds of its own it is rigid"),
        pytest.param(ray(notes={}, worker={"minReplicas": 1, "maxReplicas": 6}), Bounds(1, 6), id="by its group's"),
        pytest.param(
            ray(notes={}, worker={"minReplicas": 0, "maxReplicas": 2**31 - 1}), Bounds(4, 4), id="defaults say nothing"
        ),
        pytest.param(ray(worker={"minReplicas": 1, "maxReplicas": 9}), Bounds(2, 8), id="annotations narrow them"),
    ],
)
def test_bounds(raw, bounds):
    job = KIND.read(raw)
    assert (job.bounds, job.refused) == (bounds, "")


def test_annotations_do_not_reach_beyond_the_groups_bounds():
    with pytest.raises(BadJob, match=r"ask for 2..8 pods, and spec.workerGroupSpecs\[0\] allows 3..8"):
        KIND.read(ray(worker={"minReplicas": 3, "maxReplicas": 8}))
    with pytest.raises(BadJob, match=r"ask for 2..8 pods, and spec.workerGroupSpecs\[0\] allows 1..6"):
        KIND.read(ray(worker={"minReplicas": 1, "maxReplicas": 6}))


def test_its_size_is_what_kuberay_makes_of_it():
    assert KIND.read(ray(9, worker={"minReplicas": 2, "maxReplicas": 8})).replicas == 8
    assert KIND.read(ray(1, worker={"minReplicas": 2, "maxReplicas": 8})).replicas == 2


def test_a_shrink_names_the_pods_that_go():
    change = KIND.change(ray(), 2, ("w-c", "w-d"))
    (worker,) = groups_of(change)
    assert (worker["replicas"], worker["scaleStrategy"]) == (2, {"workersToDelete": ["w-c", "w-d"]})


def test_a_growth_names_nobody_and_forgets_who_went():
    (worker,) = groups_of(KIND.change(ray(), 6))
    assert (worker["replicas"], "scaleStrategy" in worker) == (6, False)
    with_leaver = ray(worker={"scaleStrategy": {"workersToDelete": ["w-c"]}})
    assert groups_of(KIND.change(with_leaver, 6))[0]["scaleStrategy"] == {"workersToDelete": []}


def test_hosts_of_one_replica_come_and_go_together():
    raw = ray(2, worker={"numOfHosts": 2})
    job = KIND.read(raw)
    assert (job.replicas, job.bounds, job.sizes) == (4, Bounds(2, 8), Sizes(2))
    assert groups_of(KIND.change(raw, 6))[0]["replicas"] == 3
    with pytest.raises(BadJob, match="sizes that are multiples of 2"):
        KIND.read(ray(2, {**BOUNDS, labels.MIN_WORKERS: "3"}, worker={"numOfHosts": 2}))


def test_a_size_that_no_number_of_replicas_has_is_refused():
    with pytest.raises(BadJob, match="5 pods are no multiple of its numOfHosts, 2"):
        KIND.change(ray(2, worker={"numOfHosts": 2}), 5)


def test_one_group_is_resized_and_the_others_are_part_of_its_least():
    raw = ray(groups=[group("gpu", 4), group("cpu", 2, gpus=0), group("tail", 1)])
    job = KIND.read(raw)
    assert (job.role, job.replicas) == ("gpu", 4)
    assert sorted((dict(shape.requests).get(GPU, 0), count) for shape, count in job.other_roles) == [
        (0, 1),
        (0, 2),
        (2, 1),
    ]
    assert [each["replicas"] for each in groups_of(KIND.change(raw, 6))] == [6, 2, 1]


def test_the_group_called_worker_is_the_one():
    assert KIND.read(ray(groups=[group("large", 9), group("workers", 4)])).replicas == 4


def test_a_group_that_is_suspended_has_no_pods():
    raw = ray(groups=[group("large", 9, suspend=True), group("small", 4)])
    job = KIND.read(raw)
    assert (job.role, [count for _, count in job.other_roles]) == ("small", [1])
    assert [each["replicas"] for each in groups_of(KIND.change(raw, 6))] == [9, 6]


def test_a_head_alone_counts_and_is_left_as_it_is():
    job = KIND.read(ray(notes={}, groups=[group(suspend=True)]))
    assert (job.replicas, job.role, job.refused) == (
        1,
        "headgroup",
        "all its worker groups are suspended, or it has none",
    )


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (ray(enableInTreeAutoscaling=True), "Ray's own autoscaler resizes it"),
        (ray(marks={"volcano.sh/queue-name": "q"}), "minMember of all replicas"),
        (ray(marks={"ray.io/scheduler-name": "volcano"}), "minMember of all replicas"),
        (ray(marks={"ray.io/gang-scheduling-enabled": "true"}), "minMember of all replicas"),
        (ray(marks={"ray.io/originated-from-crd": "RayJob"}), "its RayJob created it"),
        (ray(marks={labels.KUEUE_QUEUE: "lq"}), "Kueue holds it"),
        (ray(groups=[group("a"), group("a")]), "two of its groups have one name"),
        (ray(managedBy="kueue.x-k8s.io/multikueue"), "its pods are made elsewhere"),
    ],
)
def test_each_hazard_is_a_refusal_that_says_why(raw, why):
    assert why in KIND.read(raw).refused


def test_pods_for_volcano_are_a_gang():
    raw = ray()
    raw["spec"]["workerGroupSpecs"][0]["template"]["spec"]["schedulerName"] = "volcano"
    assert "minMember of all replicas" in KIND.read(raw).refused


def test_kueue_must_know_that_it_is_elastic():
    raw = ray(notes={**BOUNDS, labels.KUEUE_ELASTIC: "true"}, marks={labels.KUEUE_QUEUE: "lq"})
    assert (KIND.read(raw).refused, KIND.read(raw).queue) == ("", "lq")
