"""A job of fixed size, without an arbiter: whoever dies comes back in its place, in whatever order, and all go on."""

from itertools import product

import pytest

from tests.launcher.rendezvous.machine.agents import Agent
from tests.launcher.rendezvous.machine.network import Network
from turnout.launcher.model import ElasticSpec

GAPS_S = (1.0, 6.0, 40.0)  # too short to be noticed by silence, as in the field, and after everybody has settled


class Job:
    """So many workers whose first world trains. A worker is started anew in its place, as a controller does it."""

    def __init__(self, members, minimum=None):
        self.network = Network(ElasticSpec(minimum or members, members, 1, 3, 2.0, 600.0, 1.0), "majority")
        self.lives = dict.fromkeys(range(members), 0)
        for number in self.lives:
            self.network.add(Agent(self.network, number))
        self.passes(12.0)
        assert len(self.network.training()) == 1

    def passes(self, seconds):
        """Time, in which never two worlds train."""
        for _ in range(round(2 * seconds)):
            self.network.tick(0.5)
            assert len(self.network.training()) <= 1, self.told()

    def alive(self, number):
        return self.network.here[f"w{number}"].alive

    def turns(self, number, host=False):
        """Kill the worker if it lives, else start it anew."""
        if self.alive(number):
            self.network.here[f"w{number}"].dies(host)
        else:
            self.lives[number] += 1
            self.network.add(Agent(self.network, number, self.lives[number]))
        self.network.tell("story", f"w{number} {'is started' if self.alive(number) else 'is killed'}")

    def all_return(self):
        for number in self.lives:
            if not self.alive(number):
                self.turns(number)

    def told(self):
        return "\n".join(self.network.saga)


def trains_again(job, within_s=150.0):
    """All of them, in one world, and nobody has given up."""
    until_s = job.network.now_s + within_s
    while job.network.now_s < until_s:
        job.passes(1.0)
        if any(len(job.network.worlds[world]) == len(job.lives) for world in job.network.training()):
            return
    raise AssertionError(job.told())


@pytest.mark.parametrize("host", [False, True], ids=["its process dies", "its host falls silent"])
@pytest.mark.parametrize("gap_s", GAPS_S)
@pytest.mark.parametrize("members", [2, 3])
def test_every_order_of_deaths_and_returns(members, gap_s, host):
    """Four turns: each kills a worker that lives, or starts one that does not. Then all that are missing come."""
    for order in product(range(members), repeat=4):
        job = Job(members)
        for number in order:
            job.turns(number, host)
            job.passes(gap_s)
        job.all_return()
        trains_again(job)


@pytest.mark.parametrize("killed", [(1,), (0,), (1, 2), (0, 1), (0, 1, 2)], ids=str)
def test_any_part_of_four_is_killed_at_once_and_comes_back(killed):
    job = Job(4)
    for number in killed:
        job.turns(number)
    job.passes(6.0)
    for number in killed:
        job.turns(number)
        job.passes(2.0)
    trains_again(job)


def test_where_only_one_world_fits_half_may_be_killed_and_come_back():
    job = Job(4, minimum=3)
    for number in (2, 3):
        job.turns(number)
    job.passes(6.0)
    job.turns(3)
    job.passes(60.0)
    assert [len(job.network.worlds[world]) for world in job.network.training()] == [3], job.told()
    job.turns(2)
    trains_again(job)
