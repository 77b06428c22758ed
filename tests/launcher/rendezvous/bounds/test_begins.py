"""The state that a coordinator begins with, the record of a round, and the bounds of both."""

from dataclasses import fields

import pytest

from tests.launcher.rendezvous.story import Story, member
from turnout.launcher.coordinator_messages import LastWorld
from turnout.launcher.model import ElasticSpec, Reason, RestartBudget
from turnout.launcher.rendezvous.state import JobFacts, State, could_grow_by
from turnout.launcher.rendezvous.state_machine import begin, replace_coordinator

TERMS = ElasticSpec(2, 4, last_call_s=30.0)
PARTS = ("job", "cause", "fencing", "gathering", "claiming", "ending", "checkpoints")


def known_of(state):
    fields_of_state = {field.name: getattr(state, field.name) for field in fields(state)}
    for part in (fields_of_state.pop(name) for name in PARTS):
        fields_of_state |= {field.name: getattr(part, field.name) for field in fields(part)}
    return {name: value for name, value in fields_of_state.items() if name not in ("member", "run", "elastic_spec")}


NOTHING = known_of(State(JobFacts(member("a"), "job", TERMS)))


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
    assert known_of(begin(member("a"), "job", TERMS, 7.0, **more)) == NOTHING | begun | {"last_call_s": 30.0} | differs


@pytest.mark.parametrize(
    ("base", "more", "differs"),
    [
        pytest.param(LastWorld(), {}, {}, id="there was no world: it is the first coordinator's turn again"),
        pytest.param(
            LastWorld(),
            {"granted_before": 8},
            {"granted_before": 8, "old_world_until_s": 22.0},
            id="a holder of it may live",
        ),
        pytest.param(
            LastWorld(4, 3, True),
            {"granted_before": 4, "old_world_until_s": 60.0},
            {"granted_before": 4, "old_world_until_s": 60.0},
            id="and is known to live for longer",
        ),
        pytest.param(
            LastWorld(4, 3, True),
            {},
            {"old_world_until_s": 22.0},
            id="of a world all but the coordinator are waited for",
        ),
        pytest.param(
            LastWorld(4, 3, True),
            {"handed_over": True},
            {"old_world_until_s": 22.0, "expected": 3},
            id="all, after a handover",
        ),
        pytest.param(LastWorld(4, 1, True), {}, {"old_world_until_s": 22.0, "expected": 1}, id="one at the least"),
        pytest.param(
            LastWorld(), {"search_began_s": 0.0}, {"may_search": False}, id="whom all search for stays where it is"
        ),
        pytest.param(
            LastWorld(),
            {"search_began_s": 0.5},
            {"may_search": True, "search_began_s": 0.5},
            id="another one searches on",
        ),
    ],
)
def test_a_job_goes_on_without_its_coordinator(base, more, differs):
    state = begin(member("a"), "job", TERMS, 7.0)
    world = (
        {
            "newest_round": base.round,
            "newest_size": base.size,
            "round": base.round,
            "expected": 2,
            "last_call_s": 2.0,
            "reason": Reason.COORDINATOR_LOST,
        }
        if base.round
        else {}
    )
    found = known_of(replace_coordinator(state, base, RestartBudget(1, 2), **more))
    assert found == known_of(state) | world | {"budget": RestartBudget(1, 2)} | differs


def test_the_number_of_the_next_round_is_above_any_that_was_granted():
    state = begin(member("a"), "job", TERMS, 0.0, granted=9)
    assert replace_coordinator(state, LastWorld(4, 3, True), RestartBudget()).round == 9
    assert replace_coordinator(state, LastWorld(12, 3, True), RestartBudget()).round == 12


# Whom a running world may wait for.


@pytest.mark.parametrize(
    ("now_s", "id_", "is_awaited"),
    [
        pytest.param(0.0, "c/0", True, id="a newcomer that still imports"),
        pytest.param(10.0, "c/0", False, id="one that has imported by now"),
        pytest.param(0.0, "a/0", False, id="not a seat of the world"),
        pytest.param(0.0, "d/0", False, id="not a stranger"),
    ],
)
def test_whom_a_running_world_may_wait_for(now_s, id_, is_awaited):
    story = Story("1:4", last_call_s=0.0).join("a", "b").join("c", importing_s=10.0)
    assert story.world == "ab"
    assert could_grow_by(story.state, id_, now_s) is is_awaited


def test_a_world_that_does_not_train_waits_for_nobody_to_import():
    story = Story("3:4").join("a").join("c", importing_s=10.0)
    assert (story.phase, could_grow_by(story.state, "c/0", 0.0)) == ("gathering", False)
    stopped = Story("1:4", last_call_s=0.0).join("a", "b").join("c", importing_s=10.0).fail("a")
    assert (stopped.phase, could_grow_by(stopped.state, "c/0", 0.0)) == ("stopping", False)
