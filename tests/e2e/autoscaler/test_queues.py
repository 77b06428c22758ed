"""Two queues on a real control plane: one borrows what the other leaves, and gives it back when it is asked for.

The queues are objects of their projects' own schemas, with no controller of theirs behind
them: the autoscaler counts what they use from pods.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.autoscaler.lending import (
    AT_ONCE,
    BATCH,
    GPU,
    KUBEFLOW,
    PODS,
    clear,
    decided,
    elastic,
    install,
    listed,
    pods_bound,
    runs,
    start_around,
    start_autoscaler,
    written_resizes,
)
from tests.e2e.stage import Stage
from tests.kit import cluster
from tests.kit.published_crds import published
from turnout.kube import labels

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.asyncio]
KOORD_QUOTA = "quota.scheduling.koordinator.sh/name"


def queue_of_volcano(name):
    spec = {"deserved": {GPU: "4"}, "capability": {GPU: "8"}, "reclaimable": True}
    head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}}
    return [("/apis/scheduling.volcano.sh/v1beta1/queues", {**head, "spec": spec})]


def quota_of_koordinator(name):
    head = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota", "metadata": {"name": name}}
    path = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/elasticquotas"
    return [(path, {**head, "spec": {"min": {GPU: "4"}, "max": {GPU: "8"}}})]


def queues_of_kueue(name):
    """A ClusterQueue of a cohort, and the LocalQueue that leads there."""
    flavor = {"name": "h100", "resources": [{"name": GPU, "nominalQuota": "4"}]}
    cluster_queue = {
        "cohortName": "everybody",
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": [GPU], "flavors": [flavor]}],
        "preemption": {"withinClusterQueue": "Never", "reclaimWithinCohort": "Never"},
    }
    version, path = {"apiVersion": "kueue.x-k8s.io/v1beta2"}, "/apis/kueue.x-k8s.io/v1beta2"
    local = {"kind": "LocalQueue", "metadata": {"name": name}, "spec": {"clusterQueue": f"all-{name}"}}
    return [
        (
            f"{path}/clusterqueues",
            {**version, "kind": "ClusterQueue", "metadata": {"name": f"all-{name}"}, "spec": cluster_queue},
        ),
        (f"{path}/namespaces/default/localqueues", {**version, **local}),
    ]


@dataclass(frozen=True)
class Dialect:
    """queues: name -> [(path, object)]. notes, marks: annotations and labels of a Job that name its queue.

    crds: the files of the definitions.
    """

    project: str
    queues: Any
    notes: Any
    marks: Any
    crds: tuple

    def into(self, raw_job, queue):
        """Say on a job which queue it is in."""
        raw_job["metadata"].setdefault("annotations", {}).update(self.notes(queue))
        raw_job["metadata"].setdefault("labels", {}).update(self.marks(queue))
        if raw_job["kind"] == "PyTorchJob" and self.project == "volcano":
            minimum = raw_job["spec"]["elasticPolicy"]["minReplicas"]
            raw_job["spec"]["runPolicy"] = {"schedulingPolicy": {"queue": queue, "minAvailable": minimum}}
        return raw_job

    def definitions(self):
        """The project's own CRDs."""
        return [published(self.project, file) for file in self.crds]


VOLCANO = Dialect(
    "volcano",
    queue_of_volcano,
    lambda queue: {labels.VOLCANO_QUEUE: queue},
    lambda queue: {},
    ("scheduling.volcano.sh_queues",),
)
KOORDINATOR = Dialect(
    "koordinator",
    quota_of_koordinator,
    lambda queue: {labels.QUEUE: queue},
    lambda queue: {KOORD_QUOTA: queue},
    ("scheduling.sigs.k8s.io_elasticquotas",),
)
KUEUE = Dialect(
    "kueue",
    queues_of_kueue,
    lambda queue: {labels.KUEUE_ELASTIC: "true"},
    lambda queue: {labels.KUEUE_QUEUE: queue},
    ("kueue.x-k8s.io_clusterqueues", "kueue.x-k8s.io_localqueues", "kueue.x-k8s.io_cohorts"),
)


DIALECTS, QUEUES = (VOLCANO, KOORDINATOR, KUEUE), ("own", "other")


