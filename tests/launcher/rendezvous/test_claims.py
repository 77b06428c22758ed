"""The right to decide the next round: an arbiter's grant, more than half of the last world, or nothing else."""

import pytest

from tests.launcher.rendezvous.story import Story
from turnout.launcher.coordinator_messages import Finish, Formed, LastWorld, Stop
from turnout.launcher.model import RoundRecord
from turnout.launcher.rendezvous.state import Claim, Denied, Granted, GrantExpired, StepDown, Unanswered, Wake


def granted(names="abc", nnodes="1:3", **more):
    """A job with an arbiter, in its first round."""
    story = Story(nnodes, last_call_s=0.0, granted=1, **more).join(*names)
    assert (story.world, story.round, story.of(Claim)) == (names, 1, [])
    return story


def succeeded(names, size=4, nnodes="1:4", busy=False, **more):
    """A lost round 7 of so many, of whose members these come to a."""
    base = LastWorld(7, size, True, busy)
    return Story(nnodes, base=LastWorld(7, size, True), **more).join(*names, base=base).wait(2.0)


def test_the_round_granted_with_the_lead_is_used_once_and_others_claimed():
    story = granted().fail("a").ready("abc")
    record = story.of(Claim)[0].record
    assert (record.run, record.round, record.coordinator, record.budget.total) == ("job", 2, "a/0", 1)
    assert story.phase == "claiming"
    assert story.grant().world == "abc"


def test_a_grant_that_comes_late_is_asked_for_again():
    story = granted().fail("a").ready("abc")
    story.now_s += 11.0
    story.grant()
    assert [claim.record.round for claim in story.of(Claim)] == [2, 3]
    assert story.grant().round == 3


def test_a_grant_of_another_round_is_no_grant():
    story = granted().fail("a").ready("abc").happens(Granted(1))
    assert story.phase == "claiming"
    story = granted().happens(Granted(2))
    assert (story.phase, story.round) == ("training", 1)


@pytest.mark.parametrize("late", [Granted(1), Unanswered(1)], ids=["a grant", "no answer"])
def test_an_answer_that_nobody_waits_for_changes_nothing(late):
    story = granted()
    assert story.happens(late).phase == "training"
    assert len(story.events("world_formed")) == 1


@pytest.mark.parametrize(
    "meanwhile",
    [lambda s: s.lose("c"), lambda s: s.leave("c"), lambda s: s.join("c", base=LastWorld(9, 3, True))],
    ids=["one is lost", "one leaves", "one comes back from a newer round"],
)
def test_who_is_gone_before_the_grant_is_in_no_world(meanwhile):
    story = meanwhile(granted().fail("a").ready("abc"))
    first = story.of(Claim)[0].record.round
    story.grant()
    claims = [claim.record.round for claim in story.of(Claim)]
    assert len(claims) == 2
    assert claims[1] > first
    assert story.grant().round == claims[1]


@pytest.mark.parametrize("before", ["claiming", "training", "stopping", "gathering"])
def test_who_lost_the_job_ends_its_processes_and_redirects_all(before):
    story = granted()
    if before != "training":
        story.fail("a")
    if before in ("claiming", "gathering"):
        story.ready("abc")
    if before == "gathering":
        story.happens(Unanswered(2), GrantExpired(), Unanswered(3))
    holder = RoundRecord("job", 9, "z/0", "10.0.0.9", 29400)
    story.happens(Denied(holder))
    down = story.of(StepDown)[0]
    assert (story.phase, down.to, down.handover) == ("over", holder, False)
    if before in ("training", "stopping"):
        assert [story.last(name) for name in "abc"] == [Stop(1, "round_lost", 0.0)] * 3
    assert story.join("d").last("d") is None


def test_without_an_answer_more_than_half_of_the_last_world_goes_on():
    story = granted().lose("c").ready("ab").happens(Unanswered(2))
    assert (story.world, story.round) == ("ab", 2)


def test_without_an_answer_half_of_it_asks_again():
    story = granted("ab", "1:2").lose("b").ready("a").happens(Unanswered(2))
    assert (story.phase, story.of(Wake)[-1].at_s) == ("gathering", 1.0)
    assert story.wait(1.0).of(Claim)[-1].record.round == 3
    assert story.grant().world == "a"


