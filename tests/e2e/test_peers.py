"""Place one gang with other projects' schedulers: Volcano by nomination, koord-scheduler by extender and nomination.

These tests run when TURNOUT_PEERS names a folder with their binaries (vc-scheduler, koord-scheduler). Their CRDs come
from its folder `crds`, else from tests/crds.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from hack.controlplane import scheduler_config
from hack.controlplane.plane import free_ports
from tests.e2e.test_nomination import PODS, nominated
from tests.kit import cluster
from tests.kit.published_crds import CRDS

pytestmark = [pytest.mark.real, pytest.mark.peers, pytest.mark.asyncio]
VOLCANO_CONF = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: overcommit}, {name: drf}, {name: predicates}, {name: proportion}, {name: nodeorder}, {name: binpack}]
"""


def anything_goes(group, version, kind):
    """A cluster-wide CRD without a schema, for a kind that a peer wants to watch and no test uses."""
    plural = f"{kind.lower()}s"
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    served = {"name": version, "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Cluster", "names": names, "versions": [served]},
    }


KOORD_GROUP = "scheduling.koordinator.sh"
ALSO_WATCHED = {
    "koordinator": [anything_goes(KOORD_GROUP, "v1alpha1", kind) for kind in ("Device", "Reservation")],
}
COSCHEDULING = ("preEnqueue", "preFilter", "postFilter", "preScore", "permit", "postBind")


def peer(name):
    """The binary of a peer; a missing one is told, not skipped."""
    binary = Path(os.environ["TURNOUT_PEERS"]) / name
    if not binary.is_file():
        pytest.fail(f"TURNOUT_PEERS has no {name}", pytrace=False)
    return binary


async def install(stage, project):
    """Install a project's CRDs and wait until they are served."""
    places = [Path(os.environ["TURNOUT_PEERS"]) / "crds" / project, CRDS / project]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        pytest.fail(f"no CRDs of {project} in {' or '.join(map(str, places))}", pytrace=False)
    objects = [each for file in sorted(folder.glob("*.yaml")) for each in yaml.safe_load_all(file.read_text()) if each]
    had = {each["metadata"]["name"] for each in objects}
    objects += [each for each in ALSO_WATCHED.get(project, ()) if each["metadata"]["name"] not in had]
    async with stage.plane.api() as api:
        await api.create_all(objects)

        def served(crds):
            conditions = [each.get("status", {}).get("conditions") or [] for each in crds]
            return sum(any(one["type"] == "Established" for one in each) for each in conditions) >= len(objects)

        await api.until("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", served)


def _volcano(stage, conf):
    """The command line of Volcano's scheduler, which reads the file `conf`."""
    health, metrics = free_ports(2)
    command = [peer("vc-scheduler"), "--kubeconfig", stage.plane.kubeconfig, "--scheduler-conf", conf]
    command += ["--leader-elect=false", "--schedule-period=1s", "--scheduler-name=volcano", "--cache-dumper=false"]
    command += ["--enable-healthz=true", f"--healthz-address=127.0.0.1:{health}", "--enable-metrics=true"]
    return [str(part) for part in [*command, f"--listen-address=127.0.0.1:{metrics}"]]


def _group(name, size):
    group = cluster.pod_group("volcano", name, size)
    group["spec"]["queue"] = "default"
    return group


async def test_volcano_puts_a_gang_on_its_nominated_nodes_under_one_leaf(stage, tmp_path):
    await stage.build()
    await install(stage, "volcano")
    stage.start_nominator("nominator", "--scheduler-name", "volcano")
    conf = tmp_path / "volcano.yaml"
    conf.write_text(VOLCANO_CONF)
    async with stage.plane.api() as api:
        await api.create(_group("bert", 8))
        await api.create_all(cluster.volcano_gang("bert", 8, scheduler="volcano"))
        planned = await api.until(PODS, nominated(8))
        stage.plane.start_program("volcano-controllers", _controllers(stage))  # they open the queue
        stage.plane.start_program("volcano", _volcano(stage, conf))
        node_by_pod = await api.until(PODS, cluster.bound(8), within_s=60)
    assert node_by_pod == planned
    assert len(stage.leaves(node_by_pod)) == 1
    assert stage.ring(node_by_pod).total == 0


@pytest.mark.contract("CS-10")
async def test_volcano_asks_by_its_plugin_and_gangs_land_under_one_leaf(stage, tmp_path):
    """Nothing is nominated; the configuration is that of docs/extender.md, as its reader has it."""
    await stage.build()
    await install(stage, "volcano")
    port, conf = stage.start_extender(), tmp_path / "volcano.yaml"
    page = (Path(__file__).parents[2] / "docs" / "extender.md").read_text()
    text = "#" + page.split("```yaml\n# volcano-scheduler.conf", 1)[1].split("```", 1)[0]
    conf.write_text(text.replace("turnout-extender.turnout-system.svc:9443", f"127.0.0.1:{port}"))
    stage.plane.start_program("volcano-controllers", _controllers(stage))  # they open the queue
    stage.plane.start_program("volcano", _volcano(stage, conf))
    async with stage.plane.api() as api:
        for name in ("bert", "gpt"):
            await api.create(_group(name, 8))
            await api.create_all(cluster.volcano_gang(name, 8, scheduler="volcano"))
        node_by_pod = await api.until(PODS, cluster.bound(16), within_s=60)
    assert stage.metric('turnout_extender_requests_total{outcome="answered",verb="volcano/prioritize"}') >= 16
    for name in ("bert", "gpt"):
        hosts = {pod: node for pod, node in node_by_pod.items() if pod.startswith(name)}
        assert len(stage.leaves(hosts)) == 1
        assert stage.ring(hosts).total == 0


def _controllers(stage):
    health, metrics = free_ports(2)
    command = [peer("vc-controller-manager"), "--kubeconfig", stage.plane.kubeconfig, "--leader-elect=false"]
    command += [f"--healthz-address=127.0.0.1:{health}", f"--listen-address=127.0.0.1:{metrics}"]
    return [str(part) for part in command]


@pytest.mark.parametrize("nominate", [False, True], ids=["by the extender", "nominated"])
async def test_koord_scheduler_keeps_a_gang_under_one_leaf(stage, nominate, tmp_path):
    await stage.build()
    await install(stage, "koordinator")
    port = stage.start_extender()
    if nominate:
        stage.start_nominator("nominator", "--scheduler-name", "koord-scheduler")
    config = scheduler_config.with_extender_url(f"http://127.0.0.1:{port}", file=scheduler_config.SHIPPED_KOORDINATOR)
    enabled = {"enabled": [{"name": "Coscheduling"}]}
    config["profiles"][0]["plugins"] = dict.fromkeys(COSCHEDULING, enabled)
    filled = tmp_path / "koord.yaml"  # as the administrator: koordinator's own roles are not installed here
    filled.write_text(yaml.safe_dump(scheduler_config.with_connection(config, stage.plane.kubeconfig)))
    (secure,) = free_ports(1)
    command = [str(peer("koord-scheduler")), f"--config={filled}", "--bind-address=127.0.0.1"]
    stage.plane.start_program("koord-scheduler", [*command, f"--secure-port={secure}", f"--cert-dir={tmp_path}"])
    await stage.submit(*cluster.koordinator_gang("bert", 4, total=4, scheduler="koord-scheduler"))
    node_by_pod = await stage.landed("bert", 4, within_s=60)
    assert len(stage.leaves(node_by_pod)) == 1
