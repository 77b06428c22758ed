"""The state that a coordinator begins with, the record of a round, and the bounds of both."""

from dataclasses import fields

import pytest

from tests.launcher.rendezvous.story import Story, member
from turnout.launcher.coordinator_messages import LastWorld
from turnout.launcher.model import ElasticSpec, Reason, RestartBudget, RoundRecord
from turnout.launcher.rendezvous.arbiter import (
    MOST_BYTES,
    MOST_ROUND,
    BadRecord,
    ClaimReason,
    ClaimVerdict,
    HeldRound,
    next_round,
    seal,
    unseal,
)
from turnout.launcher.rendezvous.find_coordinator import Search, next_lap
from turnout.launcher.rendezvous.restore.restore_plan import RestorePoint
from turnout.launcher.rendezvous.state import (
    HandoverState,
    HangState,
    JobFacts,
    Joined,
    Lost,
    MemberState,
    Phase,
    State,
    StepDown,
    Unanswered,
    could_grow_by,
)
from turnout.launcher.rendezvous.state_machine import begin, succeed

TERMS = ElasticSpec(2, 4, last_call_s=30.0)
NOTHING = {
    "has_arbiter": False, "sole_coordinator": False, "granted": 0, "regroup_s": 2.0, "alone_s": 10.0, "roam_s": 10.0,
    "phase": Phase.GATHERING, "round": 0, "base": 0, "base_size": 0, "retry_s": 0.0, "fence_s": 15.0, "fenced_s": 0.0,
    "ended": 0, "before": 0, "asked_s": 0.0, "searches": None, "sought_s": 0.0, "unfenced": False, "logged_s": -1e9,
    "ask_s": 0.0, "endpoint_s": 0.0,
    "unreported": 0, "stored_step": None, "persist_step": -1, "world": None, "members": {}, "names": {},
    "done": frozenset(),
    "budget": RestartBudget(), "expected": 0, "call_s": 0.0, "worker_count": 0, "since_s": 0.0, "joined_s": 0.0,
    "reason": Reason.FIRST_ROUND, "detail": "", "fault": "", "lost": False, "chosen": (), "stop_step": None,
    "confirmed": False, "until_s": 0.0, "exit": None, "checking": None, "hanging": HangState(), "handover": None,
    "rings": (),
}  # fmt: skip


PARTS = ("job", "cause", "fencing", "gathering", "claiming", "ending", "checkpoints")


def known_of(state):
    told = {field.name: getattr(state, field.name) for field in fields(state)}
    for part in (told.pop(name) for name in PARTS):
        told |= {field.name: getattr(part, field.name) for field in fields(part)}
    return {name: value for name, value in told.items() if name not in ("member", "run", "elastic_spec")}


def test_of_a_job_that_nobody_has_begun_nothing_is_known():
    assert known_of(State(JobFacts(member("a"), "job", TERMS))) == NOTHING


@pytest.mark.parametrize(
    ("more", "differs"),
    [
        pytest.param({}, {"expected": 4}, id="as many as there can be are waited for"),
        pytest.param({"worker_count": 3}, {"expected": 3, "worker_count": 3}, id="or as many as are wanted"),
        pytest.param(
            {"granted": 5}, {"expected": 4, "has_arbiter": True, "granted": 5, "round": 5}, id="a round was granted"
        ),
        pytest.param({"granted": 0}, {"expected": 4, "has_arbiter": True}, id="an arbiter has granted none yet"),
        pytest.param({"sole_coordinator": True}, {"expected": 4, "sole_coordinator": True}, id="nobody may succeed us"),
    ],
)
def test_a_job_begins(more, differs):
    begun = dict.fromkeys(("since_s", "joined_s", "asked_s"), 7.0)
    assert known_of(begin(member("a"), "job", TERMS, 7.0, **more)) == NOTHING | begun | {"call_s": 30.0} | differs


@pytest.mark.parametrize(
    ("base", "more", "differs"),
    [
        pytest.param(LastWorld(), {}, {}, id="there was no world: it is the first coordinator's turn again"),
        pytest.param(LastWorld(), {"before": 8}, {"before": 8, "fenced_s": 22.0}, id="a holder of it may live"),
        pytest.param(
            LastWorld(4, 3, True),
            {"before": 4, "fenced_s": 60.0},
            {"before": 4, "fenced_s": 60.0},
            id="and is known to live for longer",
        ),
        pytest.param(
            LastWorld(4, 3, True), {}, {"fenced_s": 22.0}, id="of a world all but the coordinator are waited for"
        ),
        pytest.param(
            LastWorld(4, 3, True), {"handed_over": True}, {"fenced_s": 22.0, "expected": 3}, id="all, after a handover"
        ),
        pytest.param(LastWorld(4, 1, True), {}, {"fenced_s": 22.0, "expected": 1}, id="one at the least"),
        pytest.param(LastWorld(), {"sought_s": 0.0}, {"searches": False}, id="whom all search for stays where it is"),
        pytest.param(LastWorld(), {"sought_s": 0.5}, {"searches": True, "sought_s": 0.5}, id="another one searches on"),
    ],
)
def test_a_job_goes_on_without_its_coordinator(base, more, differs):
    state = begin(member("a"), "job", TERMS, 7.0)
    world = (
        {
            "base": base.round,
            "base_size": base.size,
            "round": base.round,
            "expected": 2,
            "call_s": 2.0,
            "reason": Reason.COORDINATOR_LOST,
        }
        if base.round
        else {}
    )
    found = known_of(succeed(state, base, RestartBudget(1, 2), **more))
    assert found == known_of(state) | world | {"budget": RestartBudget(1, 2)} | differs


