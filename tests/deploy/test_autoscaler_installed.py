"""The autoscaler as the manifests install it: what its account may do, and what it makes of a right that it lacks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
import yaml

from hack.controlplane.api import plural
from hack.controlplane.errors import ApiError
from hack.controlplane.nodes import gpu_nodes
from hack.controlplane.plane import free_ports
from hack.controlplane.tools import cache
from hack.lint.code_blocks import run_by
from tests.deploy.test_manifests import MANIFESTS, PARTS, arguments_of, elsewhere, kustomized, rendered
from tests.kit.cluster import indexed_job, make_pod, pytorch_job
from turnout.autoscaler.settings import read_settings
from turnout.kube import labels

pytestmark = [pytest.mark.real, pytest.mark.asyncio]

SYSTEM, AUTOSCALER = "turnout-system", "turnout-autoscaler"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
TORCH = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
MAPS = f"/api/v1/namespaces/{SYSTEM}/configmaps"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def loose_crd(version, kind):
    """A CRD with the names of somebody's kind, whose schema takes anything."""
    group, served = version.split("/")
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural(kind), "singular": kind.lower()}
    anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    versions = [{"name": served, "served": True, "storage": True, "schema": anything}]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural(kind)}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": versions},
    }


def pytorch_crd():
    return yaml.load((cache.training_crds() / "kubeflow.org_pytorchjobs.yaml").read_text(), yaml.CSafeLoader)


