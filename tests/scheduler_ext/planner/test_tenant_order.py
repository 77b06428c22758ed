"""A gang goes before another namespace's by its PriorityClass and its age, by nothing that its owner writes later."""

import pytest

from tests.kit import world
from tests.kit.world import World
from turnout.jobs.wishes import koordinator, kueue
from turnout.kube import labels
from turnout.scheduler_ext.cluster.view import MAX_PATIENCE_S


def mine(size, minimum=None, at=("a0",), **more):
    return world.koordinator("mine", size, minimum=minimum, at=at, namespace="mine", created=1, **more)


def other(priority=0, created=2):
    return world.volcano("other", 2, namespace="theirs", created=created, priority=priority)


@pytest.mark.parametrize("minimum", [pytest.param(3, id="by its min"), pytest.param(None, id="by having more pods")])
@pytest.mark.parametrize("priority", [0, 1000])
def test_a_min_raised_after_the_start_goes_after_others(priority, minimum):
    w, old = World(3), mine(1, 1)
    w.put(*old)
    w.plan(old[0])
    w.now_s += MAX_PATIENCE_S + 1
    w.put(*mine(3, minimum), *(theirs := other(priority)))
    assert len(w.schedule(*theirs)) == 2


@pytest.mark.parametrize("minimum", [3, None])
def test_members_that_come_just_after_the_first_count_for_the_start(minimum):
    w, first = World(3), mine(1, 1)
    w.put(*first)
    w.plan(first[0])
    w.put(*(all_ := mine(3, minimum)), *(theirs := other(1000)))
    assert [len(w.schedule(*theirs)), len(w.schedule(*all_[1:]))] == [0, 2]


def test_a_member_that_comes_again_has_its_place_first():
    w, pods = World(4), mine(4, 4, at=["a0", "a1", "a2", "a3"])
    w.put(*pods)
    w.plan(pods[0])
    w.now_s += 2 * MAX_PATIENCE_S
    w.view.drop_pod(pods[3].metadata.uid)
    lone = world.volcano("lone", 1, namespace="theirs", created=2, priority=1000)
    w.put(replacement := mine(4, 4, at=["a0", "a1", "a2"])[3], *lone)
    assert [len(w.schedule(*lone)), len(w.schedule(replacement))] == [0, 1]


def test_one_important_pod_lifts_no_others_of_its_gang():
    """A quota may leave a tenant one pod of a high PriorityClass: it is one pod's word, not a gang's."""
    w, pods = World(3), [*mine(2, 3, at=(), total=3), *mine(3, 3, at=(), priority=1000)[2:]]
    w.put(*pods, *(theirs := other(500)))
    assert len(w.schedule(*theirs)) == 2


SETS = [
    pytest.param({labels.TOGETHER: "set"}, id="our own word"),
    pytest.param({labels.TOGETHER: "set/2"}, id="our own word with a number"),
    pytest.param({kueue.GROUP: "set"}, id="a podset group of Kueue"),
    pytest.param({koordinator.GROUPS: '["mine/runs", "mine/comes"]'}, id="koordinator's groups"),
]


def of_set(name, size, notes, created, at=(), priority=0):
    """A gang of the set of one tenant."""
    return world.koordinator(
        name, size, at=at, namespace="mine", created=created, notes=notes, priority=priority, gpus=8 if size > 1 else 1
    )


@pytest.mark.parametrize("notes", SETS)
@pytest.mark.parametrize(("created", "priority"), [
    pytest.param(2, 1000, id="older and of a higher PriorityClass"),
    pytest.param(2, 0, id="older"),
    pytest.param(4, 1000, id="younger and of a higher PriorityClass"),
])  # fmt: skip
@pytest.mark.parametrize("first", ["runs", "waits"])
def test_a_set_lifts_no_newcomer_above_others(notes, created, priority, first):
    """The oldest gang of the set is the tenant's cheapest way to be early: one pod of one GPU."""
    w = World(3)
    old = of_set("runs", 1, notes, 1, at=["a0"] if first == "runs" else ())
    new = of_set("comes", 2, notes, 3)
    theirs = other(priority, created)
    w.put(*old, *new, *theirs)
    w.plans.plan_all(w.now_s)
    assert [len(w.schedule(*theirs)), len(w.schedule(*new))] == [2, 0]


@pytest.mark.parametrize("notes", SETS)
def test_a_set_goes_before_a_younger_gang(notes):
    w = World(3)
    pods = [*of_set("runs", 1, notes, 1), *of_set("comes", 2, notes, 2)]
    w.put(*pods, *(theirs := other(0, 3)))
    assert [len(w.schedule(*theirs)), len(w.schedule(*pods))] == [0, 3]


@pytest.mark.parametrize("notes", SETS)
def test_planning_ends_beside_a_set_that_cannot_start(notes):
    """One gang of the set fits and the other does not: neither may be tried again until room is given back."""
    w = World(3)
    w.put(*of_set("runs", 1, notes, 1), *(new := of_set("comes", 4, notes, 2)), *of_set("other", 2, {}, 3))
    assert {plan.key.name: len(plan.hosts) for plan in w.plans.plan_all(w.now_s)} == {
        "runs": 0, "comes": 0, "other": 2,
    }  # fmt: skip
    assert w.plan(new[0]) == {}
    assert not w.plans.plan_some(w.now_s)
    replanned = w.plans.replanned
    assert not w.plans.plan_some(w.now_s)
    assert w.plan(new[0]) == {}
    assert w.plans.replanned == replanned
