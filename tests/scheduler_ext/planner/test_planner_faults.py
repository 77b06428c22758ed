"""An exception while one gang is planned stays in that gang: it is refused and counted, and all others are planned."""

from dataclasses import replace

from tests.kit.world import World, leaves, volcano
from turnout.jobs.wishes.model import Layer, Wish
from turnout.kube import labels
from turnout.topology.model import RefusalReason

TOO_LARGE = Wish("test", layers=(Layer(labels.HOSTNAME, 3_000_000_000),))  # no reader of objects lets it pass


def world_with_a_gang_that_cannot_be_planned():
    w = World(4, 4)
    broken, sound = volcano("broken", 2), volcano("sound", 4)
    w.put_group("broken", 2).put_group("sound", 4).put(*broken, *sound)
    (gang,) = (each for key, each in w.view.gangs.items() if key.name == "broken")
    for member in list(gang.members.values()):
        gang.join(replace(member, membership=replace(member.membership, wish=TOO_LARGE)))
    w.view.changed_gangs.add(gang.key)
    return w, broken, sound


def test_the_gang_is_refused_as_a_fault_of_the_planner():
    w, broken, _ = world_with_a_gang_that_cannot_be_planned()
    for _ in range(2):  # it is not planned again with each question
        assert w.plan(broken[0]) == {}
        plan = w.plans.current_plan(w.member(broken[0]).membership.key)
        assert plan.refusal.reason is RefusalReason.PLAN_REJECTED
        assert plan.refusal.detail.startswith("planning failed: OverflowError at place.py:")
    assert w.plans.rejected_plans == {"planning_failed": 1}


def test_another_gang_gets_its_places():
    w, _, sound = world_with_a_gang_that_cannot_be_planned()
    node_by_pod = w.schedule(*sound)
    assert (len(node_by_pod), len(leaves(node_by_pod))) == (4, 1)
