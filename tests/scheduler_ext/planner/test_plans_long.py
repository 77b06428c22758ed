"""The laws of test_plans.py on many more scenes than a quick run has time for."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.scheduler_ext.planner import test_above_the_min, test_plans, test_trickle

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
MORE = settings(max_examples=3_000, deadline=None, suppress_health_check=list(HealthCheck))

OF_A_SCENE = [
    test_plans.test_plans_and_pods_never_overdraw_a_node,
    test_plans.test_a_required_tier_is_never_left,
    test_plans.test_a_gang_is_planned_whole_or_takes_no_room,
]
OF_AN_ORDER = [
    test_plans.test_two_fresh_extenders_that_saw_the_same_in_any_order_answer_alike,
    test_plans.test_calls_that_alternate_between_two_replicas_get_one_place,
]


@pytest.mark.parametrize("law", [pytest.param(law, id=law.__name__) for law in OF_A_SCENE])
def test_laws_of_one_scene(law):
    MORE(given(test_plans.scenes())(law.hypothesis.inner_test))()


@pytest.mark.parametrize("law", [pytest.param(law, id=law.__name__) for law in OF_AN_ORDER])
def test_laws_of_any_order(law):
    MORE(given(test_plans.scenes(), st.randoms(use_true_random=False))(law.hypothesis.inner_test))()


def test_whatever_changes():
    law = test_plans.test_after_any_changes_plans_are_whole_fit_and_answer_the_same_twice
    MORE(given(test_plans.scenes(), st.data())(law.hypothesis.inner_test))()


def test_however_far_each_replica_lags_behind():
    law = test_plans.test_lagging_replicas_put_a_gang_under_the_one_leaf_that_holds_it
    MORE(given(st.integers(4, 8), st.data())(law.hypothesis.inner_test))()


@pytest.mark.parametrize("gang", [test_trickle.koordinator, test_trickle.job])
def test_members_in_whatever_order(gang):
    law = test_trickle.test_in_any_order_of_arrival_members_get_their_places_of_one_plan
    MORE(given(st.just(gang), test_trickle.scenes())(law.hypothesis.inner_test))()


def test_whatever_is_wanted_above_the_min():
    law = test_above_the_min.test_whatever_gangs_want_above_their_min_no_plan_overdraws_a_node
    MORE(given(test_above_the_min.elastic_scenes(), st.data())(law.hypothesis.inner_test))()


def test_nobody_is_refused_for_what_is_above_the_min():
    law = test_above_the_min.test_no_gang_is_refused_for_what_others_have_above_their_min
    MORE(given(test_above_the_min.elastic_scenes())(law.hypothesis.inner_test))()
