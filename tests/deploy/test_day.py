"""A day of the real exporters in a real Prometheus: each query of the boards has finite data, and each alert fires.

tests/deploy/day/ lives through twelve hours by a clock moved by hand, with a fault for each alert in its second part,
and takes the metrics page of each program once a minute. promtool makes blocks of these pages with their times, and
records the rules over them. Then a Prometheus with these blocks and the rule file answers.

Alerts with a wait of an hour cannot be awaited live. So Prometheus evaluates the expression of each alert at each
minute of the day, and `firing` applies the rule's `for` to its answers as Prometheus does.
"""

import asyncio
import math
import re
import time

import pytest
import pytest_asyncio
import yaml

from hack.controlplane.children import Children
from hack.controlplane.plane import free_ports
from tests.deploy.day.day import MINUTES, Day
from tests.deploy.day.faults import DIRECT, ELSEWHERE, FAULTS, FIRST, happens
from tests.deploy.test_alerts import ALERTS, RULES, promtool
from tests.deploy.test_dashboard_file import BOARDS
from tests.deploy.test_dashboard_queries import ANNOTATIONS, Prometheus

pytestmark = [pytest.mark.real, pytest.mark.slow]

STEP_S = 60
BLOCK_S = 7200  # of Prometheus: text of one block is read once
LATE_MINUTES = 5  # after a fault ends, an alert on an increase may still begin to fire
RESOLVED_MINUTES = 75  # after a fault ends, no alert of it fires: the windows that hold an alert reach back for an hour
LOOKBACK = "--query.lookback-delta=60s"  # a scrape marks what has disappeared as stale; a page with times cannot
TARGETS = [
    pytest.param(place := f"{name}: {panel['title']}: {target['legendFormat']}", target, id=place)
    for name, board in BOARDS.items()
    for panel in board["panels"]
    for target in panel.get("targets", ())
]
CHOICES = pytest.mark.parametrize(
    "choice",
    [
        pytest.param({"cluster": "local", "queue": "vision"}, id="one"),
        pytest.param({"cluster": "local", "queue": "vision|speech"}, id="several"),
        pytest.param({"cluster": ".*", "queue": ".*"}, id="All"),
    ],
)
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
RECORDS = [rule for group in GROUPS for rule in group["rules"] if "record" in rule]
RULES_OF = {}
for each in (rule for group in GROUPS for rule in group["rules"] if "alert" in rule):
    RULES_OF.setdefault(each["alert"], []).append(each)
JOBS = ("vision", "bert"), ("speech", "gpt"), ("speech", "late")  # of the board of a job: which trains, hangs, waits
LATE_COUNTERS = {  # counters whose first event no increase has, and why
    "turnout_api_requests_total": "the codes of answers are an open set; its alert needs ten",
    "turnout_controller_events_total": "one series for each reason and kind of job would be hundreds of zeros",
    "turnout_controller_writes_total": "the resources depend on the kinds of jobs; no alert reads it",
    "turnout_lent_gpu_seconds_total": "pairs of queues: a pair begins with the decision that lends",
    "turnout_returned_gpus_total": "pairs of queues: as many as the square of their number",
}
EMPTY = {  # place of a query: why the day has no such thing
    "placement: Most ring crossings: too many": "launchers put their ranks in the order with the fewest crossings",
}


