"""The queue owner's board is alive: a real Prometheus answers every question.

The Prometheus is Debian's. It scrapes two autoscalers, one of which leads, while jobs come, grow, give
back and wait.
"""

import asyncio
import json
import math
import re
import sys
import time
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
import yaml
from aiohttp import web

from hack.controlplane.children import Children
from hack.controlplane.plane import free_ports
from hack.controlplane.tools import cache
from tests.deploy.test_alerts import BY_PROGRAM, RULES
from tests.deploy.test_manifests import MANIFESTS
from turnout.simulator.cluster.kubelet import Pace
from turnout.simulator.cluster.node_builder import generate_nodes
from turnout.simulator.cluster.runtime.scheduler_loop import SchedulerSettings
from turnout.simulator.local_cluster import local_cluster

pytestmark = pytest.mark.real

BOARD = json.loads((MANIFESTS.parent / "grafana/queue.json").read_text())
PANELS = BOARD["panels"]
# Panels of what launchers measure, and of what happens to nobody in the story.
ELSEWHERE = {"Starts inside the forecast", "Cost of resizes", "GPU time by kind"}
TARGETS = [
    pytest.param(panel, target, id=f"{panel['title']}: {target['legendFormat']}")
    for panel in PANELS
    if panel["type"] != "row" and panel["title"] not in ELSEWHERE
    for target in panel["targets"]
]
VARIABLES = {each["name"]: each for each in BOARD["templating"]["list"]}

JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs"
QUEUE = "/apis/scheduling.volcano.sh/v1beta1/queues/default"
SCRAPE_S = 0.5
WITHIN_S = 60.0
# Whether the scrapes carry a label `cluster` or none: an empty variable finds those that have none.
CLUSTERS = pytest.mark.parametrize("cluster", ["local", ""], ids=["a named cluster", "no label for clusters"])


class Watched:
    """A Prometheus and what it has seen. port: where it answers. rounds: told of each of its scrapes."""

    def __init__(self, session, port, rounds, children):
        self._session, self._port, self._rounds, self._children = session, port, rounds, children
        self.began_s = time.time()

    async def ask(self, path, **query):
        async with self._session.get(f"http://127.0.0.1:{self._port}/api/v1/{path}", params=query) as answer:
            document = await answer.json()
        assert document["status"] == "success", document
        return document["data"]

    async def now(self, expr):
        """[(labels, value)] of the last moment."""
        return [(row["metric"], float(row["value"][1])) for row in (await self.ask("query", query=expr))["result"]]

    async def over_time(self, expr):
        """[(labels, [value])] from the start of the story on."""
        found = await self.ask("query_range", query=expr, start=self.began_s, end=time.time(), step=0.5)
        return [(row["metric"], [float(value) for _, value in row["values"]]) for row in found["result"]]

    async def until(self, expr, value):
        """Wait until a question has this answer; asked anew after each scrape."""
        found = None
        try:
            async with asyncio.timeout(WITHIN_S):
                while not found or any(value_now != value for _, value_now in found):
                    self._rounds.clear()
                    await self._rounds.wait()
                    found = await self.now(expr)
        except TimeoutError:
            names = sorted(path.stem for path in self._children.folder.glob("*.log"))
            logs = "".join(f"\n{name}: {self._children.log(name)[-3000:]}" for name in names)
            raise AssertionError(f"{expr} is {found}, not {value}{logs}") from None


def filled(expr, cluster):
    """A question as Grafana sends it."""
    words = {"cluster": cluster, "queue": "default", "__range": "10m", "__rate_interval": "4s"}
    return re.sub(r"\$(\w+)", lambda name: words[name[1]], expr)


def config(autoscalers, pulse):
    """Each autoscaler is scraped twice: under a label for its cluster, and as one who has a single cluster does it."""
    each = [f"127.0.0.1:{port}" for port in autoscalers]
    rounds = [{"job_name": "pulse", "static_configs": [{"targets": [f"127.0.0.1:{pulse}"]}]}]
    named = [{"job_name": "autoscaler", "static_configs": [{"targets": each, "labels": {"cluster": "local"}}]}]
    plain = [{"job_name": "plain", "static_configs": [{"targets": each}]}]
    interval = f"{SCRAPE_S * 1000:.0f}ms"
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [str(RULES)],
        "scrape_configs": rounds + named + plain,
    }