def indexed(name, minimum, maximum):
    return elastic(cluster.indexed_job(name, minimum, gpus=1), minimum, maximum)


def pytorch(name, minimum, maximum):
    return cluster.pytorch_job(name, minimum, gpus=1, maximum=maximum)


def path_of(raw_object):
    """Give the API path of a job."""
    group, kind = (BATCH, "jobs") if raw_object["kind"] == "Job" else (KUBEFLOW, "pytorchjobs")
    return f"{group}/namespaces/default/{kind}/{raw_object['metadata']['name']}"


@pytest.fixture(scope="module")
def module_stage(module_plane):
    """Eight GPUs and an autoscaler that acts, for all stories of this module."""
    stage = Stage(module_plane, random.Random(7))

    async def define():
        await install(stage, *(each for dialect in DIALECTS for each in dialect.definitions()))
        await listed(stage, f"{KUBEFLOW}/pytorchjobs")

    asyncio.run(stage.build(leaves=1, hosts_per_leaf=4, gpus=2))
    stage.plane.start_training_operator()
    asyncio.run(define())
    start_around(stage)  # after the CRDs: the garbage collector learns of later ones half a minute late
    start_autoscaler(stage, *AT_ONCE)
    return stage


@pytest_asyncio.fixture
async def stage(module_stage):
    """The stage of the module; no job or queue is left on it afterwards."""
    yield module_stage
    await clear(module_stage, f"{KUBEFLOW}/namespaces/default/pytorchjobs")
    async with module_stage.plane.api() as api:
        for path, body in (pair for dialect in DIALECTS for name in QUEUES for pair in dialect.queues(name)):
            if any(each["metadata"]["name"] == body["metadata"]["name"] for each in (await api.get(path))["items"]):
                await api.delete(f"{path}/{body['metadata']['name']}")


COHORT = "ClusterQueue, LocalQueue and cohort of Kueue"
LONG = pytest.mark.long  # the same story once more


def story(dialect, objects, borrower, owner, words, *marks):
    name = f"{objects} by its schema without its controller, {words}"
    return pytest.param(dialect, borrower, owner, id=name, marks=marks)


@pytest.mark.contract("VE-01", "VE-36")
@pytest.mark.parametrize(
    ("dialect", "borrower", "owner"),
    [
        story(VOLCANO, "Queue of Volcano", indexed, pytorch, "a Job lends to a PyTorchJob"),
        story(VOLCANO, "Queue of Volcano", pytorch, indexed, "a PyTorchJob lends to a Job"),
        story(KOORDINATOR, "ElasticQuota of koordinator", indexed, pytorch, "a Job lends to a PyTorchJob"),
        story(KOORDINATOR, "ElasticQuota of koordinator", pytorch, indexed, "a PyTorchJob lends to a Job", LONG),
        story(KUEUE, COHORT, indexed, pytorch, "a Job lends to a PyTorchJob"),
        story(KUEUE, COHORT, indexed, indexed, "a Job lends to a Job", LONG),
    ],
)
async def test_a_queue_borrows_and_gives_back_down_to_what_it_deserves(stage, dialect, borrower, owner):
    lends, takes, waiting_job = borrower("lends", 2, 8), owner("takes", 4, 4), owner("waits", 2, 2)
    already = len(written_resizes(stage))
    async with stage.plane.api() as api:
        for path, body in (pair for name in QUEUES for pair in dialect.queues(name)):
            await api.call("POST", path, body)
        await api.create(dialect.into(lends, "other"))
        await runs(stage, lends=8)
        first = await api.until(PODS, pods_bound("lends", 8))
        await api.create(dialect.into(takes, "own"))
        await runs(stage, lends=4, takes=4)
        await api.create(dialect.into(waiting_job, "own"))
        await decided(stage, "waits", "NeedsMore")
        left = await api.until(PODS, pods_bound("lends", 4))
        assert set(left.items()) < set(first.items())  # nobody of its min, nor of what it deserves, was disturbed
        await api.delete(f"{path_of(takes)}?propagationPolicy=Background")
        await runs(stage, lends=6, waits=2)
        assert ("lends", 8, 4) in written_resizes(stage)[already:]
