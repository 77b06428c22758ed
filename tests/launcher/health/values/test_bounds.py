"""The smallest and largest accepted and refused values: nodes, limits, times, sets of ranks, outputs of tools."""

import math

import pytest

from tests.launcher.rendezvous.story import member
from turnout.launcher.errors import BadCheck, BadSettings
from turnout.launcher.health.hang_detector import (
    BUCKETS,
    SHORTEST_S,
    WIDTH,
    Hang,
    HangLimits,
    Progress,
    ProgressWatch,
    bucket_of,
    edge_s,
    observe,
    quantile_s,
)
from turnout.launcher.health.judge_nodes import Sample
from turnout.launcher.health.model import Check, ExcludedNode, Measured, NodeChecks, SlowRule, StragglerLimits
from turnout.launcher.health.stack_traces.stack_tree import (
    MAX_RANKS,
    RankStacks,
    Thread,
    WorldStacks,
    rank_set_text,
    set_of,
)
from turnout.launcher.model import Reason


def test_as_many_channels_may_be_needed_as_there_are_pairs():
    assert NodeChecks(network=True, switchbox=True, min_channels=4).min_channels == 4
    assert NodeChecks(min_channels=5).min_channels == 5, "nobody looks at them"
    with pytest.raises(BadSettings, match="--min-channels 5 of 4 --box-pairs: none passes"):
        NodeChecks(network=True, switchbox=True, min_channels=5)


@pytest.mark.parametrize(
    ("now_s", "again_s"),
    [
        pytest.param(40.0, "it is tested again after 60 s, ", id="for so long"),
        pytest.param(99.5, "it is tested again after 0 s, ", id="no more than is left of it"),
        pytest.param(200.0, "it is tested again after 0 s, ", id="never for less than no time"),
    ],
)
def test_who_is_left_out_is_told_for_how_long(now_s, again_s):
    says = ExcludedNode(member("a"), Reason.NODE_FAULTY, "it is " + "bad" * 999, 100.0, 3).describe(now_s)
    assert says.startswith(again_s)
    assert "left out, 3 times so far: it is bad" in says
    assert len(says) == 1_000


INF = math.inf


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"factor": 1.0}, id="once the time of the others is no factor"),
        pytest.param({"factor": INF}, id="nor is more than any"),
        pytest.param({"least_factor": 1.0}, id="the same of the least one"),
        pytest.param({"least_factor": INF}, id="which has an end, too"),
        pytest.param({"spreads": 0.0}, id="no spread at all"),
        pytest.param({"spreads": INF}, id="all spreads there are"),
        pytest.param({"compute_s": 0.0}, id="a floor of nothing"),
        pytest.param({"compute_s": INF}, id="a floor above everybody"),
        pytest.param({"collective_s": -0.5}, id="a floor below zero"),
        pytest.param({"collective_s": INF}, id="the same for a pair"),
    ],
)
def test_limits_by_which_all_or_none_would_be_slow_are_refused(limits):
    with pytest.raises(BadCheck):
        StragglerLimits(**limits)


def test_limits_may_be_close():
    close = StragglerLimits(SlowRule.SPREAD, 1.5, 0.5, 1.5, 0.5, 0.5)
    assert (close.factor, close.spreads, close.least_factor, close.compute_s, close.collective_s) == (
        1.5,
        0.5,
        1.5,
        0.5,
        0.5,
    )


@pytest.mark.parametrize(
    ("members", "compute_s", "collective_s"),
    [
        pytest.param((), (), None, id="nobody"),
        pytest.param(("n0", "n0"), (1.0, 1.0), 1.0, id="one twice"),
        pytest.param(("n0", "n1"), (1.0, 1.0, 1.0), 1.0, id="more times than members"),
        pytest.param(("n0",), (INF,), None, id="a time without end"),
        pytest.param(("n0", "n1"), (1.0, 1.0), -0.5, id="a time below zero"),
    ],
)
def test_what_no_group_can_measure_is_refused(members, compute_s, collective_s):
    with pytest.raises(BadCheck):
        Measured(members, compute_s, collective_s)


def test_a_clock_may_have_been_too_coarse_to_see_any_time():
    assert Measured(("n0", "n1"), (0.0, 0.5), 0.0).pair_s == 0.0


