"""A real Prometheus names the job of each pod as the autoscaler does, so that both can be joined."""

import asyncio
import re

import aiohttp
import pytest
import yaml

from hack.controlplane.children import Children
from hack.controlplane.plane import free_ports
from hack.controlplane.tools import cache
from tests.deploy.chart.test_rendered import named, rendered
from tests.jobs.scraped_pods import NAMESPACE, PODS
from turnout.jobs.kinds.scrape_target import scrape_key

pytestmark = [pytest.mark.real, pytest.mark.asyncio]

PATIENCE_S = 30.0


def discovered(pod):
    """The labels that Prometheus' discovery gives a pod."""
    found = {"__meta_kubernetes_namespace": NAMESPACE, "__meta_kubernetes_pod_name": pod.metadata.name}
    for ref in pod.metadata.owner_references or ():
        found["__meta_kubernetes_pod_controller_kind"] = ref.kind
        found["__meta_kubernetes_pod_controller_name"] = ref.name
    for key, value in (pod.metadata.labels or {}).items():
        name = re.sub("[^a-zA-Z0-9_]", "_", key)
        found[f"__meta_kubernetes_pod_label_{name}"] = value
        found[f"__meta_kubernetes_pod_labelpresent_{name}"] = "true"
    return found


def relabelings():
    monitor = named(rendered({"monitoring.launchers.podMonitor": "true"}), "PodMonitor", "turnout-launchers")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    return [
        {re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key): value for key, value in step.items()}
        for step in endpoint["relabelings"]
    ]


async def targets(port, children):
    """The labels of all targets, once Prometheus has them."""
    async with aiohttp.ClientSession() as session:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        async with session.get(f"http://127.0.0.1:{port}/api/v1/targets") as answer:
                            found = (await answer.json())["data"]["activeTargets"]
                        if len(found) == len(PODS):
                            return [each["labels"] for each in found]
                    except (aiohttp.ClientError, KeyError):
                        pass  # it is starting
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(children.log("prometheus")[-3000:]) from None


async def test_prometheus_and_the_autoscaler_name_the_job_of_a_pod_alike(tmp_path):
    pods = {f"127.0.0.1:{number}": pod for number, (pod, _) in enumerate(PODS.values(), 1)}
    groups = [{"targets": [address], "labels": discovered(pod)} for address, pod in pods.items()]
    scrape = {"job_name": "launchers", "static_configs": groups, "relabel_configs": relabelings()}
    settings = {"global": {"scrape_interval": "1h", "scrape_timeout": "1s"}, "scrape_configs": [scrape]}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(settings))
    (port,), children = free_ports(1), Children(tmp_path)
    flags = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    try:
        flags.append(f"--web.listen-address=127.0.0.1:{port}")
        children.start("prometheus", [str(cache.binary("prometheus")), *flags])
        found = await targets(port, children)
    finally:
        children.close()
    named_jobs = {each["instance"]: (each["job_kind"], each["job_namespace"], each["job_name"]) for each in found}
    assert named_jobs == {address: tuple(scrape_key(pod)) for address, pod in pods.items()}
