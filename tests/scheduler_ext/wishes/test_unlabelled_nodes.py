"""A node without the label of a required level: in no domain of the level, and no obstacle to the others."""

import json

import pytest

from tests.scheduler_ext.wishes.stage import BLOCK, HOSTS, RACK, Stage, pod
from tests.scheduler_ext.wishes.test_layered_wishes import layers, only, subgroup, subgrouped
from tests.scheduler_ext.wishes.test_wishes import job, kai_group
from turnout.jobs.gang import Dialect
from turnout.jobs.wishes import kueue
from turnout.scheduler_ext.model import EventReason
from turnout.scheduler_ext.server.requests import Verb

RACK_HOSTS = {kueue.REQUIRED: RACK}


@pytest.mark.parametrize(("pods", "open_", "groups", "racks"), [
    pytest.param(job(4, notes=RACK_HOSTS), only(s0l0=4, s1l0=4), [], {"s1l0"}, id="the rack whose nodes all have it"),
    pytest.param(job(4, notes=RACK_HOSTS), only(s0l0=4), [], set(), id="no other rack: the gang waits"),
    pytest.param(job(3, notes=RACK_HOSTS), only(s0l0=4), [], {"s0l0"}, id="beside the node without the label"),
    pytest.param(job(5, notes={kueue.REQUIRED: BLOCK}), only(s0l0=4, s0l1=2), [], {"s0l0", "s0l1"}, id="a block"),
    pytest.param(job(4), only(s0l0=4), [], {"s0l0"}, id="a gang that requires no level may use the node"),
    pytest.param(job(8, notes=layers((RACK, 4))), only(s0l0=4, s0l1=4), [], set(), id="slices in a rack"),
    pytest.param(job(8, notes=layers((RACK, 4))), only(s0l1=4, s1l0=4), [], {"s0l1", "s1l0"}, id="other slices"),
    pytest.param(subgrouped(a=4, b=2), only(s0l0=4, s0l1=4), [kai_group(subGroups=[subgroup("a", 4, RACK),
        subgroup("b", 2)])], {"s0l0", "s0l1"}, id="of a group: others of the gang may use the node"),
    pytest.param(subgrouped(a=4, b=4), only(s0l0=4, s0l1=4), [kai_group(subGroups=[subgroup("a", 4, RACK),
        subgroup("b", 4, RACK)])], set(), id="of two groups of which one finds no rack"),
])  # fmt: skip
def test_where_gangs_go_beside_a_node_without_the_label(pods, open_, groups, racks):
    stage = Stage(open_, unlabelled=["s0l0h3"])
    for each in groups:
        stage.group(each, Dialect.KAI)
    node_by_pod = stage.schedule(pods)
    assert {host[:4] for host in node_by_pod.values()} == racks
    assert len(node_by_pod) == (len(pods) if racks else 0)
    required = [name for name, host in node_by_pod.items() if host == "s0l0h3"]
    assert required == [] or not pods[0]["metadata"]["annotations"]
    assert not [notice for notice in stage.told if notice.reason is EventReason.WISH_NOT_KEPT]


def test_a_gang_of_which_a_member_runs_on_such_a_node_waits():
    stage = Stage(unlabelled=["s0l0h3"])
    pods = job(2, notes=RACK_HOSTS)
    stage.show(pod("g-0", 8, RACK_HOSTS, pods[0]["metadata"]["labels"], owner="Job/g", at="s0l0h3"))
    assert stage.schedule(pods[1:]) == {}
    question = json.dumps({"Pod": pods[1], "Nodes": None, "NodeNames": HOSTS}).encode()
    assert b"members run on hosts that have no label of" in stage.dispatcher.answer(Verb.FILTER, question).body