class Past(Prometheus):
    """A Prometheus with the day. start_s: its begin, in seconds since 1970."""

    async def over_day(self, expr, step_s=STEP_S):
        """Return [(labels, {minute of the day: value})]."""
        start_s = self.now_s - self.history_s
        span = {"start": start_s + step_s, "end": self.now_s, "step": step_s}
        found = (await self.ask("query_range", query=expr, **span))["result"]
        return [
            (row["metric"], {round(at_s - start_s) // 60: float(value) for at_s, value in row["values"]})
            for row in found
        ]


@pytest.fixture(scope="module")
def late_counters():
    """The counters of the day that began above 0, once the day is over."""
    return set()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def prometheus(tmp_path_factory, late_counters):
    """A Prometheus with the day and what the rules record of it."""
    folder, (port,) = tmp_path_factory.mktemp("day"), free_ports(1)
    async with Day(folder, time.time() // STEP_S * STEP_S - (MINUTES + 30) * 60) as day:
        await day.run(happens())
    late_counters |= day.late_counters()
    for number, text in enumerate(day.expositions(BLOCK_S)):
        page = folder / f"page-{number}.txt"
        page.write_text(text)
        done = promtool("tsdb", "create-blocks-from", "openmetrics", "--quiet", str(page), str(folder / "data"))
        assert done.returncode == 0, done.stdout + done.stderr
        page.unlink()
    settings = {"global": {"evaluation_interval": "1s"}, "rule_files": [str(RULES)]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    children = Children(folder)
    try:
        server = Past(folder, children, port, day.start_s + MINUTES * 60, MINUTES * 60, [LOOKBACK])
        await server.start()
        await server.record()
        yield server
    finally:
        children.close()


def filled(expr, choice, job):
    """Return a query as Grafana sends it. job: (namespace, name) of the board of a job."""
    words = {**choice, "namespace": job[0], "kind": "PyTorchJob", "job": job[1]}
    words |= {"__range": "2h", "__rate_interval": "4m"}
    return re.sub(r"\$(\w+)", lambda name: words[name[1]], expr)


@pytest.mark.contract("CS-20")
@CHOICES
@pytest.mark.parametrize(("place", "target"), TARGETS)
@pytest.mark.asyncio(loop_scope="module")
async def test_every_query_of_a_panel_has_finite_data(prometheus, place, target, choice):
    """An instant query is asked each quarter of an hour; that of a graph has the step of its narrowest range."""
    queries = dict.fromkeys(filled(target["expr"], choice, job) for job in JOBS)
    rows = [row for query in queries for row in await prometheus.over_day(query, 900 if target["instant"] else 240)]
    assert bool(rows) == (place not in EMPTY), EMPTY.get(place, "it has no data on the whole day")
    for labels, values in rows:
        assert all(map(math.isfinite, values.values())), (labels, values)
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) - {"cluster"} <= labels.keys()


@pytest.mark.parametrize("expr", ANNOTATIONS)
@pytest.mark.asyncio(loop_scope="module")
async def test_every_annotation_marks_a_moment_of_the_day(prometheus, expr):
    rows = await prometheus.over_day(filled(expr, {"cluster": ".*", "queue": ".*"}, JOBS[0]))
    assert rows
    assert all(math.isfinite(value) for _, values in rows for value in values.values())


@pytest.mark.parametrize(
    ("board", "variable", "choices"),
    [
        pytest.param("queue", "cluster", {"local"}, id="cluster"),
        pytest.param("queue", "queue", {"audio", "speech", "vision"}, id="queue"),
        pytest.param("job", "namespace", {"audio", "speech", "vision"}, id="namespace"),
        pytest.param("job", "job", {"bert"}, id="job"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_every_variable_has_the_choices_of_the_day(prometheus, board, variable, choices):
    (found,) = (each for each in BOARDS[board]["templating"]["list"] if each["name"] == variable)
    query = filled(found["query"]["query"], {"cluster": ".*", "queue": ".*"}, JOBS[0])
    selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()
    span = {"start": prometheus.now_s - prometheus.history_s, "end": prometheus.now_s}
    assert {*await prometheus.ask(f"label/{label}/values", **{"match[]": selector}, **span)} >= choices


@pytest.mark.parametrize("record", [pytest.param(rule, id=rule["record"]) for rule in RECORDS])
@pytest.mark.asyncio(loop_scope="module")
async def test_every_recorded_series_has_finite_values_where_events_happened(prometheus, record):
    """A ratio of nothing to nothing is no number; no board shows one, and no comparison of an alert holds for it."""
    rows = await prometheus.over_day(record["record"])
    assert any(math.isfinite(value) for _, values in rows for value in values.values())
    assert not any(math.isinf(value) for _, values in rows for value in values.values())


def firing(rows, wait_s):
    """Return the minutes at which an alert fires: its expression has held since `wait_s` for the same labels.

    rows: as Past.over_day returns them for the expression.
    """
    found = set()
    for _, values in rows:
        since = None
        for minute in sorted(values):
            since = minute if since is None or minute - 1 not in values else since
            found |= {minute} if (minute - since) * 60 >= wait_s else set()
    return found


def seconds(text):
    """Return a duration of Prometheus in seconds."""
    number, unit = re.fullmatch(r"(\d+)([smh])", text or "0s").groups()
    return int(number) * {"s": 1, "m": 60, "h": 3600}[unit]


async def fires(prometheus, name):
    """Return the minutes of the day at which an alert fires, by any of the rules of its name. Its values are finite."""
    found = set()
    for rule in RULES_OF[f"Turnout{name}"]:
        rows = await prometheus.over_day(rule["expr"])
        assert all(math.isfinite(value) for _, values in rows for value in values.values())
        found |= firing(rows, seconds(rule.get("for")))
    return found


@pytest.mark.contract("CS-20")
@pytest.mark.parametrize(
    ("alert", "fault"), [pytest.param(alert, fault, id=alert) for fault in FAULTS for alert in fault.alerts]
)
@pytest.mark.asyncio(loop_scope="module")
async def test_an_alert_fires_during_its_fault_and_is_resolved_after_it(prometheus, alert, fault):
    minutes = await fires(prometheus, alert)
    until = fault.ends + RESOLVED_MINUTES
    assert minutes & {*range(fault.begins, fault.ends + LATE_MINUTES)}
    assert minutes & {*range(until, MINUTES)} <= allowed(alert, except_for=fault)


def allowed(alert, except_for=None):
    """Return the minutes at which an alert may fire: those of its faults, until it has to be resolved."""
    causes = [fault for fault in FAULTS if alert in (*fault.alerts, *fault.also) and fault is not except_for]
    return {minute for fault in causes for minute in range(fault.begins, fault.ends + RESOLVED_MINUTES)}


@pytest.mark.parametrize("alert", [name.removeprefix("Turnout") for name in ALERTS])
@pytest.mark.asyncio(loop_scope="module")
async def test_no_alert_fires_without_a_fault_that_causes_it(prometheus, alert):
    assert sorted(await fires(prometheus, alert) - allowed(alert)) == []


def test_each_alert_has_a_fault_in_the_second_part_of_the_day():
    caused = {alert for fault in FAULTS for alert in fault.alerts}
    assert caused | ELSEWHERE.keys() == {name.removeprefix("Turnout") for name in ALERTS}
    assert not caused & ELSEWHERE.keys()
    assert caused >= DIRECT.keys()
    assert min(fault.begins for fault in FAULTS) == FIRST


@pytest.mark.parametrize(
    ("minutes", "wait_s", "expected"),
    [
        pytest.param([3, 4, 5], 0, [3, 4, 5], id="no wait"),
        pytest.param([3, 4, 5], 120, [5], id="it has held for two minutes"),
        pytest.param([3, 4, 6, 7], 120, [], id="after a gap it starts from the beginning"),
    ],
)
def test_an_alert_waits_as_prometheus_does(minutes, wait_s, expected):
    assert sorted(firing([({}, dict.fromkeys(minutes, 1.0))], wait_s)) == expected


@pytest.mark.asyncio(loop_scope="module")
async def test_a_counter_starts_at_0_so_that_its_first_event_counts(prometheus, late_counters):
    assert prometheus.history_s == MINUTES * 60
    assert late_counters == LATE_COUNTERS.keys()


@pytest.mark.asyncio(loop_scope="module")
async def test_the_server_itself_evaluates_every_rule(prometheus):
    """It evaluates them now, after the day. The group of goodput has an interval of its own, of a minute."""

    async def healths():
        groups = (await prometheus.ask("rules"))["groups"]
        rules = [rule for group in groups if group["name"] != "turnout-goodput" for rule in group["rules"]]
        return {rule["name"]: (rule["health"], rule.get("lastError")) for rule in rules}

    async with asyncio.timeout(60):
        while "unknown" in {health for health, _ in (await healths()).values()}:
            continue
    found = await healths()
    assert len(found) > 80
    assert {name: health for name, health in found.items() if health[0] != "ok"} == {}
