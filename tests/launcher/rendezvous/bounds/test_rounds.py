"""Rounds at their bounds: to the second in time, to the member in number, and each word that is told of them."""

import pytest

from tests.launcher.rendezvous.story import Story, member, replace, running
from turnout.launcher.coordinator_messages import (
    Finish,
    Heartbeat,
    HeldStep,
    Hung,
    LastWorld,
    Reached,
    Ready,
    Stop,
    StoredStepReport,
    Succeeded,
    Waiting,
)
from turnout.launcher.model import Reason
from turnout.launcher.rendezvous.state import Claim, Joined, Lost, MessageSent, Phase, StepDown, Unanswered, Wake
from turnout.launcher.rendezvous.state_machine import step


def waiting_entries(story):
    return [fields for _, fields in story.events("round_waits")]


def test_who_is_missing_is_told_every_ten_seconds():
    story = Story("3", begins_s=100.0).join("a").wait(9.9)
    assert len(waiting_entries(story)) == 1
    assert [fields["waited_s"] for fields in waiting_entries(story.wait(0.1))] == [0.0, 10.0]


def test_what_is_told_of_those_who_are_missing():
    story = Story("2:4", last_call_s=30.0, worker_count=3, join_timeout_s=60.0).wait(5.00049)
    assert waiting_entries(story) == [{
        "members": 0, "wanted": 3, "missing": [], "at": "127.0.0.1:0", "gives_up_in_s": 55, "waited_s": 5.0,
    }]  # fmt: skip
    story = Story("2:3", worker_count=9).join("a")
    assert waiting_entries(story)[0]["wanted"] == 3, "no more than the max"


def test_of_many_who_are_missing_the_first_are_told():
    names = "abcdefghijklmnopqrst"
    story = running(names, str(len(names)), only=True).lose(names[1:]).ready("a")
    assert waiting_entries(story)[-1]["missing"] == list(names[1:17])
    assert waiting_entries(story.wait(60.0))[-1]["wanted"] == 20
    assert waiting_entries(story)[-1]["gives_up_in_s"] == 540


def test_a_search_that_began_before_we_led_counts_for_the_time_to_join():
    story = (
        Story("2", succeeds={"search_began_s": 40.0}, base=LastWorld(), begins_s=90.0, join_timeout_s=60.0)
        .join("a")
        .wait(9.9)
    )
    assert story.last("a", Finish) is None
    assert story.wait(0.2).last("a", Finish).reason == "join_timeout"


def test_what_is_told_of_a_world_that_is_formed():
    story = Story("2").wait(3.00049).join("a", processes=2, address="10.0.0.1").join("b", processes=2)
    ((reason, fields),) = story.events("world_formed")
    assert reason == "first_round"
    assert fields == {
        "round": 1, "members": 2, "ranks": 4, "waited_s": 3.0, "detail": "", "restarts": 0, "crossings": 0,
        "excess": 0, "moved": 0, "anew": fields["anew"], "ips": fields["ips"],
    }  # fmt: skip
    assert "10.0.0.1" in str(fields["ips"])


def test_in_a_formed_world_each_member_trains_and_nobody_has_told_a_step():
    story = running("abc", "2").reach("ab", 7)
    seats = {id_: (known.base, known.busy, known.step) for id_, known in story.state.members.items()}
    assert seats == {
        "a/0": (LastWorld(1, 2, True), 1, 7),
        "b/0": (LastWorld(1, 2, True), 1, 7),
        "c/0": (LastWorld(1, 2, False), 0, -1),
    }
    story.fail("a").ready("ab")
    assert [known.step for known in story.state.members.values()] == [-1] * 3
    gathering = story.state.gathering
    assert (
        story.state.checkpoints.persist_step,
        gathering.expected,
        gathering.last_call_s,
        gathering.search_began_s,
    ) == (
        -1,
        0,
        0.0,
        0.0,
    )


def until_s(coordinator, names="ab", search_period_s=10.0):
    """When it looks for another coordinator."""
    story = Story(
        "9", base=LastWorld(), succeeds={"search_began_s": 1.0}, begins_s=100.0, last_call_s=0.0, join_timeout_s=1e6
    )
    job = story.state.job
    story.state = replace(
        story.state, job=replace(job, member=replace(job.member, id=coordinator), search_period_s=search_period_s)
    )
    story.join(*names)
    return story, story.of(Wake)[-1].at_s


def test_the_more_members_it_has_the_later_one_too_small_searches():
    """Twice the time of a search lies between the first and the last of any crowd of coordinators."""
    after_s = [until_s(f"worker-{number}/0")[1] - 100.0 for number in range(40)]
    assert all(30.0 <= each <= 50.0 for each in after_s)
    assert min(after_s) < 32.0
    assert max(after_s) > 48.0
    assert until_s("a/0", "abc")[1] - until_s("a/0", "ab")[1] == pytest.approx(10.0)
    assert until_s("a/0", search_period_s=1.0)[1] - 100.0 == pytest.approx((until_s("a/0")[1] - 100.0) / 10)


