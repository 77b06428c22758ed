"""The rights of the autoscaler's account, tried with its own token: it can resize jobs, and not much more."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio
import yaml

from hack.controlplane.api import plural
from hack.controlplane.errors import ApiError
from hack.controlplane.nodes import gpu_nodes
from tests.deploy.test_autoscaler_installed import (
    AUTOSCALER,
    CRDS,
    MAPS,
    SYSTEM,
    install,
    loose_crd,
    pytorch_crd,
    serve,
)
from tests.deploy.test_manifests import MANIFESTS, MARKS_PODS, TAINTS_NODES, elsewhere, kustomized
from tests.kit.cluster import bound_token, indexed_job, make_pod, pytorch_job
from turnout.autoscaler.rbac_rules import MEMORY
from turnout.kube import labels

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.asyncio]

VERSIONS = {
    "MPIJob": "kubeflow.org/v2beta1",
    "RayCluster": "ray.io/v1",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
    "ElasticJob": "elastic.iml.github.io/v1alpha1",
    "ScalePlan": "elastic.iml.github.io/v1alpha1",
    "ColossalAIJob": "batch.tensorstack.dev/v1beta1",
    "MSJob": "mindspore.gitee.com/v1",
}
VOLCANO = "batch.volcano.sh/v1alpha1"
CTYUN = "ctyun.cn/v1"
TEMPLATE = {"spec": {"containers": [{"name": "m", "image": "theirs"}]}}
OURS = {"spec": {"containers": [{"name": "m", "image": "ours:1"}]}}


def raw_object(version, kind, **spec):
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "a"}, "spec": spec}


def tasks(replicas, **more):
    master = {"name": "master", "replicas": 1, "template": TEMPLATE}
    return {"tasks": [master, {"name": "worker", "replicas": replicas, "template": TEMPLATE, **more}]}


def groups(replicas, template=TEMPLATE, **more):
    return {"workerGroupSpecs": [{"groupName": "g", "replicas": replicas, "template": template, **more}]}


def torch(replicas, **more):
    return {"pytorchReplicaSpecs": {"Worker": {"replicas": replicas, **more}}}


def mpi(replicas, **more):
    return {"mpiReplicaSpecs": {"Worker": {"replicas": replicas, **more}}}


def mindspore(replicas, **more):
    return {"msReplicaSpecs": {"Worker": {"replicas": replicas, **more}}}


PYTORCH = pytorch_job("a", 2, gpus=1, maximum=4)
MPI = {"mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": 2, "template": TEMPLATE}}}
SIZED = [  # a job, its size as we write it, and what of it is not ours
    pytest.param(
        indexed_job("a", 2), {"parallelism": 3, "completions": 3}, [{"suspend": True}, {"backoffLimit": 1}], id="job"
    ),
    pytest.param(
        PYTORCH,
        torch(3),
        [torch(2, template=OURS), {"runPolicy": {"suspend": True}}, torch(2, restartPolicy="Never")],
        id="pytorchjob",
    ),
    pytest.param(
        {**PYTORCH, "apiVersion": CTYUN},
        torch(3),
        [torch(2, template=OURS), {"runPolicy": {"suspend": True}}],
        id="pytorchjob.ctyun.cn",
    ),
    pytest.param(
        raw_object(VERSIONS["MSJob"], "MSJob", enableDynamicWorker=True, **mindspore(2)),
        mindspore(3),
        [mindspore(2, template=OURS), {"enableDynamicWorker": False}],
        id="msjob",
    ),
    pytest.param(
        raw_object(VOLCANO, "Job", minAvailable=2, **tasks(2)),
        tasks(3, minAvailable=2),
        [tasks(2, template=OURS), {"tasks": tasks(2)["tasks"][:1]}, {"tasks": tasks(2)["tasks"] * 2}, {"queue": "q"}],
        id="volcanojob",
    ),
    pytest.param(
        raw_object(VERSIONS["MPIJob"], "MPIJob", **MPI),
        mpi(3),
        [mpi(2, template=OURS), {"slotsPerWorker": 2}],
        id="mpijob",
    ),
    pytest.param(
        raw_object(VERSIONS["RayCluster"], "RayCluster", **groups(2)),
        groups(1, scaleStrategy={"workersToDelete": ["w"]}),
        [groups(2, OURS), groups(2, minReplicas=0), {"workerGroupSpecs": []}],
        id="raycluster",
    ),
    pytest.param(
        raw_object(VERSIONS["LeaderWorkerSet"], "LeaderWorkerSet", replicas=2, leaderWorkerTemplate={"size": 2}),
        {"replicas": 3},
        [{"leaderWorkerTemplate": {"size": 3}}],
        id="leaderworkerset",
    ),
]
NOT_OURS = [
    {"metadata": {"labels": {"a": "b"}}},
    {"metadata": {"annotations": {"a": "b"}}},
    {"metadata": {"annotations": {"kept": None}}},
    {"metadata": {"finalizers": ["a.b/c"]}},
]


@pytest_asyncio.fixture
async def api(module_plane):
    async with module_plane.api() as api:
        yield api


@pytest_asyncio.fixture
async def lent(module_plane, api):
    """The plane with the autoscaler installed, all that it may do switched on, and a kind of each dialect served."""
    await install(api, "acting autoscaler")
    for each in kustomized(MARKS_PODS):
        await api.apply(each)
    if len((await api.get(CRDS))["items"]) == 0:
        kinds = [*((version, kind) for kind, version in VERSIONS.items()), (VOLCANO, "Job"), (CTYUN, "PyTorchJob")]
        await serve(api, pytorch_crd(), *(loose_crd(*each) for each in kinds))
    return module_plane


@pytest_asyncio.fixture
async def autoscaler(lent):
    async with lent.api(lent.service_account_token(SYSTEM, AUTOSCALER)) as autoscaler:
        yield autoscaler


async def guarded(attempt, policy):
    """Repeat a forbidden call until the policy refuses it: the API server compiles a new one within a second or so."""
    async with asyncio.timeout(30):
        while True:
            try:
                await attempt()
            except ApiError as error:
                if policy in error.message:
                    return
                raise
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(("job", "size", "others"), SIZED)
async def test_only_size_and_our_annotations_of_a_job_may_be_changed(autoscaler, api, job, size, others, request):
    job = {**job, "metadata": {**job["metadata"], "annotations": {"kept": "yes"}}}
    stored = await api.create(job)
    path = f"/apis/{job['apiVersion']}/namespaces/default/{plural(job['kind'])}/a"
    policy = f"turnout-autoscaler-resizes-{request.node.callspec.id}-only"
    await guarded(lambda: autoscaler.patch(f"{path}?dryRun=All", NOT_OURS[0]), policy)
    for change in [*NOT_OURS, *({"spec": each} for each in others)]:
        with pytest.raises(ApiError, match=policy):
            await autoscaler.patch(path, change)
    note = {labels.WROTE_WORKERS: "3"}
    version = {"resourceVersion": stored["metadata"]["resourceVersion"]}
    resized = await autoscaler.patch(path, {"metadata": {"annotations": note, **version}, "spec": size})
    assert resized["metadata"]["annotations"] == {"kept": "yes", **note}
    assert resized["spec"] != stored["spec"]
    with pytest.raises(ApiError, match="forbidden"):
        await autoscaler.delete(path)
    await api.delete(path)


async def test_an_elastic_job_is_noted_on_and_resized_by_a_plan(autoscaler, api):
    job = raw_object(VERSIONS["ElasticJob"], "ElasticJob", replicaSpecs={"worker": {"replicas": 2}})
    await api.create({**job, "metadata": {**job["metadata"], "annotations": {"kept": "yes"}}})
    group = f"/apis/{VERSIONS['ElasticJob']}/namespaces/default"
    policy = "turnout-autoscaler-resizes-elasticjob-only"
    path = f"{group}/elasticjobs/a"
    await guarded(lambda: autoscaler.patch(f"{path}?dryRun=All", NOT_OURS[0]), policy)
    for change in (*NOT_OURS, {"spec": {"replicaSpecs": {"worker": {"replicas": 3}}}}):
        with pytest.raises(ApiError, match=policy):
            await autoscaler.patch(path, change)
    note = {labels.SCALE_PLAN: "a-1"}
    noted = await autoscaler.patch(path, {"metadata": {"annotations": note}})
    assert noted["metadata"]["annotations"] == {"kept": "yes", **note}
    plan = raw_object(VERSIONS["ScalePlan"], "ScalePlan", ownerJob="a")
    await autoscaler.create(plan)
    for attempt in (
        lambda: autoscaler.get(f"{group}/scaleplans"),
        lambda: autoscaler.patch(f"{group}/scaleplans/a", {"spec": {"ownerJob": "b"}}),
        lambda: autoscaler.delete(f"{group}/scaleplans/a"),
    ):
        with pytest.raises(ApiError, match="forbidden"):
            await attempt()


async def test_a_kind_that_cannot_be_resized_may_be_read_only(autoscaler, api):
    kind = "ColossalAIJob"
    await api.create(raw_object(VERSIONS[kind], kind, replicas=2))
    path = f"/apis/{VERSIONS[kind]}/namespaces/default/{plural(kind)}"
    assert len((await autoscaler.get(path))["items"]) == 1
    with pytest.raises(ApiError, match="forbidden"):
        await autoscaler.patch(f"{path}/a", {"metadata": {"annotations": {labels.CONDITIONS: "[]"}}})


async def test_of_configmaps_those_of_queues_are_its_own_and_the_map_is_not(autoscaler):
    def of_queue(name):
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}}

    own = f"{MAPS}/turnout-queue-a"
    policy = "turnout-autoscaler-tells-of-queues-only"
    await guarded(lambda: autoscaler.patch(f"{MAPS}/node-topology-config?dryRun=All", {"data": {}}), policy)
    for attempt in (
        lambda: autoscaler.patch(f"{MAPS}/node-topology-config", {"data": {"topology_config": ""}}),
        lambda: autoscaler.delete(f"{MAPS}/node-topology-config"),
        lambda: autoscaler.create(of_queue("other"), SYSTEM),
        lambda: autoscaler.create(of_queue(AUTOSCALER), SYSTEM),
        lambda: autoscaler.apply(of_queue("other"), SYSTEM),
    ):
        with pytest.raises(ApiError, match=policy):
            await attempt()
    assert (await autoscaler.get(f"{MAPS}/node-topology-config"))["data"]["topology_config"]
    await autoscaler.create(of_queue("turnout-queue-a"), SYSTEM)
    assert (await autoscaler.patch(own, {"data": {"a": "c"}}))["data"] == {"a": "c"}
    await autoscaler.apply(of_queue("turnout-queue-b"), SYSTEM)
    await autoscaler.delete(own)
    await autoscaler.create(of_queue(MEMORY), SYSTEM)
    assert (await autoscaler.get(f"{MAPS}/{MEMORY}"))["data"] == {"a": "b"}
    for attempt in (
        lambda: autoscaler.create(of_queue("turnout-queue-a"), "default"),
        lambda: autoscaler.get(f"{MAPS}/turnout-queue-b"),
    ):
        with pytest.raises(ApiError, match="forbidden"):
            await attempt()


async def test_of_pods_three_annotations_may_be_changed_and_nothing_else(autoscaler, api):
    await api.create(make_pod("worker", marks={"kept": "yes"}, notes={"kept": "yes"}))
    path = "/api/v1/namespaces/default/pods/worker"
    policy = "turnout-autoscaler-marks-pods-only"
    await guarded(lambda: autoscaler.patch(f"{path}?dryRun=All", {"metadata": {"labels": {"a": "b"}}}), policy)
    for change in (
        *NOT_OURS,
        {"metadata": {"annotations": {labels.TOPOLOGY: "required"}}},
        {"spec": {"containers": [{**make_pod("worker")["spec"]["containers"][0], "image": "ours:1"}]}},
        {"spec": {"activeDeadlineSeconds": 1}},
    ):
        with pytest.raises(ApiError, match=policy):
            await autoscaler.patch(path, change)
    notes = {labels.SAFE_TO_EVICT: "true", labels.VOLCANO_PREEMPTABLE: "true", labels.VOLCANO_TASK_PRIORITY: "1"}
    marked = await autoscaler.patch(path, {"metadata": {"annotations": notes}})
    assert marked["metadata"]["annotations"] == {"kept": "yes", **notes}
    for attempt in (
        lambda: autoscaler.patch(f"{path}/status", {"status": {"phase": "Failed"}}),
        lambda: autoscaler.delete(path),
    ):
        with pytest.raises(ApiError, match="forbidden"):
            await attempt()


async def test_nothing_else_is_given(autoscaler, api):
    await api.create_all(gpu_nodes(1))
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
    other = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "other"}}
    lease = await autoscaler.patch(f"{leases}/{AUTOSCALER}", {"spec": {"holderIdentity": "one"}})
    assert lease["spec"]["holderIdentity"] == "one"
    for attempt in (
        lambda: autoscaler.get("/api/v1/secrets"),
        lambda: autoscaler.get(MAPS),
        lambda: autoscaler.create(make_pod("mine")),
        lambda: autoscaler.create({**indexed_job("mine", 1), "metadata": {"name": "mine"}}),
        lambda: autoscaler.patch("/api/v1/nodes/node-000", {"metadata": {"labels": {"a": "b"}}}),
        lambda: autoscaler.create(other, SYSTEM),
        lambda: autoscaler.patch(f"{leases}/other", {"spec": {"holderIdentity": "one"}}),
        lambda: autoscaler.delete(f"{leases}/{AUTOSCALER}"),
        lambda: autoscaler.patch(f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{AUTOSCALER}", {"rules": []}),
    ):
        with pytest.raises(ApiError, match="forbidden") as answer:
            await attempt()
        assert answer.value.status == 403


async def test_of_nodes_one_taint_and_its_record_may_be_changed_and_nothing_else(autoscaler, api):
    """Last of the autoscaler's: until here it may not touch nodes."""
    for each in kustomized(TAINTS_NODES):
        await api.apply(each)
    theirs = {"key": "team", "value": "a", "effect": "NoSchedule"}
    (node,) = gpu_nodes(1, prefix="accused-")
    meta = {**node["metadata"], "annotations": {"kept": "yes"}}
    await api.create({**node, "metadata": meta, "spec": {"taints": [theirs]}})
    path, policy = "/api/v1/nodes/accused-000", "turnout-autoscaler-taints-nodes-only"
    ours = {"key": labels.FAULTY, "value": "true", "effect": "NoSchedule"}
    await guarded(lambda: autoscaler.patch(f"{path}?dryRun=All", {"metadata": {"labels": {"a": "b"}}}), policy)
    for change in (
        *NOT_OURS,
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [ours]}},
        {"spec": {"taints": [{**theirs, "effect": "NoExecute"}, ours]}},
        {"spec": {"taints": [theirs, {**ours, "key": "other"}]}},
        {"spec": {"taints": None}},
    ):
        with pytest.raises(ApiError, match=policy):
            await autoscaler.patch(path, change)
    note = {"metadata": {"annotations": {labels.NODE_RECORD: "{}"}}}
    node_with_taint = await autoscaler.patch(path, {**note, "spec": {"taints": [theirs, ours]}})
    assert [taint["key"] for taint in node_with_taint["spec"]["taints"]] == ["team", labels.FAULTY]
    node_without_taint = await autoscaler.patch(path, {"spec": {"taints": [theirs]}})
    assert [taint["key"] for taint in node_without_taint["spec"]["taints"]] == ["team"]
    for attempt in (
        lambda: autoscaler.patch(f"{path}/status", {"status": {"phase": "Running"}}),
        lambda: autoscaler.delete(path),
    ):
        with pytest.raises(ApiError, match="forbidden"):
            await attempt()


