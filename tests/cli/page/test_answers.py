"""The answers of the page: who holds what, filters, pages, and what a viewer may not see."""

import base64
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.page.states import A, B, job, state_of
from turnout.cli.page.answers import (
    JOB_FILTERS,
    MAX_SAVES,
    NODE_FILTERS,
    BadQuery,
    fabric_tree,
    gpu_cells,
    job_list,
    job_time,
    largest_gangs,
    node_list,
    rank_rows,
    read_query,
    ring_of,
    summary,
)
from turnout.cli.page.cluster_state import EVERYTHING, Rights, lent_parts, visible_state
from turnout.cli.page.messages import FREE_CELL, HIDDEN_CELL, PART_ELASTIC, PART_MIN, PART_OTHER
from turnout.cli.views.goodput import Totals
from turnout.cli.views.saves import LoggedSave
from turnout.launcher.model import SaveOutcome, SaveTier

TEAM_B = Rights(False, frozenset(["team-b"]), True)


def cells(answer):
    jobs = np.frombuffer(base64.b64decode(answer.job), "<u2").tolist()
    names = [answer.jobs[cell].job if cell < HIDDEN_CELL else {FREE_CELL: "", HIDDEN_CELL: "?"}[cell] for cell in jobs]
    parts = list(base64.b64decode(answer.part))
    hosts, at = [], 0
    for count in answer.counts:
        hosts.append(list(zip(names[at : at + count], parts[at : at + count], strict=True)))
        at += count
    return hosts


def test_each_gpu_names_its_job_and_whether_it_is_elastic():
    n0, n1, n2, n3, stray = cells(gpu_cells(state_of()))
    assert n0 == [(A, PART_MIN)] * 8
    assert n1 == [(B, PART_OTHER)] * 4 + [("", 0)] * 4
    assert n2 == [(A, PART_ELASTIC)] * 8
    assert n3 == stray == [("", 0)] * 8


def test_the_cells_of_one_switch_begin_with_its_first_host():
    answer = gpu_cells(state_of(), "spine/leaf-1")
    assert (answer.first_host, answer.counts) == (2, (8, 8))


def test_a_pod_with_more_gpus_than_its_node_offers_is_cut():
    state = state_of()
    state = replace(state, pods=(replace(state.pods[0], gpus=99),))
    assert cells(gpu_cells(state))[0] == [(A, PART_MIN)] * 8


def test_hidden_jobs_keep_their_gpus_and_lose_their_names():
    visible = visible_state(state_of(), TEAM_B)
    n0, n1, *_ = cells(gpu_cells(visible))
    assert [name for name, _ in n0] == ["?"] * 8
    assert n1[0] == (B, PART_OTHER)
    assert [each.job for each in visible.jobs] == [B]
    assert [each.object for each in visible.decisions] == [B]
    assert summary(visible).used_gpus == summary(state_of()).used_gpus
    assert not any("team-a" in text for text in (str(gpu_cells(visible)), str(node_list(visible, read_query({}, ())))))


def test_of_a_hidden_queue_a_viewer_sees_only_that_it_exists():
    first, second = visible_state(state_of(), TEAM_B).queues
    assert (first.queue, first.hidden, first.used_gpus, first.quota_gpus) == ("queue-team-a", True, None, None)
    assert not second.hidden


def test_without_the_right_to_list_nodes_there_is_no_fabric():
    visible = visible_state(state_of(), Rights(True, frozenset(), False))
    assert (visible.hosts, fabric_tree(visible).switches, largest_gangs(visible).items) == ((), (), ())


def test_with_all_rights_nothing_changes():
    state = state_of()
    assert visible_state(state, EVERYTHING) is state


def test_the_summary_counts_free_gpus_of_open_nodes():
    state = state_of()
    hosts = (*state.hosts[:3], replace(state.hosts[3], state="faulty"), state.hosts[4])
    found = summary(replace(state, hosts=hosts))
    assert (found.gpus, found.used_gpus, found.free_gpus, found.elastic_gpus) == (40, 20, 12, 8)
    assert (found.faulty_nodes, found.unmapped_nodes, found.whole_free_nodes) == (1, 1, 1)
    assert (found.waiting_jobs, found.running_jobs) == (1, 2)


def test_the_largest_free_gang_of_each_tier_names_its_switch():
    state = state_of(pods=state_of().pods[:1])
    (leaf, spine) = largest_gangs(state).items
    assert (leaf.tier, leaf.switch, leaf.nodes, leaf.gpus) == (1, "spine/leaf-1", 2, 16)
    assert (spine.tier, spine.switch, spine.nodes) == (2, "spine", 3)


def test_a_ring_counts_the_edges_that_leave_a_leaf():
    ring = ring_of(state_of(), A)
    assert (ring.crossings[0], ring.switches[0], ring.fewest_leaves) == (2, 2, 1)
    assert [(row.rank, row.node, row.tier_to_next, row.elastic) for row in rank_rows(state_of(), A)] == [
        (0, "n0", 2, False),
        (1, "n2", 2, True),
    ]


def test_a_job_on_a_node_off_the_map_has_no_ring():
    state = state_of()
    state = replace(state, pods=(replace(state.pods[0], node="stray"), state.pods[1]))
    assert ring_of(state, A) is None
    assert rank_rows(state, A)[0].tier_to_next is None


