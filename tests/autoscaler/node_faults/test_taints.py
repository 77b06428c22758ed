"""The one way in which a node is changed: gated by dry run and by the Lease, and valid for what was decided on."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.autoscaler.controller.test_event_recorder import Recorder
from tests.autoscaler.node_faults.fault_report_cache import GPU, Cluster
from tests.kit.clock import ManualClock
from turnout.autoscaler.controller.event_recorder import NodeEvents
from turnout.autoscaler.controller.metrics import Metrics
from turnout.autoscaler.controller.taint_writer import SHOWN_WITHIN_S, TaintWriter
from turnout.autoscaler.node_faults import model
from turnout.autoscaler.node_faults.model import FaultState
from turnout.autoscaler.settings import Settings, read_settings
from turnout.kube import labels
from turnout.kube.cli_flags import BadSetting
from turnout.kube.client.apply import MERGE
from turnout.kube.client.leased_calls import LeasedCalls
from turnout.kube.errors import Conflict, Forbidden, NotFound
from turnout.kube.node_health import CheckResult, utc_datetime


class Api:
    """Nodes as the API server has them. error: raised by each write."""

    def __init__(self, cluster, error=None):
        self.nodes = {name: raw(cluster, name) for name in cluster.gpus}
        self.error, self.asked = error, []

    async def get(self, path):
        self.asked.append("get")
        return json.dumps(self.nodes[path.rsplit("/", 1)[1]]).encode()

    async def patch(self, path, body, content_type, field_manager):
        assert content_type == MERGE
        self.asked.append("patch")
        if self.error is not None:
            raise self.error
        node = self.nodes[path.rsplit("/", 1)[1]]
        if body["metadata"]["resourceVersion"] != node["metadata"]["resourceVersion"]:
            raise Conflict("PATCH", path, 409, "changed")
        notes = {**node["metadata"]["annotations"], **body["metadata"]["annotations"]}
        node["metadata"]["annotations"] = {key: value for key, value in notes.items() if value is not None}
        node["metadata"]["resourceVersion"] += "1"
        node["spec"].update(body.get("spec", {}))
        return b"{}"

    def keys(self, name):
        return [taint["key"] for taint in self.nodes[name]["spec"]["taints"] or ()]


def raw(cluster, name):
    raw_node = cluster.node(name)
    meta = {
        "name": name,
        "uid": raw_node.metadata.uid,
        "resourceVersion": "1",
        "annotations": raw_node.metadata.annotations or {},
    }
    theirs = [{"key": "team", "value": "a", "effect": "NoSchedule", "timeAdded": "2027-01-01T00:00:00Z"}]
    ours = [{"key": labels.FAULTY, "value": "true", "effect": "NoSchedule"}] if name in cluster.tainted else []
    return {"metadata": meta, "spec": {"taints": theirs + ours}}


HEARD = model.record_text(model.Record(FaultState.CLEARED, utc_datetime(0), utc_datetime(0)))


class Watched:
    """A writer of a cluster, and all that it has told."""

    def __init__(self, cluster, error=None, leads=True, dry_run=False):
        self.cluster, self.api, self.cache = cluster, Api(cluster, error), cluster.cache()
        self.clock, self.recorder, self.metrics = ManualClock(), Recorder(), Metrics((GPU,))
        node_events = NodeEvents(self.recorder, cluster.rules, self.metrics)
        args = self.cache, cluster.rules, node_events, self.clock, asyncio.Event(), dry_run
        self.writer = TaintWriter(LeasedCalls(self.api, lambda: leads), *args)

    async def look(self, after_s=0.0):
        self.clock.now_s += after_s
        self.cluster.now_s += after_s
        return await self.writer.look(self.cluster.now_s)

    async def turn(self):
        """Look by the clock."""
        return await self.writer.run_once()

    def count(self, word, outcome):
        return self.metrics.registry.get_sample_value(
            "turnout_node_changes_total", {"reason": word, "outcome": outcome}
        )


@pytest.mark.asyncio
async def test_a_taint_joins_those_of_others_with_events_on_node_and_pod():
    watched = Watched(Cluster().says("w2", "n3", cause="compute_failed", why="it failed"))
    assert await watched.look() == 1
    assert watched.api.keys("n3") == ["team", labels.FAULTY]
    assert watched.api.nodes["n3"]["spec"]["taints"][0]["timeAdded"], "theirs stays to the last field"
    record = model.read_record(watched.api.nodes["n3"]["metadata"]["annotations"][labels.NODE_RECORD])
    assert record.state is FaultState.TAINTED
    assert [event[:4] for event in watched.recorder.told] == [
        ("Node", "n3", "Warning", "NodeTainted"), ("Pod", "w2", "Warning", "NodeTainted"),
    ]  # fmt: skip
    assert "team/w2 says compute_failed: it failed (until " in watched.recorder.told[0][4]
    assert watched.count("NodeTainted", "Written") == 1


@pytest.mark.contract("DL-82")
@pytest.mark.asyncio
async def test_the_taint_has_the_admins_key_and_goes_when_the_node_recovers():  # DL-82
    rules = read_settings(["--act", "--taint-nodes", "--taint-key", "example.com/broken"]).rules()
    watched = Watched(Cluster(key=rules.key).says("w2", "n3"))
    await watched.look()
    assert watched.api.keys("n3") == ["team", "example.com/broken"]
    healed = watched.cluster
    healed.tainted, healed.notes["n3"] = {"n3"}, watched.api.nodes["n3"]["metadata"]["annotations"]
    healed.now_s += 10
    after_recovery = Watched(healed.says("other", "n3", CheckResult.FINE, members=2))
    after_recovery.api.nodes["n3"] = {**watched.api.nodes["n3"], "metadata": after_recovery.api.nodes["n3"]["metadata"]}
    await after_recovery.look()
    assert after_recovery.api.keys("n3") == ["team"]


@pytest.mark.parametrize("by_s", [7200.0, -7200.0], ids=["two hours on", "two hours back"])
@pytest.mark.asyncio
async def test_a_clock_that_jumps_puts_and_takes_no_taint_for_two_looks(by_s):
    watched = Watched(Cluster())
    watched.clock.wall = lambda: watched.cluster.now_s
    await watched.turn()
    watched.cluster.now_s += by_s
    watched.cache.put_pod(watched.cluster.says("w2", "n3").pods["w2"])
    assert [await watched.turn() for _ in range(3)] == [0, 0, 1]


@pytest.mark.parametrize(
    ("how", "outcome", "requests"),
    [
        pytest.param({"dry_run": True}, "DryRun", [], id="a dry run asks nobody, and tells once"),
        pytest.param({"leads": False}, "NotLeading", ["get", "get"], id="who leads no longer writes nothing"),
    ],
)
@pytest.mark.asyncio
async def test_who_may_not_write_does_not(how, outcome, requests):
    watched = Watched(Cluster().says("w2", "n3"), **how)
    assert [await watched.look(), await watched.look(after_s=1)] == [0, 0]
    assert watched.api.asked == requests
    assert watched.count("NodeTainted", outcome) == max(len(requests), 1)
    assert watched.recorder.told == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda node: node["metadata"].update(uid="another"), id="it is another node of that name"),
        pytest.param(lambda node: node["spec"]["taints"].append({"key": labels.FAULTY}), id="somebody has tainted it"),
        pytest.param(
            lambda node: node["metadata"]["annotations"].update({labels.NODE_RECORD: HEARD}), id="it has a record"
        ),
    ],
)
@pytest.mark.asyncio
async def test_a_node_that_is_not_as_it_was_decided_on_is_left_as_it_is(change):
    watched = Watched(Cluster().says("w2", "n3"))
    change(watched.api.nodes["n3"])
    assert await watched.look() == 0
    assert watched.api.asked == ["get"]
    assert watched.count("NodeTainted", "Conflict") == 1


@pytest.mark.asyncio
async def test_what_is_refused_is_tried_again_less_and_less_often():
    watched = Watched(Cluster(fresh_s=1e6).says("w2", "n3"), error=Forbidden("PATCH", "/n3", 403, "no"))
    tries = []
    for _ in range(40):
        before = len(watched.api.asked)
        await watched.look(after_s=1)
        tries.append(len(watched.api.asked) > before)
    assert tries[:5] == [True, True, False, True, False]
    assert sum(tries) < 8
    watched.api.error = None
    await watched.look(after_s=60)
    assert watched.api.keys("n3") == ["team", labels.FAULTY]


@pytest.mark.parametrize("error", [Conflict("PATCH", "/n3", 409, "changed"), NotFound("PATCH", "/n3", 404, "gone")])
@pytest.mark.asyncio
async def test_what_somebody_else_has_changed_is_looked_at_anew_at_once(error):
    watched = Watched(Cluster().says("w2", "n3"), error=error)
    await watched.look()
    assert watched.count("NodeTainted", "Conflict") == 1
    watched.api.error = None
    assert await watched.look() == 1


@pytest.mark.asyncio
async def test_what_was_written_counts_before_the_watch_has_shown_it():
    """Else two looks in one moment would taint two nodes where one may be."""
    cluster = Cluster(10).says("w2", "n3").says("w4", "n5")
    watched = Watched(cluster)
    assert await watched.look() == 1
    assert await watched.look(after_s=1) == 0
    tainted = [name for name in cluster.gpus if labels.FAULTY in watched.api.keys(name)]
    assert len(tainted) == 1
    await watched.look(after_s=SHOWN_WITHIN_S)
    assert watched.count("NodeTainted", "Written") == 1
    assert watched.count("NodeTainted", "Conflict") == 1, "by then the node itself says that it is tainted"


@pytest.mark.asyncio
async def test_where_nodes_stand_is_counted_and_what_is_passed_over_is_told_once():
    cluster = Cluster(20).says("w2", "n3", CheckResult.SLOW)
    cluster.tainted.add("n7")
    watched = Watched(cluster)
    for _ in range(3):
        await watched.look(after_s=1)

    def value(name, **of):
        return watched.metrics.registry.get_sample_value(name, of)

    counts = {state: value("turnout_gpu_nodes", state=state) for state in ("tainted", "all", "on_trial")}
    assert counts == {"tainted": 1, "all": 20, "on_trial": 0}
    assert value("turnout_gpu_nodes_taint_limit") == 2
    assert value("turnout_node_verdicts_skipped_total", reason="OnlySlow") == 1
    assert [event[:4] for event in watched.recorder.told] == [("Pod", "w2", "Warning", "OnlySlow")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"taint_key": "not a key"}, {"taint_key": "a/b/c"}, {"taint_share": 0.0}, {"taint_share": 1.1},
        {"taint_verdicts": 0}, {"taint_verdicts": 9}, {"taint_s": 0.0}, {"taint_s": float("nan")},
    ],
    ids=str,
)  # fmt: skip
def test_a_rule_that_cannot_be_kept_is_refused(wrong):
    with pytest.raises(BadSetting, match=next(iter(wrong)).replace("_", "-")):
        Settings(**wrong)


def test_the_flags_make_the_rules():
    rules = read_settings(["--taint-share", "0.2", "--taint-verdicts", "2", "--taint-s", "60", "--taint-slow"]).rules()
    assert (rules.key, rules.share, rules.min_namespaces, rules.taint_s, rules.slow) == (
        labels.FAULTY,
        0.2,
        2,
        60,
        True,
    )