@pytest.mark.parametrize(
    ("size", "pair_s"),
    [pytest.param(2, 1.0, id="two"), pytest.param(3, 0.75, id="three"), pytest.param(5, 0.625, id="five")],
)
def test_the_time_of_a_group_is_told_as_a_pair_would_have_needed_it(size, pair_s):
    assert Measured(tuple(f"n{at}" for at in range(size)), (1.0,) * size, 1.0).pair_s == pair_s


def test_one_alone_has_no_time_of_a_pair():
    assert Measured(("n0",), (1.0,), 1.0).pair_s is None


def test_groups_of_a_round_that_share_a_member_are_refused():
    check = Check(("n0", "n1", "n2"))
    groups = tuple(Measured((one, other), (1.0, 1.0), 1.0) for one, other in (("n0", "n1"), ("n1", "n2")))
    with pytest.raises(BadCheck, match="disjoint"):
        check.add_round(groups)
    assert check.add_round(groups[:1]).rounds == (groups[:1],)


# When a time is slow.


@pytest.mark.parametrize(
    ("others", "rule", "limit_s"),
    [
        pytest.param([1, 2, 6], SlowRule.MEAN, 6.0, id="twice the mean"),
        pytest.param([1, 2, 6], SlowRule.MEDIAN, 4.0, id="twice the median"),
        pytest.param([1, 2, 4, 6], SlowRule.MEDIAN, 6.0, id="of an even number the middle of two"),
        pytest.param([1, 2, 4, 8, 9, 9], SlowRule.MEDIAN, 12.0, id="of six the third and the fourth"),
        pytest.param([4, 4, 5, 6, 6], SlowRule.SPREAD, 5 + 6 * 1.4826, id="the median and six median deviations"),
        pytest.param([4, 4, 4], SlowRule.SPREAD, 5.0, id="a quarter more than the median at least"),
    ],
)
def test_above_the_limit_of_a_rule_a_time_is_slow_and_at_it_is_not(others, rule, limit_s):
    for time_s, slow in ((limit_s * (1 - 1e-9), False), (limit_s * (1 + 1e-9), True)):
        sample = Sample([*others, time_s], StragglerLimits(rule=rule))
        assert sample.is_slow(time_s, [time_s], None) is slow


@pytest.mark.parametrize(
    ("others", "limits", "limit_s"),
    [
        pytest.param(
            [1, 2, 6, 9], StragglerLimits(), 2.0, id="twice the time of the first quarter, where the rule says more"
        ),
        pytest.param([1, 2, 6, 9, 9], StragglerLimits(), 4.0, id="of five the second is the last of it"),
        pytest.param(
            [4, 4, 4, 4], StragglerLimits(rule=SlowRule.SPREAD), 5.0, id="a quarter more, where nobody differs"
        ),
        pytest.param(
            [4, 9, 9, 9], StragglerLimits(rule=SlowRule.SPREAD), 5.0, id="a quarter more than it, where many are slow"
        ),
    ],
)
def test_a_time_above_the_fastest_quarters_limit_is_suspect_and_at_it_not(others, limits, limit_s):
    for time_s, suspected in ((limit_s, False), (limit_s * (1 + 1e-9), True)):
        assert Sample([*others, time_s], limits).is_suspicious(time_s, [time_s], None) is suspected


@pytest.mark.parametrize("asks", [Sample.is_slow, Sample.is_suspicious], ids=["slow", "suspected"])
def test_a_floor_is_the_last_time_that_is_well(asks):
    sample = Sample([5.0, 5.0], StragglerLimits())
    assert not asks(sample, 5.0, [5.0], 5.0)
    assert asks(sample, 5.1, [5.0], 5.0)
    assert not asks(sample, 5.1, [5.0], None)


# How long steps took, and how long is too long.


def test_the_first_bucket_has_the_shortest_step_and_the_last_the_longest():
    assert [bucket_of(took_s) for took_s in (0.0, SHORTEST_S, SHORTEST_S * 1.001)] == [0, 0, 1]
    longest_s = edge_s(BUCKETS - 1)
    assert [bucket_of(took_s) for took_s in (longest_s, 2 * longest_s, 1e9)] == [BUCKETS - 1] * 3
    assert edge_s(0) == SHORTEST_S
    assert edge_s(16) == pytest.approx(2 * SHORTEST_S)
    assert edge_s(1) == pytest.approx(SHORTEST_S * WIDTH)


