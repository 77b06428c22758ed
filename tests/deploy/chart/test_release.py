"""The chart's whole life on a real API server, in a namespace of the user's: its Deployments run as processes."""

from __future__ import annotations

import asyncio
import os
import random
import time
import urllib.request

import pytest
import pytest_asyncio
import yaml

from hack.chaos.chart.world import CHART, POD_IP_FLAG, cluster
from hack.controlplane.errors import ApiError
from hack.controlplane.tools import cache
from tests.kit.cluster import indexed_job, koordinator_gang, leaf_of, make_fabric
from turnout.kube import labels

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.asyncio, pytest.mark.root]

READY_S = 30  # from install to all Ready, on a machine that does nothing else
NS = "/api/v1/namespaces/gpu-team"
MAP = f"{NS}/configmaps/node-topology-config"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/elasticjobs.elastic.iml.github.io"
DEPLOYMENTS = "/apis/apps/v1/namespaces/gpu-team/deployments"
RELEASE = ("turnout", str(CHART), *POD_IP_FLAG, "--wait", "--timeout=180s")
# As DLRover's guide names it, with the kinds that its users expect: the Deployment is dlrover-controller-manager.
DLROVER = ("dlrover", *RELEASE[1:], "--values", str(CHART.parents[2] / "examples/values-dlrover.yaml"))


@pytest_asyncio.fixture
async def world(control_plane, tmp_path, monkeypatch):
    """The image of kube-scheduler brings that program: here it is on the path."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(cache.binary("kube-scheduler").parent), os.environ["PATH"]]))
    async with cluster(control_plane, tmp_path) as installed:
        yield installed


async def ready(world):
    """The ready replicas of each Deployment."""
    found = (await world.get(DEPLOYMENTS))["items"]
    return {each["metadata"]["name"]: each.get("status", {}).get("readyReplicas", 0) for each in found}


async def arguments(world, name):
    """The arguments with which a Deployment starts its program."""
    found = await world.get(f"{DEPLOYMENTS}/{name}")
    return found["spec"]["template"]["spec"]["containers"][0]["args"]


async def hosts_on_the_map(world):
    """Give the number of hosts that each extender says its map has."""
    pages = [await asyncio.to_thread(_page, pod["status"]["podIP"]) for pod in await world.pods("extender")]
    return [
        float(line.split()[1])
        for page in pages
        for line in page.splitlines()
        if line.startswith("turnout_topology_hosts ")
    ]


def _page(address):
    with urllib.request.urlopen(f"http://{address}:9090/metrics", timeout=10) as page:
        return page.read().decode()


async def edited_by_hand(world, text):
    """The map as `kubectl edit` leaves it."""
    change = {"data": {"topology_config": text}}
    await world.api.call("PATCH", MAP, change, "application/merge-patch+json")
    return change["data"]


async def data_of_the_map(world):
    return (await world.get(MAP)).get("data")


@pytest.mark.contract("DL-01", "DL-08", "DL-106", "MS-05", "MS-35")
async def test_it_is_installed_upgraded_rolled_back_and_uninstalled(world, tmp_path):
    """A user's map, from values or edited by hand, outlives all of it."""
    began_s = time.monotonic()
    notes = await world.helm("install", *DLROVER, "--create-namespace")
    took_s = time.monotonic() - began_s
    print(f"install to all Ready: {took_s:.1f} s, of {READY_S}")
    assert took_s < 3 * READY_S  # whatever else this machine does
    assert "https://dlrover-extender.gpu-team.svc:9443" in notes
    assert await ready(world) == {"dlrover-extender": 2, "dlrover-autoscaler": 2, "dlrover-controller-manager": 2}
    await checked_by_helm(world)
    await upgraded(world)
    given = await with_a_map(world, tmp_path)

    await edited_by_hand(world, "leaf-9 spine-1 10.0.0.9\n")
    await world.helm("rollback", "dlrover", "3", "--wait", "--timeout=180s")
    assert await data_of_the_map(world) == given
    assert "--act" not in await arguments(world, "dlrover-autoscaler")

    await world.helm("uninstall", "dlrover", "--wait", "--timeout=180s")
    assert await ready(world) == {}
    assert await data_of_the_map(world) == given
    await world.get(CRD)
    await world.helm("install", *DLROVER)  # and again, around what was left
    assert await data_of_the_map(world) == given


async def checked_by_helm(world):
    """Run `helm test`, which passes; and fails, naming it, where the definition of a kind is missing."""
    assert "Phase:          Succeeded" in await world.helm("test", "dlrover", "--timeout=60s")
    passed = await world.describe_pods()
    assert "FAILED" not in passed
    for title in ("serves elastic.iml.github.io/v1alpha1/elasticjobs", "answers kube-scheduler's", "refuses a caller"):
        assert title in passed
    definition = await world.get(CRD)
    await world.api.call("DELETE", CRD)
    await world.helm("test", "dlrover", "--timeout=60s", code=1)
    assert (
        "FAILED  the API server serves elastic.iml.github.io/v1alpha1/elasticjobs: not in the list"
        in await world.describe_pods()
    )
    await world.api.call("POST", CRD.rpartition("/")[0], without_server_fields(definition))


def without_server_fields(definition):
    meta = {key: definition["metadata"][key] for key in ("name", "labels", "annotations")}
    return {**definition, "metadata": meta, "status": None}


async def upgraded(world):
    """Upgrade it to one that acts. An edited map stays, and the certificates, of which kube-scheduler has a copy."""
    before = await world.get(f"{NS}/secrets/dlrover-extender-tls")
    edited = await edited_by_hand(world, make_fabric(leaves=2, hosts_per_leaf=2)[1])
    await world.helm("upgrade", *DLROVER, "--set", "autoscaler.act=true")
    assert await data_of_the_map(world) == edited
    assert "--act" in await arguments(world, "dlrover-autoscaler")
    assert (await world.get(f"{NS}/secrets/dlrover-extender-tls"))["data"] == before["data"]


