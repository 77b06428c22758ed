"""An agent's metrics page tells what its log tells, in numbers."""

import socket
import urllib.request
from collections import Counter
from contextlib import ExitStack

import pytest

from tests.launcher.rendezvous.story import Story
from turnout.launcher.agent.metrics import LOSSES, MAX_CALLERS, ROUND_CAUSES, Metrics
from turnout.launcher.model import Reason
from turnout.launcher.rendezvous.state import Logged, Lost

FORMED = {
    "round": 2,
    "members": 3,
    "ranks": 6,
    "crossings": 2,
    "excess": 1,
    "restarts": 1,
    "waited_s": 0.4,
    "reason": "member_lost",
}


@pytest.mark.contract("DL-110")
@pytest.mark.parametrize(
    ("what", "fields", "sample", "labels", "value"),
    [
        pytest.param("world_formed", FORMED, "members", {}, 3, id="how many workers train"),
        pytest.param("world_formed", FORMED, "ranks", {}, 6, id="how many processes train"),
        pytest.param("world_formed", FORMED, "ring_crossings", {}, 2, id="what the ring costs"),
        pytest.param("world_formed", FORMED, "ring_crossings_excess", {}, 1, id="what another order would save"),
        pytest.param("world_formed", FORMED, "restarts", {}, 1, id="restarts of the whole job"),
        pytest.param("world_formed", FORMED, "rounds_total", {"reason": "member_lost"}, 1, id="rounds by their cause"),
        pytest.param("world_formed", FORMED, "round_wait_seconds_sum", {}, 0.4, id="how long nobody trained"),
        pytest.param("processes_started", {"round": 7, "group_rank": 1}, "round", {}, 7, id="the round of this agent"),
        pytest.param("processes_started", {"round": 7, "group_rank": 1}, "group_rank", {}, 1, id="its place"),
        pytest.param("process_hung", {"rank": 3}, "rank_hung", {"rank": "3"}, 1, id="a process hangs"),
        pytest.param("process_moved", {"rank": 3}, "rank_hung", {"rank": "3"}, 0, id="it goes on after all"),
        pytest.param("stacks_gathered", {"apart": [2, 5]}, "rank_suspected", {"rank": "5"}, 1,
                     id="others wait for it"),
        pytest.param("process_failed", {}, "process_failures_total", {}, 1, id="a process of its own has failed"),
        pytest.param("member_lost", {"reason": "member_silent"}, "members_lost_total", {"reason": "member_silent"}, 1,
                     id="a member fell silent"),
        pytest.param("coordinator_lost", {"reason": "member_lost"}, "coordinators_lost_total",
                     {"reason": "member_lost"}, 1, id="its coordinator was lost"),
        pytest.param("coordinator_begun", {}, "is_coordinator", {}, 1, id="it coordinates"),
        pytest.param("handed_over", {}, "is_coordinator", {}, 0, id="it coordinates no longer"),
    ],
)  # fmt: skip
def test_what_is_told_is_counted(what, fields, sample, labels, value):
    metrics = Metrics("bert")
    metrics.count_event(what, fields)
    assert metrics.registry.get_sample_value(f"turnout_launcher_{sample}", {"run": "bert", **labels}) == value


LIVES = {
    "a member is lost": lambda story: story.lose("c"),
    "a process fails": lambda story: story.fail("a"),
    "one leaves": lambda story: story.leave("c"),
    "one comes": lambda story: story.lose("c").ready("ab").join("d").wait(2.0),
    "one falls silent": lambda story: story.happens(Lost("c/0", Reason.MEMBER_SILENT)),
}


