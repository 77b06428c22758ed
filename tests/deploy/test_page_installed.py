"""The page as the chart installs it: with its own account's rights it serves viewers, and does nothing else."""

from __future__ import annotations

import asyncio
import json
import re
import sys

import aiohttp
import pytest

from hack.codegen import chart
from hack.controlplane.errors import ApiError
from hack.controlplane.nodes import gpu_nodes
from hack.controlplane.plane import free_ports
from tests.cli.page.served import asking
from tests.deploy.test_autoscaler_installed import get
from tests.deploy.test_manifests import _rights as rights
from tests.deploy.test_manifests import arguments_of, may
from tests.kit.cluster import make_pod
from turnout.autoscaler.rbac_rules import KINDS

pytestmark = [pytest.mark.real, pytest.mark.asyncio]

SYSTEM, PAGE = "turnout-system", "turnout-page"
ALONE = {f"{part}.enabled": "false" for part in ("extender", "nominator", "autoscaler", "controller")}
VALUES = {**ALONE, "page.enabled": "true"}
MAP_TEXT = "".join(f"leaf-{at // 2} spine node-{at:03}\n" for at in range(4))
GROUPS = (
    "scheduling.volcano.sh",
    "scheduling.sigs.k8s.io",
    "scheduling.x-k8s.io",
    "scheduling.k8s.io",
    "scheduling.run.ai",
)


def installed(values=VALUES):
    return chart.documents(chart.render(values))


async def test_its_account_may_read_what_it_shows_and_review_its_viewers():
    roles = {
        each["metadata"]["name"]: {*rights(each)} for each in installed() if each["kind"] in ("ClusterRole", "Role")
    }
    kinds = {f"{kind.resource}.{kind.group}" for kind in KINDS.values()}
    assert roles[PAGE] == (
        may("list watch", "nodes", "pods", "resourcequotas", "events", "priorityclasses.scheduling.k8s.io", *kinds)
        | may("list watch", *(f"podgroups.{group}" for group in GROUPS), "queues.scheduling.volcano.sh")
        | may("list watch", "elasticquotas.scheduling.sigs.k8s.io", "elasticquotas.scheduling.x-k8s.io")
        | may("list watch", "clusterqueues.kueue.x-k8s.io", "localqueues.kueue.x-k8s.io", "cohorts.kueue.x-k8s.io")
        | may("list watch", "horizontalpodautoscalers.autoscaling")
        | may("list", "statefulsets.apps", "compositepodgroups.scheduling.k8s.io")
        | may("create", "tokenreviews.authentication.k8s.io", "subjectaccessreviews.authorization.k8s.io")
    )
    assert roles[f"{PAGE}-given"] == may(
        "list watch",
        "configmaps/node-topology-config",
        "configmaps/turnout-autoscaler",
        "configmaps/turnout-reservations",
    )


async def test_its_values_become_flags():
    values = {
        **VALUES,
        "page.cluster": "north 1",
        "page.grafanaUrl": "https://grafana.example.com",
        "page.allowedHosts": "{page.example.com}",
        "page.secureCookie": "true",
        "docs.baseUrl": "https://docs.example.com",
    }
    more = set(arguments_of(installed(values))) - set(arguments_of(installed()))
    assert more == {
        "--cluster=north 1",
        "--grafana-url=https://grafana.example.com",
        "--allowed-host=page.example.com",
        "--secure-cookie",
        "--docs-base-url=https://docs.example.com",
    }


async def test_it_decides_with_the_flags_of_the_autoscaler(tmp_path):
    own = [
        "--cooldown-s=60",
        "--restart-s",
        "30",
        "--log-level=debug",
        "--gpu-resource=amd.com/gpu",
        "--lease-seconds",
        "9",
    ]
    file = tmp_path / "values.json"
    file.write_text(json.dumps({"autoscaler": {"extraArgs": own}}))
    more = arguments_of(chart.documents(chart.render(VALUES, f"--values={file}")))
    assert more == [*arguments_of(installed()), "--cooldown-s=60", "--restart-s", "30", "--gpu-resource=amd.com/gpu"]


async def test_nothing_of_it_is_there_by_default():
    assert not [each for each in chart.documents(chart.render({})) if "page" in each["metadata"]["name"]]


