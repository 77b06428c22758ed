"""A world that is there: who comes late, who is lost, who is replaced; and that it never changes itself."""

import pytest

from tests.launcher.rendezvous.story import Story, member
from turnout.launcher.coordinator_messages import Formed, Heartbeat, LastWorld, Reached, Ready, Stop, StopAt, Waiting
from turnout.launcher.rendezvous.state import Disconnect, Joined, Wake

PATIENCE_S = 120.0  # for as long a newcomer may say that it imports


def running(nnodes, names, **more):
    """A job whose world is these."""
    story = Story(nnodes, **{"last_call_s": 0.0, **more}).join(*names)
    assert story.world == names
    return story


@pytest.mark.parametrize(
    ("nnodes", "more", "members", "come", "after_s", "phase"),
    [
        pytest.param("1:2", {}, "ab", "c", 600, "training", id="the world is full: who comes late waits"),
        pytest.param("1:4", {"node_unit": 2}, "ab", "c", 600, "training", id="not a whole unit: it waits"),
        pytest.param(
            "1:4", {"node_unit": 2}, "ab", "cd", 0, "stopping", id="a whole unit, and the max: it grows at once"
        ),
        pytest.param("1:4", {}, "ab", "c", 0, "training", id="more may come: it settles first"),
        pytest.param("1:4", {}, "ab", "c", 1, "stopping", id="it has settled"),
        pytest.param("1:3", {}, "ab", "c", 0, "stopping", id="the max is reached: nobody else can come"),
    ],
)
def test_who_comes_late_ends_no_world_unless_it_can_grow(nnodes, more, members, come, after_s, phase):
    story = running(nnodes, members, **more).join(*come).wait(after_s)
    assert story.phase == phase
    if phase == "training":
        assert story.last(come[0], Waiting).reason == "spare"
        assert story.last(members[0]).round == 1


def test_a_world_grows_to_the_wanted_size_at_once_and_by_whole_units_only():
    story = Story("1:8", last_call_s=0.0, node_unit=2, worker_count=2).join("a", "b")
    story.join("c", worker_count=4)
    assert story.phase == "training"
    story.join("d", worker_count=4).ready("ab")
    assert (story.world, story.round) == ("abcd", 2)
    assert story.last("c", Formed).reason == "member_joined"


@pytest.mark.parametrize("joined_s", [1.0, 30.0])
def test_somebody_looks_again_when_the_world_has_settled(joined_s):
    story = running("1:4", "ab").wait(joined_s).join("c")
    assert story.of(Wake)[-1].at_s == joined_s + 1.0


@pytest.mark.parametrize(
    ("nnodes", "unit", "members", "lost", "world"),
    [
        pytest.param("1:4", 1, "abcd", "d", "abc", id="the world shrinks at once"),
        pytest.param("1:4", 1, "abcd", "cd", "ab", id="by two at once"),
        pytest.param("2:4", 2, "abcd", "d", "ab", id="by a whole unit"),
        pytest.param("2", 1, "ab", "b", "", id="a fixed size waits for a replacement"),
        pytest.param("3:4", 1, "abcd", "cd", "", id="below the min it waits"),
        pytest.param("3:4", 2, "abcd", "d", "", id="below the min as the unit makes it"),
    ],
)
def test_a_member_is_lost(nnodes, unit, members, lost, world):
    story = running(nnodes, members, node_unit=unit, granted=1).lose(lost)
    stayed = [name for name in members if name not in lost]
    assert all(story.last(name) == Stop(1, "member_lost", 30.0) for name in stayed)
    story.ready(stayed)
    if story.phase == "claiming":
        story.grant()
    assert story.world == world
    assert [reason for reason, _ in story.events("round_ended")] == ["member_lost"]


def test_the_next_world_begins_when_nobody_trains_any_more():
    story = running("1:4", "abcd").lose("d").ready("ab")
    assert story.phase == "stopping"
    assert story.ready("c").world == "abc"


def test_a_replacement_fills_the_place_that_was_lost():
    story = running("2", "ab", granted=1).lose("b").ready("a")
    assert story.phase == "gathering"
    story.join("b", incarnation=1).grant()
    assert (story.world, story.round) == ("ab", 2)


def test_a_replacement_before_the_loss_is_seen_takes_the_name_over():
    story = running("2", "ab", granted=1).join("b", incarnation=1)
    assert [drop.id for drop in story.of(Disconnect)] == ["b/0"]
    assert story.phase == "stopping"
    story.ready("a").grant()
    assert set(story.state.world.assignments) == {"a/0", "b/1"}


