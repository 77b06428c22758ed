"""The extender as the manifests install it: its account, its arguments, the README's certificates, and what ships."""

import asyncio
import random
import re
import shutil
import subprocess
import sys
import urllib.request

import pytest
import yaml

from hack.controlplane import scheduler_config
from hack.controlplane.certs import Pair
from hack.controlplane.plane import free_ports
from hack.lint.code_blocks import run_by
from tests.deploy.test_manifests import MANIFESTS, arguments_of, namespace, rendered
from tests.kit.cluster import bound, config_map, koordinator_gang, leaf_of, make_fabric

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Make certificates with the README's openssl lines as they are, without the kubectl command after them."""
    folder = tmp_path_factory.mktemp("certificates")
    (block,) = run_by(
        "tests/deploy/test_installed.py::test_the_installed_extender_and_config_land_a_gang_under_one_leaf"
    )
    (script,) = re.findall(r"^(openssl.*?)kubectl ", block.text, re.DOTALL)
    done = subprocess.run(["sh", "-euc", script], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return folder


def _arguments(plane, certificates):
    """Give the Deployment's own arguments, with the places of this machine in them; and the port of the probes."""
    files = {f"/tls/{name}": certificates / name for name in ("tls.crt", "tls.key", "ca.crt")}
    shutil.copy(certificates / "turnout-extender.crt", files["/tls/tls.crt"])
    shutil.copy(certificates / "turnout-extender.key", files["/tls/tls.key"])
    places = {"0.0.0.0:9443": f"127.0.0.1:{free_ports(1)[0]}", "0.0.0.0:9090": f"127.0.0.1:{free_ports(1)[0]}", **files}
    arguments = []
    for argument in arguments_of(rendered("extender")):
        flag, _, value = argument.partition("=")
        arguments.append(f"{flag}={places.get(value, value)}")
    kubeconfig = plane.service_account_kubeconfig("turnout-system", "turnout-extender")
    return [*arguments, f"--kubeconfig={kubeconfig}"], places["0.0.0.0:9443"], places["0.0.0.0:9090"]


def _read(url):
    with urllib.request.urlopen(url, timeout=10) as page:
        return page.read().decode()


@pytest.mark.contract("CS-08")
@pytest.mark.debian("openssl")
@pytest.mark.asyncio
async def test_the_installed_extender_and_config_land_a_gang_under_one_leaf(control_plane, certificates):
    nodes, text = make_fabric(leaves=4, hosts_per_leaf=4, shuffle=random.Random(3))
    async with control_plane.api() as api:
        for each in (namespace(), *rendered("extender")):
            await api.apply(each)
        example = yaml.safe_load((MANIFESTS / "node-topology-config.yaml").read_text())
        await api.apply({**example, "data": config_map(text)["data"]})
        await api.create_all(nodes)
        arguments, verbs, probes = _arguments(control_plane, certificates)
        command = [sys.executable, "-m", "turnout.scheduler_ext", *arguments]
        control_plane.start_program("extender", command, f"http://{probes}/readyz")
        client = Pair(certificates / "scheduler.crt", certificates / "scheduler.key")
        config = scheduler_config.with_extender_url(f"https://{verbs}", certificates / "ca.crt", client)
        control_plane.start_scheduler(config)
        await api.create_all(koordinator_gang("ring", 4))
        node_by_pod = await api.until("/api/v1/pods", bound(4))
    leaves = leaf_of(text)
    ips = {node["metadata"]["name"]: node["status"]["addresses"][0]["address"] for node in nodes}
    assert len({leaves[ips[node]] for node in node_by_pod.values()}) == 1
    page = await asyncio.to_thread(_read, f"http://{probes}/metrics")
    assert re.search(r'turnout_extender_requests_total\{[^}]*verb="filter"[^}]*\} [1-9]', page)
    assert "forbidden" not in control_plane.logs("extender").lower()


@pytest.mark.asyncio
async def test_the_installed_nominator_has_its_own_account_lease_and_policy(control_plane):
    nodes, text = make_fabric(leaves=4, hosts_per_leaf=4, shuffle=random.Random(3))
    probes = f"127.0.0.1:{free_ports(1)[0]}"
    async with control_plane.api() as api:
        for each in (namespace(), *rendered("extender"), *rendered("nominator")):
            await api.apply(each)
        example = yaml.safe_load((MANIFESTS / "node-topology-config.yaml").read_text())
        await api.apply({**example, "data": config_map(text)["data"]})
        await api.create_all(nodes)
        arguments = [each.replace("0.0.0.0:9091", probes) for each in arguments_of(rendered("nominator"))]
        kubeconfig = control_plane.service_account_kubeconfig("turnout-system", "turnout-nominator")
        command = [sys.executable, "-m", "turnout.scheduler_ext.nominator", *arguments, f"--kubeconfig={kubeconfig}"]
        control_plane.start_program("nominator", command, f"http://{probes}/readyz")
        await api.create_all(koordinator_gang("ring", 4))
        node_by_pod = await api.until("/api/v1/pods", _nominated(4))
    leaves = leaf_of(text)
    ips = {node["metadata"]["name"]: node["status"]["addresses"][0]["address"] for node in nodes}
    assert len({leaves[ips[node]] for node in node_by_pod.values()}) == 1
    assert "forbidden" not in control_plane.logs("nominator").lower()


def _nominated(count):
    def nominated_nodes(pods):
        node_by_pod = {pod["metadata"]["name"]: pod["status"].get("nominatedNodeName") for pod in pods}
        node_by_pod = {name: node for name, node in node_by_pod.items() if node}
        return node_by_pod if len(node_by_pod) >= count else None

    return nominated_nodes
