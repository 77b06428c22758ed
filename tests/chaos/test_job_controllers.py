"""The job controllers' scenario: each invariant with a violation planted, and one seed of it played."""

import asyncio
from dataclasses import replace

import pytest

from hack.chaos.controllers import strikes
from hack.chaos.controllers.strikes import FENCED, ONCE, PROGRAMS, SAME, Seen

PODS = frozenset({"a-worker-0", "a-worker-1", "b-worker-0"})
HELD = Seen({"a": 2, "b": 1}, 3, PODS, {"a": 2, "b": 1})


@pytest.mark.parametrize(
    ("seen", "violated"),
    [
        pytest.param(HELD, [], id="nothing is wrong"),
        pytest.param(replace(HELD, made=4), [ONCE], id="a pod was made twice"),
        pytest.param(replace(HELD, pods=PODS - {"b-worker-0"}), [SAME], id="a pod is missing"),
        pytest.param(replace(HELD, pods=PODS | {"b-worker-1"}), [SAME], id="a pod is one too many"),
        pytest.param(replace(HELD, succeeded={"a": 2, "b": -1}), [SAME], id="a job has not succeeded"),
        pytest.param(replace(HELD, succeeded={"a": 1, "b": 1}), [SAME], id="a job's status has lost a pod"),
        pytest.param(replace(HELD, led_again=True), [FENCED], id="a paused leader leads again"),
        pytest.param(replace(HELD, ended=("controller-a",)), [PROGRAMS], id="a controller has ended"),
    ],
)
def test_a_violation_is_seen(seen, violated):
    assert [check.invariant for check in strikes.checks(seen) if check.violations] == violated


@pytest.mark.real
@pytest.mark.long
def test_leaders_that_are_paused_and_killed_in_a_storm_make_no_pod_twice(tmp_path):
    strike = asyncio.run(strikes.play(1, tmp_path))
    assert [check.violations for check in strike.checks] == [()] * 4, strike
    assert strike.times == 1
