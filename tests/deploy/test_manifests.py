"""The manifests of deploy/manifests: valid to a real API server, restricted, and without rights beyond a list."""

import asyncio
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from hack.controlplane import schemas
from hack.controlplane.errors import ApiError
from hack.controlplane.nodes import gpu_nodes
from hack.controlplane.tools import cache
from tests.kit.cluster import make_pod
from turnout.kube import labels

pytestmark = pytest.mark.real

MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"
PARTS = {
    "extender": MANIFESTS,
    "nominator": MANIFESTS / "nominator",
    "autoscaler": MANIFESTS / "autoscaler",
    "acting autoscaler": MANIFESTS / "autoscaler" / "act",
    "controllers": MANIFESTS / "controllers",
}
MARKS_PODS = MANIFESTS / "autoscaler" / "mark-pods"
TAINTS_NODES = MANIFESTS / "autoscaler" / "taint-nodes"
TELLS_PLACES = MANIFESTS / "nominator" / "switch-path"
FILES = sorted(file for file in MANIFESTS.rglob("*.yaml") if file.name != "kustomization.yaml")


def may(verbs, *resources):
    return {(verb, resource) for verb in verbs.split() for resource in resources}


GROUPS = [f"podgroups.scheduling.{group}" for group in ("volcano.sh", "sigs.k8s.io", "x-k8s.io", "k8s.io", "run.ai")]
TREES = "compositepodgroups.scheduling.k8s.io"
READS = may("get list watch", "nodes", "pods", "jobs.batch", "statefulsets.apps", *GROUPS, TREES)
TELLS = may("create patch", "events")
MAP = may("get list watch", "configmaps/node-topology-config", "configmaps/turnout-reservations")
CONTROLLED = (
    ("pytorchjobs", "kubeflow.org"),
    ("pytorchjobs", "ctyun.cn"),
    ("msjobs", "mindspore.gitee.com"),
    ("colossalaijobs", "batch.tensorstack.dev"),
    ("elasticjobs", "elastic.iml.github.io"),
)
ALLOWED = {
    "turnout-controller": TELLS
    | may("list watch delete", *(f"{plural}.{group}" for plural, group in CONTROLLED))
    | {("patch", f"{plural}/status.{group}") for plural, group in CONTROLLED}
    | may("get patch", "elasticjobs.elastic.iml.github.io")
    | may("list watch", "scaleplans.elastic.iml.github.io")
    | {("patch", "scaleplans/status.elastic.iml.github.io")}
    | {("update", f"{plural}/finalizers.{group}") for plural, group in CONTROLLED}
    | may("get list watch create delete", "pods", "services")
    | may("get list watch create patch delete", "configmaps")
    | may("create", "secrets")
    | may("list watch", "nodes")
    | may("get list watch create patch delete", "horizontalpodautoscalers.autoscaling", GROUPS[0], GROUPS[2]),
    "turnout-controller-lease": may("get patch", "leases.coordination.k8s.io/turnout-controller"),
    "turnout-queue-admin": may("get list watch create", "configmaps")
    | may("patch update", "configmaps/turnout-autoscaler"),
    "turnout-extender": READS | TELLS,
    "turnout-nominator": READS | TELLS | {("patch", "pods/status")},
    "turnout-extender-topology": MAP,
    "turnout-nominator-topology": MAP,
    "turnout-nominator-switch-path": {("patch", "pods")},
    "turnout-nominator-lease": may("get patch", "leases.coordination.k8s.io/turnout-nominator"),
    "turnout-viewer": may(
        "list watch", "events", "nodes", "pods", "resourcequotas", "priorityclasses.scheduling.k8s.io"
    )
    | may("list watch", *GROUPS, "queues.scheduling.volcano.sh")
    | may(
        "get list watch",
        "configmaps/node-topology-config",
        "configmaps/turnout-autoscaler",
        "configmaps/turnout-reservations",
    )
    | may("list watch", "namespaces", "deployments.apps", "leases.coordination.k8s.io")
    | may("list watch", "mutatingadmissionpolicies.admissionregistration.k8s.io")
    | may("list watch", "mutatingwebhookconfigurations.admissionregistration.k8s.io")
    | may("list watch", "elasticquotas.scheduling.sigs.k8s.io", "elasticquotas.scheduling.x-k8s.io")
    | may("list watch", "clusterqueues.kueue.x-k8s.io", "localqueues.kueue.x-k8s.io", "cohorts.kueue.x-k8s.io")
    | may("list watch", "jobs.batch", "jobs.batch.volcano.sh", "pytorchjobs.kubeflow.org", "mpijobs.kubeflow.org")
    | may("list watch", "rayclusters.ray.io", "leaderworkersets.leaderworkerset.x-k8s.io")
    | may("list watch", "elasticjobs.elastic.iml.github.io")
    | may("list watch", "horizontalpodautoscalers.autoscaling")
    | may("list watch", "colossalaijobs.batch.tensorstack.dev", "pytorchjobs.ctyun.cn", "msjobs.mindspore.gitee.com"),
    "turnout-autoscaler": TELLS
    | may("list watch", "nodes", "pods", "resourcequotas", "priorityclasses.scheduling.k8s.io", *GROUPS)
    | may("list watch", "queues.scheduling.volcano.sh", "elasticquotas.scheduling.sigs.k8s.io")
    | may("list watch", "elasticquotas.scheduling.x-k8s.io")
    | may("list watch", "clusterqueues.kueue.x-k8s.io", "localqueues.kueue.x-k8s.io", "cohorts.kueue.x-k8s.io")
    | may("list watch", "jobs.batch", "jobs.batch.volcano.sh", "pytorchjobs.kubeflow.org", "mpijobs.kubeflow.org")
    | may("list watch", "rayclusters.ray.io", "leaderworkersets.leaderworkerset.x-k8s.io")
    | may("list watch", "elasticjobs.elastic.iml.github.io")
    | may("list watch", "horizontalpodautoscalers.autoscaling")
    | may("list watch", "colossalaijobs.batch.tensorstack.dev", "pytorchjobs.ctyun.cn", "msjobs.mindspore.gitee.com"),
    "turnout-autoscaler-given": MAP | may("get list watch", "configmaps/turnout-autoscaler"),
    "turnout-autoscaler-status": may("create patch delete", "configmaps")
    | may("get", "configmaps/turnout-autoscaler-memory"),
    "turnout-autoscaler-lease": may("get patch", "leases.coordination.k8s.io/turnout-autoscaler"),
    "turnout-autoscaler-gang-mins": {("patch", "podgroups.scheduling.k8s.io")},
    "turnout-autoscaler-resize-job": {("patch", "jobs.batch")},
    "turnout-autoscaler-resize-pytorchjob": {("patch", "pytorchjobs.kubeflow.org")},
    "turnout-autoscaler-resize-pytorchjob.ctyun.cn": {("patch", "pytorchjobs.ctyun.cn")},
    "turnout-autoscaler-resize-msjob": {("patch", "msjobs.mindspore.gitee.com")},
    "turnout-autoscaler-resize-volcanojob": {("patch", "jobs.batch.volcano.sh")},
    "turnout-autoscaler-resize-mpijob": {("patch", "mpijobs.kubeflow.org")},
    "turnout-autoscaler-resize-raycluster": {("patch", "rayclusters.ray.io")},
    "turnout-autoscaler-resize-leaderworkerset": {("patch", "leaderworkersets.leaderworkerset.x-k8s.io")},
    "turnout-autoscaler-resize-elasticjob": {
        ("patch", "elasticjobs.elastic.iml.github.io"),
        ("create", "scaleplans.elastic.iml.github.io"),
    },
    "turnout-autoscaler-mark-pods": {("patch", "pods")},
    "turnout-autoscaler-taint-nodes": may("get patch", "nodes"),
}