async def submit(api, name, minimum, maximum, **notes):
    limits = {"nvidia.com/gpu": "1"}
    template = {"spec": {"containers": [{"name": "m", "image": "i", "resources": {"limits": limits}}]}}
    task = {"name": "w", "replicas": minimum, "minAvailable": minimum, "template": template}
    meta = {"name": name, "annotations": {"turnout.dev/max-workers": str(maximum), **notes}}
    head = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}
    await api.call("POST", JOBS, {**head, "metadata": meta, "spec": {"minAvailable": minimum, "tasks": [task]}})


async def story(api, watched):
    """One grows into an idle queue, gives back to another, and a third waits whom nobody can help."""
    elastic = 'max(turnout_queue_worker_gpus{cluster="local",queue="default",part="elastic"})'
    await watched.until('sum(turnout_leading{cluster="local",component="autoscaler"})', 1)
    await watched.until(elastic, 0)
    await submit(api, "grows", 2, 8)
    await watched.until(elastic, 5)
    await submit(api, "guest", 3, 3)
    await watched.until(elastic, 2)
    await submit(api, "large", 6, 6)
    await watched.until('max(turnout_queue_jobs_by_reason{cluster="local",reason="NeedsMore"})', 1)
    await watched.until('min(min_over_time(turnout_queue_jobs{cluster="local",state="waiting"}[3s]))', 1)
    for cluster in ("local", ""):  # one autoscaler's page is read at two times
        await watched.until(f'count(turnout_job_predicted_start_timestamp_seconds{{cluster="{cluster}"}})', 3)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def watched(tmp_path_factory):
    """A local cluster with two autoscalers and a Prometheus, once the story has been told."""
    folder, prometheus, rounds = tmp_path_factory.mktemp("board"), str(cache.binary("prometheus")), asyncio.Event()
    one, two, port = free_ports(3)
    async with (
        local_cluster(folder / "kubeconfig", pace=Pace(pull_s=0.01, stop_s=0.01)) as local,
        pulse(rounds) as beat,
    ):
        await local.add_nodes(generate_nodes(2), 4)
        await local.run_jobs()
        local.schedule(SchedulerSettings(backoff_s=(0.05, 0.2)))
        await local.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "turnout-system"}})
        spec = {"capability": {"nvidia.com/gpu": "7"}, "deserved": {"nvidia.com/gpu": "3"}}
        await local.api.call("PATCH", QUEUE, {"spec": spec}, "application/merge-patch+json")
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config((one, two), beat)))
        children = Children(folder)
        try:
            for name, at in (("one", one), ("two", two)):
                flags = [
                    "--kubeconfig",
                    str(folder / "kubeconfig"),
                    "--metrics-bind",
                    f"127.0.0.1:{at}",
                    "--taint-nodes",
                ]
                children.start(
                    name, [sys.executable, "-m", "turnout.autoscaler", *flags, "--act", "--cooldown-s", "600"]
                )
            flags = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
            children.start("prometheus", [prometheus, *flags, f"--web.listen-address=127.0.0.1:{port}"])
            dashboard = Watched(local.session, port, rounds, children)
            await story(local.api, dashboard)
            yield dashboard
        finally:
            children.close()


