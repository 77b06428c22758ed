"""How often a replica was made anew, and the numbers of its pods: counted once, never given twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.controllers.jobs import pod
from tests.kit.hypothesis_examples import scaled
from turnout.controllers.model import PodPhase, PodState, Role
from turnout.controllers.role_pods import RoleHistory
from turnout.jobs.kinds.job_kind import Restart

WORKER = Role("worker", 2, {}, Restart.NEVER, max_restarts=2)


def numbered(before=None, *pods):
    return RoleHistory.read(WORKER, before or {}, pods, unique_pod_names=True)


def one(index, number, uid="u"):
    return PodState(f"bert-edljob-worker-{number}", uid, "worker", index, PodPhase.FAILED)


def test_first_pods_have_the_numbers_of_their_indices():
    first, past = numbered().give_number(0)
    second, past = past.give_number(1)
    assert [(each.index, each.number) for each in (first, second)] == [(0, 0), (1, 1)]
    assert past.status_fields() == {"nextNumber": 2}


def test_who_takes_over_an_index_has_a_new_number_and_the_count():
    past = numbered({"nextNumber": 2}, one(1, 1)).with_counted([one(1, 1)])
    replica, past = past.give_number(1)
    assert (replica.index, replica.number, replica.restarts) == (1, 2, 1)
    assert past.status_fields() == {"restarts": 1, "restartedPods": ["u"], "restartCounts": {"1": 1}, "nextNumber": 3}


def test_a_first_pod_that_was_refused_has_the_number_of_its_index_later():
    first, past = numbered({}, one(0, 0), one(2, 2)).give_number(1)
    second, past = past.give_number(3)
    second_number, _ = past.give_number(0)
    assert [each.number for each in (first, second, second_number)] == [1, 3, 4]


def test_an_index_that_is_new_has_no_number_that_was_given_before():
    past = numbered({"nextNumber": 5}, one(0, 0), one(1, 4))
    fourth, past = past.give_number(4)
    fifth, past = past.give_number(5)
    assert [each.number for each in (fourth, fifth)] == [5, 6]


def test_a_pod_is_counted_once_though_its_controller_ends_before_deleting():
    numbers = numbered({}, one(1, 1)).with_counted([one(1, 1)]).status_fields()
    assert numbered(numbers, one(1, 1)).with_counted([one(1, 1)]).status_fields() == numbers


def test_an_index_at_its_bound_is_not_made_anew_and_others_are():
    past = numbered({"restartCounts": {"0": 2}})
    assert (past.may_recreate(one(0, 5, "new")), past.may_recreate(one(1, 6, "new"))) == (False, True)


def test_without_numbers_a_name_is_its_index_again():
    past = RoleHistory.read(WORKER, {"nextNumber": 9}, [pod(0)], unique_pod_names=False)
    assert past.give_number(0)[0].number == 0
    assert past.status_fields() == {}


@pytest.mark.parametrize(("index", "count"), [("1234567", 2), ("12345678", 0), ("x", 0), ("-1", 0), ("²", 0)])
def test_a_count_stands_under_the_number_of_an_index_alone(index, count):
    past = numbered({"restartCounts": {index: 2}})
    assert sum(past.by_index.values()) == count


@pytest.mark.parametrize(("name", "next_"), [("bert-worker-6", 7), ("bert-worker-x", 1), ("bert-12345678", 1)])
def test_a_pods_number_is_the_end_of_its_name(name, next_):
    assert numbered({}, PodState(name, "u", "worker", 0, PodPhase.RUNNING)).next_number == next_


def test_an_index_that_has_met_nothing_starts_afresh():
    replica, _ = numbered({"nextNumber": 2}).give_number(0)
    assert (replica.restarts, replica.oom_kills, replica.avoids) == (0, 0, ())


JSON = st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.lists(st.integers(), max_size=2)
HOSTILE = st.fixed_dictionaries(
    {},
    optional={
        "restarts": JSON,
        "restartedPods": JSON | st.lists(st.text(max_size=2), max_size=3),
        "restartCounts": JSON | st.dictionaries(st.text("012²", max_size=9), JSON, max_size=3),
        "nextNumber": JSON,
    },
)


@settings(max_examples=scaled(200), deadline=None)
@given(HOSTILE, st.lists(st.integers(0, 5), max_size=6))
def test_no_number_is_given_twice_whatever_a_status_says(before, indices):
    past, given_ = numbered(before), []
    for index in indices:
        replica, past = past.give_number(index)
        given_.append(replica.number)
    assert len(given_) == len(set(given_))