def test_a_short_job_regroups_for_a_moment_and_no_longer_than_it_settles():
    story = running("2:4", "abcd", granted=1).lose("bcd").ready("a").join("e")
    assert story.phase == "gathering"
    assert story.wait(1.0).phase == "claiming"
    assert story.grant().world == "ae"


@pytest.mark.parametrize(
    ("before", "spares", "lost", "world"),
    [
        pytest.param("ab", "c", "b", "ac", id="a spare steps in at once"),
        pytest.param("bc", "ad", "c", "ab", id="the oldest spare, and after a member of the last world"),
    ],
)
def test_a_spare_takes_the_place_of_a_lost_member(before, spares, lost, world):
    story = running("2", before, granted=1).join(*spares).lose(lost)
    assert story.ready([name for name in before if name != lost]).grant().world == world


@pytest.mark.parametrize(
    ("base", "phase"),
    [
        pytest.param(LastWorld(1, 2, True, True), "training", id="its processes still run: nothing has happened"),
        pytest.param(LastWorld(1, 2, True, False), "stopping", id="it has ended them: its world is over"),
        pytest.param(LastWorld(), "stopping", id="the round never reached it"),
    ],
)
def test_a_member_comes_back_before_its_loss_was_seen(base, phase):
    story = running("2", "ab").join("b", base=base)
    assert story.phase == phase
    assert story.last("b", Waiting) is None


def test_a_member_that_says_its_processes_are_gone_ends_the_round():
    story = running("2", "ab").say("b", Ready(1, 5))
    assert story.phase == "stopping"
    assert story.ready("a").last("b", Formed).round == 2


def test_a_late_word_of_an_older_round_is_no_word():
    story = running("2", "ab").fail("b").ready("ab")
    assert story.round == 2
    story.say("a", Ready(1, 1)).fail("b", round_=1)
    assert (story.phase, story.state.budget.total) == ("training", 1)


def test_a_number_from_elsewhere_makes_nobody_deaf():
    """A spare that has heard of round 7 joins: what members of round 1 say is heard all the same."""
    story = running("2", "ab").join("c", base=LastWorld(7, 4, False, False))
    story.fail("b").ready("ab")
    assert (story.world, story.round, story.state.budget.total) == ("ab", 8, 1)


def test_who_comes_back_while_a_stop_step_is_agreed_hears_of_it():
    story = running("1:3", "abc").reach("abc", 10).leave("c")
    story.join("b", base=LastWorld(1, 3, True, True))
    assert story.last("b") == StopAt(1, 12, False)


def test_a_world_of_strangers_is_waited_out():
    """All of the old world are lost at once, and may train on until they miss us: the spares wait for that."""
    story = Story("2", only=True).join("b", "c").join("a", "d")
    assert story.world == "bc"
    story.lose("bc")
    assert (story.phase, story.wait(14.9).phase) == ("gathering", "gathering")
    assert story.wait(0.1).world == "ad"


# A world that trains grows by who can start processes; for who still imports what they need it goes on training.


def trains(nnodes="1:4", names="a", **more):
    """A job whose world is these, all of whom can start processes."""
    return running(nnodes, names, **more).reach(names, 10)


def grown(story):
    """The world has made the step after which it stops, and the next one is there."""
    assert story.phase == "draining"
    names = [each.name for each in story.state.world.members]
    return story.say(names, Reached(story.round, 10)).succeed(names)


def test_a_world_is_not_stopped_for_a_newcomer_that_still_imports():
    story = trains().join("b", importing_s=PATIENCE_S).wait(100.0)
    assert (story.phase, story.world) == ("training", "a")
    assert story.last("a", Stop, StopAt) is None
    message = story.last("b", Waiting)
    assert (message.reason, "imports" in message.detail) == ("spare", True)


@pytest.mark.parametrize(
    ("nnodes", "settles_s"),
    [
        pytest.param("1:2", 0.0, id="nobody else can come: at once"),
        pytest.param("1:4", 1.0, id="more may get ready: once it has settled"),
    ],
)
def test_it_grows_as_soon_as_the_newcomer_says_that_it_is_ready(nnodes, settles_s):
    story = trains(nnodes).join("b", importing_s=PATIENCE_S).wait(30.0).imported("b")
    assert [fields for _, fields in story.events("member_ready")] == [{"member": "b"}]
    if settles_s:
        assert story.phase == "training"
        assert story.of(Wake)[-1].at_s == 30.0 + settles_s
        story.wait(settles_s)
    assert story.last("a") == StopAt(1, 12, False)
    assert grown(story).world == "ab"