async def serve(api, *crds):
    """Create CRDs and wait until their kinds are served."""
    for crd in crds:
        await api.create(crd)

    def served(objects):
        conditions = [each.get("status", {}).get("conditions") or [] for each in objects]
        statuses = [{one["type"]: one["status"] for one in each} for each in conditions]
        return len(statuses) >= len(crds) and all(each.get("Established") == "True" for each in statuses)

    await api.until(CRDS, served)
    for crd in crds:  # established, and a moment later routed
        spec = crd["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        await api_until(lambda path=path: api.get(path))


async def api_until(attempt):
    """Repeat a call until the API server takes it: a moment after the change that allows it."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await attempt()
            except ApiError:
                await asyncio.sleep(0.05)


async def install(api, part):
    namespace = yaml.safe_load((MANIFESTS / "namespace.yaml").read_text())
    for each in (namespace, *rendered(part), yaml.safe_load((MANIFESTS / "node-topology-config.yaml").read_text())):
        await api.apply(each)


def start(plane, part, *more):
    """Start the autoscaler with its Deployment's own arguments and its account's token. Gives its probes' address."""
    return start_as(plane, rendered(part), SYSTEM, *more)


def start_as(plane, objects, namespace, *more):
    """Start the autoscaler with the arguments and the account that these objects install."""
    probes = f"127.0.0.1:{free_ports(1)[0]}"
    arguments = [argument.replace("0.0.0.0:9092", probes) for argument in arguments_of(objects)]
    assert f"--metrics-bind={probes}" in arguments
    kubeconfig = plane.service_account_kubeconfig(namespace, AUTOSCALER)
    plane.start_program(
        "autoscaler", [sys.executable, "-m", "turnout.autoscaler", *arguments, f"--kubeconfig={kubeconfig}", *more]
    )
    return f"http://{probes}"


def records(plane, **fields):
    """The autoscaler's log lines that have these fields."""
    lines = (json.loads(line) for line in plane.logs("autoscaler").splitlines() if line.startswith("{"))
    return [line for line in lines if fields.items() <= line.items()]


async def eventually(plane, true, within_s=180.0):
    try:
        async with asyncio.timeout(within_s):
            while True:
                if answer := true():
                    return answer
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(plane.logs("autoscaler")[-4000:]) from None


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def elastic_job():
    job = indexed_job("a", 2, gpus=1)
    job["metadata"]["annotations"] = {labels.MIN_WORKERS: "2", labels.MAX_WORKERS: "4"}
    return job


async def run_a_pytorch_job(api):
    """A PyTorchJob whose two workers run, as training-operator would have made them."""
    job = await api.create(pytorch_job("b", 2, gpus=1, maximum=4))
    owner = {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": "b",
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    for index in range(2):
        marks = {labels.TRAINING_JOB: "b", labels.TRAINING_INDEX: str(index), labels.TRAINING_TYPE: "worker"}
        pod = make_pod(f"b-worker-{index}", gpus=1, marks=marks, nodeName="node-000")
        pod["metadata"]["ownerReferences"] = [owner]
        await api.create(pod)


def sizes(of):
    def sizes_of(jobs):
        return {each["metadata"]["name"]: of(each["spec"]) for each in jobs}

    return sizes_of


parallelism = sizes(lambda spec: spec["parallelism"])
workers = sizes(lambda spec: spec["pytorchReplicaSpecs"]["Worker"]["replicas"])


async def becomes(plane, api, path, read, goal):
    try:
        await api.until(path, lambda jobs: read(jobs) == goal, 90.0)
    except TimeoutError as error:
        raise AssertionError(f"{error}\n{plane.logs('autoscaler')[-4000:]}") from None


async def stage(plane, api, part, *crds):
    await install(api, part)
    await serve(api, *crds)
    await api.create_all(gpu_nodes(4))
    plane.start_scheduler()
    plane.start_controller_manager()
    await api.create(elastic_job())


@pytest.mark.slow
async def test_it_resizes_the_kinds_that_its_role_allows_and_no_other(
    control_plane,
):
    async with control_plane.api() as api:
        await stage(control_plane, api, "autoscaler", pytorch_crd())
        await run_a_pytorch_job(api)
        url = start(control_plane, "autoscaler", "--act")
        for job in ("Job/default/a", "PyTorchJob/default/b"):
            await eventually(control_plane, lambda job=job: records(control_plane, job=job, outcome="Refused"))
        assert parallelism((await api.get(JOBS))["items"]) == {"a": 2}
        status, page = await asyncio.to_thread(get, f"{url}/metrics")
        assert status == 200
        assert re.search(r'^turnout_queue_jobs\{queue="namespace/default",state="running"\} 2.0', page, re.M)
        assert re.search(r'^turnout_autoscaler_changes_total\{[^}]*outcome="Refused"[^}]*\} [1-9]', page, re.M)

        for each in yaml.safe_load_all((PARTS["acting autoscaler"] / "resize-job.yaml").read_text()):
            await api.apply(each)
        await becomes(control_plane, api, JOBS, parallelism, {"a": 4})
        assert workers((await api.get(TORCH))["items"]) == {"b": 2}
        for each in yaml.safe_load_all((PARTS["acting autoscaler"] / "resize-pytorchjob.yaml").read_text()):
            await api.apply(each)
        await becomes(control_plane, api, TORCH, workers, {"b": 4})
        events = await api.until("/api/v1/namespaces/default/events", lambda all_: _messages(all_, "IdleRoom"))
        assert {"Job", "PyTorchJob"} <= {each["involvedObject"]["kind"] for each in events}
    forbidden = [line["event"] for line in records(control_plane) if "forbidden" in str(line).lower()]
    assert "resize_failed" in forbidden
    assert {*forbidden} & {
        "watch_broken",
        "event_not_written",
        "lease_not_read",
        "lease_not_taken",
        "renewal_failed",
    } == set()


def _messages(events, reason):
    found = [each for each in events if each["reason"] == reason]
    return found if len({each["involvedObject"]["name"] for each in found}) >= 2 else None


@pytest.mark.slow
async def test_it_resizes_by_its_shipped_arguments_where_most_kinds_are_unknown(control_plane):
    async with control_plane.api() as api:
        await stage(control_plane, api, "acting autoscaler")
        url = start(control_plane, "acting autoscaler")
        await becomes(control_plane, api, JOBS, parallelism, {"a": 4})
    assert (await asyncio.to_thread(get, f"{url}/readyz"))[0] == 200
    assert "forbidden" not in control_plane.logs("autoscaler").lower()


@pytest.mark.slow
async def test_installed_in_another_namespace_it_holds_its_lease_and_resizes(control_plane, tmp_path):
    objects = elsewhere(tmp_path, "my-ns", "autoscaler/act")
    async with control_plane.api() as api:
        await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "my-ns"}})
        for each in objects:
            await api.apply(each)
        await api.create_all(gpu_nodes(4))
        control_plane.start_scheduler()
        control_plane.start_controller_manager()
        await api.create(elastic_job())
        start_as(control_plane, objects, "my-ns")
        await becomes(control_plane, api, JOBS, parallelism, {"a": 4})
        lease = await api.get(f"/apis/coordination.k8s.io/v1/namespaces/my-ns/leases/{AUTOSCALER}")
        assert lease["spec"]["holderIdentity"]
        await api.until("/api/v1/namespaces/my-ns/configmaps", lambda maps: _named(maps, "turnout-queue-"))
    assert "forbidden" not in control_plane.logs("autoscaler").lower()


def _named(objects, beginning):
    return [each for each in objects if each["metadata"]["name"].startswith(beginning)]


