"""Gangs that start together, all or none, in our words and in those of others."""

import json

import pytest

from tests.scheduler_ext.wishes.stage import Stage, pod
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
        placed = stage.schedule([*gang("a", 2, notes), *gang("b", 2, notes), *gang("c", 3, {})])
        assert {name[0] for name in placed} == {"c"}
        assert len(placed) == 3

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


def test_gangs_of_other_names_go_alone():
    stage = Stage(only(s0l0=3))
    placed = stage.schedule([*gang("a", 2, OURS), *gang("b", 2, {labels.TOGETHER: "serving"})])
    assert {name[0] for name in placed} == {"a"}


def test_kueues_one_domain_is_told():
    stage = Stage()
    stage.schedule([*gang("a", 1, PODSETS), *gang("b", 1, PODSETS)])
    assert any("share one domain" in each.detail for each in stage.told if each.word is EventReason.WISH_NOT_KEPT)
