"""Whom a member's keeper is told of: the first, and its buddies for each number of copies."""

from __future__ import annotations

import pytest

from tests.launcher.rendezvous.story import Formed, Story, member
from turnout.launcher.model import World
from turnout.launcher.rendezvous.circles import circles


def world(names, **more):
    return World.of(5, tuple(member(name, keeper=7, **more) for name in names))


def names_of(circle):
    return ["".join(door.name for door in doors) for doors in circle.buddies]


@pytest.mark.parametrize(("names", "of_a"), [
    pytest.param("ab", ["b"], id="of two the other one"),
    pytest.param("abc", ["b", "bc"], id="of three one, or both"),
    pytest.param("abcdef", ["d", "ce", "bde"], id="copies stand as far apart as they can, and are three at most"),
])  # fmt: skip
def test_buddies(names, of_a):
    found, _ = circles(world(names))
    assert names_of(found["a/0"]) == of_a
    assert {circle.first.name for circle in found.values()} == {"a"}
    assert {circle.size for circle in found.values()} == {len(names)}
    kept = [door.id for circle in found.values() for door in circle.buddies[0]]
    assert sorted(kept) == sorted(found), "each keeps as many as it gives"


def test_copies_stand_under_another_switch():
    under = {"a": ("x",), "b": ("x",), "c": ("y",), "d": ("y",)}
    there = World.of(1, tuple(member(name, keeper=7, path=path) for name, path in under.items()))
    for id_, circle in circles(there)[0].items():
        assert under[circle.buddies[0][0].name] != under[id_[0]]


@pytest.mark.parametrize("there", [
    pytest.param(world("a"), id="who is alone has no buddy"),
    pytest.param(World.of(1, (member("a", keeper=7), member("b"))), id="a keeper that others cannot reach"),
    pytest.param(World(1), id="nobody"),
])  # fmt: skip
def test_no_circle(there):
    assert circles(there) == ({}, ())


def test_a_replacement_keeps_for_whom_its_forerunner_kept():
    """Ids are new; no other copy moves. Sorted anew, some would."""
    paths = {name: ("s", f"h{at // 2}") for at, name in enumerate("abcdef")}

    def there(names):
        return World.of(1, tuple(member(name, keeper=7, path=paths.get(name, ("s", "h1"))) for name in names))

    _, rings = circles(there("abcdef"))
    found, after = circles(there("abxdef"), rings)
    renamed = {id_.replace("c/", "x/"): [each.replace("c/", "x/") for each in kept] for id_, kept in rings[0].items()}
    assert {id_: [*kept] for id_, kept in after[0].items()} == renamed
    assert {id_: [door.id for door in circle.buddies[0]] for id_, circle in found.items()} == renamed


def test_it_is_told_in_each_round():
    job = Story("4", only=True).join("a", "b", "c", "d", keeper=7)
    before = {name: names_of(job.last(name, Formed).circle) for name in "abcd"}
    job.lose("b").ready("acd")
    job.join("b", incarnation=1, keeper=7)
    assert {name: names_of(job.last(name, Formed).circle) for name in "abcd"} == before


def test_it_comes_with_the_world():
    job = Story("2", only=True).join("a", "b", keeper=7)
    assert [names_of(job.last(name, Formed).circle) for name in "ab"] == [["b"], ["a"]]
