"""Which step a world goes on from in memory, by what its members have told of theirs, and who fetches it from whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.launcher.rendezvous.story import (
    NO_BASE,
    Claim,
    Formed,
    Joined,
    LastWorld,
    MessageSent,
    Ready,
    RestartBudget,
    Story,
    Succeeded,
    member,
)
from turnout.launcher.coordinator_messages import ALL, FETCH_DISABLED, DaemonEndpoint, HeldStep, Reached, StopAt
from turnout.launcher.model import World
from turnout.launcher.rendezvous.restore.restore_plan import choose_restore as choice_of
from turnout.launcher.rendezvous.restore.restore_plan import ranks_in, runs_of

A, B, C = (0, 2), (1, 2), (0, 3)  # the first rank, and of how many


def world(names="ab", processes=1):
    """Each member has so many ranks, in this order."""
    return World.of(5, tuple(member(name, processes=processes) for name in names))


def hold(*steps, place=A, round_=4, count=0):
    """count: of ranks, where they are kept for others."""
    return tuple(HeldStep(step, *place, round_, count) for step in steps)


def restorable(steps_by_member, memory, members=None):
    return choice_of(steps_by_member, memory, members).step


@pytest.mark.contract("DL-108")
@pytest.mark.parametrize(("memory", "step"), [
    pytest.param({"a": hold(7, 6), "b": hold(7, 6, place=B)}, 7, id="the newest that both have"),
    pytest.param({"a": hold(7, 6), "b": hold(6, 5, place=B)}, 6, id="one was a save ahead"),
    pytest.param({"a": hold(7, 6), "b": hold(5, 4, place=B)}, -1, id="nothing that both have"),
    pytest.param({"a": hold(7), "b": ()}, -1, id="one has nothing"),
    pytest.param({"a": hold(7)}, -1, id="one has told nothing"),
    pytest.param({}, -1, id="nobody has told anything"),
    pytest.param({"a": hold(7, place=B), "b": hold(7, place=A)}, -1, id="the ranks are the other's now"),
    pytest.param({"a": hold(7, place=C), "b": hold(7, place=(1, 3))}, -1, id="of a world of another size"),
    pytest.param({"a": hold(7), "b": hold(7, place=B, round_=3)}, -1, id="two rounds made two states of one step"),
    pytest.param({"a": hold(7) + hold(6, round_=3), "b": hold(7, 6, place=B, round_=3)}, 6, id="of an older round"),
    pytest.param({"a": hold(9, place=(0, ALL)), "b": hold(9, place=(0, ALL))}, 9, id="the same state for all"),
    pytest.param({"a": hold(9, place=(0, ALL)), "b": ()}, -1, id="which one of them does not have"),
    pytest.param({"a": hold(7), "b": hold(7, place=B), "c": hold(1)}, 7, id="who is not in the world does not count"),
])  # fmt: skip
def test_what_is_restored(memory, step):
    """DL-108: what another rank has saved is no memory of ours."""
    assert restorable(world(), {f"{name}/0": each for name, each in memory.items()}) == step


def test_each_has_several_ranks():
    memory = {"a/0": hold(3, place=(0, 4)), "b/0": hold(3, place=(2, 4))}
    assert restorable(world(processes=2), memory) == 3
    assert restorable(world(processes=2), memory | {"b/0": hold(3, place=(1, 4))}) == -1


def test_a_world_of_nobody_has_nothing():
    assert restorable(World(1), {}) == -1


def fetches(memory, names="ab", processes=1, more=""):
    """The step that is gone on from, and who fetches from whom. more: members that are not in this world."""
    members_by_id = {f"{name}/0": member(name, processes=processes, daemon_port=7) for name in names + more}
    found = choice_of(world(names, processes), {f"{name}/0": each for name, each in memory.items()}, members_by_id)
    return found.step, {
        id_[0]: [endpoint.name for endpoint in endpoints] for id_, endpoints in found.fetch_from.items()
    }


B_AT = {"place": B, "count": 1}


@pytest.mark.contract("DL-60")
@pytest.mark.parametrize(("memory", "found"), [
    pytest.param({"a": hold(7, 6), "b": hold(7, 6, place=B)}, (7, {}), id="its own comes first"),
    pytest.param({"a": hold(7) + hold(7, **B_AT)}, (7, {"b": ["a"]}), id="b has lost its memory, a keeps a copy"),
    pytest.param({"a": hold(9, 7) + hold(7, **B_AT)}, (7, {"b": ["a"]}), id="the copy is older than what a has"),
    pytest.param({"a": hold(9, 7) + hold(8, **B_AT)}, (-1, {}), id="a has no step of which it keeps a copy"),
    pytest.param({"a": hold(7) + hold(7, round_=3, **B_AT)}, (-1, {}), id="a copy of another round's state"),
    pytest.param({"a": hold(7) + hold(7, place=C, count=1)}, (-1, {}), id="a copy of a world of another size"),
    pytest.param(
        {"a": hold(7, 6) + hold(6, **B_AT), "b": hold(6, place=B)}, (6, {}), id="own memory is as new as the copy"
    ),
    pytest.param(
        {"a": hold(7, 6) + hold(7, **B_AT), "b": hold(6, place=B)}, (7, {"b": ["a"]}), id="a newer copy than its own"
    ),
    pytest.param({"a": hold(7, place=B), "b": hold(7)}, (7, {"a": ["b"], "b": ["a"]}), id="the ranks are the other's"),
    pytest.param(
        {"a": hold(7) + hold(7, **B_AT), "b": (FETCH_DISABLED,)}, (-1, {}), id="who could not fetch does not try again"
    ),
    pytest.param(
        {"a": hold(7) + hold(7, **B_AT), "b": (FETCH_DISABLED, *hold(7, place=B))}, (7, {}), id="but has its own"
    ),
    pytest.param({"a": hold(9, place=(0, ALL))}, (-1, {}), id="perhaps the same on all ranks: nobody says so"),
    pytest.param(
        {"a": hold(9, place=(0, ALL)) + hold(9, place=(0, ALL), count=1)}, (9, {"b": ["a"]}), id="the same on all ranks"
    ),
])  # fmt: skip
def test_what_a_member_lacks_it_fetches(memory, found):
    """DL-60: from the memory of who keeps a copy, or of who has those ranks as its own."""
    assert fetches(memory) == found


def test_a_spare_gives_what_it_keeps():
    assert fetches({"a": hold(7), "s": hold(7, **B_AT)}, more="s") == (7, {"b": ["s"]})


def test_a_seat_of_several_ranks_is_fetched_whole_or_not():
    theirs = {"place": (2, 4)}
    assert fetches({"a": hold(3, place=(0, 4)) + hold(3, **theirs, count=2)}, processes=2) == (
        3,
        {"b": ["a"]},
    )
    assert fetches({"a": hold(3, place=(0, 4)) + hold(3, **theirs, count=1)}, processes=2) == (-1, {})


def test_several_that_lack_it_ask_several():
    memory = {name: hold(5, place=(at, ALL)) + hold(5, place=(0, ALL), count=1) for at, name in enumerate("ab")}
    step, sources = fetches(memory, names="abcd")
    assert step == 5
    assert [first for first, *_ in sources.values()] == ["a", "b"]
    assert all(sorted(endpoints) == ["a", "b"] for endpoints in sources.values())


def test_a_member_without_an_endpoint_gives_nothing():
    memory = {"a/0": hold(7) + hold(7, **B_AT)}
    assert choice_of(world(), memory, {"a/0": member("a"), "b/0": member("b", daemon_port=7)}).step == -1


memories = st.lists(
    st.builds(HeldStep, st.integers(0, 5), st.integers(0, 2), st.integers(0, 3), st.integers(1, 3)), max_size=5
)


@given(each=st.fixed_dictionaries({f"{name}/0": memories for name in "abc"}))
def test_whatever_is_restored_everybody_holds_as_its_own(each):
    """One state of that step, each for its own ranks or the same for all; and there is no newer one."""
    found = world("abc")

    def own_steps(step):
        return any(
            all(
                any(
                    (mine.step, mine.round, mine.ranks) == (step, round_, ranks)
                    and (ranks == ALL or mine.first_rank == found.assignments[id_].first_rank)
                    for mine in each[id_]
                )
                for id_ in found.assignments
            )
            for round_ in range(1, 4)
            for ranks in (ALL, 3)
        )

    assert restorable(found, each) == max(filter(own_steps, range(6)), default=-1)


def parts(step, *ranks, of=4, round_=4, count=0):
    """Give parts that torch.distributed.checkpoint has saved: of these ranks, each of them apart."""
    return tuple(HeldStep(step, rank, of, round_, count, True) for rank in ranks)


def locations(memory, names="ab", more="", processes=1):
    """The step that is gone on from, by how many it was saved, and where each is told that shards lie."""
    members_by_id = {f"{name}/0": member(name, processes=processes, daemon_port=7) for name in names + more}
    found = choice_of(world(names, processes), {f"{name}/0": each for name, each in memory.items()}, members_by_id)
    assert not found.fetch_from
    assert not found.saved_by or not found.replicated
    where = {
        id_[0]: {(each.first_rank, each.endpoint.name) for each in places} for id_, places in found.locations.items()
    }
    return found.step, found.saved_by, where


ALONE = parts(7, 0) + parts(7, 1, 2, 3, count=1)


@pytest.mark.parametrize(("names", "memory", "found"), [
    pytest.param("a", {"a": ALONE}, (7, 4, {"a": set()}), id="one has all that four have saved"),
    pytest.param(
        "ab", {"a": ALONE}, (7, 4, {"a": set(), "b": {(rank, "a") for rank in range(4)}}), id="who joins has it sent"
    ),
    pytest.param(
        "ab", {"a": parts(7, 0, of=2), "b": parts(7, 1, of=2)}, (7, 0, {}), id="of the same size each has its own"
    ),
    pytest.param(
        "ab", {"a": parts(7, 0, of=3) + parts(7, 2, of=3, count=1), "b": parts(7, 1, of=3)},
        (7, 3, {"a": {(1, "b")}, "b": {(0, "a"), (2, "a")}}), id="each has some of it",
    ),
    pytest.param("ab", {"a": parts(7, 0, of=3), "b": parts(7, 1, of=3)}, (-1, 0, {}), id="one shard is nowhere"),
    pytest.param("a", {"a": hold(7, place=(0, 4))}, (-1, 0, {}), id="saved by four, and to be loaded by four alone"),
    pytest.param(
        "a", {"a": parts(7, 0, of=2) + hold(7, place=B, count=1)}, (-1, 0, {}), id="one is no part of such a save"
    ),
    pytest.param(
        "a", {"a": parts(7, 0, of=2) + parts(7, 1, of=2, count=1, round_=3)}, (-1, 0, {}), id="of two rounds' states"
    ),
    pytest.param("a", {"a": (FETCH_DISABLED, *ALONE)}, (7, 4, {"a": set()}), id="who could not fetch has all of it"),
    pytest.param("ab", {"a": ALONE, "b": (FETCH_DISABLED,)}, (-1, 0, {}), id="who could not fetch, and has nothing"),
    pytest.param(
        "a", {"a": parts(9, 0) + parts(7, 0, of=1)}, (7, 0, {}), id="a newer one is not whole"
    ),
])  # fmt: skip
def test_a_world_of_another_size_takes_parts(names, memory, found):
    """Each rank reads its parts of what another world has saved, wherever that lies."""
    assert locations(memory, names) == found


def test_a_spare_gives_parts_too():
    assert locations({"a": parts(7, 0, of=2), "s": parts(7, 1, of=2)}, "a", more="s") == (7, 2, {"a": {(1, "s")}})


def test_neighbours_begin_to_read_at_different_ends():
    """So that they do not all ask one daemon first."""
    memory = {"s/0": parts(7, 0, of=2), "t/0": parts(7, 1, of=2)}
    members_by_id = {id_: member(id_[0], daemon_port=7) for id_ in ("a/0", "b/0", "c/0", *memory)}
    found = choice_of(world("abc"), memory, members_by_id).locations
    ranks = {id_[0]: [each.first_rank for each in places] for id_, places in found.items()}
    assert ranks == {"a": [0, 1], "b": [1, 0], "c": [0, 1]}


def test_shards_are_listed_by_rank_and_of_one_rank_who_saved_it_first():
    replica_steps, saved = parts(7, 1, 0, of=2, count=1), parts(7, 1, of=2)
    others = parts(6, 0, of=2) + parts(7, 0, of=2, round_=3)
    members_by_id = {id_: member(id_[0], daemon_port=7) for id_ in ("a/0", "b/0")}
    runs = runs_of((7, 4, 2), {"a/0": replica_steps + others, "b/0": saved, "gone/0": saved}, members_by_id)
    assert [(run.first_rank, run.count, run.id, run.own) for run in runs] == [
        (0, 1, "a/0", False),
        (1, 1, "b/0", True),
        (1, 1, "a/0", False),
    ]
    assert ranks_in(runs) == {0, 1}


def test_workers_of_several_processes_where_those_were_of_one():
    """Nobody has the seats of before, so that nothing could be fetched whole: parts can be taken all the same."""
    memory = {"a": parts(7, 0, 1, of=4, count=1), "b": parts(7, 2, 3, of=4, count=1)}
    step, saved_by, where = locations(memory, processes=2)
    assert (step, saved_by) == (7, 4)
    assert where == {"a": {(2, "b"), (3, "b")}, "b": {(0, "a"), (1, "a")}}


def test_a_member_without_an_endpoint_has_shards_for_itself_alone():
    memory = {"a/0": ALONE}
    assert choice_of(world("a"), memory, {"a/0": member("a")}).saved_by == 4
    assert choice_of(world("ab"), memory, {"a/0": member("a"), "b/0": member("b", daemon_port=7)}).step == -1


def test_more_places_than_can_be_told():
    """One keeps as many single shards as there may be places, and one more: all read storage."""
    for places, step in ((256, 7), (257, -1)):
        memory = {"a": parts(7, *range(places), of=places, count=1)}
        assert locations(memory, "ab")[0] == step


some_parts = st.lists(
    st.builds(HeldStep, st.integers(0, 3), st.integers(0, 3), st.integers(1, 4), st.just(1), st.just(1), st.booleans()),
    max_size=9,
).map(tuple)  # fmt: skip


@given(each=st.fixed_dictionaries({f"{name}/0": some_parts for name in "abs"}))
def test_every_rank_of_what_is_taken_in_parts_is_told_or_at_hand(each):
    members_by_id = {f"{name}/0": member(name, daemon_port=7) for name in "abs"}
    found = choice_of(world("ab"), each, members_by_id)
    if not found.saved_by:
        return
    state = (found.step, found.round, found.saved_by)

    def has(id_, rank):
        return any((mine.step, mine.round, mine.ranks, mine.first_rank) == (*state, rank) for mine in each[id_])

    for id_, places in found.locations.items():
        assert all(has(place.endpoint.id, place.first_rank) and place.endpoint.id != id_ for place in places)
        first_ranks = {place.first_rank for place in places}
        assert all(has(id_, rank) or rank in first_ranks for rank in range(found.saved_by))
    of_it = [mine for holds in each.values() for mine in holds if (mine.step, mine.round, mine.ranks) == state]
    assert all(mine.reshardable for mine in of_it)


def stopped(job):
    """A process of b fails; both have stopped theirs when they are told to."""
    job.fail("b")
    assert job.phase == "stopping"


def answers(job, memory):
    """Each says that it has stopped, and what it holds; then the next world is formed."""
    for name, holds in memory.items():
        job.happens(MessageSent(job.ids[name], Ready(job.state.round, 1, (), holds)))
    return {name: job.last(name, Formed).restore_step for name in memory}


def comes(*holds, succeeds=None, granted=None):
    """All that the one who comes hears of its world: it was killed, and its memory was left."""
    job = Story("1:2", granted=granted, base=NO_BASE if succeeds else None, succeeds=succeeds, begins_s=100.0)
    job.happens(Joined(member("a"), job.terms, NO_BASE, RestartBudget(), 1, tuple(holds))).wait(60.0)
    if granted is not None and job.of(Claim):
        job.grant()
    return job.last("a", Formed)


@pytest.mark.parametrize(("before", "look"), [
    pytest.param(4, False, id="it was there in the last round that the arbiter knows"),
    pytest.param(5, True, id="the others had a later one"),
    pytest.param(0, True, id="the arbiter knows of none"),
])  # fmt: skip
def test_an_arbiter_tells_whether_others_have_trained_on_since(before, look):
    """Then storage may have a newer step than memory has: hack.chaos, seed 6."""
    message = comes(
        *hold(7, place=(0, ALL)), granted=before + 1, succeeds={"granted_before": before} if before else None
    )
    assert (message.restore_step, message.saved_round, message.check_storage) == (7, 4, look)


def test_without_an_arbiter_nobody_knows_so_storage_is_looked_at():
    assert comes(*hold(7, place=(0, ALL))).check_storage


def test_who_holds_nothing_reads_storage_anyway():
    assert (comes().restore_step, comes().check_storage) == (-1, False)


@pytest.mark.parametrize(("round_", "look"), [
    pytest.param(1, False, id="of the round that was lost: nothing is looked at"),
    pytest.param(0, True, id="of one before it: nothing was saved since"),
])  # fmt: skip
def test_what_is_held_of_the_last_round_is_taken_at_once(round_, look):
    job = Story("2", only=True).join("a", "b")
    stopped(job)
    answers(job, {"a": hold(8, round_=round_), "b": hold(8, place=B, round_=round_)})
    assert [(job.last(name, Formed).restore_step, job.last(name, Formed).check_storage) for name in "ab"] == [
        (8, look)
    ] * 2


def test_a_round_granted_since_counts_where_members_have_not_heard_of_it():
    """They were cut off, and come back after the others have ended."""
    job = Story("1:2", base=LastWorld(3, 2, True), granted=5, succeeds={"granted_before": 4}, begins_s=100.0)
    mine = hold(7, place=(0, ALL), round_=3)
    job.happens(Joined(member("a"), job.terms, LastWorld(3, 2, True), RestartBudget(), 1, mine)).wait(60.0)
    if job.of(Claim):
        job.grant()
    assert job.last("a", Formed).check_storage


def test_all_members_are_told_one_step():
    """The step travels with Ready, and comes back with Formed."""
    job = Story("2", only=True).join("a", "b")
    assert job.last("b", Formed).restore_step == -1, "nobody has trained yet"
    stopped(job)
    assert answers(job, {"a": hold(8, 7), "b": hold(7, 6, place=B)}) == {"a": 7, "b": 7}


def test_who_comes_back_brings_its_memory_along():
    """With its Join. The other has stopped by then, and has said what it holds."""
    job = Story("2", only=True).join("a", "b")
    job.lose("b")
    job.happens(MessageSent(job.ids["a"], Ready(job.state.round, 1, (), hold(8, 7))))
    newcomer = member("b", 1)
    job.ids["b"] = newcomer.id
    job.happens(Joined(newcomer, job.terms, NO_BASE, RestartBudget(), 0, hold(8, place=B)))
    assert (job.last("a", Formed).restore_step, job.last("b", Formed).restore_step) == (8, 8)


@pytest.mark.parametrize(("replica_steps", "restore"), [((), -1), (hold(7, **B_AT), 7)])
def test_who_comes_back_without_it_has_a_copy_or_all_read_storage(replica_steps, restore):
    job = Story("2", only=True).join("a", "b", daemon_port=9)
    job.lose("b")
    job.happens(MessageSent(job.ids["a"], Ready(job.state.round, 1, (), hold(8, 7) + replica_steps)))
    newcomer = member("b", 1, daemon_port=9)
    job.ids["b"] = newcomer.id
    job.happens(Joined(newcomer, job.terms, NO_BASE, RestartBudget(), 0))
    formed = job.last("a", Formed), job.last("b", Formed)
    assert [each.restore_step for each in formed] == [restore, restore]
    assert [each.saved_round for each in formed] == [4, 4] if replica_steps else [0, 0]
    assert formed[0].fetch_from == ()
    assert formed[1].fetch_from == ((DaemonEndpoint("a/0", "a", "127.0.0.1", 9),) if replica_steps else ())


def test_what_was_told_of_one_round_is_not_believed_in_the_next():
    """Between two failures each says anew what it holds: the newest Ready counts."""
    job = Story("2", only=True).join("a", "b")
    stopped(job)
    answers(job, {"a": hold(8), "b": hold(8, place=B)})
    stopped(job)
    assert answers(job, {"a": hold(9, 8), "b": ()}) == {"a": -1, "b": -1}


def test_who_stops_for_another_world_brings_what_it_saved_last():
    """Not what it held when its round began: hack.chaos, seed 2."""
    job = Story("1:2", only=True).join("a", daemon_port=9).wait(60)
    job.reach("a", 3).join("b", daemon_port=9)
    job.say("a", Reached(job.round, job.last("a", StopAt).step))
    assert job.last("a") == StopAt(1, job.state.ending.stop_step, True)
    job.happens(
        MessageSent(
            job.ids["a"],
            Succeeded(job.state.round, hold(8, place=(0, ALL)) + hold(8, place=(0, ALL), count=1)),
        )
    )
    formed = job.last("a", Formed), job.last("b", Formed)
    assert [each.restore_step for each in formed] == [8, 8]
    assert [len(each.fetch_from) for each in formed] == [0, 1]