@pytest.mark.parametrize(
    ("succeeds", "before", "after"),
    [
        pytest.param({}, None, None, id="never, unless it has searched itself"),
        pytest.param({"search_began_s": 0.0}, False, True, id="whom all search for: not before its first world"),
        pytest.param({"search_began_s": 1.0}, True, True, id="who has searched"),
    ],
)
def test_who_has_everybody_search(succeeds, before, after):
    story = Story("3:4", base=LastWorld(), succeeds=succeeds, last_call_s=0.0)
    assert story.state.gathering.may_search is before
    story.join(*"abcd")
    assert (story.world, story.state.gathering.may_search) == ("abcd", after)
    story.lose("cd").ready("ab").wait(300.0)
    assert bool(story.of(StepDown)) is bool(after)


def test_a_search_begins_when_its_time_has_come():
    story, at_s = until_s("z/0")
    story.wait(at_s - 100.0 - 0.001)
    assert not story.of(StepDown)
    story.now_s = at_s
    assert story.wait(0.0).of(StepDown)[0].to.round == story.state.round


@pytest.mark.parametrize(
    ("after_s", "claims"), [pytest.param(10.0, [], id="for ten seconds"), pytest.param(10.001, [6], id="and no longer")]
)
def test_a_grant_is_fresh(after_s, claims):
    story = Story("2", granted=5).join("a").wait(after_s).join("b")
    assert [claim.record.round for claim in story.of(Claim)] == claims
    late = running(granted=1).fail("a").ready("abc")
    late.now_s += after_s
    assert late.grant().phase == ("claiming" if claims else "training")


def test_a_grant_of_the_first_round_of_all_is_used():
    assert Story("1", granted=1).join("a").round == 1
    assert Story("1", granted=0).join("a").of(Claim)[0].record.round == 1


def test_once_the_arbiter_has_granted_it_may_be_out_of_reach_again():
    story = running(granted=1).fail("a").ready("abc").grant()
    assert not story.state.claiming.grant_expired
    story.lose("c").ready("ab").happens(Unanswered(story.state.round))
    assert story.world == "ab"


def test_a_handover_names_its_successor_and_its_round():
    story = running().leave("a").ready("abc")
    assert story.events("handed_over") == [("member_left", {"to": "b/0", "round": 2})]
    assert len(story.of(StepDown)) == 1


# Who comes, and with what.


def test_who_comes_busy_with_another_round_ends_it_at_once():
    story = running("ab", "2").join("c", base=LastWorld(9, 4, True, True))
    assert story.last("c", Stop) == Stop(9, "first_round", 0.0)


@pytest.mark.parametrize(
    ("theirs", "size"),
    [
        pytest.param(LastWorld(7, 3, True), 3, id="of one world the smaller size: it knows who has left"),
        pytest.param(LastWorld(7, 5, True), 4, id="not the larger one"),
        pytest.param(LastWorld(8, 5, True), 5, id="of a newer world its own size"),
        pytest.param(LastWorld(6, 2, True), 4, id="of an older one nothing"),
        pytest.param(LastWorld(8, 9, False), 4, id="nor of one that it was not in"),
    ],
)
def test_how_large_the_last_world_was_is_known_by_those_who_come(theirs, size):
    story = Story("1:9", base=LastWorld(7, 4, True)).join("b", base=theirs)
    assert story.state.fencing.newest_size == size
    assert story.state.fencing.newest_round == (8 if theirs == LastWorld(8, 5, True) else 7)


@pytest.mark.parametrize(
    ("round_", "phase"),
    [
        pytest.param(1, "claiming", id="of an older round"),
        pytest.param(2, "claiming", id="of the one that we ask for: it would not take it"),
    ],
)
def test_who_comes_while_a_round_is_claimed(round_, phase):
    story = running(granted=1).fail("a").ready("abc").join("d", base=LastWorld(round_, 3, False))
    assert story.phase == phase
    assert [claim.record.round for claim in story.of(Claim)] == ([2] if round_ == 1 else [2, 3])


def test_who_comes_wants_as_many_only_before_the_first_world():
    assert Story("1:4").join("a", worker_count=2).state.gathering.expected == 2
    assert running("a", "1:4").join("b", worker_count=3).state.gathering.expected == 0
    assert Story("1:4").join("a", worker_count=2).join("b").state.gathering.worker_count == 2, (
        "who wants nothing changes nothing"
    )


