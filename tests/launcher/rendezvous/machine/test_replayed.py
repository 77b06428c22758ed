"""Examples by which long random machines once failed, replayed rule by rule, with what was wrong with each."""

from collections.abc import Callable

import pytest

from tests.launcher.rendezvous.machine.test_checked import Checked, CheckedMajority
from tests.launcher.rendezvous.machine.test_machine import Majority
from turnout.launcher.health.hang_detector import HangAction

ASKS = {"leaves_slow": False, "act": HangAction.ASK, "in_place": True}


def two_strangers() -> Majority:
    """w3 misses the round of w0 and of a new w1; then w0 leaves: of those that are left nobody has met another."""
    machine = Majority()
    machine.begin(members=4, minimum=1, spare=0, unit=2, imports=0.0, late=0)
    machine.one_dies(host=False, who=1)
    machine.time_passes(seconds=20.0)
    machine.a_connection_breaks(down=0, up=0, which=0)
    machine.the_network_parts(arbiter=False, away={2})
    machine.time_passes(seconds=8.0)
    machine.one_dies(host=False, who=2)
    machine.one_is_stopped(who=0)
    machine.the_network_parts(arbiter=False, away={0})
    machine.time_passes(seconds=13.0)
    machine.one_is_asked_to_go(who=0)
    machine.a_connection_breaks(down=0, up=0, which=22)
    machine.one_is_started(imports=0.0, who=1)
    return machine


def both_broken_in_place() -> Checked:
    """Two workers of broken nodes end with 138, and are started again at the addresses that they had."""
    machine = Checked()
    machine.begin(
        members=4, minimum=1, spare=0, unit=1, late=1, imports=0.0, at=[2, 1, 0, 3, 4, 5], how=("broken", "broken"),
        bad=1, link=False, head_s=0.0, **ASKS,
    )  # fmt: skip
    machine.one_dies(host=False, who=0)
    machine.a_node_breaks(how="broken", who=1)
    machine.one_is_started(imports=0.0, who=1)
    return machine


def broken_first_in_place() -> CheckedMajority:
    """The first worker's node is broken, and the other two are too few without it."""
    machine = CheckedMajority()
    machine.begin(
        members=5, minimum=3, spare=2, unit=1, late=2, imports=0.0, at=[0, 1, 2, 3, 4, 5], how=("broken", "broken"),
        bad=1, link=False, head_s=60.0, **ASKS,
    )  # fmt: skip
    return machine


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(two_strangers, id="two that know no living address in common wait for the first worker"),
        pytest.param(both_broken_in_place, id="an address used again is that of its newest worker"),
        pytest.param(broken_first_in_place, id="a broken first worker comes back in place, over and over"),
    ],
)
def test_an_example_that_once_failed_passes(example: Callable[[], Majority | Checked]) -> None:
    example().teardown()


def test_two_strangers_meet_at_the_first_worker_once_it_is_replaced():
    machine = two_strangers()
    network = machine.network
    network.cut_off.clear()
    for agent in network.living():
        agent.goes_on()
    network.tick(60.0)
    assert [agent.name for agent in network.living()] == ["w3", "w1"]
    assert not network.training(), "\n".join(network.saga)
    network.add(machine.comes(0, 1, 0.0))
    network.tick(120.0)
    assert [len(network.worlds[world]) for world in network.training()] == [2], "\n".join(network.saga)


def test_nobody_takes_the_round_of_a_worker_restarted_in_its_place():
    """A worker that listens where a dead one did refuses no connection: the lock of its round stays its own."""
    machine = both_broken_in_place()
    network = machine.network
    network.tick(40.0)
    lost = [line for line in network.saga if "round_lost" in line]
    assert not lost, "\n".join(lost)
