"""The search of a member that has lost its coordinator, or never had one: the same order for everybody."""

from dataclasses import replace

import pytest

from tests.launcher.rendezvous.story import StepDown, Story
from turnout.launcher.coordinator_messages import LastWorld, Redirect, Successor
from turnout.launcher.rendezvous.find_coordinator import (
    AskArbiter,
    ConnectTo,
    GiveUp,
    Lead,
    Search,
    SearchLap,
    SearchPause,
    next_lap,
    next_move,
    record_arbiter,
    record_failure,
    record_other_holder,
    record_redirect,
)
from turnout.launcher.rendezvous.state import AskEndpoint, EndpointAnswered

HERE = {"w0": ("10.0.0.1", 1), "w1": ("10.0.0.2", 1), "w2": ("10.0.0.3", 1), "other": ("10.0.0.9", 9)}
ENDPOINT = ("w0.job", 29400)
LIST = tuple(Successor(name, *HERE[name]) for name in ("w0", "w1", "w2"))
BEFORE = LastWorld(3, 3, True)


def tour(seek, refuses=(), now_s=0.0, maximum=12):
    """Everything that is tried in one lap, each in vain. refuses: where the port is closed; others are silent."""
    moves = []
    while len(moves) < maximum:
        move = next_move(seek, now_s)
        moves.append(move)
        match move:
            case ConnectTo(to=to):
                seek = record_failure(seek, to, refused=to in refuses)
            case AskArbiter():
                seek = record_arbiter(seek, None)
            case _:
                return moves
    raise AssertionError(f"it never ends: {moves}")


def seeker(id_="w2", **more):
    return Search(id_, **{"endpoint": ENDPOINT, "host": False, "arbiter": False, "join_timeout_s": 600.0, **more})


def names(moves):
    where = {address: name for name, address in HERE.items()} | {ENDPOINT: "endpoint"}
    return [where[move.to] if isinstance(move, ConnectTo) else type(move).__name__ for move in moves]


@pytest.mark.parametrize(
    ("seek", "order"),
    [
        pytest.param(seeker(), ["endpoint", "SearchPause"], id="a new one asks the endpoint, again and again"),
        pytest.param(seeker(host=True), ["Lead"], id="whom the endpoint names begins"),
        pytest.param(
            seeker(arbiter=True), ["endpoint", "AskArbiter", "SearchPause"], id="a new one asks the record, too"
        ),
        pytest.param(seeker(host=True, arbiter=True), ["AskArbiter", "Lead"], id="the first looks before it leads"),
        pytest.param(
            seeker(endpoint=None, arbiter=True), ["AskArbiter", "SearchPause"], id="no endpoint: the record is all"
        ),
        pytest.param(
            seeker(base=BEFORE, last=HERE["w0"], successors=LIST),
            ["w0", "w1", "Lead"],
            id="back to where it was, then to the older ones, then it is its own turn",
        ),
        pytest.param(
            seeker("w3", base=BEFORE, last=HERE["w0"], successors=LIST, arbiter=True),
            ["w0", "w1", "w2", "AskArbiter", "endpoint", "SearchPause"],
            id="who is no successor tries all of them, then the record, then the endpoint",
        ),
        pytest.param(
            seeker(base=BEFORE, last=HERE["w0"], successors=LIST, hint=HERE["other"]),
            ["other", "w0", "w1", "Lead"],
            id="first of all where it was sent",
        ),
        pytest.param(
            seeker(base=BEFORE, successors=LIST, tries_all_addresses=True),
            ["w0", "w1", "endpoint", "Lead"],
            id="who has led with too few tries everybody else before it leads again",
        ),
        pytest.param(
            seeker("w0", base=BEFORE, successors=LIST, tries_all_addresses=True, host=True),
            ["w1", "w2", "Lead"],
            id="the oldest too",
        ),
        pytest.param(
            seeker(host=True, base=BEFORE, successors=LIST[:2]),
            ["w0", "w1", "SearchPause"],
            id="a host begins nothing twice",
        ),
    ],
)
def test_the_order_of_tries(seek, order):
    assert names(tour(seek)) == order


