"""The messages that a member believes of a coordinator, and which members count as silent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.launcher.coordinator_messages import Formed, HeartbeatInterval, LastWorld
from turnout.launcher.model import RestartBudget
from turnout.launcher.rendezvous.form_world import may_train
from turnout.launcher.rendezvous.state_machine import excuse_silence, heartbeat_period_s, silent_members
from turnout.launcher.rendezvous.transport.coordinator_server import HeartbeatIntervals


def formed(round_, base):
    return Formed(round_, base, 0, 1, 0, 1, "127.0.0.1", 1, "first_round", RestartBudget())


@pytest.mark.parametrize(
    ("ours", "round_", "base", "is_taken"),
    [
        pytest.param(0, 1, 0, True, id="the first"),
        pytest.param(4, 5, 4, True, id="the next"),
        pytest.param(4, 9, 7, True, id="a later one: it missed some"),
        pytest.param(4, 4, 3, False, id="the same again"),
        pytest.param(4, 3, 2, False, id="an older one"),
        pytest.param(4, 5, 3, False, id="a newer number from someone who knows less"),
    ],
)
def test_rounds_are_taken_in_their_order(ours, round_, base, is_taken):
    assert may_train(LastWorld(ours, 2, True), formed(round_, base)) is is_taken


def test_who_was_told_of_a_round_takes_none_before_it_even_from_outside():
    assert not may_train(LastWorld(4, 2, False), formed(4, 3))
    assert may_train(LastWorld(4, 2, False), formed(5, 4))


@given(offers=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_rounds_that_a_member_takes_grow_strictly(offers):
    at, rounds = LastWorld(), []
    for round_, base in offers:
        if may_train(at, formed(round_, base)):
            assert base >= at.round
            at = LastWorld(round_, 1, True)
            rounds.append(round_)
    assert rounds == sorted(set(rounds))


@pytest.mark.parametrize(("members", "beat_s"), [(2, 2.0), (1_024, 2.0), (4_000, 4.0), (20_000, 20.0)])
def test_a_crowd_speaks_more_slowly(members, beat_s):
    assert heartbeat_period_s(members, 2.0) == beat_s


def test_who_was_not_heard_within_the_limit_is_silent():
    heard_s = {"a": 100.0, "b": 90.0, "c": 89.9}
    assert silent_members(heard_s, 100.0, 10.0) == ("c",)
    assert silent_members(heard_s, 99.0, 10.0) == ()
    assert silent_members({}, 1e9, 10.0) == ()


def test_who_was_stopped_itself_blames_nobody():
    heard_s = {"a": 0.0, "b": 3.0}
    assert not excuse_silence(heard_s, last_check_s=95.0, now_s=100.0, limit_s=10.0)
    assert heard_s == {"a": 0.0, "b": 3.0}
    assert excuse_silence(heard_s, last_check_s=94.9, now_s=100.0, limit_s=10.0)
    assert heard_s == {"a": 100.0, "b": 100.0}


def test_a_world_that_grows_and_shrinks_is_told_other_intervals():
    intervals = HeartbeatIntervals(2.0, 10.0)
    assert intervals.change(3_000, 0.0) is None, "at most half longer"
    assert intervals.change(11_000, 10.0) == HeartbeatInterval(11.0, 55.0)
    assert intervals.change(8_000, 20.0) is None
    assert intervals.change(1_500, 30.0) == HeartbeatInterval(2.0, 10.0)
    assert intervals.change(1_500, 40.0) is None


def test_no_member_that_still_uses_a_longer_interval_counts_as_silent():
    intervals = HeartbeatIntervals(2.0, 10.0)
    assert intervals.welcome(11_000) == HeartbeatInterval(11.0, 55.0)
    assert intervals.limit_s(0.0) == 55.0
    assert intervals.change(1_500, 10.0) == HeartbeatInterval(2.0, 10.0)
    assert intervals.limit_s(10.0) == 55.0, "it has not heard of the shorter one"
    assert intervals.limit_s(65.0) == 10.0
