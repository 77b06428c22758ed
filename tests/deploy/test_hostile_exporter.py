"""A pod of a tenant that lies on its metrics page changes nothing of others: the chart's relabelings in Prometheus."""

import asyncio
import re
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
import yaml
from aiohttp import web
from prometheus_client import generate_latest

from hack.controlplane.children import Children
from hack.controlplane.plane import free_ports
from hack.controlplane.tools import cache
from tests.deploy.chart.test_rendered import named, rendered
from tests.deploy.test_alerts import RULES
from tests.deploy.test_dashboard import SCRAPE_S, Watched
from turnout.launcher.agent.metrics import Metrics

pytestmark = pytest.mark.real

VICTIM = {"job_namespace": "team-a", "job_kind": "PyTorchJob", "job_name": "bert"}
HOSTILE = {"job_namespace": "team-b", "job_kind": "PyTorchJob", "job_name": "evil"}
LIES = """
turnout_queue_gpus{queue="default",type="limit"} 0
turnout_leading{component="autoscaler"} 7
turnout_job_info{queue="default",job_namespace="team-a",job_kind="PyTorchJob",job_name="bert"} 1
turnout_launcher_is_coordinator{job_namespace="team-a",job_kind="PyTorchJob",job_name="bert",cluster="other"} 1
turnout_launcher_restarts{exported_job_name="bert",queue="default",run="bert"} 1e9
turnout_job_gpu_seconds_total{job_namespace="team-a",job_name="bert",kind="wasted"} 1e12
"""


def scrape_config(port, labels):
    """Return how a Prometheus scrapes a pod by the chart's PodMonitor. labels: what its relabelings give the target."""
    monitor = named(rendered({"monitoring.launchers.podMonitor": "true"}), "PodMonitor", "turnout-launchers")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    steps = [
        {re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key): value for key, value in step.items()}
        for step in endpoint["metricRelabelings"]
    ]
    return {
        "job_name": labels["job_name"],
        "honor_labels": endpoint["honorLabels"],
        "sample_limit": monitor["spec"]["sampleLimit"],
        "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": labels}],
        "metric_relabel_configs": steps,
    }


@asynccontextmanager
async def exporter(text, rounds):
    """A metrics page with this text. Gives its port. rounds: set when it is scraped."""

    async def page(request):
        rounds.set()
        return web.Response(text=text, content_type="text/plain")

    app = web.Application()
    app.add_routes([web.get("/metrics", page)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def prometheus(folder, pages):
    """A Prometheus that scrapes these pages: (text, labels of the target)."""
    rounds, (port,) = asyncio.Event(), free_ports(1)
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(exporter(text, rounds)) for text, _ in pages]
        jobs = [scrape_config(at, labels) for at, (_, labels) in zip(ports, pages, strict=True)]
        own = {"job_name": "prometheus", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        interval = f"{SCRAPE_S * 1000:.0f}ms"
        every = {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval}
        settings = {"global": every, "rule_files": [str(RULES)], "scrape_configs": [*jobs, own]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        children = Children(folder)
        stack.callback(children.close)
        flags = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        argv = [str(cache.binary("prometheus")), *flags, f"--web.listen-address=127.0.0.1:{port}"]
        children.start("prometheus", argv)
        yield Watched(session, port, rounds, children)


def honest_page():
    """The page of a coordinator of the victim's job."""
    metrics = Metrics("bert")
    metrics.count_event("coordinator_begun", {})
    return generate_latest(metrics.registry).decode()


@pytest.mark.asyncio
async def test_a_lie_stays_with_the_job_of_its_pod(tmp_path):
    async with prometheus(tmp_path, [(honest_page(), VICTIM), (LIES, HOSTILE)]) as watched:
        await watched.until('count(turnout_launcher_restarts{job_name="evil"})', 1)
        await watched.until('sum(turnout_launcher_is_coordinator{job_name="bert"})', 1)
        for series in ("turnout_queue_gpus", "turnout_leading", "turnout_job_info"):
            assert await watched.now(series) == []
        victims = await watched.now('{__name__=~"turnout_.+",job_namespace="team-a"}')
        assert {labels["job"] for labels, _ in victims} == {"bert"}
        lies = await watched.now('{__name__=~"turnout_.+",job_namespace="team-b"}')
        assert len(lies) == 3
        for labels, _ in lies:
            assert HOSTILE.items() <= labels.items()
            assert not {"cluster", "queue", "run"} & labels.keys()
            assert not [label for label in labels if label.startswith("exported_")]


@pytest.mark.asyncio
async def test_a_page_with_too_many_series_is_refused_whole(tmp_path):
    flood = "".join(f'turnout_launcher_restarts{{rank="{number}"}} 1\n' for number in range(20_000))
    async with prometheus(tmp_path, [(honest_page(), VICTIM), (flood, HOSTILE)]) as watched:
        await watched.until('sum(turnout_launcher_is_coordinator{job_name="bert"})', 1)
        await watched.until("clamp_max(prometheus_target_scrapes_exceeded_sample_limit_total, 1)", 1)
        firing = 'count(ALERTS{alertname="TurnoutMetricsRejected",alertstate="firing"})'
        await watched.until(firing, 1)
        assert await watched.now('turnout_launcher_restarts{job_name="evil"}') == []
        assert [value for _, value in await watched.now('up{job="evil"}')] == [0]