@pytest.mark.slow
async def test_a_kind_that_may_not_be_read_stops_everything_until_it_may(control_plane):
    """A partial observation is not used: the jobs that are not seen would count for nothing in their queues."""
    async with control_plane.api() as api:
        await stage(control_plane, api, "acting autoscaler")
        (role,) = [
            each
            for each in rendered("acting autoscaler")
            if each["kind"] == "ClusterRole" and each["metadata"]["name"] == AUTOSCALER
        ]
        rules = [
            rule
            for rule in role["rules"]
            if (rule["apiGroups"], rule["resources"]) != (["kubeflow.org"], ["pytorchjobs"])
        ]
        assert len(rules) == len(role["rules"]) - 1
        await api.patch(f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{AUTOSCALER}", {"rules": rules})
        await _until_forbidden(control_plane)
        url = start(control_plane, "acting autoscaler")
        await eventually(control_plane, lambda: len(_refused_watches(control_plane)) >= 2)
        assert (await asyncio.to_thread(get, f"{url}/readyz"))[0] == 503
        assert not records(control_plane, event="leading")
        assert parallelism((await api.get(JOBS))["items"]) == {"a": 2}
        await api.apply(role)
        await becomes(control_plane, api, JOBS, parallelism, {"a": 4})


async def _until_forbidden(plane):
    """Wait until the API server has noticed that a role changed."""
    token = plane.service_account_token(SYSTEM, AUTOSCALER)
    async with plane.api(token) as autoscaler, asyncio.timeout(30):
        while True:
            try:
                await autoscaler.get("/apis/kubeflow.org/v1/pytorchjobs")
            except ApiError as error:
                if error.status == 403:
                    return
            await asyncio.sleep(0.05)


def _refused_watches(plane):
    return [line for line in records(plane, event="watch_broken") if "pytorchjobs" in line["path"]]


@pytest.mark.slow
async def test_the_readme_lets_it_act_and_takes_that_back(control_plane):
    """Its shell lines as they stand."""
    shown = run_by("tests/deploy/test_autoscaler_installed.py::test_the_readme_lets_it_act_and_takes_that_back")
    acts, back = (block.text for block in shown)
    async with control_plane.api() as api:
        await api.apply(yaml.safe_load((MANIFESTS / "namespace.yaml").read_text()))
        for script, flags, roles in (
            ("kubectl apply -k deploy/manifests/autoscaler", [], 0),
            (acts, ["--act"], 10),
            (back, [], 0),
            (back, [], 0),
        ):
            await asyncio.to_thread(_type, control_plane, script)
            deployment = await api.get(f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{AUTOSCALER}")
            assert [each for each in arguments_of([deployment]) if each == "--act"] == flags
            for kind in ("clusterroles", "clusterrolebindings"):
                deployment = (await api.get(f"/apis/rbac.authorization.k8s.io/v1/{kind}"))["items"]
                ours = [
                    each["metadata"]["name"] for each in deployment if each["metadata"]["name"].startswith(AUTOSCALER)
                ]
                assert len(ours) == 1 + roles


def _type(plane, script):
    kubectl = cache.binary("kubectl")
    environment = {"KUBECONFIG": str(plane.kubeconfig), "HOME": str(plane.folder)}
    environment["PATH"] = f"{kubectl.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-euc", script], cwd=MANIFESTS.parents[1], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("part", ["autoscaler", "acting autoscaler"])
async def test_its_arguments_are_those_that_the_program_knows(part):
    settings = read_settings(arguments_of(rendered(part)))
    assert settings.act == (part == "acting autoscaler")
    assert (settings.lease, settings.metrics_bind) == (f"{SYSTEM}/{AUTOSCALER}", "0.0.0.0:9092")
    assert (settings.configmap, settings.orders) == (read_settings([]).configmap, read_settings([]).orders)


async def test_pods_are_marked_where_the_component_is_switched_on(tmp_path):
    """Remove the marks before two lines, as act/kustomization.yaml says."""
    shutil.copytree(MANIFESTS / "autoscaler", tmp_path / "autoscaler")
    file = tmp_path / "autoscaler" / "act" / "kustomization.yaml"
    text = file.read_text()
    file.write_text(text.replace("# components:\n#   - ../mark-pods", "components:\n  - ../mark-pods"))
    assert file.read_text() != text
    plain, marking = rendered("acting autoscaler"), kustomized(file.parent)
    added = {(each["kind"], each["metadata"]["name"]) for each in marking}
    added -= {(each["kind"], each["metadata"]["name"]) for each in plain}
    assert ("ClusterRoleBinding", "turnout-autoscaler-mark-pods") in added
    assert ("ValidatingAdmissionPolicyBinding", "turnout-autoscaler-marks-pods-only") in added
    assert len(added) == 4
    assert set(arguments_of(marking)) - set(arguments_of(plain)) == {"--mark-pods"}
    assert read_settings(arguments_of(marking)).mark_pods