async def with_a_map(world, tmp_path):
    """Upgrade it to one whose values have a map, which extenders follow and an upgrade without it leaves. Gives it."""
    values = tmp_path / "values.yaml"
    text = "leaf-1 spine-1 10.0.0.1\nleaf-1 spine-1 10.0.0.2\n"
    values.write_text(yaml.safe_dump({"topoMapper": {"topology_config": text}}))
    await world.helm("upgrade", *DLROVER, "--values", str(values))
    found = await world.get(MAP)
    assert found["data"] == {"topology_config": text}
    assert found["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"

    async def follows():
        return await hosts_on_the_map(world) == [2.0, 2.0]

    await world.until(follows)
    await world.helm("upgrade", *DLROVER)
    assert await data_of_the_map(world) == found["data"]
    return found["data"]


async def refusal(account, path, change):
    """The words of a 422, for which is waited: the API server compiles a new policy within a second or so."""
    async with asyncio.timeout(30):
        while True:
            try:
                await account.patch(path, change)
            except ApiError as error:
                return error.message if error.status == 422 else f"{error.status}"


async def test_in_a_namespace_of_the_users_the_guards_hold(world):
    """The account may resize a job, and may not touch anything else of it."""
    await world.helm(
        "install", *RELEASE, "--create-namespace", "--set", "autoscaler.act=true,nominator.enabled=true,"
        "extender.enabled=false,controller.enabled=false,autoscaler.replicas=1,nominator.replicas=1"
    )  # fmt: skip
    await world.api.call("POST", "/apis/batch/v1/namespaces/default/jobs", indexed_job("mine", 2, gpus=1))
    job = "/apis/batch/v1/namespaces/default/jobs/mine"
    token = world.plane.service_account_token("gpu-team", "turnout-autoscaler")
    async with world.plane.api(token) as autoscaler:
        for change in ({"spec": {"backoffLimit": 9}}, {"metadata": {"labels": {"a": "b"}}}):
            assert "turnout-autoscaler-resizes-job-only" in await refusal(autoscaler, f"{job}?dryRun=All", change)
        changed = await autoscaler.patch(job, {"spec": {"parallelism": 1, "completions": 1}})
        assert changed["spec"]["parallelism"] == 1


async def test_where_no_scheduler_may_be_configured_the_charts_own_places_a_gang(world, tmp_path):
    """Its extender answers at its side. The cluster's own scheduler never hears of these pods."""
    nodes, text = make_fabric(leaves=4, hosts_per_leaf=4, shuffle=random.Random(3))
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"topoMapper": {"topology_config": text}}))
    for node in nodes:
        await world.api.call("POST", "/api/v1/nodes", node)
    parts = "scheduler.enabled=true,extender.enabled=false,autoscaler.enabled=false,controller.enabled=false"
    one = "scheduler.replicas=1"  # two would listen at the same 127.0.0.1 here
    await world.helm("install", *RELEASE, "--create-namespace", "--set", f"{parts},{one}", "--values", str(values))
    for pod in koordinator_gang("ring", 4):
        pod["spec"]["schedulerName"] = "turnout-scheduler"
        await world.api.call("POST", "/api/v1/namespaces/default/pods", pod)

    async def node_by_pod():
        found = (await world.get("/api/v1/namespaces/default/pods"))["items"]
        hosts = {each["metadata"]["name"]: each["spec"].get("nodeName") for each in found}
        return hosts if all(hosts.values()) else None

    hosts = await world.until(node_by_pod)
    leaves, ips = leaf_of(text), {each["metadata"]["name"]: each["status"]["addresses"][0]["address"] for each in nodes}
    assert len({leaves[ips[host]] for host in hosts.values()}) == 1


GATED = ("nominator.enabled=true,nominator.gates=true,nominator.replicas=1,extender.enabled=false,"
         "autoscaler.enabled=false,controller.enabled=false")  # fmt: skip


async def behind_gates(world, name):
    """Create three of a gang's four pods behind our gate: it waits for the last. Gives a question about its gates."""
    for pod in koordinator_gang(name, 4, schedulingGates=[{"name": labels.PLACEMENT_GATE}])[:3]:
        await world.api.call("POST", "/api/v1/namespaces/default/pods", pod)

    async def gates():
        found = (await world.get(f"/api/v1/namespaces/default/pods?labelSelector=gang%3D{name}"))["items"]
        return [bool(pod["spec"].get("schedulingGates")) for pod in found]

    return gates


async def test_an_upgrade_without_gates_and_an_uninstall_let_gated_pods_go(world):
    """Nobody would lift them afterwards."""
    await world.helm("install", *RELEASE, "--create-namespace", "--set", GATED)
    gates = await behind_gates(world, "first")
    await world.helm("upgrade", *RELEASE, "--set", GATED)
    assert await gates() == [True] * 3  # an upgrade with gates lets nobody go
    await world.helm("upgrade", *RELEASE, "--set", GATED.replace("gates=true", "gates=false"))
    assert await gates() == [False] * 3
    left = (await world.get("/apis/rbac.authorization.k8s.io/v1/clusterroles"))["items"]
    assert not [each for each in left if each["metadata"]["name"].endswith("-gates-off")]

    await world.helm("upgrade", *RELEASE, "--set", GATED)
    gates = await behind_gates(world, "second")
    await world.helm("uninstall", "turnout", "--wait", "--timeout=180s")
    assert await gates() == [False] * 3
