"""The metrics page is what Prometheus and its linter take, and no stranger can make it grow. CS-21"""

import subprocess
from dataclasses import dataclass

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hack.controlplane.tools import cache
from tests.scheduler_ext.server_support import body, opened, preempt_body
from turnout.jobs.gang import GangKey
from turnout.kube.client.clock import RealClock
from turnout.scheduler_ext.server.metrics import GateWait, Metrics, oldest_waits

pytestmark = pytest.mark.timeout(60)


@dataclass
class Watched:
    """The numbers that a reflector shows."""

    has_synced: bool = True
    last_event_s: float = 0.0
    object_count: int = 7
    relist_count: int = 1
    reconnect_count: int = 2
    skipped_count: int = 3


async def busy_page():
    """A scrape over HTTP after something of everything has happened."""
    async with opened() as served:
        metrics = served.metrics
        metrics.show_client(
            lambda: {("get", "2xx"): 1}, lambda: [("nodes", Watched()), ("pods", Watched(object_count=9))], RealClock()
        )
        metrics.refused_answers.labels("NoRoom").inc()
        metrics.gangs.labels("partial").set(1)
        metrics.reloads.labels("taken").inc()
        metrics.hosts.set(64)
        metrics.set_certificate_expiry(2e9)
        for path, data in (("filter", body()), ("prioritize", body()), ("preempt", preempt_body()), ("filter", b"{")):
            await served.post(path, data)
        async with served.session.get(f"http://127.0.0.1:{served.listeners.health_port}/metrics") as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return await answer.text()


def linted(page):
    """Return the faults that promtool finds."""
    promtool = cache.binary("promtool")
    process = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, timeout=30)
    return process.returncode, process.stdout + process.stderr


@pytest.mark.real
@pytest.mark.contract("CS-21")
@pytest.mark.asyncio
async def test_promtool_accepts_the_page():
    assert linted(await busy_page()) == (0, "")


@pytest.mark.real
def test_promtool_would_refuse_a_counter_without_total():
    fault, why = linted("# HELP turnout_x Some.\n# TYPE turnout_x counter\nturnout_x 1\n")
    assert fault
    assert "_total" in why


@pytest.mark.asyncio
async def test_every_series_that_is_promised_is_there():
    page = await busy_page()
    samples = {sample.name for family in text_string_to_metric_families(page) for sample in family.samples}
    assert samples >= {
        "turnout_extender_request_duration_seconds_bucket",
        "turnout_extender_phase_duration_seconds_bucket",
        "turnout_extender_requests_total",
        "turnout_extender_answer_nodes_bucket",
        "turnout_extender_requests_in_flight",
        "turnout_extender_connections",
        "turnout_extender_refused_answers_total",
        "turnout_gangs",
        "turnout_topology_hosts",
        "turnout_topology_map_errors",
        "turnout_topology_reloads_total",
        "turnout_topology_last_reload_timestamp_seconds",
        "turnout_tls_certificate_expiry_timestamp_seconds",
        "turnout_watch_objects",
        "turnout_watch_synced",
        "turnout_watch_last_event_age_seconds",
        "turnout_watch_relists_total",
        "turnout_watch_reconnects_total",
        "turnout_watch_skipped_total",
        "process_resident_memory_bytes",
    }
    assert not {name for name in samples if name.endswith("_created")}


@pytest.mark.asyncio
async def test_durations_are_counted_by_verb_from_half_a_ms_to_five_seconds():
    async with opened() as served:
        await served.post("filter", body())
        name = "turnout_extender_request_duration_seconds"
        assert served.counted(f"{name}_count", verb="filter") == 1
        assert served.counted(f"{name}_bucket", verb="filter", le="5.0") == 1
        assert f'{name}_bucket{{le="0.0005",verb="filter"}}' in served.metrics.page().decode()
        assert served.counted("turnout_extender_answer_nodes_sum", verb="filter") == 2


@pytest.mark.asyncio
async def test_strangers_paths_and_words_make_no_series():
    async with opened() as served:
        for word in ("x", "y", "z"):
            await served.post(word, body(secret=word))
        before = len(served.metrics.page().splitlines())
        for word in range(20):
            await served.post(f"path-{word}", body([f"node-{word}"]))
        assert len(served.metrics.page().splitlines()) == before


def test_without_tls_there_is_no_end_of_a_certificate_to_alert_on():
    assert b"turnout_tls_certificate_expiry" not in Metrics().page()


def test_two_extenders_in_one_process_count_apart():
    one, other = Metrics(), Metrics()
    one.refused_answers.labels("NoRoom").inc()
    assert b'turnout_extender_refused_answers_total{reason="NoRoom"} 1.0' in one.page()
    assert b"NoRoom" not in other.page()


def test_only_the_gangs_with_most_pods_are_named():
    metrics = Metrics()
    metrics.set_violations([("ns", f"gang-{index}", "tier", index) for index in range(1, 61)])
    metrics.set_violations([("ns", f"gang-{index}", "whole", index) for index in range(1, 60)])
    named = {
        sample.labels["gang_name"]: sample.value
        for family in metrics.gang_violation_pods.collect()
        for sample in family.samples
    }
    assert named == {f"gang-{index}": index for index in range(10, 60)}
    assert metrics.registry.get_sample_value("turnout_gang_pods_violating", {"rule": "whole"}) == sum(range(60))
    assert metrics.registry.get_sample_value("turnout_gang_pods_violating", {"rule": "tier"}) == 0


def test_only_the_gangs_with_most_excess_leaves_are_named():
    metrics = Metrics()
    keys = {index: GangKey("ns", f"gang-{index:02}", "volcano") for index in range(61)}
    metrics.set_excess(dict.fromkeys(keys.values(), 0))
    metrics.set_excess({key: index for index, key in keys.items()})
    (family,) = metrics.gang_excess_leaves.collect()
    named = {sample.labels["gang_name"]: sample.value for sample in family.samples}
    assert named == {f"gang-{index}": index for index in range(11, 61)}
    (family,) = metrics.gangs_by_excess.collect()
    assert {s.labels["excess"]: s.value for s in family.samples} == {"0": 1, "1": 1, "2": 1, "3+": 58}


def test_the_classes_of_excess_leaves_start_at_0():
    assert b'turnout_gangs_by_excess_leaves{excess="3+"} 0.0' in Metrics().page()


@pytest.mark.parametrize(("gate_waits", "named"), [
    pytest.param([GateWait(5.0, "ns", "a", "NoRoom"), GateWait(9.0, "ns", "b", "planned")], ["b", "a"], id="by age"),
    pytest.param([GateWait(5.0, "ns", "a", "NoRoom"), GateWait(9.0, "ns", "a", "NoRoom")], ["a"], id="pods of a gang"),
    pytest.param(
        [GateWait(5.0, "ns", "a", "planned"), GateWait(9.0, "ns", "a", "other_gate")], ["a", "a"], id="two reasons"
    ),
    pytest.param(
        [GateWait(float(age), "ns", f"g{age:02}", "NoRoom") for age in range(60)],
        [f"g{age:02}" for age in range(59, 9, -1)],
        id="fifty gangs at most",
    ),
])  # fmt: skip
def test_the_oldest_gangs_behind_gates_are_named(gate_waits, named):
    assert [each.name for each in oldest_waits(gate_waits)] == named
    assert oldest_waits(gate_waits)[0].age_s == max(each.age_s for each in gate_waits)
