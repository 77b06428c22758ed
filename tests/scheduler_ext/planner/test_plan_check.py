"""The check of a plan, on plans that no planner would make: each hard term is broken once, by hand."""

from dataclasses import replace

import pytest

from tests.kit import world
from tests.kit.world import REQUIRED, World
from turnout.jobs.wishes import kueue
from turnout.kube import labels
from turnout.scheduler_ext.planner.place_gang import plan_or_rejection
from turnout.scheduler_ext.planner.plan_check import broken_hard_terms
from turnout.scheduler_ext.planner.request import GangPlan, HardTerm
from turnout.topology.model import RefusalReason

PART = "volcano.sh/partition-id"


def plan_of(w, *pods):
    """The fabric, the request and the plan of the pods' gang, as the planner makes it."""
    w.put(*pods)
    w.view.settle(w.now_s)
    gang = w.view.gangs[w.member(pods[0]).membership.key]
    request = w.plans.request_of(gang)
    return w.view.fabric, request, w.plans.plan_of(gang.key, w.now_s)


def moved(w, plan, **nodes):
    """The plan with some pods on other nodes. nodes: number of the pod -> node, as p1="b0"."""
    uids = sorted(plan.hosts)
    rows = {uids[int(key[1:])]: w.view.snapshot.row_of[node] for key, node in nodes.items()}
    return replace(plan, hosts={**plan.hosts, **rows})


def volcano(size, minimum=None, notes=(), parts=None, **spec):
    w = World(2, 2)
    w.put_group("g", size if minimum is None else minimum, **spec)
    marks = [{PART: str(part)} for part in parts] if parts else [{}] * size
    pods = [
        world.pod(
            f"p{at}", 4, notes={labels.VOLCANO_GROUP: "g", labels.RANK: str(at), **dict(notes)}, marks=marks[at],
            created=at,
        )
        for at in range(size)
    ]  # fmt: skip
    return w, *plan_of(w, *pods)


GROUPS = {"subGroupPolicy": [{"name": "w", "matchLabelKeys": [PART], "networkTopology": {"highestTierAllowed": 1}}]}
CASES = [
    pytest.param(volcano(4, notes=REQUIRED), {"p0": "b0"}, HardTerm.LEVEL, id="a member is under another leaf"),
    pytest.param(
        volcano(4, networkTopology={"highestTierAllowed": 1}), {"p3": "b1"}, HardTerm.LEVEL,
        id="the level is the PodGroup's",
    ),
    pytest.param(
        volcano(4, parts=[0, 0, 1, 1], **GROUPS), {"p0": "a0", "p1": "b0", "p2": "b1", "p3": "b1"},
        HardTerm.GROUP_LEVEL, id="a group is under two leaves",
    ),
    pytest.param(
        volcano(4, notes={kueue.SLICE_LEVEL: "rack", kueue.SLICE_SIZE: "2"}), {"p0": "a0", "p1": "b0"},
        HardTerm.RUN_OF_RANKS, id="a slice is under two leaves",
    ),
    pytest.param(
        volcano(4, notes={labels.PODS_PER_HOST_MULTIPLE: "2"}), {"p0": "a0", "p1": "a1", "p2": "b0", "p3": "b1"},
        HardTerm.MULTIPLE, id="each host has half of a multiple",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("case", "nodes", "term"), CASES)
def test_a_plan_that_breaks_a_term_is_told(case, nodes, term):
    w, fabric, request, plan = case
    assert broken_hard_terms(fabric, request, plan) == ()
    assert {each.term for each in broken_hard_terms(fabric, request, moved(w, plan, **nodes))} == {term}


def without(plan, count):
    """The plan without places for the last pods."""
    uids = sorted(plan.hosts)[: len(plan.hosts) - count]
    return replace(plan, hosts={uid: plan.hosts[uid] for uid in uids})


def test_a_plan_with_fewer_than_must_start_is_told():
    _, fabric, request, plan = volcano(4, minimum=3)
    assert broken_hard_terms(fabric, request, without(plan, 1)) == ()
    (found,) = broken_hard_terms(fabric, request, without(plan, 2))
    assert (found.term, found.pods, found.observed, found.allowed) == (HardTerm.MIN_PODS, 1, 2, 3)


def test_a_group_that_is_placed_in_part_is_told():
    _, fabric, request, plan = volcano(4, minimum=1, parts=[0, 0, 1, 1], **GROUPS)
    assert [each.term for each in broken_hard_terms(fabric, request, without(plan, 1))] == [HardTerm.GROUP_WHOLE]


def test_a_host_that_is_ruled_out_is_told():
    _, fabric, request, plan = volcano(2)
    excluded = fabric.mapped & False
    excluded[next(iter(plan.hosts.values()))] = True
    request_without_host = replace(request, excluded_rows=excluded)
    assert {each.term for each in broken_hard_terms(fabric, request_without_host, plan)} == {HardTerm.BARRED_HOST}


def test_what_running_members_break_already_is_not_the_plans_fault():
    """A scheduler that does not ask us has bound two members under two leaves."""
    w = World(2, 2)
    w.put_group("g", 3, networkTopology={"highestTierAllowed": 1})
    notes = {labels.VOLCANO_GROUP: "g"}
    w.put(world.pod("p0", 4, at="a0", notes=notes), world.pod("p1", 4, at="b0", notes=notes))
    fabric, request, _ = plan_of(w, world.pod("p2", 4, notes=notes))
    plan = GangPlan(request.gang.key, hosts={"uid-p2": 0}, shapes={"uid-p2": request.waiting[0].shape})
    assert broken_hard_terms(fabric, request, plan) == ()


def test_a_plan_that_breaks_a_term_is_refused_and_names_it():
    w, fabric, request, plan = volcano(4, notes=REQUIRED)
    assert plan_or_rejection(fabric, request, plan) is plan
    refused = plan_or_rejection(fabric, request, moved(w, plan, p0="b0"))
    assert (refused.hosts, refused.broken_terms) == ({}, (HardTerm.LEVEL,))
    assert refused.refusal.reason is RefusalReason.PLAN_REJECTED
    assert "level" in refused.refusal.detail


def test_a_plan_without_a_place_breaks_nothing():
    _, fabric, request, plan = volcano(4, notes=REQUIRED)
    assert broken_hard_terms(fabric, request, replace(plan, hosts={})) == ()
