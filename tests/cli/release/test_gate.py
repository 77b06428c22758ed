"""`turnout why` tells of pods behind our scheduling gate the nominator's newest word, and whether one works."""

import pytest

from tests.kit.world import pod
from turnout.cli.release.gate import NominatorState, behind_gate, gate_of, gate_sentence, what_next, with_gate
from turnout.kube import labels
from turnout.kube.objects import Lease, LeaseSpec
from turnout.kube.times import rfc3339, rfc3339_micro

NOW_S = 1_700_000_000.0
GATE = {"schedulingGates": [{"name": labels.PLACEMENT_GATE}]}
HELD = behind_gate([pod("p", 1, **GATE), pod("q", 1, **GATE), pod("r", 1, at="a0", **GATE)])


def lease(ago_s=1.0, holder="pod-1"):
    return Lease(spec=LeaseSpec(holder, 4, None, rfc3339_micro(NOW_S - ago_s)))


def event(reason="NoRoom", message="4 must start together", ago_s=5.0, of="p", by="turnout-nominator"):
    (uid,) = {each.metadata.uid for each in HELD if each.metadata.name == of} or {"uid-of-another"}
    return {
        "involvedObject": {"uid": uid},
        "reason": reason,
        "message": message,
        "reportingComponent": by,
        "lastTimestamp": rfc3339(NOW_S - ago_s),
    }


@pytest.mark.parametrize(
    ("more", "count"),
    [
        pytest.param(GATE, 1, id="behind our gate"),
        pytest.param({"schedulingGates": [{"name": "a/x"}]}, 0, id="behind another's"),
        pytest.param({}, 0, id="behind none"),
    ],
)
def test_pods_behind_our_gate_are_counted(more, count):
    assert len(behind_gate([pod("p", 1, **more)])) == count


@pytest.mark.parametrize(
    ("events", "reason", "detail"),
    [
        pytest.param([], "", "", id="nothing is said yet"),
        pytest.param([event()], "NoRoom", "4 must start together", id="one word"),
        pytest.param([event(), event("TierTooNarrow", "a", 1)], "TierTooNarrow", "a", id="the newest of two"),
        pytest.param([event(by="kubelet")], "", "", id="another program's"),
        pytest.param([event(of="another")], "", "", id="of a pod that had its name"),
        pytest.param([event(message="a\x1b[31m" + "b" * 900)], "NoRoom", "a?[31m" + "b" * 494, id="cut and cleaned"),
        pytest.param([event(reason="no word")], "", "", id="no word at all"),
        pytest.param([{"involvedObject": None, "reason": None}], "", "", id="an Event of nothing"),
    ],
)
def test_the_newest_word_of_the_nominator_is_told(events, reason, detail):
    found = gate_of(HELD, events, [lease()], NOW_S)
    assert (found.pods, found.reason, found.detail) == (2, reason, detail)
    ending = f": {reason}, {detail}" if reason else ","
    assert gate_sentence(found).startswith(f"2 pods behind the scheduling gate turnout.dev/placement{ending}")


@pytest.mark.parametrize(
    ("leases", "placer", "says", "remedy"),
    [
        pytest.param([lease()], "works", "NoRoom, 4 must", "as soon as the whole gang fits", id="a nominator works"),
        pytest.param([lease(99), lease()], "works", "", "fits", id="one of two installations works"),
        pytest.param([lease(99)], "silent", "No nominator holds the Lease", "an admin", id="its holder is silent"),
        pytest.param([lease(1, "")], "silent", "No nominator holds", "turnout release", id="it was given back"),
        pytest.param([], "absent", "No nominator is installed", "out of the pod template", id="a cluster without us"),
        pytest.param(None, "unknown", "NoRoom", "fits", id="Leases may not be listed"),
    ],
)
def test_whether_somebody_lifts_gates_is_told(leases, placer, says, remedy):
    found = gate_of(HELD, [event()], leases, NOW_S)
    assert found.placer is NominatorState(placer)
    assert says in gate_sentence(found)
    assert remedy in what_next(found)


def test_what_helps_behind_the_gate_replaces_what_the_autoscaler_advises():
    rows = [("room", "a"), ("next", "add nodes")]
    assert with_gate(rows, None) == rows
    found = with_gate(rows, gate_of(HELD, [event()], [], NOW_S))
    assert [label for label, _ in found] == ["room", "gate", "next"]
    assert "out of the pod template" in found[-1][1]
    assert with_gate(rows, gate_of(HELD, [], [lease()], NOW_S))[1] == ("next", "add nodes")


def test_where_no_pod_waits_nothing_is_told():
    assert gate_of(behind_gate([pod("p", 1)]), [event()], [], NOW_S) is None
