"""Jobs go by PriorityClass and age among all, by the priorities and deadlines of their owners in one namespace."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.autoscaler.world import NOW_S, POLICY, job, state_of, world
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import ORDER, Reason
from turnout.autoscaler.scaling.guard import in_turn
from turnout.jobs.model import JobKey, Order, ResizeBudget


def of(namespace, name, created_s, priority=0, deadline_s=None, class_value=0, **more):
    order = Order(class_value, priority, deadline_s)
    one_job = job(name, created=f"2026-01-01T00:00:{created_s:02}Z", order=order, **more)
    return replace(one_job, key=JobKey("Job", namespace, name))


FIRST_OF_TWO = [
    pytest.param(of("mine", "a", 9, priority=100), of("theirs", "b", 1), "b", id="a priority passes no other tenant"),
    pytest.param(of("mine", "a", 9, deadline_s=1.0), of("theirs", "b", 1), "b", id="nor does a deadline"),
    pytest.param(of("mine", "a", 9, priority=100), of("mine", "b", 1), "a", id="a priority passes one's own job"),
    pytest.param(of("mine", "a", 9, deadline_s=1.0), of("mine", "b", 1), "a", id="so does a deadline"),
    pytest.param(of("mine", "a", 9, class_value=1), of("theirs", "b", 1, priority=9), "a", id="a class passes all"),
]


@pytest.mark.parametrize(("one", "other", "first"), FIRST_OF_TWO)
def test_whose_min_comes_first(one, other, first):
    steps = decide(world([1], state_of(one), state_of(other)), POLICY, NOW_S)
    assert [step.key.name for step in steps if step.reason is Reason.SCHEDULERS_TURN] == [first]


@pytest.mark.parametrize(("one", "other", "first"), FIRST_OF_TWO)
def test_who_comes_first_gives_last(one, other, first):
    lent = [state_of(replace(each, replicas=2), rows) for each, rows in ((one, [0, 1]), (other, [2, 3]))]
    waiter = replace(of("third", "w", 30), queue="q")
    steps = decide(world([1] * 4, *lent, state_of(waiter)), POLICY, NOW_S)
    givers = [step.key.name for step in steps if step.changes]
    assert givers == [{"a": "b", "b": "a"}[first]]


@pytest.mark.parametrize(("one", "other", "first"), FIRST_OF_TWO)
def test_who_comes_first_grows_first(one, other, first):
    steps = decide(world([1] * 3, state_of(one, [0]), state_of(other, [1])), POLICY, NOW_S)
    assert [step.key.name for step in steps if step.changes] == [first]


def test_a_poor_job_gives_no_sooner_for_a_rich_one_of_its_namespace():
    """The rich one gives first, then the newest job of all, and the poor one only after that."""
    bank = ResizeBudget(1000.0, NOW_S - 5)
    rich = of("mine", "rich", 1, priority=1, minimum=1, replicas=2, resize_budget=bank)
    poor, newest = of("mine", "poor", 5, priority=1, replicas=2), of("theirs", "newest", 9, replicas=2)
    lent = [state_of(each, [row, row + 1]) for each, row in ((rich, 0), (poor, 2), (newest, 4))]
    waiter = of("third", "w", 30, minimum=2)
    steps = decide(world([1] * 6, *lent, state_of(waiter)), POLICY, NOW_S)
    assert {step.key.name for step in steps if step.changes} == {"rich", "newest"}


def test_a_job_behind_one_of_its_own_is_behind_the_same_others():
    """A late job of high priority does not lift the early ones of its namespace, nor its own place."""
    jobs = [of("mine", "early", 1), of("theirs", "middle", 5), of("mine", "late", 9, priority=1)]
    states = sorted(map(state_of, jobs), key=ORDER)
    assert [each.job.key.name for each in in_turn(states)] == ["middle", "late", "early"]


_JOBS = st.lists(
    st.tuples(
        st.sampled_from(("mine", "theirs", "third")),
        st.integers(0, 59),
        st.sampled_from((0, 0, 1, 50, 100)),
        st.sampled_from((None, None, 1.0, 2.0)),
        st.sampled_from((0, 0, 10)),
    ),
    max_size=12,
)


@given(_JOBS)
def test_no_word_of_a_tenant_puts_its_job_before_another_tenants(drawn):
    def jobs_with(speaker):
        return [of(each[0], f"j{at}", each[1], *(each[2:4] if speaker else (0, None)), each[4]) for at, each in drawn]

    drawn = list(enumerate(drawn))

    def passed(jobs):
        """Pairs of jobs of two tenants, the first of which comes before the second."""
        keys = [each.job.key for each in in_turn(sorted(map(state_of, jobs), key=ORDER))]
        return {(one, two) for at, one in enumerate(keys) for two in keys[at:] if one.namespace != two.namespace}

    silent = [replace(each, order=replace(each.order, priority=0, deadline_s=None)) for each in jobs_with(True)]
    for who in ("mine", "theirs", "third"):
        only = [
            speaker if speaker.key.namespace == who else mute
            for speaker, mute in zip(jobs_with(True), silent, strict=True)
        ]
        gained = passed(only) - passed(silent)
        assert not [pair for pair in gained if pair[0].namespace == who]


@given(_JOBS)
def test_in_one_namespace_what_owners_say_decides(drawn):
    states = sorted((state_of(of("mine", f"j{at}", *each[1:])) for at, each in enumerate(drawn)), key=ORDER)
    assert in_turn(states) == states
