"""The metrics of all programs: which series exist before anything happened."""

import pytest
from prometheus_client import Counter

from hack.codegen.reference import registries
from turnout.kube.client.clock import RealClock
from turnout.kube.server.client_metrics import ClientMetrics, start_at_zero

# Counters whose labels hold names of a cluster, or whose values the writer of the series adds when it starts.
OPEN = {
    "turnout_autoscaler_changes": "queues",
    "turnout_queue_resized_gpus": "queues",
    "turnout_queue_assumed_restart_gpu_seconds": "queues",
    "turnout_queue_elastic_gpu_seconds": "queues",
    "turnout_start_predictions": "queues",
    "turnout_idle_gpu_seconds": "queues",
    "turnout_lent_gpu_seconds": "queues",
    "turnout_returned_gpus": "queues",
    "turnout_controller_writes": "resources of the kinds that are installed",
    "turnout_controller_events": "reasons of all kinds",
    "turnout_controller_internal_errors": "kinds of the settings",
    "turnout_controller_restarts": "kinds of the settings",
    "turnout_extender_requests": "the dispatcher",
    "turnout_extender_errors": "the dispatcher",
    "turnout_extender_refused_answers": "the extender",
    "turnout_nominations": "the writer of nominations",
    "turnout_gate_evictions": "the evictor",
    "turnout_api_requests": "codes of the API server",
    "turnout_watch_relists": "resources",
    "turnout_watch_reconnects": "resources",
    "turnout_watch_skipped": "resources",
    "turnout_launcher_rounds": "the launcher",
    "turnout_launcher_members_lost": "the launcher",
    "turnout_launcher_spawned_rounds": "the launcher",
    "turnout_launcher_coordinators_lost": "the launcher",
}


@pytest.mark.parametrize("program", registries())
def test_a_counter_with_a_closed_set_of_labels_starts_at_0(program):
    families = [family for family in registries()[program].collect() if family.type == "counter"]
    without_series = {family.name for family in families if not family.samples}
    assert without_series <= OPEN.keys()
    assert not [
        family.name for family in families if any(s.value for s in family.samples) and "process" not in family.name
    ]


def test_every_combination_of_label_values_starts_at_0():
    counter = Counter("turnout_x", "Some.", ["verb", "code"], registry=None)
    start_at_zero(counter, ("get", "patch"), ("2xx", "404"))
    (family,) = counter.collect()
    totals = {tuple(s.labels.values()): s.value for s in family.samples if s.name.endswith("_total")}
    assert totals == {("get", "2xx"): 0, ("get", "404"): 0, ("patch", "2xx"): 0, ("patch", "404"): 0}


def test_the_calls_of_a_program_are_shown_by_verb_and_code():
    page = ClientMetrics("autoscaler", lambda: {("get", "2xx"): 7, ("patch", "409"): 2}, list, RealClock())
    requests = next(iter(page.collect()))
    assert {tuple(sample.labels.values()): sample.value for sample in requests.samples} == {
        ("autoscaler", "get", "2xx"): 7,
        ("autoscaler", "patch", "409"): 2,
    }