def test_where_nobody_listens_nobody_is_asked_twice_in_a_lap():
    seek = record_failure(seeker(base=BEFORE, last=HERE["w0"], successors=LIST), HERE["w0"], refused=True)
    assert names([next_move(seek, 0.0)]) == ["w1"]
    assert seek.lap.refused == {HERE["w0"]}
    assert record_failure(seek, HERE["w1"], refused=False).lap.silent == {HERE["w1"]}


def test_a_new_lap_tries_everybody_again_and_pauses_ever_longer():
    seek, pauses = seeker(), []
    for _ in range(6):
        pauses.append(next_move(record_failure(seek, ENDPOINT, refused=True), 0.0).for_s)
        seek = next_lap(record_failure(seek, ENDPOINT, refused=True))
        assert names([next_move(seek, 0.0)]) == ["endpoint"]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_new_lap_asks_the_record_again():
    seek = record_arbiter(seeker(endpoint=None, arbiter=True), None)
    assert names(tour(seek)) == ["SearchPause"]
    assert names(tour(next_lap(seek))) == ["AskArbiter", "SearchPause"]


def test_a_redirect_is_followed_and_to_the_dead_it_is_not():
    to = Redirect("x", *HERE["other"])
    seek = record_redirect(record_failure(seeker(), ENDPOINT, refused=False), to)
    assert names([next_move(seek, 0.0)]) == ["other"]
    seek = record_redirect(record_failure(seek, HERE["other"], refused=True), to)
    assert names(tour(seek)) == ["SearchPause"]


def test_two_who_send_to_one_another_are_each_asked_once_in_a_lap():
    seek = seeker()
    seek = record_redirect(record_failure(seek, ENDPOINT, refused=False), Redirect("x", *HERE["other"]))
    seek = record_redirect(record_failure(seek, HERE["other"], refused=False), Redirect("w0", *ENDPOINT))
    assert isinstance(next_move(seek, 0.0), SearchPause)


def test_a_redirect_to_nobody_changes_nothing():
    assert record_redirect(seeker(), Redirect("", "", 0)) == seeker()


def test_the_record_names_the_holder_unless_it_was_found_dead():
    seek = record_arbiter(seeker(endpoint=None, arbiter=True), HERE["other"])
    assert names([next_move(seek, 0.0)]) == ["other"]
    seek = record_arbiter(record_failure(seek, HERE["other"], refused=True), HERE["other"])
    assert names([next_move(seek, 0.0)]) == ["SearchPause"]


def test_who_may_not_lead_goes_to_the_holder_and_asks_everybody_again():
    seek = record_failure(seeker(base=BEFORE, arbiter=True, successors=LIST), HERE["w0"], refused=True)
    seek = record_other_holder(seek, HERE["other"])
    assert names(tour(seek)) == ["other", "w0", "w1", "Lead"]


def test_a_job_without_a_leader_is_left_to_the_successors_for_a_while():
    seek = replace(seeker(endpoint=None, arbiter=True), lap=SearchLap(1), since_s=100.0)
    assert names(tour(seek, now_s=103.0)) == ["AskArbiter", "SearchPause"]
    assert names(tour(seek, now_s=103.1)) == ["AskArbiter", "Lead"]
    assert names(tour(replace(seek, lap=SearchLap()), now_s=103.1)) == ["AskArbiter", "SearchPause"]
    assert names(tour(replace(seek, arbiter=False), now_s=500.0)) == ["SearchPause"]


@pytest.mark.parametrize(
    ("more", "where"),
    [({}, " at w0.job:29400"), ({"endpoint": None, "last": HERE["w1"]}, " at 10.0.0.2:1"), ({"endpoint": None}, "")],
    ids=["the endpoint", "where it was before", "nowhere"],
)
def test_a_search_ends(more, where):
    seek = seeker(since_s=10.0, join_timeout_s=60.0, **more)
    assert not isinstance(next_move(seek, 70.0), GiveUp)
    move = next_move(seek, 70.1)
    assert (move.reason.value, move.detail) == ("join_timeout", f"no coordinator was found{where} within 60 s")


