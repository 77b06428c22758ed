"""Which step is restored, and from where: the newest that is whole, each shard by the rank that saved it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.checkpoint.holdings import Holding, Kind, restorable
from launcher.errors import BadCheckpoint

OWN, BUDDY, STORAGE = Kind.OWN, Kind.BUDDY, Kind.STORAGE


def own(rank, step, member=None, round=1, world=2, hashed=True):
    return Holding(step, round, rank, world, "ab"[rank] if member is None else member, OWN, hashed)


def buddy(rank, step, member, round=1, world=2, hashed=True):
    return Holding(step, round, rank, world, member, BUDDY, hashed)


def stored(step, round=1, world=2):
    return [Holding(step, round, rank, world, "", STORAGE) for rank in range(world)]


def short(plan):
    """(step, where each shard comes from) of a plan."""
    return plan and (plan.step, [place.member or "storage" for place in plan.places])


@pytest.mark.parametrize(
    ("holdings", "living", "expected"),
    [
        pytest.param([], "ab", None, id="nothing is held"),
        pytest.param([own(0, 10)], "ab", None, id="half a step is none"),
        pytest.param([own(0, 10), own(1, 20)], "ab", None, id="halves of two steps are none"),
        pytest.param([own(0, 10), own(1, 10, round=2)], "ab", None, id="halves from before and after a restart"),
        pytest.param([own(0, 10), own(1, 10, world=4)], "ab", None, id="halves of two worlds"),
        pytest.param([own(0, 10), own(1, 10)], "ab", (10, ["a", "b"]), id="everybody's own memory"),
        pytest.param([own(0, 10), own(1, 10)], "a", None, id="memory that died with its member is none"),
        pytest.param(
            [own(0, 10), own(1, 10), own(0, 20), own(1, 20)], "ab", (20, ["a", "b"]), id="the newest of two"
        ),
        pytest.param(
            [own(0, 10), own(1, 10), own(0, 20)], "ab", (10, ["a", "b"]), id="killed in mid-save: the step before"
        ),
        pytest.param(
            [own(0, 20), own(1, 20), buddy(1, 20, "a")], "a", (20, ["a", "a"]), id="a replica for one that is lost"
        ),
        pytest.param(
            [own(0, 20), own(1, 20), buddy(1, 20, "a"), *stored(10)], "ac", (20, ["a", "a"]),
            id="a newer replica before older storage",
        ),
        pytest.param(
            [own(0, 20), own(1, 20), *stored(10)], "a", (10, ["storage"] * 2), id="storage where no replica is"
        ),
        pytest.param([*stored(10)], "", (10, ["storage"] * 2), id="storage is there when nobody lives"),
        pytest.param(
            [own(0, 20), *stored(20), own(0, 10), own(1, 10)], "ab", (20, ["a", "storage"]),
            id="the newest step, though half of it is farther away",
        ),
        pytest.param(
            [own(0, 10), own(1, 10), *stored(30)], "ab", (30, ["storage"] * 2),
            id="the newest step, though all of it is farther away",
        ),
        pytest.param(
            [own(0, 10, round=3), own(1, 10, round=3), *stored(10)], "ab", (10, ["a", "b"]),
            id="of one step, what the newer round saved",
        ),
        pytest.param(
            [*stored(10, world=4), own(0, 10), own(1, 10)], "ab", (10, ["storage"] * 4),
            id="of one step and round, what the larger world saved",
        ),
        pytest.param(
            [own(0, 10, hashed=False), buddy(0, 10, "b"), own(1, 10)], "ab", (10, ["a", "b"]),
            id="own memory first, hashed or not",
        ),
        pytest.param(
            [buddy(0, 10, "b", hashed=False), buddy(0, 10, "c"), own(1, 10)], "bc", (10, ["c", "b"]),
            id="the hashed one of two replicas",
        ),
        pytest.param(
            [buddy(0, 10, "c"), buddy(0, 10, "b"), own(1, 10)], "bc", (10, ["b", "b"]),
            id="of two as near the first by name, so that all choose the same",
        ),
    ],
)  # fmt: skip
def test_what_is_restored(holdings, living, expected):
    assert short(restorable(holdings, living)) == expected


SWAPPED = {0: "b", 1: "a"}


@pytest.mark.parametrize(
    ("holdings", "seats", "expected"),
    [
        pytest.param(
            [own(0, 10), own(1, 10)], SWAPPED, ["a", "b"], id="ranks changed places: each reads the other's memory"
        ),
        pytest.param(
            [own(0, 10), own(1, 10), buddy(0, 10, "b"), buddy(1, 10, "a")], SWAPPED, ["b", "a"],
            id="each keeps the other's replica already: nothing has to move",
        ),
        pytest.param(
            [own(0, 10), own(1, 10), *stored(10)], {0: "c", 1: "b"}, ["a", "b"], id="another's memory before storage"
        ),
        pytest.param([own(0, 10), own(1, 10), buddy(0, 10, "b")], {}, ["a", "b"], id="nobody knows who runs what"),
    ],
)  # fmt: skip
def test_a_shard_goes_with_its_rank_and_never_with_the_member(holdings, seats, expected):
    """DL-108: with a map, recovery never gives a rank another rank's memory."""
    plan = restorable(holdings, "abc", seats)
    assert [place.rank for place in plan.places] == [0, 1]
    assert short(plan)[1] == expected


