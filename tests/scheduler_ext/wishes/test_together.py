"""Gangs that start together, all or none, in our words and in those of others."""

import json

import pytest

from tests.scheduler_ext.wishes.stage import RACK, Stage, pod
from tests.scheduler_ext.wishes.test_layered_wishes import only
from turnout.jobs.wishes import koordinator, kueue
from turnout.kube import labels
from turnout.scheduler_ext.model import EventReason


def gang(name, size, notes, gpus=8):
    """Pods of a koordinator gang."""
    own = {labels.KOORD_NAME: name, labels.KOORD_MIN: str(size), **notes}
    return [pod(f"{name}-{at}", gpus, own) for at in range(size)]


OURS = {labels.TOGETHER: "training"}
GROUPS = {koordinator.GROUPS: json.dumps(["default/a", "default/b"])}
PODSETS = {kueue.GROUP: "training"}


@pytest.mark.parametrize("notes", [OURS, GROUPS, PODSETS], ids=["ours", "koordinator's groups", "Kueue's podset group"])
class TestTwoGangs:
    def test_neither_starts_where_only_one_fits(self, notes):
        stage = Stage(only(s0l0=3))
        assert stage.schedule([*gang("a", 2, notes), *gang("b", 2, notes)]) == {}

    def test_both_start_where_both_fit(self, notes):
        stage = Stage(only(s0l0=4))
        assert len(stage.schedule([*gang("a", 2, notes), *gang("b", 2, notes)])) == 4

    def test_they_take_no_room_from_a_gang_that_can_start(self, notes):
        stage = Stage(only(s0l0=3))
        node_by_pod = stage.schedule([*gang("a", 2, notes), *gang("b", 2, notes), *gang("c", 3, {})])
        assert {name[0] for name in node_by_pod} == {"c"}
        assert len(node_by_pod) == 3

    def test_once_there_is_room_both_start(self, notes):
        stage = Stage(only(s0l0=3))
        pods = [*gang("a", 2, notes), *gang("b", 2, notes)]
        assert not stage.schedule(pods)
        stage.leave("there-s1l0h0")
        assert len(stage.schedule(pods)) == 4


def test_a_gang_that_koordinator_lists_and_nobody_shows_is_waited_for():
    stage = Stage()
    assert not stage.schedule(gang("a", 2, GROUPS))
    assert len(stage.schedule([*gang("b", 2, GROUPS), *gang("a", 2, GROUPS)])) == 4


def test_whoever_comes_second_lets_the_first_go():
    stage = Stage()
    assert not stage.schedule(gang("a", 2, GROUPS))
    stage.schedule(gang("b", 2, GROUPS))
    assert len(stage.schedule(gang("a", 2, GROUPS))) == 4


THREE = {labels.TOGETHER: "training/3"}


def test_a_number_of_gangs_is_waited_for_though_some_do_not_exist_yet():
    stage = Stage()
    assert not stage.schedule([*gang("a", 2, THREE), *gang("b", 2, THREE)])
    assert any("2 of the 3 gangs of this set exist" in each.detail for each in stage.told)
    stage.schedule(gang("c", 2, {labels.TOGETHER: "training"}))
    assert len(stage.schedule([*gang("a", 2, THREE), *gang("b", 2, THREE)])) == 6


def test_one_that_runs_is_not_held_by_those_that_have_ended():
    stage = Stage()
    stage.schedule([pod for name in "abc" for pod in gang(name, 2, THREE)])
    for name in ("b-0", "b-1", "c-0", "c-1", "a-1"):
        stage.leave_pod(name)
    assert "a-1" in stage.schedule(gang("a", 2, THREE)[1:])


@pytest.mark.parametrize("text", ["training/1", "training/17", "training/x", "/3", "training/3/4", "training/03"])
def test_a_number_that_cannot_be_is_told(text):
    stage = Stage()
    assert len(stage.schedule(gang("a", 2, {labels.TOGETHER: text}))) == 2
    (detail,) = {each.detail for each in stage.told if each.reason is EventReason.BAD_ANNOTATION}
    assert labels.TOGETHER in detail


def test_gangs_of_other_names_go_alone():
    stage = Stage(only(s0l0=3))
    node_by_pod = stage.schedule([*gang("a", 2, OURS), *gang("b", 2, {labels.TOGETHER: "serving"})])
    assert {name[0] for name in node_by_pod} == {"a"}


class TestKueuesPodsetsShareOneDomain:
    """A leader of one podset and three workers of another; the leader alone would go where it leaves least room."""

    LEADER = only(s0l0=1, s0l1=3, s1l0=4)

    @pytest.mark.parametrize("wish", [kueue.REQUIRED, kueue.PREFERRED])
    @pytest.mark.parametrize("first", [0, 1], ids=["the leader is asked about first", "the workers are"])
    def test_both_lie_where_there_is_room_for_both(self, wish, first):
        stage = Stage(self.LEADER)
        notes = {**PODSETS, wish: RACK}
        podsets = [gang("leader", 1, notes), gang("workers", 3, notes)]
        node_by_pod = stage.schedule([*podsets[first], *podsets[1 - first]])
        assert {host[:4] for host in node_by_pod.values()} == {"s1l0"}
        assert len(node_by_pod) == 4
        assert stage.told == []

    def test_none_starts_where_no_domain_holds_both(self):
        stage = Stage(only(s0l0=1, s0l1=3))
        notes = {**PODSETS, kueue.REQUIRED: RACK}
        assert stage.schedule([*gang("leader", 1, notes), *gang("workers", 3, notes)]) == {}

    def test_one_that_comes_back_joins_the_other(self):
        stage = Stage(self.LEADER)
        notes = {**PODSETS, kueue.REQUIRED: RACK}
        stage.schedule([*gang("leader", 1, notes), *gang("workers", 3, notes)])
        stage.leave_pod("leader-0")
        assert stage.schedule(gang("leader", 1, notes))["leader-0"].startswith("s1l0")

    def test_a_leader_without_gpus_goes_beside_its_workers(self):
        stage = Stage(only(s0l0=1, s1l0=4))
        notes = {**PODSETS, kueue.REQUIRED: RACK}
        node_by_pod = stage.schedule([*gang("leader", 1, notes, gpus=0), *gang("workers", 3, notes)])
        assert {host[:4] for host in node_by_pod.values()} == {"s1l0"}
        assert len(node_by_pod) == 4