@asynccontextmanager
async def pulse(rounds):
    """A page of its own for Prometheus, by whose scrapes time is told here. Gives its port."""

    async def page(request):
        rounds.set()
        return web.Response(text="")

    app = web.Application()
    app.add_routes([web.get("/metrics", page)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@pytest.mark.contract("CS-20")
@CLUSTERS
@pytest.mark.parametrize(("panel", "target"), TARGETS)
@pytest.mark.asyncio(loop_scope="module")
async def test_every_query_has_an_answer(watched, panel, target, cluster):
    expr = filled(target["expr"], cluster)
    if target["instant"]:
        rows = [(labels, [value]) for labels, value in await watched.now(expr)]
    else:
        rows = await watched.over_time(expr)
    assert rows
    for labels, values in rows:
        assert any(math.isfinite(value) and value >= 0 for value in values), (labels, values)
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels.keys()


@pytest.mark.contract("CS-20")
@CLUSTERS
@pytest.mark.parametrize("name", ["cluster", "queue"])
@pytest.mark.asyncio(loop_scope="module")
async def test_every_variable_has_a_choice(watched, name, cluster):
    query = VARIABLES[name]["query"]["query"]
    selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", filled(query, cluster)).groups()
    choices = {"cluster": ["local"], "queue": ["default"]}
    assert await watched.ask(f"label/{label}/values", **{"match[]": selector}) == choices[name]


@pytest.mark.contract("CS-20")
@pytest.mark.parametrize(
    ("title", "shown"),
    [
        pytest.param("Quota", {"limit": 7, "deserved": 3, "used": 7, "available": 0}, id="the quota"),
        pytest.param("Jobs", {"running": 2, "waiting": 1, "suspended": 0}, id="jobs"),
        pytest.param("GPUs missing", {"missing": 6}, id="what is missing"),
        pytest.param("Jobs not listed", {"jobs": 0}, id="every job is listed"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_the_board_tells_the_story(watched, title, shown):
    (panel,) = (each for each in PANELS if each["title"] == title)
    found = {}
    for target in panel["targets"]:
        for labels, value in await watched.now(filled(target["expr"], "local")):
            name = re.sub(r"\{\{(\w+)\}\}", lambda label, of=labels: of[label[1]], target["legendFormat"])
            found[name] = value
    assert found == shown


@pytest.mark.asyncio(loop_scope="module")
async def test_it_is_told_why_a_job_waits_and_that_time_was_lent(watched):
    (panel,) = (each for each in PANELS if each["title"].startswith("Who waits"))
    ((labels, waited_s),) = await watched.now(filled(panel["targets"][0]["expr"], "local"))
    assert (labels["job_name"], labels["reason"]) == ("large", "NeedsMore")
    assert 0 < waited_s < time.time() - watched.began_s
    (panel,) = (each for each in PANELS if each["title"] == "Elastic GPU hours")
    ((_, lent_hours),) = await watched.now(filled(panel["targets"][0]["expr"], "local"))
    assert 2 < lent_hours * 3600 < 5 * (time.time() - watched.began_s)  # five at most
    (panel,) = (each for each in PANELS if each["title"] == "Resizes")
    resizes = await watched.now(filled(panel["targets"][0]["expr"], "local"))
    found = {(labels["direction"], labels["outcome"]): round(count) for labels, count in resizes}
    assert {outcome for _, outcome in found} <= {
        "Written",
        "Conflict",
    }  # Conflict: the next decision tries again
    counts = {direction: count for (direction, outcome), count in found.items() if outcome == "Written"}
    assert counts == {"grow": 1, "shrink": 1}  # Prometheus estimates between its scrapes


@pytest.mark.asyncio(loop_scope="module")
async def test_no_label_of_ours_is_one_that_a_scrape_brings(watched):
    labels = await watched.ask("labels", **{"match[]": '{__name__=~"turnout_.*"}'})
    assert [label for label in labels if label.startswith("exported_")] == []


@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_stacked_adds_up_to_what_is_used(watched):
    (panel,) = (each for each in PANELS if each["title"].startswith("Min and elastic"))
    now = [row for target in panel["targets"] for row in await watched.now(filled(target["expr"], "local"))]
    assert sum(gpus for _, gpus in now) == 7


@pytest.mark.asyncio(loop_scope="module")
async def test_prometheus_evaluates_every_rule_and_knows_who_is_missing(watched):
    """The story has no extender: that it is gone is pending, and that no controller leads, too."""
    await watched.until('count(ALERTS{alertname="TurnoutExtenderGone"})', 1)
    groups = {group["name"]: group["rules"] for group in (await watched.ask("rules"))["groups"]}
    assert sorted(groups) == sorted(BY_PROGRAM)
    for name, rules in groups.items():
        for rule in rules:  # goodput is recorded once a minute
            assert rule["health"] in (("ok", "unknown") if name == "turnout-goodput" else ("ok",)), rule
    alerts = {labels["alertname"] for labels, _ in await watched.now('ALERTS{alertname=~"Turnout.+"}')}
    assert {"TurnoutExtenderGone", "TurnoutControllerNoLeader", "TurnoutNominatorNoLeader"} <= alerts
    assert not alerts & {"TurnoutAutoscalerNoLeader", "TurnoutAutoscalerTwoLeaders", "TurnoutQueueStarved"}


@pytest.mark.asyncio(loop_scope="module")
async def test_every_alert_asks_for_what_an_autoscaler_tells(watched):
    exprs = " ".join(rule["expr"] for rule in BY_PROGRAM["turnout-autoscaler"])
    series = set(re.findall(r"turnout_\w+(?:\{.*?\})?", exprs))
    assert [selector for selector in sorted(series) if not await watched.now(selector)] == []
