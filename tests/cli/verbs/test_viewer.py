"""A person with the ClusterRole turnout-viewer alone, on a real API server, is told what an admin is told."""

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from tests.cli.page.served import asking
from tests.cli.page.test_command import observed, start
from tests.kit.cluster import make_fabric, make_pod
from turnout.cli.__main__ import main
from turnout.kube import labels

pytestmark = pytest.mark.real
ROLES = Path(__file__).parents[3] / "deploy/manifests/autoscaler/base/autoscaler.yaml"
NAMESPACE = "turnout-system"
GANG = {labels.KOORD_NAME: "bert", labels.KOORD_MIN: "3", labels.TOPOLOGY: "required", labels.TOPOLOGY_TIER: "1"}


@pytest.fixture(scope="module")
def configs(module_plane, tmp_path_factory):
    """The kubeconfigs of an admin and of a viewer, of a cluster with a map and a gang that no leaf holds."""
    ask = module_plane.request
    found = [each for each in yaml.safe_load_all(ROLES.read_text()) if each]
    (role,) = (each for each in found if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", "turnout-viewer"))
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    ask("POST", f"{rbac}/clusterroles", role)
    explain = {"metadata": {"name": "looks"}}
    ask("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", explain)
    subject = {"kind": "ServiceAccount", "name": "looks", "namespace": NAMESPACE}
    to = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "turnout-viewer"}
    binding = {"metadata": {"name": "looks"}, "roleRef": to, "subjects": [subject]}
    ask("POST", f"{rbac}/clusterrolebindings", binding)
    nodes, text = make_fabric(2, 2)
    for node in nodes:
        ask("POST", "/api/v1/nodes", node)
    config_map = {"metadata": {"name": "node-topology-config"}, "data": {"topology_config": text}}
    ask("POST", f"/api/v1/namespaces/{NAMESPACE}/configmaps", config_map)
    for at in range(3):
        ask("POST", "/api/v1/namespaces/default/pods", make_pod(f"bert-{at}", 8, notes=GANG))
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/looks/token"
    token = ask("POST", path, body)["status"]["token"]
    kubeconfig = yaml.safe_load(Path(module_plane.kubeconfig).read_text())
    kubeconfig["users"] = [{"name": each["name"], "user": {"token": token}} for each in kubeconfig["users"]]
    viewer = tmp_path_factory.mktemp("viewer") / "kubeconfig"
    viewer.write_text(yaml.safe_dump(kubeconfig))
    return {"admin": str(module_plane.kubeconfig), "viewer": str(viewer)}


def output_of(configs, who, *argv, capsys):
    """The answer of a verb to one of both, as JSON, and its exit code."""
    code = main([*argv, "-o", "json", "--kubeconfig", configs[who]])
    out, complaint = capsys.readouterr()
    assert complaint == ""
    return code, json.loads(out)


def test_why_tells_a_viewer_that_no_leaf_holds_the_gang(configs, capsys):
    (_, admin), (_, viewer) = (output_of(configs, who, "why", "Pod/default/bert", capsys=capsys) for who in configs)
    assert "a switch of tier 1 holds 2" in viewer["explanation"]
    for text in (admin, viewer):
        del text["now_s"]
    assert viewer == admin


@pytest.mark.parametrize(
    "argv",
    [["queues"], ["top"], ["top", "--by", "node"], ["topology", "--nodes"], ["explain", "2x8"], ["explain", "3x8"]],
    ids=" ".join,
)
def test_a_listing_tells_both_the_same(argv, configs, capsys):
    assert output_of(configs, "viewer", *argv, capsys=capsys) == output_of(configs, "admin", *argv, capsys=capsys)


def test_check_is_refused_nothing_that_a_viewer_needs(configs, module_plane, capsys):
    """Only the proxy to a pod's metrics is no right of a viewer."""
    labels_ = {"app.kubernetes.io/part-of": "turnout", "app.kubernetes.io/name": "turnout-nominator"}
    pod = {"containers": [{"name": "nominator", "image": "x", "args": ["--gates"]}]}
    template = {"metadata": {"labels": labels_}, "spec": pod}
    spec = {"replicas": 0, "selector": {"matchLabels": labels_}, "template": template}
    deployment = {"metadata": {"name": "turnout-nominator", "labels": labels_}, "spec": spec}
    module_plane.request("POST", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments", deployment)
    verdicts_by_user = {}
    for who in configs:
        main(["check", "-o", "json", "--kubeconfig", configs[who]])
        verdicts_by_user[who] = json.loads(capsys.readouterr().out)
    assert not [line for line in verdicts_by_user["viewer"] if line["about"] == "rights"]
    assert [line["text"] for line in verdicts_by_user["viewer"] if line["about"] == "way"][2].startswith(
        "gates: 0 pods wait; the nominator is installed with 0 replicas"
    )
    assert verdicts_by_user["viewer"] == verdicts_by_user["admin"]


def test_the_page_shows_a_viewer_the_cluster_and_keeps_watching(configs):
    """Its watches are open: none has been refused, so nothing is silent."""
    assert asyncio.run(_page(configs["viewer"])) == (4, 1, 0.0, "")


async def _page(kubeconfig):
    child, line = await start(kubeconfig, "--port", "0")
    try:
        address, _, token = line.partition("/#token=")
        event = await observed(address, token)
        async with asking(address, token) as ask:
            _, summary = await ask("summary")
        return summary["gpus"] // 8, summary["waiting_jobs"], event["silent_s"], event["error"]
    finally:
        child.terminate()
        await child.wait()
