"""Lending harms nobody: laws of replays in which the real autoscaler decides, job by job beside a run without it."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.hypothesis_examples import scaled
from tests.simulator.replay.world import POLICY, SOON, Eyes, job, longer, streams
from turnout.simulator.replay.model import ReplayRules
from turnout.simulator.replay.run import Comparison, replay
from turnout.simulator.replay.traces import JobProperties, draw_trace, submissions_of

COSTS = st.sampled_from([(60.0, 30.0, 5.0), (0.0, 0.0, 0.0), (250.0, 30.0, 1.0), (10.0, 5.0, 15.0)])
FREE = 0.0  # restarts that cost nothing: what is left is what eviction does


def lent(jobs, rules, **eyes):
    policy = replace(POLICY, restart_s=rules.restart_s)
    return replay(jobs, rules, policy, watch=Eyes(rules, **eyes))


def starts_and_ends_in_time(jobs, rules):
    """Under strict FIFO, with free restarts: beside the same run in which every job holds its GPUs that much longer."""
    late_s = rules.grace_s + rules.tick_s
    without, with_ = replay(longer(jobs, late_s), rules), lent(jobs, rules)
    for before, after in zip(without.results, with_.results, strict=True):
        assert after.started_s <= before.started_s + late_s + SOON
        assert after.ended_s <= before.ended_s + SOON


@pytest.mark.contract("CS-15", "VE-29")
@settings(max_examples=scaled(150), deadline=None)
@given(streams(), COSTS)
def test_nobody_waits_longer_for_elastic_workers_than_a_grace_and_a_look(stream, costs):
    """And at every moment each job has its min to its max, and no GPU is held twice."""
    jobs, nodes = stream
    assert len(lent(jobs, ReplayRules(nodes, *costs)).results) == len(jobs)


@settings(max_examples=scaled(100), deadline=None)
@given(st.sampled_from([1, 2, 4]).flatmap(lambda gpus: streams(gpus=(gpus,), pools=3)), COSTS)
def test_the_same_on_many_nodes_where_workers_are_alike(stream, costs):
    jobs, nodes = stream
    assert len(lent(jobs, ReplayRules(nodes, *costs)).results) == len(jobs)


@settings(max_examples=scaled(100), deadline=None)
@given(streams(gpus=(1, 2, 4, 8), pools=3), COSTS, st.booleans())
def test_of_workers_of_several_sizes_one_that_finds_no_node_is_given_up(stream, costs, backfill):
    """The scheduler may fill other nodes than the autoscaler took it to, so that a worker is left without one."""
    jobs, nodes = stream
    assert len(lent(jobs, ReplayRules(nodes, *costs, backfill=backfill), mixed=True).results) == len(jobs)


@pytest.mark.contract("VE-29")
@settings(max_examples=scaled(100), deadline=None)
@given(streams(gpus=(1, 2, 4)), COSTS)
def test_after_an_eviction_the_waiter_fits_and_starts(stream, costs):  # VE-29
    jobs, nodes = stream
    rules = ReplayRules(nodes, *costs)
    tape = lent(jobs, rules, mixed=True)
    started = {ran.submitted.name: ran.started_s for ran in tape.results}
    for eviction in tape.evictions:
        assert started[eviction.beneficiary] <= eviction.at_s + rules.grace_s + SOON


@settings(max_examples=scaled(150), deadline=None)
@given(streams())
def test_no_job_starts_later_than_by_a_grace_and_a_look_for_each_ahead(stream):
    jobs, nodes = stream
    starts_and_ends_in_time(jobs, ReplayRules(nodes, restart_s=FREE))


@settings(max_examples=scaled(150), deadline=None)
@given(streams(), st.sampled_from([10.0, 60.0, 250.0]))
def test_lending_costs_a_job_at_most_two_restarts_and_their_start_time(stream, restart_s):
    jobs, nodes = stream
    rules = ReplayRules(nodes, restart_s=restart_s)
    for ran in lent(jobs, rules, mixed=True).results:
        assert ran.ended_s - ran.started_s <= ran.submitted.work_s + 2 * restart_s + rules.start_s + SOON


def test_many_that_come_at_once_are_all_served_by_one_look():
    """One job holds everything; whoever comes waits for one grace and one look, and the giver restarts once."""
    jobs = [job("wide", 0, 5000, 1, 8), *(job(f"new{n}", 101) for n in range(4))]
    tape = lent(jobs, ReplayRules((8,)))
    assert [ran.started_s for ran in tape.results[1:]] == [135.0] * 4
    assert tape.results[0].shrinks_for_others == 1


def test_a_job_that_gives_little_by_little_pays_for_two_restarts_at_most():
    """Seven come for one worker each, a minute apart: the giver may not restart seven times for them."""
    jobs = [job("wide", 0, 400, 1, 8), *(job(f"new{n}", 101 + 61 * n, 3000) for n in range(7))]
    wide = lent(jobs, ReplayRules((8,))).results[0]
    assert wide.ended_s <= 400 + 2 * 60


def test_graces_add_up_where_jobs_wait_for_one_another():
    """`last` waits for `first`, which had to wait a grace itself, then for its own: no autoscaler that lends what is
    idle knows better, since it cannot know when `first` ends."""
    jobs = [job("wide", 0, 5000, 1, 5), job("first", 101, 100, 3), job("last", 102, 100, 4)]
    rules = ReplayRules((5,), restart_s=FREE)
    without, with_ = replay(jobs, rules), lent(jobs, rules)
    assert [ran.started_s for ran in without.results] == [0.0, 101.0, 201.0]
    assert [ran.started_s for ran in with_.results] == [0.0, 135.0, 265.0]
    starts_and_ends_in_time(jobs, rules)


@pytest.mark.contract("VE-02", "VE-03")
def test_lending_makes_a_queue_busier_and_trainings_shorter():  # VE-02, VE-03
    for seed in range(3):
        dice = Random(seed)
        jobs = submissions_of(draw_trace(300, 64, 0.7, dice), JobProperties(elastic=0.5), dice)
        rules = ReplayRules((8,) * 8)
        comparison = Comparison(replay(jobs, rules), replay(jobs, rules, POLICY))
        assert comparison.lent.utilisation > comparison.without.utilisation
        assert comparison.lent.mean_took_s < comparison.without.mean_took_s


@pytest.mark.long
@settings(max_examples=scaled(150), deadline=None)
@given(streams(gpus=(1, 2, 4), most_jobs=80), COSTS)
def test_the_same_for_longer_streams(stream, costs):
    jobs, nodes = stream
    lent(jobs, ReplayRules(nodes, *costs))
    starts_and_ends_in_time(jobs, replace(ReplayRules(nodes, *costs), restart_s=FREE))