def test_who_finds_that_it_is_its_own_turn_leads():
    seek = seeker("w0", base=BEFORE, last=HERE["w1"], successors=LIST)
    assert isinstance(next_move(record_failure(seek, HERE["w1"], refused=True), 0.0), Lead)


# A coordinator with too few members asks at the endpoint for another one, and goes there with all that it has.
BACK = EndpointAnswered("10.9.9.9", 29400)  # where no member of the story listens


def survivor(nnodes="2", base=None, ask_s=1.0, joins=True, **more):
    """Worker a, which has succeeded the lost coordinator of a world of two, and searched for one since second 10."""
    base = LastWorld(1, 2, True) if base is None else base
    story = Story(nnodes, base=base, begins_s=10.0, succeeds={"search_began_s": 10.0}, join_timeout_s=600.0, **more)
    story.state = replace(story.state, job=replace(story.state.job, ask_s=ask_s))
    return story.join("a", base=base) if joins else story


def asked_s(story, seconds):
    """Let time pass in quarters of a second; give when the endpoint was asked, in seconds since the begin."""
    found = []
    for quarter in range(1, round(seconds * 4) + 1):
        before = len(story.of(AskEndpoint))
        story.wait(0.25)
        found += [quarter / 4] * (len(story.of(AskEndpoint)) - before)
    return found


def test_below_min_the_endpoint_is_asked_each_second():
    assert asked_s(survivor(), 5.0) == [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("story", "why"),
    [
        pytest.param(lambda: survivor(ask_s=0.0), "it coordinates at the endpoint itself", id="at the endpoint"),
        pytest.param(lambda: survivor(granted=1), "the arbiter tells who coordinates", id="with an arbiter"),
        pytest.param(lambda: survivor().join("b", base=LastWorld(1, 2, True)), "a world trains", id="with enough"),
        pytest.param(lambda: survivor(only=True), "there is no other coordinator", id="the only one"),
    ],
)
def test_nothing_is_asked_where_nobody_else_may_coordinate(story, why):
    assert asked_s(story(), 5.0) == [], why


def test_who_was_led_astray_asks_less_often():
    assert asked_s(survivor(ask_s=4.0), 9.0) == [4.0, 8.0]


def test_a_coordinator_at_the_endpoint_is_joined_with_all_members():
    story = survivor("3", base=LastWorld(1, 3, True)).join("b", base=LastWorld(1, 3, True)).happens(BACK)
    (step_down,) = story.of(StepDown)
    assert (step_down.to.coordinator, step_down.to.address, step_down.to.port) == ("", "10.9.9.9", 29400)
    assert story.phase == "over"


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(lambda: survivor().join("b", base=LastWorld(1, 2, True)), id="a world trains by now"),
        pytest.param(lambda: survivor("3").join("c", address="10.9.9.9", port=29400), id="it is a member here"),
    ],
)
def test_an_answer_that_changes_nothing(story):
    assert story().happens(BACK).of(StepDown) == []


def test_who_hears_of_a_world_waits_for_its_members_not_for_the_last_call():
    """A new coordinator at the endpoint: the survivors of the last world come to it."""
    story = Story("2:3", succeeds={"search_began_s": 0.0}, base=LastWorld(), last_call_s=30.0).join("a").wait(1.0)
    assert story.join("b", base=LastWorld(1, 3, True)).world == ""
    assert story.wait(1.9).world == ""
    assert story.wait(0.2).world == "ab"
    story_of_world = (
        Story("2:3", succeeds={"search_began_s": 0.0}, base=LastWorld(), last_call_s=30.0).join("a").wait(1.0)
    )
    assert story_of_world.join("b", "c", base=LastWorld(1, 3, True)).world == "abc"


def test_pauses_cease_to_grow():
    seek = seeker()
    for _ in range(40):
        seek = next_lap(seek)
    assert next_lap(seek).lap == seek.lap
