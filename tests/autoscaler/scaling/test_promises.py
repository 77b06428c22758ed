"""Workers that were told to go and stay: their room is promised for a while, and then to nobody."""

from dataclasses import replace

import pytest

from tests.autoscaler.world import NOW_S, POLICY, job, state_of, world
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import Reason
from turnout.autoscaler.observe.room_history import Promises

LATE_S = POLICY.promise_s + 1
FORGED = job("deaf", replicas=2, resized_s=NOW_S + 3e9)  # by its own word it was resized a hundred years from now


def stays(workers, leaving=()):
    """A job that asks for two workers and still has so many, of which some were told to go."""
    state = state_of(FORGED, [0] * workers)
    remaining_workers = (replace(each, leaving=each.index in leaving) for each in state.workers)
    return replace(state, workers=tuple(remaining_workers))


def story(*observations):
    """Look at a job that stays; the reason for one that waits, and what another gives, at the end."""
    promises, lent = Promises(POLICY.promise_s), state_of(job("lent", replicas=4), [0] * 4)
    for state, at_s in observations:
        at = promises.update(world([8], state, lent, state_of(job("waits", minimum=2))), NOW_S + at_s)
        steps = {step.key.name: step for step in decide(at, POLICY, NOW_S + at_s)}
    return steps["waits"].reason, steps["lent"].target


@pytest.mark.parametrize(
    ("observations", "left"),
    [
        pytest.param([(stays(4), 0)], 4, id="at first it is believed"),
        pytest.param([(stays(4), 0), (stays(4), POLICY.promise_s)], 4, id="and for as long as a promise counts"),
        pytest.param([(stays(4), 0), (stays(4), LATE_S)], 2, id="then another gives, whatever the job's notes say"),
        pytest.param([(stays(4, {2, 3}), 0), (stays(4, {2, 3}), LATE_S)], 2, id="also of pods that something keeps"),
        pytest.param([(stays(4), 0), (stays(2), 9), (stays(4), LATE_S)], 4, id="once they went the time begins anew"),
    ],
)
def test_room_is_promised_for_a_while(observations, left):
    assert story(*observations) == (Reason.WAITS_FOR_ROOM, left)


def test_where_everybody_goes_nothing_is_marked():
    at = world([8], stays(4))
    assert Promises(POLICY.promise_s).update(at, NOW_S) is at


def test_only_the_job_that_is_late_is_marked():
    promises, other = Promises(POLICY.promise_s), state_of(job("other", replicas=2), [0] * 2)
    promises.update(world([8], stays(4), other), NOW_S)
    found = promises.update(world([8], stays(4), other), NOW_S + LATE_S)
    assert {each.job.key.name: each.overdue for each in found.jobs} == {"deaf": True, "other": False}
