"""Examples that random schedules seldom find, told step by step: each once falsified a rule, and none does now."""

import pytest

from tests.launcher.rendezvous.machine.agents import Agent
from tests.launcher.rendezvous.machine.network import Network
from turnout.launcher.model import ElasticSpec


def network(members, nnodes, mode="arbiter"):
    """So many members whose first world trains."""
    new_network = Network(ElasticSpec(*nnodes, 1, 3, 2.0, 600.0, 1.0), mode, fence_s=400.0, stranger_s=600.0)
    for number in range(members):
        new_network.add(Agent(new_network, number))
    new_network.tick(12.0)
    assert len(new_network.training()) == 1
    return new_network


def parts(network_of_story, *groups):
    """Only who is in the same group has a path. "arbiter" is a name, too."""
    names = {agent.name for agent in network_of_story.agents.values()} | {"arbiter"}
    of = {name: at for at, group in enumerate(groups) for name in group}
    network_of_story.cut_off = {frozenset((a, b)) for a in names for b in names if a != b and of.get(a) != of.get(b)}


def watched(network_of_story, seconds):
    """How large the worlds were that trained meanwhile, never two at once."""
    sizes = set()
    for _ in range(int(seconds)):
        network_of_story.tick(1.0)
        training = network_of_story.training()
        assert len(training) <= 1, "\n".join(network_of_story.saga)
        sizes |= {len(network_of_story.worlds[world]) for world in training}
    return sizes


def test_a_majority_without_arbiter_and_a_minority_with_it_do_not_both_run():
    """Three of five go on unanswered; the other two are granted the next round, and wait until those have stopped."""
    network_of_story = network(5, (2, 5))
    parts(network_of_story, ["w0", "w1", "w2"], ["w3", "w4", "arbiter"])
    assert watched(network_of_story, 390.0) == {5, 3}
    assert watched(network_of_story, 120.0) == {3, 2}
    network_of_story.cut_off.clear()
    assert max(watched(network_of_story, 60.0)) == 5


def test_of_two_halves_the_one_with_the_arbiter_goes_on():
    network_of_story = network(4, (2, 4))
    parts(network_of_story, ["w0", "w1"], ["w2", "w3", "arbiter"])
    assert watched(network_of_story, 600.0) == {4, 2}
    assert {network_of_story.agents[id_].name for id_ in network_of_story.worlds[network_of_story.training()[0]]} == {
        "w2",
        "w3",
    }


@pytest.mark.parametrize("mode", ["arbiter", "majority"])
@pytest.mark.parametrize("host", [False, True], ids=["its process dies", "its host falls silent"])
@pytest.mark.parametrize("members", [3, 4, 5])
def test_the_coordinator_dies_and_the_others_go_on(members, host, mode):
    network_of_story = network(members, (1, members), mode)
    network_of_story.here["w0"].dies(host)
    watched(network_of_story, 60.0)
    assert [len(network_of_story.worlds[world]) for world in network_of_story.training()] == [members - 1]


@pytest.mark.parametrize("mode", ["arbiter", "majority"])
def test_two_coordinators_one_after_the_other(mode):
    network_of_story = network(4, (1, 4), mode)
    network_of_story.here["w0"].dies()
    watched(network_of_story, 60.0)
    network_of_story.here["w1"].dies()
    watched(network_of_story, 60.0)
    assert [len(network_of_story.worlds[world]) for world in network_of_story.training()] == [2]


def test_the_two_parts_of_a_world_meet_again_without_an_arbiter():
    network_of_story = network(5, (5, 5), "majority")
    parts(network_of_story, ["w0", "w1"], ["w2", "w3", "w4"])
    watched(network_of_story, 60.0)
    assert network_of_story.training() == []
    network_of_story.cut_off.clear()
    assert watched(network_of_story, 300.0) == {5}


def test_a_lost_answer_of_the_arbiter_grants_nothing_twice():
    network_of_story = network(3, (1, 3))
    network_of_story.here["w1"].processes_end(well=False)
    lead = network_of_story.here["w0"].lead
    while lead.claim is None:
        network_of_story.tick(0.5)
    lead.answered(lost_answer=True)
    lead.turn()
    watched(network_of_story, 60.0)
    assert [len(network_of_story.worlds[world]) for world in network_of_story.training()] == [3]
    assert network_of_story.here["w0"].budget.total == 1