def test_a_name_is_one_members_at_a_time():
    story = running("ab", "2").join("b", incarnation=1)
    assert ([*story.state.members], story.state.names["b"]) == (["a/0", "b/1"], "b/1")
    story.join("b", incarnation=1)
    assert [*story.state.members] == ["a/0", "b/1"], "the same one has only a new connection"


@pytest.mark.parametrize(
    ("importing_s", "ready_s"), [pytest.param(0.0, 0.0, id="nothing"), pytest.param(6.0, 11.0, id="six seconds")]
)
def test_for_how_long_a_newcomer_imports(importing_s, ready_s):
    story = running("a").wait(5.0).join("b", importing_s=importing_s)
    assert story.state.members["b/0"].ready_s == ready_s


def test_a_newcomer_whose_time_is_up_has_nothing_more_to_say_of_it():
    story = running("a", "1:4").join("b", importing_s=5.0).wait(4.9).imported("b")
    assert len(story.events("member_ready")) == 1
    assert running("a", "1:4").join("b", importing_s=5.0).wait(5.0).imported("b").events("member_ready") == []


def test_one_that_has_left_in_peace_is_not_of_the_last_world():
    story = running("abc").leave("bc").ready("abc").lose("b")
    assert (story.state.fencing.newest_size, story.lose("c").state.fencing.newest_size) == (2, 1)
    assert running("abc").leave("b").lose("b").state.fencing.newest_size == 3, "its processes may run on"


def test_who_trains_and_is_lost_may_train_on_for_as_long_as_the_fence():
    assert running("ab").wait(3.0).lose("b").state.fencing.old_world_until_s == 18.0
    assert running("ab", "2").join("c").wait(3.0).lose("c").state.fencing.old_world_until_s == 0.0, "a spare does not"


@pytest.mark.parametrize(
    ("what", "reasons"),
    [
        pytest.param(lambda s: s.happens(Lost("b/0", Reason.MEMBER_SILENT)), ["member_silent"], id="it fell silent"),
        pytest.param(lambda s: s.leave("b").happens(Lost("b/0", Reason.MEMBER_SILENT)),
                     ["member_left", "member_silent"], id="it was to leave, and fell silent while it trained"),
        pytest.param(lambda s: s.join("d").lose("d"), [], id="a spare is lost"),
    ],
)  # fmt: skip
def test_why_a_round_ends(what, reasons):
    story = what(running("ab", "1:2").reach("ab", 5))
    assert [reason for reason, _ in story.events("round_ended")] == reasons


@pytest.mark.parametrize(
    ("what", "ended"),
    [
        pytest.param(lambda s: s.say("b", Ready(1, 1)), 1, id="it says that it has stopped"),
        pytest.param(lambda s: s.succeed("b").lose("b"), 1, id="it is done, and gone"),
        pytest.param(lambda s: s.say("b", Ready(0, 1)), 0, id="a word of an older round"),
    ],
)
def test_a_world_one_of_whose_seats_has_ended_never_trains_again(what, ended):
    assert what(running("ab", "1:2", only=True)).state.fencing.ended_round == ended


def test_who_has_ended_says_what_its_memory_holds_and_trains_no_more():
    holds = (HeldStep(5, 0, 1, 1),)
    story = running("ab", "2").say("b", Succeeded(1, holds))
    known = story.state.members["b/0"]
    assert (known.busy, known.held_steps, story.state.ending.done) == (0, holds, {"b/0"})
    story = running("ab", "2").fail("a").say("b", Succeeded(1, holds))
    assert (story.state.members["b/0"].busy, story.state.ending.done, story.state.fencing.ended_round) == (
        0,
        frozenset(),
        1,
    )


@pytest.mark.parametrize(
    "message", [Succeeded(7), Reached(7, 5), StoredStepReport(7, "/c", 5), Hung(7, 0, "it stands")], ids=type
)
def test_what_is_said_of_another_round_changes_nothing(message):
    story = running("ab", "2")
    before = story.state
    assert story.say("b", message).state == before


def test_a_coordinator_goes_five_seconds_after_farewell_or_once_alone():
    story = running("a", "1").succeed("a")
    assert story.phase == "over"
    story = running("ab", "2").succeed("ab").wait(4.999)
    assert story.phase == "finishing"
    assert story.wait(0.001).phase == "over"


def test_one_that_comes_again_is_told_whom_it_waits_for():
    story = running("ab", "2").join("c")
    second_state, effects = step(story.state, Joined(member("c"), story.terms), 1.0)
    assert second_state.phase is Phase.TRAINING
    assert [effect.message.reason for effect in effects if isinstance(getattr(effect, "message", None), Waiting)] == [
        "spare"
    ]


def test_who_says_something_and_is_not_there_says_nothing():
    story = running("ab", "2")
    assert step(story.state, MessageSent("z/0", Heartbeat(5)), 1.0) == (
        replace(story.state, members={**story.state.members}),
        (),
    )
