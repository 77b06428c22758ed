"""Every service answers on /metrics, /healthz and /readyz, and what the dashboard and the alerts ask for is there."""

import asyncio
import json
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from hack.codegen.grafana.coverage import series
from hack.controlplane.children import Children
from hack.controlplane.plane import free_ports
from tests.kit.certificates import Authority
from tests.kit.cluster import config_map
from turnout.simulator.cluster.node_builder import generate_nodes
from turnout.simulator.local_cluster import local_cluster

RULES = Path(__file__).parents[2] / "deploy/prometheus/rules.yaml"
BOARDS = Path(__file__).parents[2] / "deploy/grafana"
# Series of launchers and of the page, and series that rules record: none of these services serves them.
ELSEWHERE = re.compile(r"turnout_launcher_|turnout_job_(time|gpu|unsaved)_seconds|turnout_page_|turnout:")
PAGES = ("/healthz", "/readyz", "/metrics")
MAP = "default/node-topology-config"
SERVICES = {
    "extender": ("turnout.scheduler_ext", ("--configmap", MAP, "--bind", "127.0.0.1:0")),
    "nominator": ("turnout.scheduler_ext.nominator", ("--configmap", MAP, "--lease", "default/nominator", "--gates")),
    "autoscaler": ("turnout.autoscaler", ("--lease", "default/autoscaler")),
    "controller": ("turnout.controllers", ("--lease", "default/controller", "--kinds", "ElasticJob")),
}


def get(port, path):
    """Status and text of a page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()
    except OSError as error:
        return 0, str(error)


def exprs_in(tree):
    """Yield every query in a tree of rules or of boards."""
    for each in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ():
        yield from exprs_in(each)
    if isinstance(tree, dict) and isinstance(tree.get("expr"), str):
        yield tree["expr"]


def with_tls(folder):
    """A certificate: the alert of its end asks for a series that there is with TLS only."""
    pair = Authority().sign("extender")
    (folder / "tls.crt").write_bytes(pair.cert)
    (folder / "tls.key").write_bytes(pair.key)
    return ("--tls-cert", str(folder / "tls.crt"), "--tls-key", str(folder / "tls.key"))


async def until_ready(children, name, port):
    """Ask until the service is ready; fail with its log when it is not."""
    try:
        async with asyncio.timeout(60):
            while True:
                status, _ = await asyncio.to_thread(get, port, "/readyz")
                if status == 200:
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{name} is not ready:\n{children.log(name)[-3000:]}") from None


@pytest.mark.contract("CS-21")
@pytest.mark.asyncio
async def test_every_service_serves_its_pages_and_all_that_alerts_ask_for(tmp_path):
    async with local_cluster(tmp_path / "kubeconfig") as local:
        await local.add_nodes(generate_nodes(2), 4)
        maps = "/api/v1/namespaces/default/configmaps"
        await local.api.call("POST", maps, config_map("a p 10.0.0.1\n"))
        children, ports = Children(tmp_path), dict(zip(SERVICES, free_ports(len(SERVICES)), strict=True))
        try:
            for name, (module, flags) in SERVICES.items():
                common = ["--kubeconfig", str(tmp_path / "kubeconfig"), "--metrics-bind", f"127.0.0.1:{ports[name]}"]
                more = with_tls(tmp_path) if name == "extender" else ()
                children.start(name, [sys.executable, "-m", module, *common, *flags, *more])
            pages = ""
            for name, port in ports.items():
                await until_ready(children, name, port)
                answers = {
                    path: await asyncio.to_thread(get, port, path) for path in ("/healthz", "/readyz", "/metrics")
                }
                assert {path: status for path, (status, _) in answers.items()} == dict.fromkeys(answers, 200), name
                pages += answers["/metrics"][1]
        finally:
            children.close()
    metrics = set(re.findall(r"^# TYPE (turnout_\w+) ", pages, re.M))
    queries = (
        yaml.safe_load(RULES.read_text())["groups"],
        [json.loads(each.read_text()) for each in BOARDS.glob("*.json")],
    )
    required_metrics = {name for name in series(exprs_in(queries)) if not ELSEWHERE.match(name)}
    served = {
        name for name in metrics for name in (name, f"{name}_total", f"{name}_bucket", f"{name}_sum", f"{name}_count")
    }
    assert required_metrics
    assert required_metrics - served == set()
