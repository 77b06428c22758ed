"""How long a gang waits for the PodGroup that its pods name, and how many of one tenant's wait at a time."""

import pytest

from tests import world
from tests.world import World
from turnout.jobs.gang import Dialect
from turnout.scheduler_ext.cluster.request_hints import (
    MAX_WAITING_GANGS,
    POD_GROUP_WAIT_S,
    PodGroupState,
    PodGroupWaits,
)


def gang_of(*pods, put=lambda stage: None):
    """The gang of these pods, as the view has it."""
    stage = World(2).put(*pods)
    put(stage)
    return stage.view.gangs[stage.member(pods[0]).membership.key]


def many(count, namespace, first=0):
    """Make gangs of one namespace, each with a PodGroup that is not there."""
    return [gang_of(*world.volcano(f"g{at}", 1, namespace=namespace)) for at in range(first, first + count)]


@pytest.mark.parametrize(("gang", "awaited"), [
    pytest.param(gang_of(*world.volcano("g", 2)), True, id="a Volcano PodGroup that is not there"),
    pytest.param(gang_of(*world.volcano("g", 2), put=lambda stage: stage.put_group("g", 2)), False, id="one that is"),
    pytest.param(
        gang_of(*world.volcano("g", 2), put=lambda stage: stage.put_group("g", 2, Dialect.KOORDINATOR)), True,
        id="one of the same name in another dialect",
    ),
    pytest.param(gang_of(*world.koordinator("g", 2)), False, id="koordinator's pods, which say the min themselves"),
    pytest.param(gang_of(world.pod("p", 8)), False, id="a pod without a gang"),
    pytest.param(gang_of(world.pod("j-0", 8, marks={"batch.kubernetes.io/job-completion-index": "0"}, owner="Job/j")),
                 False, id="a pod of a Job that is not there: it starts by itself"),
])  # fmt: skip
def test_only_a_podgroup_that_the_pods_name_is_awaited(gang, awaited):
    assert (PodGroupWaits().state_of(gang, 5.0) is PodGroupState.AWAITED) is awaited


def test_it_is_awaited_once_from_the_first_question_on():
    unseen, gang = PodGroupWaits(), gang_of(*world.volcano("g", 2))
    at = [unseen.state_of(gang, 5.0 + later_s) for later_s in (0.0, POD_GROUP_WAIT_S / 2, POD_GROUP_WAIT_S, 100.0)]
    assert at == [PodGroupState.AWAITED, PodGroupState.AWAITED, PodGroupState.NEVER_CAME, PodGroupState.NEVER_CAME]


def test_of_one_namespace_so_many_wait_and_those_of_another_beside_them():
    unseen, mine = PodGroupWaits(), many(MAX_WAITING_GANGS + 1, "mine")
    assert [unseen.state_of(gang, 5.0) for gang in mine] == [PodGroupState.AWAITED] * MAX_WAITING_GANGS + [
        PodGroupState.NEVER_CAME
    ]
    assert unseen.state_of(*many(1, "other"), 5.0) is PodGroupState.AWAITED
    assert unseen.state_of(*many(1, "mine", first=100), 5.0 + POD_GROUP_WAIT_S) is PodGroupState.AWAITED


def test_pods_that_are_deleted_and_made_anew_gain_no_further_waits():
    unseen, mine = PodGroupWaits(), many(MAX_WAITING_GANGS, "mine")
    for gang in mine:
        unseen.state_of(gang, 5.0)
    unseen.retain({}, 5.5)
    assert unseen.state_of(*many(1, "mine", first=100), 5.5) is PodGroupState.NEVER_CAME


def test_gangs_that_stay_are_not_awaited_again():
    unseen, (stays, goes) = PodGroupWaits(), many(2, "mine")
    for gang in (stays, goes):
        unseen.state_of(gang, 5.0)
    unseen.retain({stays.key: stays}, 5.0 + POD_GROUP_WAIT_S)
    assert unseen.state_of(stays, 7.0) is PodGroupState.NEVER_CAME
    assert unseen.state_of(goes, 7.0) is PodGroupState.AWAITED
