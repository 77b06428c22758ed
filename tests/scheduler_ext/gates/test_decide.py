"""The next writes for a gang behind our gates: nominations before gates, all of the min or nothing."""

from dataclasses import replace

import pytest

from turnout.kube.objects import NodeSelectorRequirement, NodeSelectorTerm
from turnout.scheduler_ext.gates.release import GatedGang, next_writes
from turnout.scheduler_ext.model import EventReason, GatedPod, Lift, LiftReason, Nominate
from turnout.scheduler_ext.wire.pod_messages import lift_patch, nomination_patch
from turnout.topology.model import Refusal

FULL = Refusal(EventReason.NO_ROOM, "3 of 4 pods find room")
GONE = Refusal(EventReason.GANG_UNKNOWN, "its PodGroup g is not there")


def turn(size=4, gated=None, seats=None, named=0, others=(), **more):
    """A gang of `size` that exists, its last `gated` members behind the gate, `seats` of them planned.

    named: how many carry our nomination for their seat already. others: numbers of those behind another's gate, too.
    """
    gated = size if gated is None else gated
    seats = gated if seats is None else seats
    members = [
        GatedPod(
            f"u{at}", "ns", f"p{at}", "7", f"n{at}" if at < named else "", ("example.com/x",) if at in others else ()
        )
        for at in range(gated)
    ]
    uids = frozenset(pod.uid for pod in members)
    given = {
        "gated_pods": tuple(members),
        "min_pods": size,
        "startable_pods": size - len(others),
        "ungated_pods": size - gated,
        "has_started": False,
        "requires_level": False,
        "hosts": {f"u{at}": f"n{at}" for at in range(seats)},
        "planned_uids": uids,
        "nominable_uids": uids,
        "nominated_by_us": frozenset(f"u{at}" for at in range(named)),
    }
    return GatedGang(**{**given, **more})


def described(writes):
    """Give a word for what is written on each pod."""
    words = {}
    for each in writes:
        if isinstance(each, Nominate):
            words[each.pod.name] = f"to {each.node}" if each.node else "cleared"
        else:
            words[each.pod.name] = each.reason.value + (f" on {each.node}" if each.only_this_node else "")
    return words


NAMED = {f"p{at}": f"to n{at}" for at in range(4)}
PLACED = {f"p{at}": "Placed" for at in range(4)}


