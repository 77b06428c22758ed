"""How long a gang waits for the PodGroup that its pods name, and how many of one tenant's wait at a time."""

from functools import partial

import pytest

from tests.kit import world
from tests.kit.world import World
from turnout.jobs.gang import POD_GROUP_VERSIONS, Dialect
from turnout.kube import labels
from turnout.scheduler_ext.cluster.gang import Sizing
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


def named(dialect, notes=None):
    """Two pods that name the PodGroup g of a dialect."""
    named_by = {
        Dialect.VOLCANO: {"notes": {labels.VOLCANO_GROUP: "g"}},
        Dialect.KOORDINATOR: {"marks": {labels.KOORD_POD_GROUP: "g"}},
        Dialect.PLUGINS: {"marks": {labels.PLUGINS_POD_GROUP: "g"}},
        Dialect.NATIVE: {"schedulingGroup": {"podGroupName": "g"}},
        Dialect.KAI: {"notes": {labels.KAI_GROUP: "g"}},
    }[dialect]
    merged = {**named_by, "notes": {**named_by.get("notes", {}), **(notes or {})}}
    return [world.pod(f"g-{at}", 8, **merged) for at in range(2)]


def show_group(dialect, stage):
    """Show the PodGroup g of a dialect."""
    stage.put_group("g", 2, dialect)


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
    pytest.param(gang_of(*named(Dialect.KOORDINATOR)), True, id="koordinator's pods, which name a PodGroup by a label"),
    pytest.param(gang_of(*named(Dialect.PLUGINS)), True, id="a PodGroup of scheduler-plugins"),
    pytest.param(gang_of(*named(Dialect.NATIVE)), True, id="a PodGroup of Kubernetes itself"),
    pytest.param(gang_of(*named(Dialect.KAI)), True, id="a PodGroup of KAI"),
    *(pytest.param(gang_of(*named(dialect, {labels.MIN_WORKERS: "2"})), True,
                   id=f"{dialect.value}: a PodGroup may have terms that the pods do not state, whatever min they state")
      for dialect in POD_GROUP_VERSIONS),
    *(pytest.param(gang_of(*named(dialect), put=partial(show_group, dialect)), False, id=f"{dialect.value}: is there")
      for dialect in POD_GROUP_VERSIONS),
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
    assert unseen.state_of(*many(1, "mine", first=1_000), 5.0 + POD_GROUP_WAIT_S) is PodGroupState.AWAITED


def test_a_podgroup_that_comes_makes_room_for_another_wait():
    unseen, mine = PodGroupWaits(), many(MAX_WAITING_GANGS, "mine")
    for gang in mine:
        unseen.state_of(gang, 5.0)
    mine[0].sizing = Sizing(1, None, "uid", "")
    assert unseen.state_of(mine[0], 5.1) is PodGroupState.KNOWN
    assert unseen.state_of(*many(1, "mine", first=1_000), 5.2) is PodGroupState.AWAITED


def test_pods_that_are_deleted_and_made_anew_gain_no_further_waits():
    unseen, mine = PodGroupWaits(), many(MAX_WAITING_GANGS, "mine")
    for gang in mine:
        unseen.state_of(gang, 5.0)
    unseen.retain({}, 5.5)
    assert unseen.state_of(*many(1, "mine", first=1_000), 5.5) is PodGroupState.NEVER_CAME


def test_gangs_that_stay_are_not_awaited_again():
    unseen, (stays, goes) = PodGroupWaits(), many(2, "mine")
    for gang in (stays, goes):
        unseen.state_of(gang, 5.0)
    unseen.retain({stays.key: stays}, 5.0 + POD_GROUP_WAIT_S)
    assert unseen.state_of(stays, 17.0) is PodGroupState.NEVER_CAME
    assert unseen.state_of(goes, 17.0) is PodGroupState.AWAITED