@pytest.mark.parametrize(
    ("namespace", "prefix", "account"),
    [
        pytest.param("my-ns", "", "turnout-autoscaler", id="in another namespace", marks=pytest.mark.long),
        pytest.param("my-own", "x-", "x-turnout-autoscaler", id="in another namespace and renamed"),
    ],
)
async def test_wherever_it_is_installed_its_policies_hold(control_plane, tmp_path, namespace, prefix, account):
    """Kustomize moves an account, and leaves what a policy says as it is."""
    parts = {"components": [f"../manifests/autoscaler/{each}" for each in ("mark-pods", "taint-nodes")]}
    relabelled = {"metadata": {"labels": {"a": "b"}}}
    async with control_plane.api() as api:
        await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        for each in elsewhere(tmp_path, namespace, "autoscaler/act", namePrefix=prefix, **parts):
            await api.apply(each)
        await api.create(indexed_job("a", 2))
        await api.create(make_pod("b"))
        await api.create_all(gpu_nodes(1))
        job, pod = "/apis/batch/v1/namespaces/default/jobs/a", "/api/v1/namespaces/default/pods/b"
        async with control_plane.api(control_plane.service_account_token(namespace, account)) as autoscaler:
            for path, policy in (
                (job, "resizes-job-only"),
                (pod, "marks-pods-only"),
                ("/api/v1/nodes/node-000", "taints-nodes-only"),
            ):
                await guarded(
                    lambda path=path: autoscaler.patch(f"{path}?dryRun=All", relabelled), f"{AUTOSCALER}-{policy}"
                )
                with pytest.raises(ApiError, match=f"{prefix}{AUTOSCALER}-{policy}") as answer:
                    await autoscaler.patch(path, relabelled)
                assert answer.value.status == 422
            of_queue = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "turnout-queue-a"}}
            with pytest.raises(ApiError, match="tells-of-queues-only"):
                await autoscaler.create({**of_queue, "metadata": {"name": "other"}}, namespace)
            await autoscaler.create(of_queue, namespace)
            resized = await autoscaler.patch(job, {"spec": {"parallelism": 3, "completions": 3}})
            assert resized["spec"]["parallelism"] == 3
        changed = await api.patch(job, relabelled)  # the policies are for that account alone
        assert changed["metadata"]["labels"]["a"] == "b"