def kustomized(folder):
    """Give the objects that `kubectl apply -k` would send."""
    done = subprocess.run([cache.binary("kubectl"), "kustomize", folder], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def arguments_of(objects):
    """The arguments with which a kubelet starts the only container of the Deployment among these."""
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    fields = {"metadata.namespace": deployment["metadata"]["namespace"]}
    field_by_variable = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container.get("env", ())}
    known = {name: fields[path] for name, path in field_by_variable.items() if path in fields}
    return [re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], argument) for argument in container["args"]]


def elsewhere(folder, namespace, *parts, **more):
    """Render an overlay that moves some parts of the manifests to another namespace."""
    shutil.copytree(MANIFESTS, folder / "manifests")
    overlay = folder / "overlay"
    overlay.mkdir()
    kustomization = {"namespace": namespace, "resources": [f"../manifests/{part}" for part in parts], **more}
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return kustomized(overlay)


def namespace():
    """The namespace that the README makes first."""
    return yaml.safe_load((MANIFESTS / "namespace.yaml").read_text())


def rendered(part):
    return kustomized(PARTS[part])


def all_rendered():
    return [each for folder in (*PARTS.values(), MARKS_PODS, TAINTS_NODES, TELLS_PLACES) for each in kustomized(folder)]


@pytest.fixture(scope="module")
def schema_folder(module_plane, tmp_path_factory):
    folder = tmp_path_factory.mktemp("schemas")
    schemas.write(module_plane.request("GET", "/openapi/v2"), folder)
    return folder


