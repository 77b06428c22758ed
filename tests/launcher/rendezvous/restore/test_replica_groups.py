"""Replica groups that a member's daemon is told of: the first, and its replica holders for each number of copies."""

from __future__ import annotations

import pytest

from tests.launcher.rendezvous.story import Formed, Story, member
from turnout.launcher.model import World
from turnout.launcher.rendezvous.restore.replica_placement import replica_groups


def world(names, **more):
    return World.of(5, tuple(member(name, daemon_port=7, **more) for name in names))


def names_of(replica_group):
    return ["".join(endpoint.name for endpoint in endpoints) for endpoints in replica_group.replica_holders]


@pytest.mark.parametrize(("names", "of_a"), [
    pytest.param("ab", ["b"], id="of two the other one"),
    pytest.param("abc", ["b", "bc"], id="of three one, or both"),
    pytest.param("abcdef", ["d", "ce", "bde"], id="copies stand as far apart as they can, and are three at most"),
])  # fmt: skip
def test_buddies(names, of_a):
    found, _ = replica_groups(world(names))
    assert names_of(found["a/0"]) == of_a
    assert {replica_group.first.name for replica_group in found.values()} == {"a"}
    assert {replica_group.size for replica_group in found.values()} == {len(names)}
    owners = [endpoint.id for replica_group in found.values() for endpoint in replica_group.replica_holders[0]]
    assert sorted(owners) == sorted(found), "each keeps as many as it gives"


def test_copies_stand_under_another_switch():
    under = {"a": ("x",), "b": ("x",), "c": ("y",), "d": ("y",)}
    world = World.of(1, tuple(member(name, daemon_port=7, path=path) for name, path in under.items()))
    for id_, replica_group in replica_groups(world)[0].items():
        assert under[replica_group.replica_holders[0][0].name] != under[id_[0]]


@pytest.mark.parametrize("world_of_test", [
    pytest.param(world("a"), id="who is alone has no replica holder"),
    pytest.param(World.of(1, (member("a", daemon_port=7), member("b"))), id="a daemon that others cannot reach"),
    pytest.param(World(1), id="nobody"),
])  # fmt: skip
def test_no_circle(world_of_test):
    assert replica_groups(world_of_test) == ({}, ())


def test_a_replacement_keeps_for_whom_its_forerunner_kept():
    """Ids are new; no other copy moves. Sorted anew, some would."""
    paths = {name: ("s", f"h{at // 2}") for at, name in enumerate("abcdef")}

    def world_of(names):
        return World.of(1, tuple(member(name, daemon_port=7, path=paths.get(name, ("s", "h1"))) for name in names))

    _, rings = replica_groups(world_of("abcdef"))
    found, after = replica_groups(world_of("abxdef"), rings)
    renamed = {
        id_.replace("c/", "x/"): [each.replace("c/", "x/") for each in holders] for id_, holders in rings[0].items()
    }
    assert {id_: [*holders] for id_, holders in after[0].items()} == renamed
    assert {
        id_: [endpoint.id for endpoint in replica_group.replica_holders[0]] for id_, replica_group in found.items()
    } == renamed


def test_it_is_told_in_each_round():
    job = Story("4", only=True).join("a", "b", "c", "d", daemon_port=7)
    before = {name: names_of(job.last(name, Formed).replica_group) for name in "abcd"}
    job.lose("b").ready("acd")
    job.join("b", incarnation=1, daemon_port=7)
    assert {name: names_of(job.last(name, Formed).replica_group) for name in "abcd"} == before


def test_it_comes_with_the_world():
    job = Story("2", only=True).join("a", "b", daemon_port=7)
    assert [names_of(job.last(name, Formed).replica_group) for name in "ab"] == [["b"], ["a"]]
