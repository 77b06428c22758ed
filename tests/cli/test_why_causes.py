"""The cause that `turnout why` names is the one that keeps a job waiting."""

from dataclasses import replace

import pytest

from tests.autoscaler.world import GPU, NOW_S, POLICY, job, shape, state_of, world
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import UNKNOWN_NODE
from turnout.autoscaler.reporting.forecast import Estimate
from turnout.autoscaler.reporting.why import ClusterContext, UnmanagedGang, chain
from turnout.cli.why import rows, title
from turnout.jobs.model import JobKey, Spread

BERT = JobKey("PodGroup", "ns", "bert")


def causes_of(name, at, others=None):
    """Title and text by what it is about."""
    key = JobKey("Job", "ns", name) if isinstance(name, str) else name
    found = chain(key, at, decide(at, POLICY, NOW_S), POLICY, NOW_S, [], (GPU,), Estimate(0, 0, 0, "soon"), others)
    return title(found), dict(rows(found))


@pytest.mark.parametrize(("minimum", "member_count", "is_waiting"), [
    pytest.param(4, 2, "It waits for 2 more members: 2 of the 4", id="half of it exists"),
    pytest.param(4, 3, "It waits for 1 more member: 3 of the 4", id="all but one exist"),
])  # fmt: skip
def test_an_incomplete_gang_waits_for_its_members(minimum, member_count, is_waiting):
    head, text = causes_of("a", world([8], state_of(job("a", minimum=minimum, maximum=minimum), [None] * member_count)))
    assert head.endswith(": SchedulersTurn")
    assert is_waiting in text["decision"]
    assert "its scheduler has to place it" not in text["decision"]
    assert f"{member_count} exist" in text["gang"]
    assert text["start"].startswith("not before")


def test_a_bare_gang_is_counted_by_its_pods():
    """Only pods with a node count as workers of a gang that is nobody's job."""
    bare = replace(job("bert", minimum=4, maximum=4), key=BERT, foreign=True)
    _, text = causes_of(BERT, world([8], state_of(bare)), ClusterContext({BERT: UnmanagedGang(BERT, "q", 2)}))
    assert "It waits for 2 more members: 2 of the 4" in text["decision"]


def test_a_gang_that_is_whole_waits_for_its_scheduler():
    bare = replace(job("bert", minimum=4, maximum=4), key=BERT, foreign=True)
    for at, others in (
        (world([8], state_of(job("a", minimum=4, maximum=4), [None] * 4)), None),
        (world([8], state_of(bare)), ClusterContext({BERT: UnmanagedGang(BERT, "q", 4)})),
    ):
        _, text = causes_of("a" if others is None else BERT, at, others)
        assert "its scheduler has to place it" in text["decision"]


@pytest.mark.parametrize("busy", [False, True], ids=["the leaves are empty", "a job runs on them"])
def test_nine_pods_under_one_leaf_of_eight_can_never_fit(busy):
    nine = state_of(job("nine", minimum=9, maximum=9, spread=Spread(tier=1)), [None] * 9)
    runs = [state_of(job("runs", minimum=4, maximum=4), [0, 0, 1, 1])] if busy else []
    _, text = causes_of("nine", world([4, 4, 4, 4], nine, *runs, leaves=[0, 0, 1, 1]))
    assert (
        "It can never start as it is: it needs 9 workers together, and a switch of tier 1 holds 8" in text["decision"]
    )
    assert "turnout.dev/topology-tier" in text["next"]
    assert "Wait" not in text["next"]
    assert text["start"].startswith("never: a switch of tier 1 holds 8")


def test_eight_pods_under_one_leaf_of_eight_wait_for_whoever_is_there():
    eight = state_of(job("eight", minimum=8, maximum=8, spread=Spread(tier=1)), [None] * 8)
    runs = state_of(job("runs", minimum=4, maximum=4), [0, 0, 2, 2])
    head, text = causes_of("eight", world([4, 4, 4, 4], eight, runs, leaves=[0, 0, 1, 1]))
    assert head.endswith(": NeedsMore")
    assert "never" not in text["decision"]


def test_what_a_bare_gang_holds_may_come_back():
    bare = UnmanagedGang(BERT, "q", 1, ((0, shape(4)), (UNKNOWN_NODE, shape(4))))
    at = world([0, 4], state_of(job("a", minimum=8, maximum=8), [None] * 8))
    assert "never" in causes_of("a", at)[1]["decision"]
    assert "never" not in causes_of("a", at, ClusterContext({BERT: bare}))[1]["decision"]


def test_more_than_all_nodes_hold_can_never_fit():
    _, text = causes_of("a", world([4], state_of(job("a", minimum=9, maximum=9), [None] * 9)))
    assert "these nodes hold 4 at most" in text["decision"]
    assert "Lower its min" in text["next"]
    assert "that other jobs end does not help" in text["next"]


@pytest.mark.parametrize(("map_seen", "says"), [
    pytest.param(True, "there is no map of the switches", id="there is none"),
    pytest.param(False, "the map of switches cannot be read", id="it may not be read"),
])  # fmt: skip
def test_without_a_map_nothing_is_said_of_a_tier(map_seen, says):
    at = world([8], state_of(job("a", minimum=2, maximum=2, spread=Spread(tier=1)), [None] * 2))
    _, text = causes_of("a", at, ClusterContext(map_read=map_seen))
    assert says in text["decision"]
    assert text["start"] == f"nobody can say: {says}" + ("" if map_seen else ", so nobody can say here whether it fits")


def test_gangs_that_are_nobodys_job_are_told_among_those_who_hold_a_queue():
    ernie = JobKey("Pod", "ns", "ernie")
    gangs = {
        BERT: UnmanagedGang(BERT, "q", 2, ((0, shape(4)), (0, shape(2)))),
        ernie: UnmanagedGang(ernie, "other", 1, ((0, shape(1)),)),
    }
    _, text = causes_of("a", world([8], state_of(job("a", minimum=9, maximum=9), [None] * 9)), ClusterContext(gangs))
    assert text["held by"] == "PodGroup/ns/bert (6)"