def test_what_it_says_while_it_imports_changes_nothing():
    story = trains("1:2").join("b", importing_s=PATIENCE_S)
    for left_s in (90.0, 60.0, 30.0):
        story.say("b", Heartbeat(importing_s=left_s))
    assert (story.phase, story.events("member_ready")) == ("training", [])


def test_two_newcomers_ready_while_the_world_settles_are_taken_at_once():
    story = trains().join("b", "c", importing_s=PATIENCE_S).wait(30.0).imported("b").wait(0.9).imported("c").wait(0.9)
    assert story.phase == "training"
    story.wait(0.1)
    assert grown(story).world == "abc"
    assert [reason for reason, _ in story.events("round_ended")] == ["member_joined"]


def test_who_is_ready_does_not_wait_for_one_that_still_imports():
    story = trains().join("b", "c", importing_s=PATIENCE_S).wait(30.0).imported("b").wait(1.0)
    assert grown(story).world == "ab"
    assert story.last("c", Waiting).round == story.round == 2
    story.reach("ab", 20).wait(30.0)
    assert story.phase == "training"
    story.imported("c").wait(1.0)
    assert grown(story).world == "abc"


def test_who_gets_ready_while_the_world_stops_is_taken_along():
    story = trains().join("b", "c", importing_s=PATIENCE_S).imported("b").wait(1.0).imported("c")
    assert grown(story).world == "abc"


def test_older_spares_that_import_give_way_to_younger_ones_that_are_ready():
    story = trains("1:2").join("b", importing_s=PATIENCE_S).join("c")
    assert grown(story).world == "ac"


def test_only_whole_units_of_those_who_are_ready_count():
    story = trains("2:6", "ab", node_unit=2).join("c", "d", "e", importing_s=PATIENCE_S).imported("c").wait(5.0)
    assert story.phase == "training"
    story.imported("e").wait(1.0)
    assert grown(story).world == "abce"


def test_a_newcomer_never_ready_counts_as_ready_after_the_time_it_named():
    story = trains().join("b", importing_s=PATIENCE_S)
    assert story.of(Wake)[-1].at_s == PATIENCE_S
    assert story.wait(PATIENCE_S).phase == "training"
    assert story.of(Wake)[-1].at_s == PATIENCE_S + 1.0, "it settles as ever"
    story.wait(1.0)
    assert grown(story).world == "ab"


def test_a_newcomer_that_says_nothing_of_imports_counts_as_ready():
    """An agent of an older version: a job of both grows as it did."""
    assert Joined(member("b"), trains().terms).importing_s == 0.0
    story = trains("1:2").join("b")
    assert story.last("b", Waiting).detail == ""
    assert grown(story).world == "ab"


def test_a_newcomer_that_goes_before_it_is_ready_has_cost_nothing():
    story = trains("1:2").join("b", importing_s=PATIENCE_S).lose("b").wait(PATIENCE_S)
    assert (story.phase, story.world) == ("training", "a")


def test_one_that_comes_back_has_what_is_left_of_its_time():
    story = trains("1:2").join("b", importing_s=10.0).wait(6.0).lose("b").join("b", importing_s=4.0).wait(3.9)
    assert story.phase == "training"
    assert grown(story.wait(0.1)).world == "ab"


@pytest.mark.parametrize(
    ("formed", "world"),
    [
        pytest.param(lambda: Story("2", last_call_s=0.0).join("a", "b", importing_s=PATIENCE_S), "ab", id="the first"),
        pytest.param(
            lambda: trains("2", "ab", granted=1).join("c", importing_s=PATIENCE_S).lose("b").ready("a").grant(),
            "ac",
            id="after a loss",
        ),
        pytest.param(
            lambda: trains("1:4", "ab").join("c", importing_s=PATIENCE_S).fail("b").ready("ab"),
            "abc",
            id="after a failure",
        ),
        pytest.param(
            lambda: trains("2:4", "ab", granted=1).join("c", "d", importing_s=PATIENCE_S).imported("c").wait(1.0)
            .lose("bc").ready("a").grant(),
            "ad",
            id="stopped to grow, and below the min without those that import",
        ),
    ],
)  # fmt: skip
def test_where_nobody_trains_a_world_does_not_wait_for_imports(formed, world):
    assert formed().world == world


def test_a_seat_that_still_imports_holds_nobody_up():
    """Such a member was in the first world before it had imported: that world grows by others all the same."""
    story = Story("1:2", last_call_s=0.0).join("a", importing_s=PATIENCE_S).reach("a", 10).join("b")
    assert story.phase == "draining"
    assert grown(story).last("b", Formed).group_size == 2