@pytest.mark.contract("XD-07")
@pytest.mark.parametrize("life", LIVES)
def test_a_decision_has_one_reason_word_in_the_log_and_in_the_metrics(life):
    """XD-07: of each round and of each member that is lost. The launcher itself writes no Events."""
    story = LIVES[life](Story("1:3", last_call_s=0.0, max_restarts=3).join(*"abc")).ready("abc")
    metrics, logged = Metrics("bert"), Counter()
    metrics.count_event("coordinator_begun", {})
    for effect in story.of(Logged):
        metrics.count_event(effect.event, {"reason": effect.reason.value, **dict(effect.fields)})
        if effect.event in ("world_formed", "member_lost"):
            logged[effect.event, effect.reason] += 1
    names = {"turnout_launcher_rounds_total": "world_formed", "turnout_launcher_members_lost_total": "member_lost"}
    counted = {
        (names[sample.name], Reason(sample.labels["reason"])): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name in names
    }
    assert {key: count for key, count in counted.items() if count} == logged
    assert logged.keys() <= counted.keys()
    assert sum(count for (what, _), count in logged.items() if what == "world_formed") >= 1


@pytest.mark.parametrize(
    ("sample", "reasons"),
    [
        pytest.param("rounds_total", ROUND_CAUSES, id="rounds by their cause"),
        pytest.param("members_lost_total", LOSSES, id="members lost"),
    ],
)
def test_the_counts_of_a_job_start_at_0_where_its_coordinator_begins(sample, reasons):
    """Prometheus sees no increase in a series that begins at 1: the first restart by a fault was in no alert."""
    metrics = Metrics("bert")

    def counts():
        labels = [{"run": "bert", "reason": reason.value} for reason in reasons]
        return {metrics.registry.get_sample_value(f"turnout_launcher_{sample}", each) for each in labels}

    assert counts() == {None}
    metrics.count_event("coordinator_begun", {})
    assert counts() == {0}


def test_the_counts_of_an_agent_start_at_0():
    registry, run = Metrics("bert").registry, {"run": "bert"}
    assert registry.get_sample_value("turnout_launcher_process_failures_total", run) == 0
    assert registry.get_sample_value("turnout_launcher_spawned_rounds_total", run) == 0
    for reason in LOSSES:
        labels = {**run, "reason": reason.value}
        assert registry.get_sample_value("turnout_launcher_coordinators_lost_total", labels) == 0


def test_the_processes_of_a_new_round_do_not_hang_yet():
    metrics = Metrics("bert")
    metrics.count_event("process_hung", {"rank": 3})
    metrics.count_event("processes_started", {"round": 7, "group_rank": 1})
    assert metrics.registry.get_sample_value("turnout_launcher_rank_hung", {"run": "bert", "rank": "3"}) is None


@pytest.mark.parametrize(("what", "fields"), [("hang_over", {}), ("world_formed", FORMED)])
def test_nobody_is_waited_for_once_a_hang_is_over_or_its_round(what, fields):
    metrics = Metrics("bert")
    metrics.count_event("stacks_gathered", {"apart": [2]})
    metrics.count_event(what, fields)
    assert metrics.registry.get_sample_value("turnout_launcher_rank_suspected", {"run": "bert", "rank": "2"}) is None


def test_a_word_that_counts_nothing_changes_nothing():
    metrics = Metrics("bert")
    before = [sample for family in metrics.registry.collect() for sample in family.samples]
    metrics.count_event("roster", {"round": 1, "members": []})
    assert [sample for family in metrics.registry.collect() for sample in family.samples] == before


def page_at(port):
    """True if the page answers; one that is turned away asks again, as Prometheus does."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            return page.status == 200
    except OSError:
        return False


@pytest.mark.slow
def test_callers_without_a_word_leave_places_for_those_who_ask():
    with Metrics("bert").serve("127.0.0.1", 0, caller_s=0.2) as server, ExitStack() as idle:
        for _ in range(MAX_CALLERS + 50):
            idle.enter_context(socket.create_connection(("127.0.0.1", server.server_port), 5))
        assert any(page_at(server.server_port) for _ in range(1_000))


def test_the_page_is_served_until_it_is_closed():
    metrics = Metrics("bert")
    with metrics.serve("127.0.0.1", 0) as server:
        port = server.server_port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            assert b'turnout_launcher_is_coordinator{run="bert"} 0.0' in page.read()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)
