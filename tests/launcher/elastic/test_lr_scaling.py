"""The learning rate stays, unless somebody asks for a rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.launcher.elastic.lr_scaling import BadRate, Rule, Sizes, following, scaled, warmed, world_of


@pytest.mark.parametrize(
    ("rule", "now", "rate"),
    [
        pytest.param(None, 32, 0.1, id="nothing is asked for: it stays"),
        pytest.param(Rule.SAME, 32, 0.1, id="the same"),
        pytest.param(Rule.LINEAR, 32, 0.4, id="four times the batch, four times the rate"),
        pytest.param(Rule.LINEAR, 2, 0.025, id="linear downwards"),
        pytest.param(Rule.SQRT, 32, 0.2, id="four times the batch, twice the rate"),
    ],
)
def test_a_rate_tuned_at_8(rule, now, rate):
    arguments = {"rule": rule} if rule else {}
    assert scaled(0.1, base=8, now=now, **arguments) == pytest.approx(rate)


@given(st.sampled_from(list(Rule)), st.floats(1e-6, 10), st.integers(1, 4096), st.integers(1, 4096))
def test_every_rule_keeps_the_rate_at_its_base_and_comes_back_to_it(rule, rate, base, now):
    assert scaled(rate, base=base, now=base, rule=rule) == rate
    scaled_rate = scaled(rate, base=base, now=now, rule=rule)
    assert scaled(scaled_rate, base=now, now=base, rule=rule) == pytest.approx(rate)


def test_a_rule_is_named_by_the_word_a_flag_would_have():
    assert [Rule(word) for word in ("same", "linear", "sqrt")] == list(Rule)


@pytest.mark.parametrize(
    ("start", "rates"),
    [
        pytest.param(0.0, [0.1, 0.2, 0.3, 0.4, 0.4, 0.4], id="from nothing"),
        pytest.param(0.2, [0.25, 0.3, 0.35, 0.4, 0.4, 0.4], id="from the rate before a resize"),
        pytest.param(0.8, [0.7, 0.6, 0.5, 0.4, 0.4, 0.4], id="downwards, after a shrink"),
    ],
)
def test_a_warmup_of_four_steps_is_a_straight_line(start, rates):
    assert [warmed(0.4, step=step, steps=4, start=start) for step in range(6)] == pytest.approx(rates)


def test_no_warmup_is_no_warmup():
    assert warmed(0.4, step=0, steps=0) == 0.4


@pytest.mark.contract("VE-20")
@pytest.mark.parametrize(
    ("flag", "rule", "sizes"),
    [
        pytest.param("1", Rule.LINEAR, Sizes(16, 0.05), id="one process: as it was tuned"),
        pytest.param("4", Rule.LINEAR, Sizes(64, 0.2), id="four: both follow"),
        pytest.param("4", Rule.SQRT, Sizes(64, 0.1), id="the rate more slowly"),
        pytest.param("4", Rule.SAME, Sizes(64, 0.05), id="the batch alone"),
    ],
)
def test_batch_and_rate_follow_world_size(flag, rule, sizes):
    assert following(world_of({"WORLD_SIZE": flag}), batch=16, rate=0.05, rule=rule) == sizes


def test_a_rate_that_was_tuned_in_a_world_of_four():
    assert following(8, batch=16, rate=0.2, base_world=4) == Sizes(128, 0.4)


def test_without_a_launcher_there_is_one_process():
    assert world_of({}) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(lambda: world_of({"WORLD_SIZE": "four"}), "WORLD_SIZE is 'four'", id="a word"),
        pytest.param(lambda: world_of({"WORLD_SIZE": "0"}), "WORLD_SIZE is '0'", id="a world of none"),
        pytest.param(lambda: world_of({"WORLD_SIZE": ""}), "WORLD_SIZE is ''", id="nothing"),
        pytest.param(lambda: scaled(0.1, base=0, now=4), "sizes of 0 and 4", id="a base of none"),
        pytest.param(lambda: following(0, batch=16, rate=0.1), "sizes of 1 and 0", id="following nobody"),
        pytest.param(lambda: following(2, batch=0, rate=0.1), "a batch of 0", id="a batch of none"),
        pytest.param(lambda: warmed(0.1, step=-1, steps=4), "step -1 of 4", id="a step before the first"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(BadRate, match=message):
        call()