@pytest.mark.parametrize(
    ("it", "writes", "is_waiting"),
    [
        pytest.param(turn(), NAMED, None, id="first every member is nominated"),
        pytest.param(
            turn(named=3), {"p3": "to n3"}, None, id="no gate is lifted while one nomination is to be written"
        ),
        pytest.param(turn(named=4), PLACED, None, id="once all are nominated all gates are lifted"),
        pytest.param(
            turn(gated=1, named=1, has_started=True), {"p0": "Placed"}, None, id="what a crash left is carried on"
        ),
        pytest.param(turn(startable_pods=3), {}, EventReason.GANG_INCOMPLETE, id="a member is still to be created"),
        pytest.param(turn(seats=0, shortfall=FULL), {}, EventReason.NO_ROOM, id="no plan: all stay"),
        pytest.param(
            turn(seats=3, shortfall=FULL), {}, EventReason.NO_ROOM, id="a plan for less than the min: all stay"
        ),
        pytest.param(
            turn(seats=0, named=2, shortfall=FULL),
            {"p0": "cleared", "p1": "cleared"},
            EventReason.NO_ROOM,
            id="who stays keeps no nomination of ours",
        ),
        pytest.param(
            turn(seats=2, min_pods=2, shortfall=FULL),
            {"p0": "to n0", "p1": "to n1"},
            EventReason.NO_ROOM,
            id="above the min whoever has a seat goes",
        ),
        pytest.param(turn(others=(1,)), {}, EventReason.GANG_INCOMPLETE, id="one is behind another's gate: all stay"),
        pytest.param(
            turn(others=(3,), min_pods=3, named=4),
            {f"p{at}": "Placed" for at in range(3)},
            None,
            id="above the min one behind another's gate stays alone",
        ),
        pytest.param(turn(unknown_size=GONE), {}, EventReason.GANG_UNKNOWN, id="nobody says how many start together"),
        pytest.param(
            turn(requires_level=True, named=4),
            {f"p{at}": f"Placed on n{at}" for at in range(4)},
            None,
            id="a required gang is pinned to its hosts",
        ),
        pytest.param(
            turn(gated=2, seats=0, has_started=True, shortfall=FULL),
            {"p0": "Completing", "p1": "Completing"},
            EventReason.NO_ROOM,
            id="a started gang gets its min, with a seat or without",
        ),
        pytest.param(
            turn(gated=2, seats=0, has_started=True, requires_level=True, shortfall=FULL),
            {},
            EventReason.NO_ROOM,
            id="a started required gang waits for a seat",
        ),
        pytest.param(
            turn(gated=1, named=1, has_started=True, startable_pods=2, ungated_pods=1),
            {"p0": "Placed"},
            None,
            id="a pod made anew does not wait for those that have ended",
        ),
        pytest.param(
            turn(
                gated=1,
                seats=0,
                has_started=True,
                startable_pods=2,
                ungated_pods=1,
                requires_level=True,
                shortfall=FULL,
            ),
            {},
            EventReason.NO_ROOM,
            id="unless it is required and has no seat",
        ),
        pytest.param(
            turn(gated=2, seats=0, has_started=True, min_pods=2, shortfall=FULL),
            {},
            EventReason.NO_ROOM,
            id="above the min a started gang waits for a seat",
        ),
        pytest.param(
            turn(seats=3, named=3, planned_uids=frozenset(["u0", "u1", "u2"])),
            {"p0": "Placed", "p1": "Placed", "p2": "Placed", "p3": "NotJudged"},
            None,
            id="a member without an accelerator goes with its gang",
        ),
        pytest.param(turn(nominable_uids=frozenset()), PLACED, None, id="who may not be nominated goes all the same"),
        pytest.param(turn(gated=0), {}, None, id="nobody is gated"),
    ],
)
def test_what_is_written_next_and_why_the_rest_waits(it, writes, is_waiting):
    found, wait = next_writes(it)
    assert described(found) == writes
    assert (wait and wait.reason) == is_waiting


def test_a_nomination_of_somebody_else_stays_and_keeps_nobody_back():
    it = turn(named=4)
    theirs = replace(it.gated_pods[1], nominated="elsewhere")
    found, _ = next_writes(
        replace(
            it, gated_pods=(it.gated_pods[0], theirs, *it.gated_pods[2:]), nominated_by_us=it.nominated_by_us - {"u1"}
        )
    )
    assert described(found) == PLACED


POD = GatedPod("u", "ns", "p", "7")
ON_N = {"key": "metadata.name", "operator": "In", "values": ["n"]}
GPU = NodeSelectorTerm([NodeSelectorRequirement("gpu", "Exists")])
ZONE = NodeSelectorTerm([NodeSelectorRequirement("zone", "In", ["a"])])


def released(pod, pinned=False):
    return lift_patch(Lift(pod, LiftReason.PLACED, "n", pinned))


def test_every_patch_holds_for_one_version_of_one_pod():
    meta = {"uid": "u", "resourceVersion": "7"}
    assert released(POD)["metadata"] == nomination_patch(Nominate(POD, "n"))["metadata"] == meta


@pytest.mark.parametrize(
    ("pod", "pinned", "spec"),
    [
        pytest.param(POD, False, {"schedulingGates": None}, id="the gate alone"),
        pytest.param(
            replace(POD, other_gates=("a/x",)), False, {"schedulingGates": [{"name": "a/x"}]}, id="another's gate stays"
        ),
    ],
)
def test_our_gate_and_no_other_is_taken_away(pod, pinned, spec):
    assert released(pod, pinned)["spec"] == spec


@pytest.mark.parametrize(
    ("terms", "becomes"),
    [
        pytest.param(None, [{"matchFields": [ON_N]}], id="without affinity of its own"),
        pytest.param(
            (GPU, ZONE),
            [
                {"matchExpressions": [{"key": "gpu", "operator": "Exists"}], "matchFields": [ON_N]},
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}], "matchFields": [ON_N]},
            ],
            id="each of its terms, since one of them is enough",
        ),
    ],
)
def test_a_pinned_pod_is_narrowed_to_its_node_beside_its_own_affinity(terms, becomes):
    affinity = released(replace(POD, required_terms=terms), pinned=True)["spec"]["affinity"]
    assert affinity == {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": becomes}}
    }
