"""A peer is silent after the limit, unless it was this process that was stopped and has not listened."""

from __future__ import annotations

import pytest

from turnout.launcher.rendezvous.state_machine import excuse_silence, heartbeat_period_s, silent_members


@pytest.mark.parametrize(
    ("members", "every_s"),
    [
        pytest.param(2, 5.0, id="few beat as often as they are told to"),
        pytest.param(5_000, 5.0, id="a thousand a second are the most"),
        pytest.param(20_000, 20.0, id="more beat less often"),
    ],
)
def test_how_often_a_member_beats(members, every_s):
    assert heartbeat_period_s(members, 5.0) == every_s


def test_who_was_heard_within_the_limit_is_not_silent():
    assert silent_members({"just": 90.0, "late": 89.9, "now": 100.0}, 100.0, 10.0) == ("late",)


@pytest.mark.parametrize(
    ("now_s", "stopped"),
    [
        pytest.param(55.0, False, id="half the limit after its last look it was not"),
        pytest.param(55.1, True, id="later it was, and hears all now"),
    ],
)
def test_a_process_that_was_stopped_accuses_nobody(now_s, stopped):
    heard_s = {"a": 40.0, "b": 45.0}
    assert excuse_silence(heard_s, 50.0, now_s, 10.0) is stopped
    assert heard_s == ({"a": now_s, "b": now_s} if stopped else {"a": 40.0, "b": 45.0})