@pytest_asyncio.fixture
async def api(module_plane):
    async with module_plane.api() as api:
        yield api


@pytest_asyncio.fixture
async def installed(module_plane, api):
    """The plane with everything applied: all parts, the map, and certificates left out."""
    for each in (namespace(), *all_rendered(), yaml.safe_load((MANIFESTS / "node-topology-config.yaml").read_text())):
        await api.apply(each)
    return module_plane


def test_every_file_is_valid_by_the_servers_own_schemas(schema_folder):
    results = schemas.kubeconform(schema_folder, FILES)
    assert schemas.faults(results) == []
    assert {Path(each["filename"]) for each in results} == set(FILES)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        pytest.param("replicas: 2", "replicass: 2", "replicass", id="a field that nobody knows"),
        pytest.param("replicas: 2", "replicas: two", "replicas", id="a word where a number belongs"),
        pytest.param("apiVersion: apps/v1", "apiVersion: apps/v0", "could not find schema", id="an unknown version"),
        pytest.param("whenUnsatisfiable: ScheduleAnyway", "", "whenUnsatisfiable", id="a required field left out"),
    ],
)
def test_a_planted_fault_is_found(right, wrong, message, schema_folder, tmp_path):
    text = (MANIFESTS / "extender.yaml").read_text()
    assert right in text
    (tmp_path / "broken.yaml").write_text(text.replace(right, wrong))
    faults = schemas.faults(schemas.kubeconform(schema_folder, [tmp_path / "broken.yaml"]))
    assert len(faults) == 1
    assert message in faults[0]


@pytest.mark.asyncio
async def test_the_server_takes_everything_in_a_strict_dry_run(control_plane):
    async with control_plane.api() as api:
        objects = all_rendered()
        await api.apply(namespace())
        for each in objects:
            answer = await api.apply(each, query="&dryRun=All&fieldValidation=Strict")
            assert answer["metadata"]["name"] == each["metadata"]["name"]
        assert (await api.get("/apis/apps/v1/deployments"))["items"] == []


@pytest.mark.asyncio
async def test_the_pods_are_admitted_as_restricted_and_a_laxer_one_is_not(installed, api):
    templates = [each["spec"]["template"] for each in all_rendered() if each["kind"] == "Deployment"]
    assert len(templates) == len(PARTS)
    for number, template in enumerate(templates):
        meta = {"name": f"trial-{number}", "namespace": "turnout-system", "labels": template["metadata"]["labels"]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}
        await api.create(pod, query="?dryRun=All")
        del template["spec"]["containers"][0]["securityContext"]["capabilities"]
        with pytest.raises(ApiError, match="violates PodSecurity"):
            await api.create(pod, query="?dryRun=All")


