"""A leader without accelerators in a gang that must stay together: placed with it where anybody asks, else told."""

import pytest

from tests.scheduler_ext.wishes.stage import RACK, Stage, pod
from tests.scheduler_ext.wishes.test_wishes import group, leaves, lws, topology, volcano
from turnout.jobs.wishes import kueue, sets
from turnout.kube import labels
from turnout.scheduler_ext.model import EventReason

# Only the last leaf has room for three pods of 8 GPUs.
LAST_LEAF = {
    f"s{spine}l{leaf}h{host}": 8 for spine in (0, 1) for leaf in range(3) for host in (2, 3) if (spine, leaf) != (1, 2)
}
LEADER = pod("g-0", 0, {labels.VOLCANO_GROUP: "g"}, {labels.VOLCANO_TASK_INDEX: "0"})


@pytest.mark.parametrize(("pods", "groups"), [
    pytest.param([LEADER, *volcano(4)[1:]], [topology(mode="hard", highestTierAllowed=1)], id="Volcano: hard"),
    pytest.param([LEADER, *volcano(4, notes={kueue.REQUIRED: RACK})[1:]], [group(minMember=4)],
        id="the wish is on the workers alone"),
    pytest.param([*lws(1, 4, gpus=0)[:1], *lws(1, 4, {sets.LWS: RACK})[1:]], [], id="LWS: workers are exclusive"),
])  # fmt: skip
def test_a_leader_without_gpus_is_placed_with_its_gang(pods, groups):
    stage = Stage(LAST_LEAF)
    for each in groups:
        stage.group(each)
    node_by_pod = stage.schedule(pods)
    assert {name[:4] for name in node_by_pod.values()} == {"s1l2"}
    assert len(node_by_pod) == 4
    assert stage.told == []


def test_where_nearness_is_only_preferred_a_leader_gets_no_opinion():
    stage = Stage()
    stage.group(group(minMember=4))
    assert leaves(stage.schedule([LEADER, *volcano(4)[1:]])) == [3]


def test_a_leader_that_was_bound_elsewhere_is_told():
    stage = Stage(LAST_LEAF)
    stage.group(topology(mode="hard", highestTierAllowed=1))
    leader = pod("g-0", 0, {labels.VOLCANO_GROUP: "g"}, {labels.VOLCANO_TASK_INDEX: "0"}, at="s0l0h0")
    workers = volcano(4)[1:]
    stage.show(leader)
    assert leaves(stage.schedule(workers)) == [3]
    (detail,) = {notice.detail for notice in stage.told if notice.reason is EventReason.WISH_NOT_KEPT}
    assert detail.startswith("spec.networkTopology is not kept for g-0, which has no accelerator")