@pytest.mark.parametrize(
    ("parameters", "jobs"),
    [
        pytest.param({}, ["Job/team-a/waits", A, B], id="all, those that wait first"),
        pytest.param({"state": "running"}, [A, B], id="by state"),
        pytest.param({"text": "OCR"}, [B], id="by a part of the name, whatever the case"),
        pytest.param({"queue": "queue-team-b", "text": "bert"}, [], id="all filters count"),
        pytest.param({"sort": "gpus"}, ["Job/team-a/waits", B, A], id="sorted"),
        pytest.param({"sort": "-gpus", "limit": "1"}, [A], id="sorted down, one row"),
        pytest.param({"limit": "2", "continue": "2"}, [B], id="the second page"),
        pytest.param({"continue": "99"}, [], id="behind the end"),
    ],
)
def test_a_list_shows_what_matches_its_filters(parameters, jobs):
    assert [each.job for each in job_list(state_of(), read_query(parameters, JOB_FILTERS)).items] == jobs


def test_the_pages_of_a_list_together_are_the_list():
    state = state_of(jobs=tuple(job(f"Job/team-a/j{at}") for at in range(45)))
    found, after = [], "0"
    while after:
        page = job_list(state, read_query({"limit": "7", "continue": after}, JOB_FILTERS))
        found += page.items
        after = page.next
        assert page.total == 45
    assert tuple(found) == state.jobs


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        pytest.param({"colour": "red"}, "colour", id="an unknown filter"),
        pytest.param({"limit": "0"}, "limit", id="no rows"),
        pytest.param({"limit": "201"}, "200", id="too many rows"),
        pytest.param({"limit": "1e9"}, "limit", id="no number"),
        pytest.param({"limit": "٣"}, "limit", id="digits of another script"),
        pytest.param({"continue": "-1"}, "continue", id="a negative offset"),
        pytest.param({"text": "x" * 254}, "253", id="a filter longer than any name"),
        pytest.param({"sort": "colour"}, "colour", id="an unknown column"),
    ],
)
def test_a_query_without_a_meaning_is_refused(parameters, word):
    with pytest.raises(BadQuery, match=word):
        job_list(state_of(), read_query(parameters, JOB_FILTERS))


def test_an_unknown_switch_is_refused():
    with pytest.raises(BadQuery, match="no switch"):
        gpu_cells(state_of(), "spine/leaf")


def test_nodes_that_need_somebody_come_first():
    state = state_of()
    hosts = (state.hosts[0], replace(state.hosts[1], state="cordoned"), replace(state.hosts[2], state="faulty"))
    found = node_list(replace(state, hosts=hosts), read_query({}, NODE_FILTERS))
    assert [row.node for row in found.items] == ["n2", "n1", "n0"]
    assert found.states == {"ready": 1, "cordoned": 1, "faulty": 1}


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 500), max_size=8), st.integers(0, 3_000))
def test_what_is_lent_is_what_is_borrowed_as_far_as_quota_is_unused(unused, borrowed):
    parts = lent_parts(unused, borrowed)
    assert sum(parts.values()) == min(borrowed, sum(unused.values()))
    assert all(0 <= parts[queue] <= unused[queue] for queue in unused)


def totals(until_s, number=None, reason="", steps=True, **kinds_s):
    gpu_s = {kind: 8 * seconds for kind, seconds in kinds_s.items()}
    return Totals(until_s, sum(kinds_s.values()) + 5, 5, kinds_s, gpu_s, steps, number, reason)


def test_the_kinds_of_a_jobs_time_add_up_to_its_wall_time():
    lines = [
        totals(100, 1, "member_lost", startup=10, productive=60),
        totals(900, 2, "process_failed", startup=10, productive=640, wasted=30, recovery=20),
        totals(500, startup=10, productive=360),
    ]
    time = job_time(state_of(), A, lines)
    assert sum(each.seconds for each in time.kinds) == time.wall_s == 705
    assert (time.until_at_s, time.missing) == (900, "")
    assert time.productive == pytest.approx(640 / 705, abs=1e-4)
    assert [(each.at_s, each.round, each.reason) for each in time.rounds] == [
        (900, 2, "process_failed"),
        (100, 1, "member_lost"),
    ]


def test_the_saves_of_a_job_are_listed_the_newest_first():
    saves = [
        LoggedSave(100.0 + step, step, SaveTier.STORAGE, SaveOutcome.DONE, took_s=2.5) for step in range(MAX_SAVES + 5)
    ]
    saves.insert(7, LoggedSave(900.0, 60, SaveTier.REPLICA, SaveOutcome.FAILED, rank=3))
    found = job_time(state_of(), A, [totals(9, other=4)], saves).saves
    assert len(found) == MAX_SAVES
    assert (found[0].step, found[0].tier, found[0].outcome, found[0].rank) == (60, "replica", "failed", 3)
    assert [each.step for each in found[1:]] == sorted((each.step for each in found[1:]), reverse=True)
    assert (found[1].step, found[1].outcome, found[1].rank, found[1].took_s) == (MAX_SAVES + 4, "done", None, 2.5)


def test_the_goodput_of_a_job_without_steps_is_unknown():
    assert job_time(state_of(), A, [totals(9, steps=False, other=4)]).productive is None