@pytest.mark.parametrize("part", PARTS)
def test_the_pods_are_bounded_and_watched(part):
    (deployment,) = (each for each in rendered(part) if each["kind"] == "Deployment")
    assert deployment["spec"]["replicas"] == 2
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["schedulerName"] == "default-scheduler"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["resources"]["limits"]["memory"]
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    (budget,) = (each for each in rendered(part) if each["kind"] == "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]
    (network,) = (each for each in rendered(part) if each["kind"] == "NetworkPolicy")
    assert network["spec"]["podSelector"] == deployment["spec"]["selector"]
    assert network["spec"]["policyTypes"] == ["Ingress", "Egress"]
    spread = spec.get("topologySpreadConstraints") or spec["affinity"]["podAntiAffinity"].popitem()[1]
    assert "kubernetes.io/hostname" in str(spread)


def _rights(role):
    for rule in role["rules"]:
        assert "*" not in str(rule)
        for verb, group, kind in product(rule["verbs"], rule["apiGroups"], rule["resources"]):
            for name in rule.get("resourceNames", [""]):
                yield verb, (f"{kind}.{group}" if group else kind) + (f"/{name}" if name else "")


def test_every_role_gives_exactly_the_rights_on_the_list():
    roles = [each for each in all_rendered() if each["kind"] in ("Role", "ClusterRole")]
    assert {each["kind"] for each in roles if each["metadata"]["name"].endswith(("-status", "-lease"))} == {"Role"}
    assert {role["metadata"]["name"]: set(_rights(role)) for role in roles} == ALLOWED


@pytest.mark.contract("CS-22")
@pytest.mark.asyncio
async def test_the_extenders_account_reads_and_tells_and_does_nothing_else(installed, api):
    await api.create_all([*gpu_nodes(1), make_pod("bystander")])
    token = installed.service_account_token("turnout-system", "turnout-extender")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "told", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "bystander"},
        "reason": "GangPlanned",
    }
    maps = "/api/v1/namespaces/turnout-system/configmaps"
    async with installed.api(token) as extender:
        assert len((await extender.get("/api/v1/nodes"))["items"]) == 1
        for path in ("/api/v1/pods", "/apis/batch/v1/jobs", "/apis/apps/v1/statefulsets"):
            await extender.get(path)
        maps_read = await extender.get(f"{maps}?fieldSelector=metadata.name=node-topology-config")
        assert len(maps_read["items"]) == 1
        await extender.create(event)
        refused = [
            extender.get(maps),
            extender.get("/api/v1/secrets"),
            extender.create(make_pod("mine")),
            extender.patch("/api/v1/namespaces/default/pods/bystander", {"metadata": {"labels": {"a": "b"}}}),
            extender.patch("/api/v1/namespaces/default/pods/bystander/status", {"status": {"nominatedNodeName": "a"}}),
            extender.patch("/api/v1/nodes/node-000", {"metadata": {"labels": {"a": "b"}}}),
            extender.patch(f"{maps}/node-topology-config", {"data": {}}),
        ]
        for attempt in refused:
            with pytest.raises(ApiError, match="forbidden") as answer:
                await attempt
            assert answer.value.status == 403


LEFT = "/api/v1/namespaces/default/pods/nominee"
CONDITION = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-01T00:00:00Z"}


async def _until_guarded(nominator, path, change, policy):
    """Wait until a policy is at work: the API server compiles a new one within a second or so."""
    async with asyncio.timeout(30):
        while True:
            try:
                await nominator.patch(f"{path}?dryRun=All", change)
            except ApiError as error:
                if policy in error.message:
                    return
                raise


@pytest.mark.asyncio
async def test_the_nominators_account_may_change_only_the_nominated_node(installed, api):
    await api.create(make_pod("nominee", marks={"kept": "yes"}, notes={"kept": "yes"}))
    token = installed.service_account_token("turnout-system", "turnout-nominator")
    async with installed.api(token) as nominator:
        failed = {"status": {"phase": "Failed"}}
        await _until_guarded(nominator, f"{LEFT}/status", failed, "turnout-nominator-names-a-node-only")
        named = await nominator.patch(
            f"{LEFT}/status?fieldManager=turnout-nominator", {"status": {"nominatedNodeName": "node-1"}}
        )
        assert named["status"]["nominatedNodeName"] == "node-1"
        moved = await nominator.patch(f"{LEFT}/status", {"status": {"nominatedNodeName": "node-2"}})
        assert moved["status"]["nominatedNodeName"] == "node-2"
        for change in (
            {"status": {"phase": "Succeeded"}},
            {"status": {"phase": "Succeeded", "nominatedNodeName": "node-3"}},
            {"status": {"conditions": [CONDITION]}},
            {"status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}},
            {"status": {"reason": "Evicted", "message": "by nobody"}},
            {"status": {"phase": None}},
            {"metadata": {"labels": {"kept": None}}, "status": {"nominatedNodeName": "node-3"}},
            {"metadata": {"annotations": {"new": "one"}}},
        ):
            with pytest.raises(ApiError, match="turnout-nominator-names-a-node-only"):
                await nominator.patch(f"{LEFT}/status", change)
        cleared = await nominator.patch(f"{LEFT}/status", {"status": {"nominatedNodeName": None}})
        assert "nominatedNodeName" not in cleared["status"]
    assert (await api.patch(f"{LEFT}/status", {"status": {"phase": "Failed"}}))["status"]["phase"] == "Failed"


@pytest.mark.asyncio
async def test_wherever_the_nominator_is_installed_its_policies_hold(module_plane, api, tmp_path):
    parts = {"components": ["../manifests/nominator/switch-path"]}
    await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "my-ns"}})
    for each in elsewhere(tmp_path, "my-ns", ".", "nominator", **parts):
        await api.apply(each)
    await api.create(make_pod("moved"))
    path = "/api/v1/namespaces/default/pods/moved"
    token = module_plane.service_account_token("my-ns", "turnout-nominator")
    async with module_plane.api(token) as nominator:
        failed, relabelled = {"status": {"phase": "Failed"}}, {"metadata": {"labels": {"a": "b"}}}
        await _until_guarded(nominator, f"{path}/status", failed, "turnout-nominator-names-a-node-only")
        await _until_guarded(nominator, path, relabelled, "turnout-nominator-tells-places-only")
        named = await nominator.patch(f"{path}/status", {"status": {"nominatedNodeName": "node-1"}})
        assert named["status"]["nominatedNodeName"] == "node-1"


