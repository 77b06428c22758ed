"""A real Prometheus answers every query of every board, from series of every metric and from recorded ones."""

import asyncio
import json
import math
import re
import time
import urllib.parse

import pytest
import pytest_asyncio
import yaml

from hack.codegen.grafana import coverage
from hack.controlplane.children import Children
from hack.controlplane.plane import free_ports
from hack.controlplane.tools import cache
from tests.deploy.series_values import exposition
from tests.deploy.test_alerts import RULES, promtool
from tests.deploy.test_dashboard_file import BOARDS
from tests.deploy.test_pages import get

pytestmark = pytest.mark.real

STEP_S = 60
HISTORY_S = 3 * 3600
TARGETS = [
    pytest.param(target, id=f"{name}: {panel['title']}: {target['legendFormat']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    for target in panel.get("targets", ())
]
ANNOTATIONS = [pytest.param(each["expr"], id=each["name"]) for each in BOARDS["queue"]["annotations"]["list"]]
CHOICES = pytest.mark.parametrize(
    "choice",
    [
        pytest.param({"cluster": "local", "queue": "default"}, id="one"),
        pytest.param({"cluster": "local|west", "queue": "default|team-b"}, id="several"),
        pytest.param({"cluster": ".*", "queue": ".*"}, id="All"),
    ],
)
# Queries whose answer is empty while all is well.
EMPTY = {"no list: {{component}} {{resource}}"}


class Prometheus:
    """A Prometheus with a history. now_s: the end of the history, in seconds since 1970. history_s: its length."""

    def __init__(self, folder, children, port, now_s, history_s=HISTORY_S, flags=()):
        self.now_s, self._port, self._children, self._folder = now_s, port, children, folder
        self.history_s, self.flags = history_s, flags

    async def start(self):
        """Start it, or start it again with the blocks that were added since. Return once it is ready."""
        flags = [f"--config.file={self._folder}/prometheus.yml", f"--storage.tsdb.path={self._folder}/data"]
        listen = f"--web.listen-address=127.0.0.1:{self._port}"
        argv = [str(cache.binary("prometheus")), *flags, listen, "--storage.tsdb.retention.time=10d", *self.flags]
        await asyncio.to_thread(self._children.start, "prometheus", argv)
        async with asyncio.timeout(60):
            while True:
                status, _ = await asyncio.to_thread(get, self._port, "/-/ready")
                if status == 200:
                    return
                await asyncio.sleep(0.05)

    async def record(self):
        """Evaluate the recording rules over the history, layer by layer."""
        for groups in layers():
            records = self._folder / "records.yaml"
            records.write_text(yaml.safe_dump({"groups": groups}))
            times = [f"--start={self.now_s - self.history_s}", f"--end={self.now_s}"]
            output = [f"--url=http://127.0.0.1:{self._port}", f"--output-dir={self._folder}/data", str(records)]
            done = await asyncio.to_thread(promtool, "tsdb", "create-blocks-from", "rules", *times, *output)
            assert done.returncode == 0, done.stdout + done.stderr
            await asyncio.to_thread(self._children.stop, "prometheus")
            await self.start()

    async def ask(self, path, **query):
        address = f"/api/v1/{path}?{urllib.parse.urlencode(query, doseq=True)}"
        status, text = await asyncio.to_thread(get, self._port, address)
        assert status == 200, text
        return json.loads(text)["data"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def prometheus(tmp_path_factory):
    """A Prometheus with three hours of every series, and of what the rules record of them."""
    folder, (port,) = tmp_path_factory.mktemp("history"), free_ports(1)
    now_s = int(time.time()) // STEP_S * STEP_S
    times_s = range(now_s - HISTORY_S, now_s + 1, STEP_S)
    (folder / "prometheus.yml").write_text("{}")
    for cluster in ("local", ""):
        (folder / "history.txt").write_text(exposition(times_s, cluster))
        done = promtool("tsdb", "create-blocks-from", "openmetrics", str(folder / "history.txt"), str(folder / "data"))
        assert done.returncode == 0, done.stdout + done.stderr
    children = Children(folder)
    try:
        server = Prometheus(folder, children, port, now_s)
        await server.start()
        await server.record()
        yield server
    finally:
        children.close()


def layers():
    """Return the recording rules in layers, as groups: each reads programs and what the layers before record."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    left = {rule["record"]: rule for group in groups for rule in group["rules"] if "record" in rule}
    found = []
    while left:
        layer = [rule for rule in left.values() if not coverage.series([rule["expr"]]) & left.keys()]
        found.append([{"name": "records", "rules": layer}])
        left = {name: rule for name, rule in left.items() if rule not in layer}
    return found


def filled(expr, choice):
    """Return a query as Grafana sends it."""
    job = {"namespace": "ns", "kind": "VolcanoJob", "job": "bert"}
    words = {**choice, **job, "__range": "2h", "__rate_interval": "4m"}
    return re.sub(r"\$(\w+)", lambda name: words[name[1]], expr)


@pytest.mark.contract("CS-20")
@CHOICES
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.asyncio(loop_scope="module")
async def test_every_query_has_a_finite_answer(prometheus, target, choice):
    expr = filled(target["expr"], choice)
    if target["instant"]:
        found = (await prometheus.ask("query", query=expr, time=prometheus.now_s))["result"]
        rows = [(row["metric"], [float(row["value"][1])]) for row in found]
    else:
        span = {"start": prometheus.now_s - 3600, "end": prometheus.now_s, "step": STEP_S}
        found = (await prometheus.ask("query_range", query=expr, **span))["result"]
        rows = [(row["metric"], [float(value) for _, value in row["values"]]) for row in found]
    assert bool(rows) == (target["legendFormat"] not in EMPTY)
    for labels, values in rows:
        assert all(math.isfinite(value) for value in values), (labels, values)
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) - {"cluster"} <= labels.keys()


@pytest.mark.parametrize("expr", ANNOTATIONS)
@pytest.mark.asyncio(loop_scope="module")
async def test_every_annotation_has_an_answer(prometheus, expr):
    query = filled(expr, {"cluster": ".*"})
    assert (await prometheus.ask("query", query=query, time=prometheus.now_s))["result"]


@pytest.mark.contract("CS-20")
@pytest.mark.parametrize(
    ("board", "variable", "choices"),
    [
        pytest.param("queue", "cluster", ["local"], id="cluster"),
        pytest.param("queue", "queue", ["default", "team-b"], id="queue"),
        pytest.param("job", "namespace", ["ns"], id="namespace"),
        pytest.param("job", "kind", ["VolcanoJob"], id="kind"),
        pytest.param("job", "job", ["bert", "gpt"], id="job"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_every_variable_has_choices(prometheus, board, variable, choices):
    (found,) = (each for each in BOARDS[board]["templating"]["list"] if each["name"] == variable)
    query = filled(found["query"]["query"], {"cluster": ".*"})
    selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()
    span = {"start": prometheus.now_s - 3600, "end": prometheus.now_s}
    assert await prometheus.ask(f"label/{label}/values", **{"match[]": selector}, **span) == choices