@pytest.mark.parametrize(
    ("counts", "share", "bucket"),
    [
        pytest.param([1, 1], 0.5, 0, id="half of two is the first"),
        pytest.param([1, 1], 0.51, 1, id="more than half is both"),
        pytest.param([0, 1], 0.999, 1, id="one is all of it"),
        pytest.param([2, 0, 1], 0.7, 2, id="two of three are not seven tenths"),
        pytest.param([999, 1], 0.999, 0, id="a thousandth is rare"),
    ],
)
def test_the_bucket_of_a_quantile(counts, share, bucket):
    assert quantile_s(counts, share) == edge_s(bucket)


def test_without_a_step_no_step_took_long():
    assert quantile_s([0, 0], 0.999) == 0.0


def test_who_stands_still_as_long_as_the_limit_does_not_hang_yet():
    limits, progress = HangLimits(patient_s=10.0, look_s=5.0), Progress()
    watch, change = observe(ProgressWatch(0.0), progress, limits, 10.0)
    assert (change, watch.waited_s) == (None, 10.0)
    watch, change = observe(watch, progress, limits, 10.5)
    assert (change, watch.hangs) == (Hang(10.5, 10.0), True)
    assert observe(watch, progress, limits, 11.0)[1] is None


def test_of_a_look_that_comes_late_four_times_the_usual_counts():
    watch, _ = observe(ProgressWatch(0.0), Progress(), HangLimits(look_s=0.25), 100.0)
    assert watch.waited_s == 1.0


def test_a_clock_that_goes_back_counts_for_nothing():
    watch, _ = observe(ProgressWatch(50.0, waited_s=2.0), Progress(), HangLimits(), 40.0)
    assert (watch.waited_s, watch.looked_s) == (2.0, 40.0)
    watch, _ = observe(ProgressWatch(50.0), Progress(1, 60.0), HangLimits(), 50.5)
    assert watch.waited_s == 0.0, "a step that will have ended"


def test_who_has_just_moved_has_waited_since_then():
    watch, change = observe(ProgressWatch(0.0), Progress(1, 0.5, "", 1, 0.3), HangLimits(look_s=1.0), 1.0)
    assert (watch, change) == (ProgressWatch(1.0, 1, 1, 0.5), None)
    assert observe(ProgressWatch(0.0), Progress(1, 0.25, "", 1, 0.75), HangLimits(look_s=1.0), 1.0)[0].waited_s == 0.25


# Sets of ranks.


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        pytest.param("", set(), id="nobody"),
        pytest.param("0", {0}, id="the first rank"),
        pytest.param("1-3", {1, 2, 3}, id="a run"),
        pytest.param("0-1/3", {0, 1, 3}, id="a run and one more"),
        pytest.param("100000000", {100_000_000}, id="nine digits"),
    ],
)
def test_a_set_of_ranks_in_words(words, ranks):
    assert rank_set_text(set_of(ranks)) == words


@pytest.mark.parametrize("world", [0, MAX_RANKS + 1])
def test_a_world_of_nobody_or_of_too_many_is_refused(world):
    with pytest.raises(ValueError, match=f"a world of {world} ranks"):
        WorldStacks(world, {})


@pytest.mark.parametrize("world_size", ["stacks_by_rank", "why"])
@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_a_world_has_not_is_refused(world_size, rank):
    with pytest.raises(ValueError, match=f"rank {rank} in a world of 2"):
        WorldStacks(2, **{"stacks_by_rank": {}, world_size: {rank: None}})


def test_a_world_may_have_one_rank_and_as_many_as_there_can_be():
    assert (WorldStacks(1, {0: RankStacks()}).silent, WorldStacks(2, {1: RankStacks()}).silent) == (0, 1)
    assert WorldStacks(MAX_RANKS, {MAX_RANKS - 1: RankStacks()}).silent == (1 << MAX_RANKS - 1) - 1


def test_a_thread_has_a_line_for_each_frame():
    with pytest.raises(ValueError, match="1 lines for 0 frames"):
        Thread((), (1,))
