"""Examples that random schedules seldom find, told step by step: each once falsified a rule, and none does now."""

import pytest

from tests.launcher.rendezvous.machine.agents import Agent
from tests.launcher.rendezvous.machine.network import Network
from turnout.launcher.model import ElasticSpec


def network(members, nnodes, mode="arbiter"):
    """So many members whose first world trains."""
    made = Network(ElasticSpec(*nnodes, 1, 3, 2.0, 600.0, 1.0), mode, fence_s=400.0, stranger_s=600.0)
    for number in range(members):
        made.add(Agent(made, number))
    made.tick(12.0)
    assert len(made.training()) == 1
    return made


def parts(made, *groups):
    """Only who is in the same group has a path. "arbiter" is a name, too."""
    names = {agent.name for agent in made.agents.values()} | {"arbiter"}
    of = {name: at for at, group in enumerate(groups) for name in group}
    made.cut_off = {frozenset((a, b)) for a in names for b in names if a != b and of.get(a) != of.get(b)}


def watched(made, seconds):
    """How large the worlds were that trained meanwhile, never two at once."""
    sizes = set()
    for _ in range(int(seconds)):
        made.tick(1.0)
        training = made.training()
        assert len(training) <= 1, "\n".join(made.saga)
        sizes |= {len(made.worlds[world]) for world in training}
    return sizes


def test_a_majority_without_arbiter_and_a_minority_with_it_do_not_both_run():
    """Three of five go on unanswered; the other two are granted the next round, and wait until those have stopped."""
    made = network(5, (2, 5))
    parts(made, ["w0", "w1", "w2"], ["w3", "w4", "arbiter"])
    assert watched(made, 390.0) == {5, 3}
    assert watched(made, 120.0) == {3, 2}
    made.cut_off.clear()
    assert max(watched(made, 60.0)) == 5


def test_of_two_halves_the_one_with_the_arbiter_goes_on():
    made = network(4, (2, 4))
    parts(made, ["w0", "w1"], ["w2", "w3", "arbiter"])
    assert watched(made, 600.0) == {4, 2}
    assert {made.agents[id_].name for id_ in made.worlds[made.training()[0]]} == {"w2", "w3"}


@pytest.mark.parametrize("mode", ["arbiter", "majority"])
@pytest.mark.parametrize("host", [False, True], ids=["its process dies", "its host falls silent"])
@pytest.mark.parametrize("members", [3, 4, 5])
def test_the_coordinator_dies_and_the_others_go_on(members, host, mode):
    made = network(members, (1, members), mode)
    made.here["w0"].dies(host)
    watched(made, 60.0)
    assert [len(made.worlds[world]) for world in made.training()] == [members - 1]


@pytest.mark.parametrize("mode", ["arbiter", "majority"])
def test_two_coordinators_one_after_the_other(mode):
    made = network(4, (1, 4), mode)
    made.here["w0"].dies()
    watched(made, 60.0)
    made.here["w1"].dies()
    watched(made, 60.0)
    assert [len(made.worlds[world]) for world in made.training()] == [2]


def test_the_two_parts_of_a_world_meet_again_without_an_arbiter():
    made = network(5, (5, 5), "majority")
    parts(made, ["w0", "w1"], ["w2", "w3", "w4"])
    watched(made, 60.0)
    assert made.training() == []
    made.cut_off.clear()
    assert watched(made, 300.0) == {5}


def test_a_lost_answer_of_the_arbiter_grants_nothing_twice():
    made = network(3, (1, 3))
    made.here["w1"].processes_end(well=False)
    lead = made.here["w0"].lead
    while lead.claim is None:
        made.tick(0.5)
    lead.answered(lost_answer=True)
    lead.turn()
    watched(made, 60.0)
    assert [len(made.worlds[world]) for world in made.training()] == [3]
    assert made.here["w0"].budget.total == 1