def test_the_number_of_the_next_round_is_above_any_that_was_granted():
    state = begin(member("a"), "job", TERMS, 0.0, granted=9)
    assert succeed(state, LastWorld(4, 3, True), RestartBudget()).round == 9
    assert succeed(state, LastWorld(12, 3, True), RestartBudget()).round == 12


@pytest.mark.parametrize(
    ("unsaid", "said"),
    [
        pytest.param(
            MemberState(member("a"), LastWorld()),
            MemberState(member("a"), LastWorld(), 0, None, -1, None, (), None, 0.0),
            id="a member trains nothing, and stays",
        ),
        pytest.param(HandoverState(), HandoverState(frozenset(), 0.0), id="nobody takes anything"),
        pytest.param(
            Joined(member("a"), TERMS),
            Joined(member("a"), TERMS, LastWorld(), RestartBudget(), 0, (), 0.0),
            id="who comes brings nothing along",
        ),
        pytest.param(Lost("a/0"), Lost("a/0", Reason.MEMBER_LOST), id="a connection has closed"),
        pytest.param(Unanswered(3), Unanswered(3, ""), id="nobody knows why"),
        pytest.param(
            StepDown(RoundRecord("job", 1, "a/0")),
            StepDown(RoundRecord("job", 1, "a/0"), False, 0),
            id="he who decides knows it",
        ),
        pytest.param(RestorePoint(), RestorePoint(-1, 0, False, {}, 0, {}), id="nothing is taken from memory"),
        pytest.param(
            ClaimVerdict(True, ClaimReason.MINE),
            ClaimVerdict(True, ClaimReason.MINE, 0.0),
            id="it need not be looked at again",
        ),
        pytest.param(HeldRound(None, "", 0.0), HeldRound(None, "", 0.0, 0), id="no round was granted to anybody"),
        pytest.param(
            Search("a", None, False, False, 60.0),
            Search(
                "a",
                None,
                False,
                False,
                60.0,
                LastWorld(),
                None,
                (),
                None,
                frozenset(),
                frozenset(),
                False,
                0,
                0.0,
                False,
                False,
            ),
            id="a search begins",
        ),
    ],
)
def test_where_nobody_says_otherwise(unsaid, said):
    assert unsaid == said


# What is written of a round.

WHOLE = RoundRecord("job", 0, "a/0", "10.0.0.1", 0)


@pytest.mark.parametrize(
    "bound", [{"round": 0}, {"round": 1}, {"round": MOST_ROUND}, {"port": 0}, {"port": 65_535}], ids=str
)
def test_the_last_record_that_is_written(bound):
    record = RoundRecord(**{"run": "job", "round": 7, "coordinator": "a/0", "port": 9} | bound)
    assert unseal(seal(record)) == record


@pytest.mark.parametrize("bound", [{"round": -1}, {"round": MOST_ROUND + 1}, {"port": -1}, {"port": 65_536}], ids=str)
def test_the_first_record_that_is_not(bound):
    with pytest.raises(BadRecord):
        seal(RoundRecord(**{"run": "job", "round": 7, "coordinator": "a/0", "port": 9} | bound))


def test_as_many_bytes_as_a_record_may_have_are_read():
    assert unseal(seal(WHOLE).ljust(MOST_BYTES)) == WHOLE
    with pytest.raises(BadRecord, match=f"at most {MOST_BYTES}"):
        unseal(seal(WHOLE).ljust(MOST_BYTES + 1))


def test_a_record_that_was_never_renewed_is_its_first_beat():
    assert seal(WHOLE) == seal(WHOLE, beat=0) != seal(WHOLE, beat=1)


def test_the_next_round_is_one_above_all_that_is_known():
    assert next_round(HeldRound(None, "", 0.0)) == 1
    assert next_round(HeldRound(WHOLE, "", 0.0, newest=4), known=2) == 5
    assert next_round(HeldRound(None, "", 0.0, newest=2), known=4) == 5


def test_pauses_cease_to_grow():
    """Sixteen doublings are enough, and the number of laps is not a number of megabytes."""
    seek = Search("a", None, False, False, 60.0)
    for _ in range(40):
        seek = next_lap(seek)
    assert seek.laps == 16


# Whom a running world may wait for.


@pytest.mark.parametrize(
    ("now_s", "id_", "waits"),
    [
        pytest.param(0.0, "c/0", True, id="a newcomer that still imports"),
        pytest.param(10.0, "c/0", False, id="one that has imported by now"),
        pytest.param(0.0, "a/0", False, id="not a seat of the world"),
        pytest.param(0.0, "d/0", False, id="not a stranger"),
    ],
)
def test_whom_a_running_world_may_wait_for(now_s, id_, waits):
    story = Story("1:4", last_call_s=0.0).join("a", "b").join("c", importing_s=10.0)
    assert story.world == "ab"
    assert could_grow_by(story.state, id_, now_s) is waits


def test_a_world_that_does_not_train_waits_for_nobody_to_import():
    story = Story("3:4").join("a").join("c", importing_s=10.0)
    assert (story.phase, could_grow_by(story.state, "c/0", 0.0)) == ("gathering", False)
    stopped = Story("1:4", last_call_s=0.0).join("a", "b").join("c", importing_s=10.0).fail("a")
    assert (stopped.phase, could_grow_by(stopped.state, "c/0", 0.0)) == ("stopping", False)
