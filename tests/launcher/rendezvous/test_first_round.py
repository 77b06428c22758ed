"""The first world: whom it waits for, how large it is, who is left over, who is refused."""

import pytest

from tests.launcher.rendezvous.story import Story
from turnout.launcher.coordinator_messages import Finish, Formed, LastWorld, Refused, Waiting
from turnout.launcher.model import ElasticSpec
from turnout.launcher.rendezvous.state import Disconnect, Logged


@pytest.mark.parametrize(
    ("nnodes", "more", "worker_count", "come", "after_s", "world"),
    [
        pytest.param("2", {}, 0, "ab", 0, "ab", id="the max is there: no last call"),
        pytest.param("2", {}, 0, "a", 599, "", id="one of two waits"),
        pytest.param("2:4", {}, 0, "abc", 29, "", id="more may come: the last call lasts"),
        pytest.param("2:4", {}, 0, "abc", 30, "abc", id="the last call is over"),
        pytest.param("2:4", {}, 3, "abc", 0, "abc", id="the job has three workers now: no last call"),
        pytest.param("2:4", {}, 3, "ab", 1, "", id="the third of the job is worth waiting for"),
        pytest.param("2:4", {}, 3, "ab", 30, "ab", id="but not for ever"),
        pytest.param("2:4", {"last_call_s": 0}, 0, "ab", 0, "ab", id="no last call is wanted"),
        pytest.param("2:4", {}, 0, "abcdef", 0, "abcd", id="six came for four: the oldest four, at once"),
        pytest.param("1:4", {"node_unit": 2}, 0, "abc", 30, "ab", id="a whole multiple of the unit"),
        pytest.param(
            "1:4", {"node_unit": 2}, 0, "a", 30, "", id="DLRover (a): min 1, unit 2, one waits: no world of none"
        ),
        pytest.param(
            "3:4", {"node_unit": 2}, 0, "abc", 599, "", id="DLRover (b): min 3, unit 2, three wait: never two"
        ),
        pytest.param("3:4", {"node_unit": 2}, 0, "abcd", 0, "abcd", id="min 3, unit 2: the fourth makes it"),
        pytest.param("1:5", {"node_unit": 2}, 0, "abcde", 30, "abcd", id="max 5, unit 2: four and never five"),
    ],
)
def test_the_first_world(nnodes, more, worker_count, come, after_s, world):
    story = Story(nnodes, worker_count=worker_count, **more).join(*come).wait(after_s)
    assert story.world == world


def test_six_join_one_by_one_before_anyone_is_told_and_the_world_is_four():
    """DLRover (c): a world of six where the max is four."""
    story = Story("2:4")
    for name in "abcdef":
        story.join(name)
    assert (story.world, story.round) == ("abcd", 1)
    assert story.last("e", Waiting).reason == "spare"
    assert story.last("a", Formed).group_size == 4


def test_four_of_four_are_complete_and_two_early_ones_erase_nothing():
    """DLRover (d), pytorch's #1534.3: the third then found an empty world, and the next one could not complete."""
    story = Story("3:4").join(*"abcd")
    before = story.state.world
    story.join("e", "f").wait(600)
    assert story.state.world is before
    assert [len([m for m in story.told[name] if isinstance(m, Formed)]) for name in "abcd"] == [1, 1, 1, 1]
    assert isinstance(story.last("e"), Waiting)


@pytest.mark.parametrize("wanted_by", ["the first", "a later one"])
def test_the_wanted_number_may_come_with_any_worker(wanted_by):
    story = Story("1:4").join("a", worker_count=2 if wanted_by == "the first" else 0)
    assert story.phase == "gathering"
    assert story.join("b", worker_count=2).world == "ab"


def test_who_comes_again_and_again_does_not_put_off_the_last_call():
    story = Story("2:4").join("a", "b")
    for _ in range(5):
        story.wait(5).join("b")
    assert story.wait(5).world == "ab"


def test_each_has_its_own_place_and_all_have_the_same_master():
    story = Story("3").join("a", processes=2).join("b", "c", processes=4)
    places = {name: story.last(name, Formed) for name in "abc"}
    assert [(p.group_rank, p.first_rank, p.ranks, p.group_size) for p in places.values()] == [
        (0, 0, 10, 3), (1, 2, 10, 3), (2, 6, 10, 3),
    ]  # fmt: skip
    assert {(p.round, p.base, p.master_address, p.master_port) for p in places.values()} == {(1, 0, "127.0.0.1", 1)}
    assert [each.id for each in places["c"].successors] == ["a/0", "b/0", "c/0"]


def test_too_few_for_too_long_fails_and_names_who_was_there():
    story = Story("3", join_timeout_s=60).join("a", "b").wait(59.9)
    assert story.phase == "gathering"
    message = story.wait(0.1).last("b", Finish)
    assert (message.exit, message.reason) == (1, "join_timeout")
    assert "2 of at least 3 workers came within 60 s: a, b" in message.detail


@pytest.mark.parametrize(
    "theirs",
    [ElasticSpec(2, 3), ElasticSpec(1, 2), ElasticSpec(2, 2, node_unit=2)],
    ids=["another max", "another min", "another unit"],
)
def test_who_brings_other_terms_is_refused_and_changes_nothing(theirs):
    story = Story("2").join("a")
    story.join("b", terms=theirs)
    assert isinstance(story.last("b"), Refused)
    assert [drop.id for drop in story.of(Disconnect)] == ["b/0"]
    assert list(story.state.members) == ["a/0"]
    assert story.join("c").world == "ac"


def test_times_and_restarts_need_not_be_the_same():
    story = Story("2").join("a").join("b", terms=ElasticSpec(2, 2, max_restarts=9, last_call_s=1.0))
    assert story.world == "ab"


def test_who_leaves_before_the_first_round_is_let_go_and_not_counted():
    story = Story("2:3").join("a", "b").leave("b")
    assert story.last("b", Finish).exit == 143
    assert story.wait(30).phase == "gathering"
    assert story.join("c").wait(30).world == "ac"


def test_a_member_that_still_ends_an_old_round_is_waited_for():
    story = Story("1:2", base=LastWorld(4, 2, True, True)).join("a", base=LastWorld(4, 2, True, False))
    story.join("b", base=LastWorld(4, 2, True, True)).wait(100)
    assert (story.phase, story.last("b").round) == ("gathering", 4)
    assert story.ready("b").world == "ab"
    assert story.round == 5


def waiting_entries(story):
    """Give what is told of those who are missing, oldest first."""
    entries = [effect for effect in story.of(Logged) if effect.event == "round_waits"]
    return [(effect.reason.value, dict(effect.fields)) for effect in entries]


def test_who_is_missing_is_told_at_once_and_then_now_and_then():
    story = Story("3").join(*"abc")
    assert waiting_entries(story) == []
    story = Story("3").join("a")
    where = {"at": "127.0.0.1:0", "gives_up_in_s": 600}
    assert waiting_entries(story) == [
        ("last_call", {"waited_s": 0.0, "members": 1, "wanted": 3, "missing": [], **where})
    ]
    story.wait(5.0).join("b")
    assert len(waiting_entries(story)) == 1, "not at each knock"
    assert [fields["waited_s"] for _, fields in waiting_entries(story.wait(6.0))] == [0.0, 11.0]


def test_who_of_the_last_world_is_missing_is_told_by_name():
    story = Story("3").join(*"abc").lose("b").ready("ac")
    reason, fields = waiting_entries(story)[-1]
    assert (reason, fields["members"], fields["wanted"], fields["missing"]) == ("below_min", 2, 3, ["b"])