def told(*holdings, living="ab"):
    return restorable(holdings, living).told


def test_what_needs_no_fall_back_is_not_told():
    assert told(own(0, 10), own(1, 10)) == ()


def test_each_fall_back_is_told():
    assert told(own(0, 20), buddy(1, 20, "a")) == ("step 20: rank 1 comes from memory of others",)
    assert told(*stored(20)) == ("step 20: ranks 0, 1 come from storage",)
    assert told(own(0, 20, hashed=False), own(1, 20)) == (
        "step 20: rank 0 is unverified: sealed, and not hashed in time",
    )
    assert told(own(0, 30, round=2), *stored(20)) == (
        "step 30 of round 2 is passed over: rank 1 of 2 is nowhere",
        "step 20: ranks 0, 1 come from storage",
    )


def test_a_thousand_ranks_are_told_in_one_line():
    (line,) = restorable(stored(10, world=1_000), "").told
    assert line == "step 10: ranks 0, 1, 2, 3, 4, 5, 6, 7 and 992 more come from storage"


@pytest.mark.parametrize(
    "shard",
    [
        pytest.param((10, 1, 2, 2), id="a rank outside its world"),
        pytest.param((10, 1, -1, 2), id="a rank below none"),
        pytest.param((10, 1, 0, 0), id="a world of nobody"),
        pytest.param((-1, 1, 0, 1), id="a step below none"),
        pytest.param((10, -1, 0, 1), id="a round below none"),
    ],
)
def test_a_shard_that_cannot_be_is_not_held(shard):
    with pytest.raises(BadCheckpoint):
        Holding(*shard)


@st.composite
def scenes(draw):
    """Few steps, rounds, worlds and members, so that they meet; who lives; and who runs which rank from now on."""
    found = []
    for _ in range(draw(st.integers(0, 16))):
        world = draw(st.sampled_from([2, 2, 2, 1, 3]))
        kind = draw(st.sampled_from(Kind))
        member = "" if kind == STORAGE else draw(st.sampled_from("abcd"))
        rank = draw(st.integers(0, world - 1))
        hashed = kind == STORAGE or draw(st.booleans())
        step, round_ = draw(st.sampled_from([(10, 1), (10, 2), (20, 2)]))
        found.append(Holding(step, round_, rank, world, member, kind, hashed))
    living = draw(st.frozensets(st.sampled_from("abcd")))
    seats = draw(st.none() | st.dictionaries(st.integers(0, 2), st.sampled_from("abcd")))
    return found, living, seats


def brute(holdings, living, seats):
    """The rule restated: of every whole step the newest, and of every shard's copies the nearest."""
    there = [each for each in holdings if each.kind == STORAGE or each.member in living]
    wholes = []
    for step, round_, world in {(each.step, each.round, each.world) for each in there}:
        copies = [
            [each for each in there if (each.step, each.round, each.world, each.rank) == (step, round_, world, rank)]
            for rank in range(world)
        ]
        if all(copies):
            wholes.append(((step, round_, world), copies))
    if not wholes:
        return None
    _, copies = max(wholes, key=lambda whole: whole[0])
    places = []
    for rank, of_rank in enumerate(copies):
        here = [each for each in of_rank if seats and each.kind != STORAGE and seats.get(rank) == each.member]
        near = here or of_rank
        nearest = [each for each in near if each.kind == min(other.kind for other in near)]
        sure = [each for each in nearest if each.hashed] or nearest
        places.append(min(sure, key=lambda each: each.member))
    return places


@given(scenes())
def test_it_is_the_newest_whole_step_from_the_nearest_places(scene):
    plan, expected = restorable(*scene), brute(*scene)
    assert (plan and list(plan.places)) == expected


@given(scenes(), st.randoms(use_true_random=False))
def test_a_plan_is_whole_of_one_save_alive_and_the_same_whatever_the_order_told(scene, dice):
    holdings, living, seats = scene
    plan = restorable(holdings, living, seats)
    assert restorable(dice.sample(holdings * 2, len(holdings) * 2), living, seats) == plan
    if plan is None:
        return
    assert [place.rank for place in plan.places] == list(range(plan.world))
    assert {(place.step, place.round, place.world) for place in plan.places} == {(plan.step, plan.round, plan.world)}
    assert all(place in holdings and (place.kind == STORAGE or place.member in living) for place in plan.places)
    assert all(place.kind == OWN or any(str(place.rank) in line for line in plan.told) for place in plan.places)


@given(scenes(), st.sampled_from("abcd"))
def test_one_more_that_lives_never_makes_the_step_older(scene, member):
    holdings, living, seats = scene
    fewer, more = restorable(holdings, living, seats), restorable(holdings, {*living, member}, seats)
    assert fewer is None or (more.step, more.round, more.world) >= (fewer.step, fewer.round, fewer.world)