@pytest.mark.asyncio
async def test_where_switched_on_the_nominator_may_also_tell_a_pod_its_place(installed, api):
    place = "/api/v1/namespaces/default/pods/placed"
    pod = await api.create(make_pod("placed", marks={"kept": "yes"}, notes={"kept": "yes"}))
    theirs = [{**pod["spec"]["containers"][0], "image": "theirs:1"}]
    token = installed.service_account_token("turnout-system", "turnout-nominator")
    policy = "turnout-nominator-tells-places-only"
    async with installed.api(token) as nominator:
        await _until_guarded(nominator, place, {"metadata": {"labels": {"a": "b"}}}, policy)
        for path in ("spine/leaf1", "spine/leaf2", None):
            patched_pod = await nominator.patch(place, {"metadata": {"annotations": {labels.SWITCH_PATH: path}}})
            assert patched_pod["metadata"]["annotations"].get(labels.SWITCH_PATH) == path
        for change in (
            {"metadata": {"labels": {"kept": None}}},
            {"metadata": {"annotations": {"kept": "no"}}},
            {"metadata": {"annotations": {"kept": None}}},
            {"metadata": {"annotations": {"new": "one", labels.SWITCH_PATH: "spine/leaf1"}}},
            {"metadata": {"finalizers": ["a.b/c"]}},
            {"spec": {"activeDeadlineSeconds": 1}},
            {"spec": {"containers": theirs}},
        ):
            with pytest.raises(ApiError, match=policy):
                await nominator.patch(place, change)
        with pytest.raises(ApiError, match="forbidden"):
            await nominator.delete(place)
    changed = await api.patch(place, {"spec": {"containers": theirs}})
    assert changed["spec"]["containers"][0]["image"] == "theirs:1"  # the policy is for that account alone


def test_places_are_told_where_the_component_is_switched_on(tmp_path):
    """Remove the marks before two lines, as nominator/kustomization.yaml says. The rights come with the flag."""
    shutil.copytree(MANIFESTS / "nominator", tmp_path / "nominator")
    file = tmp_path / "nominator" / "kustomization.yaml"
    text = file.read_text()
    file.write_text(text.replace("# components:\n#   - switch-path", "components:\n  - switch-path"))
    assert file.read_text() != text
    plain, telling = rendered("nominator"), kustomized(file.parent)
    added = {(each["kind"], each["metadata"]["name"]) for each in telling}
    added -= {(each["kind"], each["metadata"]["name"]) for each in plain}
    assert ("ClusterRoleBinding", "turnout-nominator-switch-path") in added
    assert ("ValidatingAdmissionPolicyBinding", "turnout-nominator-tells-places-only") in added
    assert len(added) == 4
    assert set(arguments_of(telling)) - set(arguments_of(plain)) == {"--annotate-switch-path"}


@pytest.mark.asyncio
async def test_the_nominators_account_holds_its_own_lease_and_no_other(installed, api):
    leases = "/apis/coordination.k8s.io/v1/namespaces/turnout-system/leases"
    other = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "other"}}
    await api.create(other, "turnout-system")
    token = installed.service_account_token("turnout-system", "turnout-nominator")
    async with installed.api(token) as nominator:
        lease = await nominator.patch(f"{leases}/turnout-nominator", {"spec": {"holderIdentity": "one"}})
        assert lease["spec"]["holderIdentity"] == "one"
        for attempt in (
            nominator.patch(f"{leases}/other", {"spec": {"holderIdentity": "one"}}),
            nominator.create({**other, "metadata": {"name": "third"}}, "turnout-system"),
            nominator.delete(f"{leases}/turnout-nominator"),
        ):
            with pytest.raises(ApiError, match="forbidden"):
                await attempt
