"""Which checkpoints go: those that a rule gives up, and never the newest, the one just written, or one being read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.launcher.checkpoint.format.manifest import All, Both, Every, Latest, retention_rule, steps_to_remove

counts = st.integers(1, 5)
rules = st.one_of(
    st.builds(Latest, counts), st.builds(Every, st.integers(1, 40)), st.just(All()),
    st.builds(Both, st.builds(Latest, counts), st.builds(Every, st.integers(1, 40))),
)  # fmt: skip
steps = st.integers(0, 100)
committed = st.lists(steps, max_size=12)
read_now = st.frozensets(steps, max_size=5)


@pytest.mark.contract("DL-50")
@pytest.mark.parametrize(
    ("steps", "keep", "goes"),
    [
        pytest.param([], Latest(1), [], id="nothing is there"),
        pytest.param([10], Latest(1), [], id="the only one stays"),
        pytest.param([10, 20, 30], Latest(1), [10, 20], id="the latest one"),
        pytest.param([10, 20, 30], Latest(2), [10], id="the latest two"),
        pytest.param([30, 10, 20], Latest(2), [10], id="in whatever order they are listed"),
        pytest.param([10, 20, 30], Latest(9), [], id="more than there are"),
        pytest.param([10, 20, 30, 40], Every(20), [10, 30], id="every 20 steps"),
        pytest.param([10, 20, 25], Every(20), [10], id="every 20 steps, and the newest"),
        pytest.param([0, 7], Every(100), [], id="step 0 is a multiple of all"),
        pytest.param([10, 20, 25, 30, 35], Both(Latest(2), Every(20)), [10, 25], id="what either keeps"),
        pytest.param([10, 20, 30], All(), [], id="all, unless somebody asks"),
    ],
)
def test_what_a_rule_gives_up(steps, keep, goes):
    assert steps_to_remove(steps, keep) == tuple(goes)


@pytest.mark.parametrize(
    ("keep", "every", "expected"),
    [
        pytest.param(0, 0, All(), id="nothing asked, nothing goes"),
        pytest.param(3, 0, Latest(3), id="the latest three"),
        pytest.param(0, 50, Every(50), id="every 50 steps"),
        pytest.param(3, 50, Both(Latest(3), Every(50)), id="both"),
    ],
)
def test_the_rule_of_a_frame(keep, every, expected):
    assert retention_rule(keep, every) == expected


@pytest.mark.parametrize(
    "build", [lambda: Latest(0), lambda: Every(0), lambda: Latest(-1), lambda: retention_rule(-1, 5)]
)
def test_a_rule_that_keeps_nothing_cannot_be_made(build):
    with pytest.raises(ValueError, match="at least 1"):
        build()


def test_steps_saved_again_after_a_rollback_leave_checkpoints():
    """DLRover's defect 8: KeepLatestStep(2), steps 10, 20, 30, then 20 and 30 again, and nothing is left."""
    steps = set()
    for step in (10, 20, 30, 20, 30):
        steps |= {step}
        steps -= {*steps_to_remove(steps, Latest(2), just_committed=step)}
        assert step in steps
    assert steps == {20, 30}


def test_after_a_rollback_each_new_step_outlives_its_own_commit():
    steps = {20, 30}
    for step in (11, 12, 31, 32):
        steps |= {step}
        steps -= {*steps_to_remove(steps, Latest(2), just_committed=step)}
        assert step in steps
    assert steps == {31, 32}


@given(committed, rules, read_now, st.none() | steps)
def test_the_newest_the_just_written_and_those_being_read_are_kept(stored, keep, reading, just):
    goes = steps_to_remove(stored, keep, reading, just)
    assert {*goes} <= {*stored}
    assert not {*goes} & {*reading, just, max(stored, default=None)}
    assert list(goes) == sorted({*goes})


@given(committed, rules, read_now, st.randoms(use_true_random=False))
def test_neither_order_nor_repetition_nor_a_second_look_change_it(steps, keep, reading, dice):
    goes = steps_to_remove(steps, keep, reading)
    assert steps_to_remove(dice.sample(steps * 2, len(steps) * 2), keep, reading) == goes
    assert steps_to_remove({*steps} - {*goes}, keep, reading) == ()


@given(committed, counts, st.integers(1, 40), read_now)
def test_as_many_stay_as_were_asked_for_and_no_rule_alone_gives_one_up(steps, count, interval, reading):
    latest, every = Latest(count), Every(interval)
    left = {*steps} - {*steps_to_remove(steps, latest)}
    assert left == {*sorted({*steps})[-count:]}
    both = {*steps_to_remove(steps, latest, reading)} & {*steps_to_remove(steps, every, reading)}
    assert {*steps_to_remove(steps, Both(latest, every), reading)} == both


@given(st.lists(st.tuples(steps, st.booleans()), max_size=30), rules)
def test_through_any_history_of_saves_and_restarts_something_is_left(history, keep):
    """A restart keeps no list of its own: what lies there is all that is known."""
    stored = set()
    for step, removes in history:
        stored |= {step}
        if removes:
            stored -= {*steps_to_remove(stored, keep, just_committed=step)}
        assert {step, max(stored)} <= stored