async def stage(api):
    """Install the chart's objects, nodes, the map, a pod of each of two teams, and accounts of two viewers."""
    for namespace in (SYSTEM, "team-a", "team-b"):
        await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    for each in installed({**VALUES, "topoMapper.topology_config": ""}):
        await api.apply(each)
    config = {"metadata": {"name": "node-topology-config", "namespace": SYSTEM}, "data": {"topology_config": MAP_TEXT}}
    await api.apply({"apiVersion": "v1", "kind": "ConfigMap", **config})
    await api.create_all(gpu_nodes(4))
    for team in ("team-a", "team-b"):
        pod = make_pod(f"bert-{team}", gpus=8)
        pod["metadata"]["namespace"] = team
        await api.create(pod)
    for account in ("viewer", "stranger"):
        await api.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": "team-a"}}
        )
    binding = {
        "metadata": {"name": "viewer", "namespace": "team-a"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "turnout-viewer"},
        "subjects": [{"kind": "ServiceAccount", "name": "viewer", "namespace": "team-a"}],
    }
    await api.apply({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", **binding})


def start(plane):
    """Start the Deployment's own command as its account; give the addresses of the page and of its probes."""
    (deployment,) = (each for each in installed() if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["turnout", "page", "--serve"]
    page, probes = (f"127.0.0.1:{port}" for port in free_ports(2))
    arguments = [
        each.replace("0.0.0.0:8080", page).replace("0.0.0.0:9095", probes) for each in arguments_of([deployment])
    ]
    argv = [sys.executable, "-m", "turnout.cli", *container["command"][1:], *arguments]
    plane.start_program(
        "page", [*argv, f"--kubeconfig={plane.service_account_kubeconfig(SYSTEM, PAGE)}"], f"http://{probes}/readyz"
    )
    return f"http://{page}", f"http://{probes}"


async def jobs_of(address, token):
    async with asking(address, token) as ask:
        status, answer = await ask("jobs")
        return [each["job"] for each in answer["items"]] if status == 200 else status


async def test_each_viewer_reads_what_the_cluster_lets_them_list(control_plane):
    async with control_plane.api() as api:
        await stage(api)
        address, probes = await asyncio.to_thread(start, control_plane)
        tokens = {name: control_plane.service_account_token("team-a", name) for name in ("viewer", "stranger")}
        assert await jobs_of(address, tokens["viewer"]) == ["Pod/team-a/bert-team-a"]
        assert await jobs_of(address, tokens["stranger"]) == []
        assert await jobs_of(address, "a token of nobody") == 401
        async with asking(address, tokens["stranger"]) as ask:
            status, queues = await ask("queues")
            assert (status, {each["hidden"] for each in queues["items"]}) == (200, {True})
            assert (await ask("fabric/tree"))[1]["hosts"] == []
            assert (await ask("explain?gang=1x8"))[0] == 403
        admin = {
            "metadata": {"name": "viewer-of-all"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "turnout-viewer"},
            "subjects": [{"kind": "ServiceAccount", "name": "admin", "namespace": "team-a"}],
        }
        account = {"metadata": {"name": "admin", "namespace": "team-a"}}
        await api.apply({"apiVersion": "v1", "kind": "ServiceAccount", **account})
        await api.apply({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", **admin})
        token = control_plane.service_account_token("team-a", "admin")
        assert await jobs_of(address, token) == ["Pod/team-a/bert-team-a", "Pod/team-b/bert-team-b"]
        async with asking(address, token) as ask:
            assert len((await ask("fabric/tree"))[1]["hosts"]) == 4
            status, landing = await ask("explain?gang=2x8")
            assert (status, landing["fits"]) == (200, True), landing
        metrics = await metrics_with_a_viewer(address, probes, token)
    assert 'component="page"' in metrics
    assert re.search(r'^turnout_watch_synced\{component="page",resource="pods"\} 1.0$', metrics, re.M)
    assert re.search(r'^turnout_api_requests_total\{code="2xx",component="page",verb="post"\} [1-9]', metrics, re.M)
    (age,) = re.findall(r"^turnout_page_data_age_seconds (\S+)$", metrics, re.M)
    assert 0 <= float(age) < 60
    assert "forbidden" not in control_plane.logs("page").lower()


async def metrics_with_a_viewer(address, probes, token):
    """Return the metrics while one browser follows the stream."""
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session, session.get(f"{address}/api/v1/stream", headers=headers) as stream:
        assert await stream.content.readline()
        status, text = await asyncio.to_thread(get, f"{probes}/metrics")
        assert status == 200
        assert "\nturnout_page_viewers 1.0\n" in text
        return text


@pytest.mark.parametrize("verb", ["create", "patch", "delete"])
async def test_its_account_changes_nothing(control_plane, verb):
    async with control_plane.api() as api:
        await stage(api)
        token = control_plane.service_account_token(SYSTEM, PAGE)
        async with control_plane.api(token) as page:
            path = "/api/v1/namespaces/team-a/pods/bert-team-a"
            attempts = {
                "create": lambda: page.create(make_pod("more", gpus=1)),
                "patch": lambda: page.patch(path, {"metadata": {"labels": {"a": "b"}}}),
                "delete": lambda: page.delete(path),
            }
            with pytest.raises(ApiError) as refused:
                await attempts[verb]()
            assert refused.value.status == 403
