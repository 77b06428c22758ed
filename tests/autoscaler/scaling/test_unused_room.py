"""Room that a waiting job leaves unused goes back to who gave it, and that job waits out a back-off."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.autoscaler.world import NOW_S, POLICY, job, shape, state_of, world
from turnout.autoscaler.decide import decide
from turnout.autoscaler.memory import Strike
from turnout.autoscaler.model import Reason, Step
from turnout.autoscaler.observe.room_history import FORGET_S, FREE_STRIKES, MAX_BACKOFF_S, MAX_REMEMBERED, UnusedRoom
from turnout.jobs.model import JobKey, JobLifecycle

GIVER = job("giver", minimum=2, maximum=8, replicas=8, resized_s=NOW_S - 50)
LATE_S = POLICY.bind_s + 1


class Story:
    """Looks at a world, one after another, while an autoscaler is obeyed but by the jobs that wait."""

    def __init__(self, started=False):
        self.unused, self.now_s, self.reasons = UnusedRoom(POLICY.bind_s, lambda _: started), NOW_S, {}
        self.giver = state_of(GIVER, [0] * 8)

    def look(self, *waiters, after_s=0.0):
        """Look at the giver with these jobs beside it; how many workers it has then."""
        self.now_s += after_s
        at = self.unused.update(world([8], self.giver, *waiters), self.now_s)
        steps = decide(at, POLICY, self.now_s)
        self.unused.record_decision(at, steps, self.now_s)
        self.reasons = {step.key.name: step.reason for step in steps}
        size = next(step.target for step in steps if step.key == GIVER.key)
        had = self.giver.job
        resized_s = had.resize_budget.resized_s if size == had.replicas else self.now_s
        self.giver = state_of(
            replace(had, replicas=size, resize_budget=replace(had.resize_budget, resized_s=resized_s)), [0] * size
        )
        return size

    def times_disturbed(self, within_s, *waiters):
        """How often the giver gives within so many seconds."""
        sizes = [self.look(*waiters, after_s=5.0) for _ in range(int(within_s / 5))]
        return sum(one > other for one, other in pairwise(sizes))


def ghost(name="ghost", namespace="ns", minimum=6, **more):
    one_job = job(name, minimum=minimum, maximum=minimum, **more)
    return state_of(replace(one_job, key=JobKey("Pod", namespace, name)))


def test_capacity_given_to_a_ghost_returns_in_a_minute_despite_cooldown():
    story = Story()
    assert [story.look(ghost()), story.look(ghost())] == [2, 2]
    assert story.reasons["ghost"] is Reason.SCHEDULERS_TURN
    assert story.look(ghost(), after_s=LATE_S) == 8
    assert story.reasons == {"giver": Reason.RETURNED, "ghost": Reason.UNSCHEDULABLE}


def test_room_is_kept_for_so_long_and_no_longer():
    story = Story()
    assert [story.look(ghost()), story.look(ghost())] == [2, 2]
    assert story.look(ghost(), after_s=POLICY.bind_s) == 2
    assert story.look(ghost(), after_s=1.0) == 8


def test_each_back_off_is_twice_as_long_as_the_one_before_up_to_an_hour():
    story, pauses_s = Story(), []
    for _ in range(8):
        story.look(ghost(), after_s=MAX_BACKOFF_S)  # every back-off is over by then
        story.look(ghost())
        story.look(ghost(), after_s=LATE_S)
        pauses_s.append(story.unused.strikes(story.now_s)[0].left_s)
    assert pauses_s == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0]


def test_who_has_its_workers_back_gives_to_the_next_that_is_honest():
    story, honest = Story(), ghost("honest", namespace="others")
    assert [story.look(ghost()), story.look(ghost())] == [2, 2]
    assert story.look(ghost(), after_s=LATE_S) == 8
    assert [story.look(ghost(), honest), story.look(ghost(), honest, after_s=5.0)] == [2, 2]


def test_room_left_unused_by_two_at_once_goes_back_all_the_same():
    """One ghost has it from the giver, the other has what was free."""
    unused, giver = UnusedRoom(POLICY.bind_s, lambda _: False), state_of(GIVER, [0] * 8)
    waiters = ghost(), ghost("solo", minimum=1)
    at = world([8], giver, waiters[0])
    unused.record_decision(at, decide(at, POLICY, NOW_S), NOW_S)
    small = state_of(replace(GIVER, replicas=2), [0] * 2)
    for now_s in (NOW_S + 1, NOW_S + 2 + LATE_S):
        at = unused.update(world([9], small, *waiters), now_s)
        steps = {step.key.name: step for step in decide(at, POLICY, now_s)}
        unused.record_decision(at, steps.values(), now_s)
    assert (steps["giver"].target, steps["giver"].reason) == (8, Reason.RETURNED)


def test_who_never_had_room_kept_has_left_none_unused():
    story, large = Story(), ghost("large", namespace="others", minimum=50)
    story.look(ghost(), large)
    story.look(ghost(), large)
    story.look(ghost(), large, after_s=LATE_S)
    assert story.reasons == {
        "giver": Reason.RETURNED, "ghost": Reason.UNSCHEDULABLE, "large": Reason.NEEDS_MORE,
    }  # fmt: skip


def test_who_is_placed_role_by_role_is_believed():
    story = Story()
    for pods in (0, 0, 1, 2):
        state = replace(ghost(minimum=4, other_roles=((shape(1), 2),)), other_pods=(pods,))
        story.look(state, after_s=LATE_S - 2)
        assert story.reasons["ghost"] in (Reason.WAITS_FOR_ROOM, Reason.SCHEDULERS_TURN)


def test_a_ghost_is_believed_again_less_and_less_often():
    story = Story()
    story.look(ghost())
    assert [story.times_disturbed(3600, ghost()) <= 6, story.times_disturbed(3600, ghost()) <= 2] == [True, True]


def test_who_is_placed_bit_by_bit_is_believed():
    story = Story()
    story.look(ghost())
    for pods in range(6):
        state = replace(ghost(), workers=state_of(job("ghost"), [0] * pods).workers)
        story.look(state, after_s=LATE_S - 2)
        assert story.reasons["ghost"] is Reason.SCHEDULERS_TURN


@pytest.mark.parametrize(
    ("started", "size"),
    [
        pytest.param(True, 2, id="one that has started has used the room"),
        pytest.param(False, 8, id="one that is gone without has not"),
    ],
)
def test_a_waiter_that_is_seen_no_more(started, size):
    for number in (1, 2):  # room is on its way to it, and is kept for it
        story = Story(started)
        assert [story.look(ghost()) for _ in range(number)] == [2] * number
        assert story.look() == size


@pytest.mark.parametrize(
    ("lifecycle", "size"),
    [
        pytest.param(JobLifecycle.LIVE, 2, id="runs"),
        pytest.param(JobLifecycle.SUSPENDED, 8, id="is suspended by its owner"),
    ],
)
def test_a_waiter_that_is_there_and_waits_no_more(lifecycle, size):
    story = Story()
    story.look(ghost())
    left = ghost(lifecycle=lifecycle)
    assert (
        story.look(replace(left, workers=state_of(job("g"), [0] * 6).workers if lifecycle is JobLifecycle.LIVE else ()))
        == size
    )


def test_new_names_do_not_help_a_namespace_for_long():
    story = Story()
    for number in range(FREE_STRIKES + 1):
        assert story.look(ghost(f"ghost{number}")) == 2
        assert story.look(after_s=3.0) == 8
    assert story.look(ghost("another")) == 8
    assert story.reasons["another"] is Reason.UNSCHEDULABLE
    assert story.look(ghost("honest", namespace="others")) == 2


def test_a_namespace_is_believed_again_after_a_while():
    story = Story()
    for number in range(FREE_STRIKES + 1):
        story.look(ghost(f"ghost{number}"))
        story.look(after_s=3.0)
    assert story.look(ghost("honest"), after_s=MAX_BACKOFF_S) == 2


def test_where_nobody_left_room_unused_nothing_is_marked():
    unused, at = UnusedRoom(POLICY.bind_s, lambda _: False), world([8], state_of(GIVER, [0] * 8))
    unused.record_decision(at, decide(at, POLICY, NOW_S), NOW_S)
    assert unused.update(at, NOW_S + 3600) is at


def test_room_that_is_kept_for_nobody_is_lent_again():
    """A ghost for which nobody has to leave holds idle room no longer either."""
    small = job("giver", minimum=2, maximum=8, replicas=2)
    unused, now_s = UnusedRoom(POLICY.bind_s, lambda _: False), NOW_S
    at = world([8], state_of(small, [0, 0]), ghost())
    unused.record_decision(at, decide(at, POLICY, now_s), now_s)
    later = unused.update(at, now_s + LATE_S)
    assert {step.key.name: step.target for step in decide(later, POLICY, now_s + LATE_S)}["giver"] == 8


def recalled(*strikes, now_s=5.0):
    """A leader that was told these by the one before it."""
    unused = UnusedRoom(POLICY.bind_s, lambda _: False)
    unused.restore_strikes(strikes, now_s)
    return unused


def test_the_next_leader_goes_on_where_the_last_one_was():
    unused = recalled(Strike("short", 2, 40.0, 20.0), Strike("long", 3, 10.0, 500.0))
    assert unused.strikes(15.0) == (Strike("long", 3, 20.0, 490.0), Strike("short", 2, 50.0, 10.0))
    assert unused.strikes(100.0)[1] == Strike("short", 2, 135.0, 0.0)


@pytest.mark.parametrize(("second_strike", "expected_strike"), [
    pytest.param(Strike("who", 5, 10.0, 500.0), 3, id="known as bad already"),
    pytest.param(Strike("who", 5, 10.0, 499.0), 3, id="known as worse"),
    pytest.param(Strike("who", 5, 10.0, 501.0), 5, id="it was worse"),
])  # fmt: skip
def test_a_recalled_strike_replaces_only_a_lesser_one(second_strike, expected_strike):
    unused = recalled(Strike("who", 3, 10.0, 500.0))
    unused.restore_strikes([second_strike], 5.0)
    assert [each.times for each in unused.strikes(5.0)] == [expected_strike]


@pytest.mark.parametrize(
    ("after_s", "reason"),
    [
        pytest.param(59.0, Reason.UNSCHEDULABLE, id="before it is over"),
        pytest.param(60.0, Reason.SCHEDULERS_TURN, id="when it is over"),
    ],
)
def test_a_recalled_back_off_ends(after_s, reason):
    unused = recalled(Strike(JobKey("Pod", "ns", "ghost"), 1, 0.0, 60.0))
    at = unused.update(world([8], ghost()), 5.0 + after_s)
    assert [step.reason for step in decide(at, POLICY, NOW_S)] == [reason]


@pytest.mark.parametrize(
    ("age_s", "known"),
    [
        pytest.param(FORGET_S + MAX_BACKOFF_S, True, id="so old"),
        pytest.param(FORGET_S + MAX_BACKOFF_S + 1, False, id="any older"),
    ],
)
def test_a_strike_is_forgotten_after_a_while(age_s, known):
    unused = recalled(Strike("who", 2, age_s, 0.0))
    unused.update(world([8]), 5.0)
    assert bool(unused.strikes(5.0)) is known


@pytest.mark.parametrize(
    ("age_s", "left_s"),
    [
        pytest.param(FORGET_S + MAX_BACKOFF_S, 480.0, id="that is remembered is one of several"),
        pytest.param(FORGET_S + MAX_BACKOFF_S + 1, 60.0, id="that is forgotten makes the next the first again"),
    ],
)
def test_a_strike(age_s, left_s):
    key = JobKey("Pod", "ns", "ghost")
    unused, at = recalled(Strike(key, 3, age_s - LATE_S, 0.0)), world([8], ghost())
    unused.record_decision(at, decide(at, POLICY, NOW_S), 5.0)
    unused.update(at, 5.0 + LATE_S)
    assert unused.strikes(5.0 + LATE_S)[0] == Strike(key, {480.0: 4, 60.0: 1}[left_s], 0.0, left_s)


@pytest.mark.parametrize("others", [MAX_REMEMBERED - 1, MAX_REMEMBERED], ids=["the last of so many", "one more"])
def test_so_many_givers_are_remembered(others):
    unused, giver = UnusedRoom(POLICY.bind_s, lambda _: False), state_of(replace(GIVER, replicas=2), [0] * 2)
    deleted_key = JobKey("Pod", "ns", "gone")
    names = [*(f"other{at}" for at in range(others)), "giver"]
    steps = [Step(JobKey("Job", "ns", name), 2, 8, Reason.MAKES_ROOM, "", deleted_key) for name in names]
    unused.record_decision(world([8], giver), steps, NOW_S)
    (found,) = unused.update(world([8], giver), NOW_S + 1).jobs
    assert found.size_before == (8 if others < MAX_REMEMBERED else 0)


@pytest.mark.parametrize("over", [0, 1], ids=["as many as may be", "one too many"])
def test_only_so_many_are_remembered_and_the_oldest_is_forgotten_first(over):
    unused = recalled(*(Strike(f"who{at}", 2, 0.0, 0.0) for at in range(MAX_REMEMBERED + over)))
    unused.update(world([8]), 5.0)
    owners = {each.owner for each in unused.strikes(5.0)}
    assert (len(owners), "who0" in owners) == (MAX_REMEMBERED, not over)


def test_no_recalled_back_off_is_longer_than_the_longest():
    assert recalled(Strike("who", 9, 0.0, 1e9)).strikes(5.0)[0].left_s == MAX_BACKOFF_S
