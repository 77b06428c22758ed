"""The worth of a change of size, and the bound on what restarts may cost a job."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.autoscaler.world import NOW_S, job
from tests.jobs.test_kinds import indexed
from turnout.autoscaler.model import Policy, Reason, Step
from turnout.autoscaler.scaling.resize_cost import (
    after_change_s,
    balance_s,
    conditions,
    has_surplus,
    is_exhausted,
    pays_off,
    resize_annotations,
)
from turnout.jobs.annotations import resize_budget
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import ResizeBudget
from turnout.kube import labels

STRICT = Policy(restart_s=60, restart_budget_share=0.0)


def test_a_job_that_was_never_changed_owes_nothing():
    assert balance_s(job("a"), STRICT, NOW_S) == 0.0
    assert after_change_s(job("a"), STRICT, NOW_S) == -60.0


def test_lent_workers_earn_what_they_save_and_mins_earn_nothing():
    doubled = ((1, 1.0), (2, 2.0))
    grown = job("a", replicas=2, curve=doubled, resized_s=NOW_S - 160, gained_s=-60)  # 60 of them it restarted
    assert balance_s(grown, STRICT, NOW_S) == pytest.approx(40)
    assert balance_s(job("a", curve=doubled, resized_s=NOW_S - 100, gained_s=-60), STRICT, NOW_S) == -60


def test_time_pays_a_debt_back_slowly():
    small = job("a", resized_s=NOW_S - 10_000, gained_s=-120)
    assert balance_s(small, Policy(restart_s=60, restart_budget_share=0.01), NOW_S) == pytest.approx(-20)


def test_a_job_may_say_what_a_restart_costs_it():
    own = job("a", resize_budget=ResizeBudget(restart_s=5.0))
    assert after_change_s(own, STRICT, NOW_S) == -5.0


def test_what_a_job_wins_from_its_start_on_is_all_won():
    doubled = ((1, 1.0), (2, 2.0))
    born = job("a", replicas=2, curve=doubled, resize_budget=ResizeBudget(0.0, NOW_S - 100, at_start=True))
    assert after_change_s(job("a"), STRICT, NOW_S, at_start=True) == 0.0
    assert balance_s(born, STRICT, NOW_S) == pytest.approx(100)
    assert (
        has_surplus(born, STRICT, NOW_S),
        has_surplus(born, STRICT, NOW_S - 50),
        has_surplus(job("a"), STRICT, NOW_S),
    ) == (
        True,
        False,
        False,
    )


@pytest.mark.parametrize(
    ("gained_s", "in_debt_then"),
    [(0.0, False), (-0.1, True), (60.0, False)],
    ids=["it owes one restart then", "more than one", "none"],
)
def test_one_that_would_owe_more_than_a_restart_gives_all_that_it_has(gained_s, in_debt_then):
    one_job = job("a", resized_s=NOW_S, gained_s=gained_s)
    assert is_exhausted(one_job, STRICT, NOW_S) is in_debt_then
    assert is_exhausted(one_job, STRICT, NOW_S + 1e6) is in_debt_then  # time forgives nothing


def test_growing_has_to_win_its_restarts_back():
    assert pays_off(job("a", minimum=1, maximum=200), 2, Policy())
    assert not pays_off(job("a", minimum=1, maximum=200, replicas=100), 101, Policy())
    assert pays_off(job("a", minimum=1, maximum=200, replicas=100), 200, Policy())


def test_what_is_noted_is_read_back_as_it_was():
    step = Step(job("a").key, 4, 2, Reason.IDLE_ROOM, "room in queue q")
    job_with_curve = job("a", replicas=2, curve=((2, 1 / 0.8), (4, 1 / 0.5)), gained_s=100.0, resized_s=NOW_S - 10)
    notes = resize_annotations(job_with_curve, step, Policy(restart_s=60), NOW_S)
    found = KINDS["Job"].read(indexed(4, notes={**notes, labels.MIN_WORKERS: "1", labels.MAX_WORKERS: "8"}))
    assert found.resize_budget == ResizeBudget(
        pytest.approx(after_change_s(job_with_curve, Policy(restart_s=60), NOW_S), abs=0.1), NOW_S
    )
    assert found.curve == tuple((workers, pytest.approx(fast, rel=1e-4)) for workers, fast in job_with_curve.curve)


@pytest.mark.parametrize("at_start", [True, False])
def test_a_size_that_it_got_as_it_started_is_known_as_such(at_start):
    step = Step(job("a").key, 2, 1, Reason.IDLE_ROOM, at_start=at_start)
    budget = resize_budget(resize_annotations(job("a"), step, STRICT, NOW_S))
    assert budget == ResizeBudget(0.0 if at_start else -60.0, NOW_S, at_start=at_start)


def test_what_its_owner_knows_of_it_is_not_written_as_learnt():
    own = job("a", curve=((1, 1.0),), curve_measured=False)
    step = Step(own.key, 2, 1, Reason.IDLE_ROOM)
    assert labels.MEASURED not in resize_annotations(own, step, Policy(), NOW_S)


@pytest.mark.parametrize(
    ("size", "limited"), [(4, ("True", "AtMax")), (1, ("True", "AtMin")), (2, ("False", "WithinBounds"))]
)
def test_conditions_speak_as_an_hpa_does(size, limited):
    condition_by_type = {
        each["type"]: each for each in conditions(job("a"), Step(job("a").key, size, 3, Reason.MAKES_ROOM), NOW_S)
    }
    assert condition_by_type["AbleToScale"]["reason"] == "MakesRoom"
    assert (condition_by_type["ScalingLimited"]["status"], condition_by_type["ScalingLimited"]["reason"]) == limited
    assert json.dumps(condition_by_type)


@given(st.text(max_size=20))
def test_a_note_that_somebody_has_changed_is_a_number_all_the_same(text):
    assert math.isfinite(resize_budget({labels.GAINED: text}).gained_s)
    assert resize_budget({labels.GAINED: "-12.5"}).gained_s == -12.5


@given(st.lists(st.tuples(st.floats(0, 5000), st.booleans()), max_size=30))
def test_restarts_never_cost_more_than_two_and_the_budget(events):
    """A job that grows only with a balance of 0 or more, and shrinks whenever somebody else wants it to."""
    policy, now_s, cost_s, won_s, size = Policy(restart_s=60, restart_budget_share=0.01), 1.0, 0.0, 0.0, 1
    budget = ResizeBudget()
    for wait_s, shrink in events:
        at = job("a", replicas=size, resize_budget=budget)
        now_s += wait_s
        won_s += wait_s * (size**0.9 - 1)
        if shrink and size > 1:
            to = 1
        elif size < 4 and balance_s(at, policy, now_s) >= 0:
            to = size + 1
        else:
            continue
        budget = ResizeBudget(after_change_s(at, policy, now_s), now_s)
        cost_s, size = cost_s + 60, to
    assert cost_s - won_s <= 2 * 60 + 0.01 * now_s + 1e-6
