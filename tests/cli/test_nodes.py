"""`turnout nodes`: what is told of each node, for people and for programs, and what frees one."""

from __future__ import annotations

import json

import pytest

from tests.autoscaler.node_faults.fault_report_cache import Cluster
from tests.autoscaler.node_faults.test_taints import Api
from turnout.autoscaler.node_faults import model
from turnout.autoscaler.node_faults.model import FaultState
from turnout.cli.nodes import NotTainted, listing, rows, without_taint
from turnout.cli.views.listing import text
from turnout.kube import labels
from turnout.kube.node_health import CheckResult, utc_datetime

WHY = {"cause": "network_failed", "why": "failed with w1 and with w2"}


def nodes(cluster):
    return list(Api(cluster).nodes.values())


@pytest.fixture
def cluster():
    """n3 is tainted, n5 suspected, n7 tainted by hand, n9 bears what is no record."""
    reporting_cluster = (
        Cluster(10, min_namespaces=2).says("a-3", "n3", team="a", **WHY).says("b-3", "n3", team="b", **WHY)
    )
    reporting_cluster.says("a-5", "n5", team="a", **WHY).look()
    reporting_cluster.tainted.add("n7")
    reporting_cluster.notes["n9"] = {labels.NODE_RECORD: "[]"}
    return reporting_cluster


def test_who_is_tainted_stands_first_with_whose_word_it_is(cluster):
    table = rows(nodes(cluster), labels.FAULTY)
    assert [(row.node, row.state, row.times) for row in table] == [
        ("n3", "tainted", 1), ("n7", "tainted by hand", 0), ("n5", "suspected", 0), ("n9", "unreadable", 0),
    ]  # fmt: skip
    (first, *_), (head, line, *more) = table, text(listing(table), "table").split("\n")
    assert (first.reason, first.evidence) == (WHY["cause"], WHY["why"])
    assert (first.since, first.until) == ("2027-01-15T08:00:00Z", "2027-01-15T09:00:00Z")
    assert head.split() == ["NODE", "STATE", "SINCE", "UNTIL", "TIMES", "WHY"]
    assert "network_failed: failed with w1 and with w2 — reported by a/a-3, b/b-3; decided by w0" in line
    assert len(more) == 3
    assert json.loads(text(listing(table), "json"))[0]["pods"] == ["a/a-3", "b/b-3"]


def test_where_nothing_is_wrong_it_says_so():
    empty = listing(rows(nodes(Cluster()), labels.FAULTY))
    assert text(empty, "table") == "no node is tainted, suspected or on trial"
    assert text(empty, "json") == "[]"


def test_who_was_cleared_is_told_only_on_request(cluster):
    cluster.now_s += 1
    for team in "ab":
        cluster.says(f"{team}-3", "n3", CheckResult.FINE, members=4, team=team)
    cluster.look()
    assert "n3" not in {row.node for row in rows(nodes(cluster), labels.FAULTY)}
    assert ("n3", "cleared") in {(row.node, row.state) for row in rows(nodes(cluster), labels.FAULTY, everything=True)}


@pytest.mark.parametrize("node", ["n3", "n7"])
@pytest.mark.asyncio
async def test_what_is_freed_stays_free_whatever_pods_said_before(cluster, node):
    api = Api(cluster)
    change = without_taint(api.nodes[node], labels.FAULTY, cluster.now_s + 5)
    await api.patch(f"/api/v1/nodes/{node}", change, "application/merge-patch+json", "turnout-cli")
    assert api.keys(node) == ["team"]
    cluster.tainted.discard(node)
    cluster.notes[node] = api.nodes[node]["metadata"]["annotations"]
    cluster.says("d", node, team="d")
    assert not [step for step in cluster.look(after_s=1).steps if step.node == node]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        pytest.param("n0", "node n0 has no taint turnout.dev/faulty$", id="a node that nobody accused"),
        pytest.param("n5", "it is suspected", id="one that is only suspected"),
        pytest.param("n9", "node n9 has no taint", id="one with an unreadable record"),
    ],
)
def test_there_is_nothing_to_free(cluster, node, message):
    with pytest.raises(NotTainted, match=message):
        without_taint(Api(cluster).nodes[node], labels.FAULTY, cluster.now_s)


def test_a_taint_of_another_key_is_another_matter(cluster):
    assert [row.node for row in rows(nodes(cluster), "team")] == [f"n{at}" for at in range(10)]


def test_a_record_of_the_future_is_not_forgotten(cluster):
    (raw,) = (each for each in nodes(cluster) if each["metadata"]["name"] == "n3")
    future_time = utc_datetime(cluster.now_s + 50)
    record = model.Record(FaultState.TAINTED, future_time, future_time)
    raw["metadata"]["annotations"][labels.NODE_RECORD] = model.record_text(record)
    note = without_taint(raw, labels.FAULTY, cluster.now_s)["metadata"]["annotations"][labels.NODE_RECORD]
    assert model.read_record(note).handled_until == future_time