def test_the_first_world_needs_an_answer():
    story = Story("1", granted=1).wait(60.0).join("a").happens(Unanswered(2))
    assert story.phase == "gathering"


def test_too_long_without_the_arbiter_the_world_stops_until_a_grant():
    story = granted().happens(GrantExpired())
    assert [story.last(name).reason for name in "abc"] == ["no_arbiter"] * 3
    story.ready("abc").happens(Unanswered(2))
    assert (story.phase, story.world) == ("gathering", "")
    story.wait(1.0).grant()
    assert story.world == "abc"


@pytest.mark.parametrize(
    ("names", "size", "more", "world"),
    [
        pytest.param("abc", 4, {}, "abc", id="three of four"),
        pytest.param("ab", 4, {}, "", id="two of four: the others may train"),
        pytest.param("ab", 3, {}, "ab", id="two of three"),
        pytest.param("a", 2, {}, "", id="one of two"),
        pytest.param("a", 1, {}, "a", id="the one and only"),
    ],
)
def test_without_arbiter_the_next_world_holds_over_half_of_the_last(names, size, more, world):
    assert succeeded(names, size, **more).world == world


def test_strangers_make_no_majority_but_fill_it_up():
    story = succeeded("ab").join("c", "d").wait(2.0)
    assert story.world == ""
    story = succeeded("abc").ready("abc").join("d").wait(2.0).ready("abc")
    assert story.world == "abcd"


@pytest.mark.parametrize(
    ("nnodes", "names", "lost", "comes", "world"),
    [
        pytest.param("2", "ab", "b", {"b": {}}, "ab", id="the other of two"),
        pytest.param("3", "abc", "bc", {"b": {}, "c": {}}, "abc", id="two of three"),
        pytest.param("3:4", "abcd", "cd", {"c": {}}, "abc", id="one of two that an elastic job has lost"),
        pytest.param("2", "ab", "b", {"c": {}}, "", id="a stranger takes nobody's place"),
        pytest.param("2", "ab", "b", {"c": {"index": 1}}, "ac", id="unless it has the index of who is lost"),
        pytest.param("2", "ab", "b", {"c": {"base": LastWorld(1, 2, False)}}, "", id="nor does a spare"),
        pytest.param(
            "2", "ab", "b", {"c": {"base": LastWorld(1, 2, False)}, "b": {}}, "ab", id="but it stands in no way"
        ),
        pytest.param("2:4", "abcd", "cd", {"c": {}}, "", id="two worlds would fit into the job"),
    ],
)
def test_a_return_in_a_lost_members_place_counts_where_one_world_fits(nnodes, names, lost, comes, world):
    story = Story(nnodes, last_call_s=0.0)
    for at, name in enumerate(names):
        story.join(name, index=at)
    story.lose(lost).ready([name for name in names if name not in lost])
    for name, more in comes.items():
        story.join(name, incarnation=1, **more)
    story.wait(2.0)
    assert story.world == world


@pytest.mark.parametrize(
    ("names", "comes", "world"),
    [
        pytest.param("b", {"a": {}}, "ab", id="the first coordinator is back"),
        pytest.param("b", {"c": {"base": LastWorld(7, 2, False)}}, "", id="a spare of that world is not"),
        pytest.param(
            "", {"a": {}, "c": {"base": LastWorld(7, 2, False)}, "d": {}}, "", id="strangers with a spare are not"
        ),
    ],
)
def test_a_successor_takes_who_is_new_for_the_one_that_is_lost(names, comes, world):
    """The successor has not formed that world, and knows no names of it."""
    base = LastWorld(7, 2, True)
    story = Story("2", base=base if names else LastWorld(7, 2, False), last_call_s=0.0)
    if names:
        story.join(*names, base=base)
    for name, more in comes.items():
        story.join(name, incarnation=1, **more)
    assert story.wait(2.0).world == world


def test_the_minority_says_no_arbiter_and_ends():
    story = succeeded("ab").wait(7.9)
    assert story.phase == "gathering"
    message = story.wait(0.1).last("b", Finish)
    assert (message.exit, message.reason) == (1, "no_arbiter")
    assert message.detail.startswith("2 of the 4 workers of round 7 are left")