async def test_only_the_pod_itself_writes_its_fault_report_with_its_own_token(module_plane, api):
    """Use a job's account, its right to patch pods, and the policy that bounds it, as deploy/manifests/launcher has
    them.
    """
    space = {"name": "guarded", "labels": {labels.GUARDED: "true"}}
    await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": space})
    folder = MANIFESTS / "launcher"
    for file in ("job.yaml", "job-verdicts.yaml", "guard-verdicts.yaml"):
        text = (folder / file).read_text().replace("example-job", "bert").replace("example-namespace", "guarded")
        for each in yaml.safe_load_all(text):
            await api.apply(each, "guarded")
    raw_pods = [make_pod(name, namespace="guarded", serviceAccountName="bert") for name in ("bert-0", "bert-1")]
    first, _ = await api.create_all(raw_pods, "guarded")
    verdict = {"metadata": {"annotations": {labels.NODE_VERDICT: "{}"}}}
    own, other = (f"/api/v1/namespaces/guarded/pods/{name}" for name in ("bert-0", "bert-1"))
    policy = "turnout-verdicts-of-the-pod-itself-only"
    async with module_plane.api(bound_token(module_plane, "bert", first)) as pod:
        await guarded(lambda: pod.patch(f"{other}?dryRun=All", verdict), policy)
        pod_with_report = await pod.patch(own, verdict)
        assert pod_with_report["metadata"]["annotations"] == verdict["metadata"]["annotations"]
        for path, change in (
            (other, verdict),
            (other, {"metadata": {"labels": {"a": "b"}}}),
            (own, {"metadata": {"labels": {"a": "b"}}}),
            (own, {"metadata": {"annotations": {"other": "note"}}}),
            (own, {"spec": {"activeDeadlineSeconds": 1}}),
        ):
            with pytest.raises(ApiError, match=policy):
                await pod.patch(path, change)
        with pytest.raises(ApiError, match="forbidden"):
            await pod.patch("/api/v1/nodes/accused-000", {"metadata": {"labels": {"a": "b"}}})
    async with module_plane.api(module_plane.service_account_token("guarded", "bert")) as loose:
        with pytest.raises(ApiError, match=policy):
            await loose.patch(own, {"metadata": {"annotations": {labels.NODE_VERDICT: None}}})
    for path in (other, f"{other}/status"):
        with pytest.raises(ApiError, match=policy):  # an administrator's word is no pod's
            await api.patch(path, verdict)
    with pytest.raises(ApiError, match="writes it itself"):
        await api.create(make_pod("liar", namespace="guarded", notes={labels.NODE_VERDICT: "{}"}), "guarded")
    await api.patch(own, {"metadata": {"labels": {"a": "b"}}})