def test_where_nobody_may_succeed_half_of_the_world_is_enough():
    story = Story("1:2", last_call_s=0.0, only=True).join("a", "b").lose("b").ready("a")
    assert story.world == "a"


@pytest.mark.parametrize(
    ("names", "more", "after_s", "forms"),
    [
        pytest.param("abc", {"granted_before": 7}, 0, True, id="most of the last world"),
        pytest.param("ab", {"granted_before": 7}, 0, True, id="half of it: no other has more than half"),
        pytest.param("a", {"granted_before": 7}, 0, False, id="less: others may be one, and train until they miss us"),
        pytest.param("a", {"granted_before": 7}, 13, True, id="they have missed us"),
        pytest.param("abc", {"granted_before": 8}, 0, False, id="round 8 was granted, and nobody here was in it"),
        pytest.param("abc", {"granted_before": 8}, 13, True, id="whoever was in it has missed us"),
        pytest.param(
            "a", {"granted_before": 7, "old_world_until_s": 60.0}, 57, False, id="its holder may live, and train on"
        ),
        pytest.param(
            "a", {"granted_before": 7, "old_world_until_s": 60.0}, 58, True, id="its holder has stopped by itself"
        ),
    ],
)
def test_a_successor_with_a_grant_waits_for_those_who_may_still_train(names, more, after_s, forms):
    story = Story("1:4", base=LastWorld(7, 4, True), granted=9, succeeds=more).join(*names, base=LastWorld(7, 4, True))
    story.wait(2.0).wait(after_s)
    story = story.grant() if story.phase == "claiming" else story
    assert story.world == (names if forms else "")


def test_a_new_job_with_the_record_of_an_old_one_waits_for_the_old():
    story = Story("1", base=LastWorld(), granted=9, succeeds={"granted_before": 8}).join("a")
    assert (story.wait(14.9).phase, story.wait(0.1).phase) == ("gathering", "claiming")


def test_a_successor_forms_no_second_first_world_unless_two_do_not_fit():
    """The first coordinator may have formed a world of which nobody here was told."""
    more = {"base": LastWorld(), "succeeds": {"search_began_s": 1.0}, "last_call_s": 0.0}
    assert Story("1:4", **more).join(*"abc").world == ""
    assert Story("2:4", **more).join(*"abc").world == "", "two of the least fit exactly"
    assert Story("3:4", **more).join(*"abc").world == "abc"
    assert Story("3:4", only=True, **more).join(*"abc").world == ""
    assert Story("1:4", **(more | {"succeeds": {"search_began_s": 0.0}})).join(*"abc").world == "abc"


def test_too_few_without_arbiter_send_all_to_look_for_a_coordinator():
    """After a partition has healed two coordinators would wait for one another until the join timeout."""
    more = {"base": LastWorld(7, 4, True), "succeeds": {"search_began_s": 1.0}, "join_timeout_s": 100.0}
    story = Story("3:4", **more).join("a", "b", base=LastWorld(7, 4, True)).wait(29.9)
    assert story.of(StepDown) == []
    down = story.wait(20.0).of(StepDown)[0]
    assert (down.to.coordinator, down.to.port, story.phase) == ("", 0, "over")
    second_story = Story("3:4", **(more | {"begins_s": 95.0})).join("a", "b", base=LastWorld(7, 4, True))
    assert second_story.wait(6.0).last("a", Finish).reason == "join_timeout"


def test_the_round_follows_the_newest_that_anybody_knows():
    story = (
        Story("1:4", base=LastWorld(7, 2, True))
        .join("a", base=LastWorld(7, 2, True))
        .join("b", base=LastWorld(9, 2, True))
    )
    assert (story.state.fencing.newest_round, story.state.fencing.newest_size) == (9, 2)
    story = (
        Story("1:3", base=LastWorld(7, 3, True))
        .join("c", base=LastWorld(12, 9, False))
        .join("a", "b", base=LastWorld(7, 3, True))
    )
    assert story.wait(2.0).round == 13
    assert story.last("a", Formed).base == 7
