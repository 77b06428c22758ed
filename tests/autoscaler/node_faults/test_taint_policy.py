"""Which nodes are tainted by what pods say: tables, and laws over any sequence of words, losses and times."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.autoscaler.node_faults.fault_report_cache import GPU, Cluster, garbage
from tests.kit.hypothesis_examples import scaled
from turnout.autoscaler.node_faults.cache import FaultReportCache
from turnout.autoscaler.node_faults.model import (
    MAX_NAMESPACES,
    MAX_PROOFS,
    BadNodeRecord,
    FaultState,
    TaintRules,
    read_record,
)
from turnout.kube import node_health
from turnout.kube.node_health import MAX_REPORT_BYTES, CheckResult, NodeReport, utc_datetime
from turnout.launcher.coordinator_messages import NodeResult

HOUR_S = 3600.0


def test_a_node_that_its_pod_has_proven_faulty_is_tainted_with_the_proof():
    """DL-82"""
    cluster = Cluster().says("w2", "n3", cause="compute_failed", why="its own computation failed", run="bert")
    cluster.look()
    assert cluster.tainted == {"n3"}
    assert cluster.last() == ("n3", "NodeTainted")
    record = cluster.record("n3")
    assert (record.state, record.times, record.proofs[0].pod) == (FaultState.TAINTED, 1, "team/w2")
    assert record.until.timestamp() == cluster.now_s + HOUR_S
    assert not cluster.look().steps, "said once, it is dealt with"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        pytest.param({"cause": "compute_failed"}, "compute_failed", id="a cause alone"),
        pytest.param({"cause": "compute_failed", "why": "no sum"}, "compute_failed: no sum", id="with an explanation"),
        pytest.param({"why": "no sum"}, "faulty: no sum", id="an explanation alone"),
        pytest.param({}, "faulty", id="neither"),
    ],
)
def test_a_taint_names_the_cause_of_the_failed_check(more, text):
    (step,) = Cluster().says("w2", "n3", **more).look().steps
    assert step.why.startswith(f"team/w2 says {text}")


@pytest.mark.parametrize(
    ("reports", "word"),
    [
        pytest.param({"text": "{}"}, "BadVerdict", id="nothing of a report"),
        pytest.param({"text": "no JSON"}, "BadVerdict", id="no JSON"),
        pytest.param({"text": garbage(kind="guilty")}, "BadVerdict", id="a kind that is none"),
        pytest.param({"text": garbage(at="yesterday")}, "BadVerdict", id="no moment"),
        pytest.param({"text": garbage(at="2027-01-15T08:00:00")}, "BadVerdict", id="a moment of no time zone"),
        pytest.param({"text": garbage(why="x" * MAX_REPORT_BYTES)}, "BadVerdict", id="too long"),
        pytest.param({"text": garbage(round=-1)}, "BadVerdict", id="a round that is none"),
        pytest.param({"node": "n4"}, "OtherNode", id="of another node than its pod's"),
        pytest.param({"ago_s": 601}, "StaleVerdict", id="of some time ago"),
        pytest.param({"ago_s": -61}, "StaleVerdict", id="of the future"),
        pytest.param({"kind": CheckResult.SLOW}, "OnlySlow", id="a slow node, where those are not tainted"),
        pytest.param({"kind": CheckResult.LINK}, "OnlyALink", id="a link, of which neither end is to blame"),
    ],
)
def test_nobody_is_tainted_by_a_word_that_is_no_proof(reports, word):
    cluster = Cluster().says("w2", "n3", **reports)
    cluster.look()
    assert (cluster.tainted, cluster.notes, cluster.last()) == (set(), {}, ("n3", word))


@pytest.mark.parametrize(
    ("node", "word"),
    [
        pytest.param("", "OtherNode", id="a pod that is bound to none"),
        pytest.param("gone", "UnknownNode", id="a node that is not there"),
        pytest.param("cpu", "NodeWithoutGpus", id="a node without GPUs, such as the control plane's"),
        pytest.param("theirs", "TaintedByHand", id="a node that a person has tainted"),
    ],
)
def test_only_a_node_of_ours_with_gpus_is_tainted(node, word):
    cluster = Cluster()
    cluster.gpus |= {"cpu": 0, "theirs": 8}
    cluster.tainted.add("theirs")
    cluster.says("w2", node).look()
    assert (cluster.tainted, cluster.notes, cluster.last()) == ({"theirs"}, {}, (node, word))


def test_a_slow_node_is_tainted_where_an_admin_wants_it():
    cluster = Cluster(slow=True).says("w2", "n3", CheckResult.SLOW)
    cluster.look()
    assert cluster.tainted == {"n3"}


def test_each_time_that_it_fails_again_its_taint_lasts_twice_as_long():
    cluster = Cluster(taint_s=100.0, longest_s=500.0)
    lasted_s = []
    for number in range(4):
        cluster.says(f"w{number}", "n3").look()
        lasted_s.append(cluster.record("n3").until.timestamp() - cluster.now_s)
        assert not cluster.look(after_s=lasted_s[-1] - 1).steps
        cluster.look(after_s=1)
        assert (cluster.tainted, cluster.last()) == (set(), ("n3", "TaintExpired"))
        cluster.now_s += 1
    assert lasted_s == [100, 200, 400, 500]
    assert [word for _, word in cluster.words].count("NodeTaintedAgain") == 3


@pytest.mark.parametrize(
    ("cause", "frees"),
    [
        pytest.param("compute_failed", True, id="its computation is what one node can check alone"),
        pytest.param("network_failed", False, id="its network is not"),
    ],
)
def test_a_check_of_one_node_alone_says_nothing_of_its_network(cause, frees):
    cluster = Cluster().says("w2", "n3", cause=cause)
    cluster.look()
    cluster.now_s += 1
    cluster.says("alone", "n3", CheckResult.FINE, members=1).look()
    assert (cluster.tainted == set()) is frees
    assert (cluster.last() == ("n3", "CheckedAlone")) is not frees


@pytest.mark.contract("DL-82")
def test_a_check_that_passes_later_frees_the_node_and_forgets():
    cluster = Cluster().says("w2", "n3")
    cluster.look()
    cluster.now_s += 10
    cluster.says("other", "n3", CheckResult.FINE, ago_s=11, members=2).look()
    assert cluster.tainted == {"n3"}, "that check was before"
    cluster.says("other", "n3", CheckResult.FINE, members=2).look()
    assert (cluster.tainted, cluster.last()) == (set(), ("n3", "NodeRecovered"))
    assert not cluster.look().steps, "w2's old word is still there"
    cluster.look(after_s=700)
    assert (cluster.notes["n3"], cluster.last()) == ({}, ("n3", "RecordForgotten"))
    cluster.says("w2", "n3").look()
    assert cluster.record("n3").times == 1


def test_what_a_person_frees_stays_free_until_it_fails_anew():
    cluster = Cluster().says("w2", "n3")
    cluster.look()
    cluster.free("n3").look(after_s=5)
    assert (cluster.tainted, cluster.last()) == (set(), ("n3", "FreedByHand"))
    assert not cluster.look(after_s=5).steps
    cluster.says("w3", "n3").look()
    assert cluster.tainted == {"n3"}


def test_several_namespaces_have_to_say_it_where_an_admin_wants_that():
    cluster = Cluster(min_namespaces=2).says("a-0", "n3", team="a")
    cluster.look()
    assert (cluster.tainted, cluster.last()) == (set(), ("n3", "NodeSuspected"))
    cluster.now_s += 1
    cluster.says("bare", "n3", team="a").says("a-1", "n3", team="a", owner="job").look()
    assert cluster.tainted == set(), "pods of one namespace are one voice, whoever owns them"
    cluster.now_s += 1
    cluster.says("b-0", "n3", team="b").look()
    assert cluster.tainted == {"n3"}
    assert [proof.pod for proof in cluster.record("n3").proofs] == ["a/a-0", "b/b-0"]


def test_nobody_takes_back_what_another_namespace_has_proven():
    cluster = Cluster().says("a-0", "n3", team="a").says("b-0", "n3", team="b")
    cluster.look()
    for team, tainted, word in (
        ("c", {"n3"}, "OthersHaveProven"),
        ("a", {"n3"}, "NodeStillFaulty"),
        ("b", set(), "NodeRecovered"),
    ):
        cluster.now_s += 1
        cluster.says(f"{team}-1", "n3", CheckResult.FINE, team=team, members=2).look()
        assert (cluster.tainted, ("n3", word) in cluster.words) == (tainted, True)
        assert not cluster.look().steps


@pytest.mark.parametrize("kind", [CheckResult.FINE, CheckResult.FAULTY, CheckResult.LINK])
@pytest.mark.parametrize("ahead_s", [0, 3, 59, 3600])
def test_nothing_that_one_namespace_says_makes_the_word_of_another_old(kind, ahead_s):
    cluster = Cluster(min_namespaces=2).says("liar", "n3", kind, team="liars", ago_s=-ahead_s)
    cluster.look()
    cluster.says("honest", "n3", team="honest", ago_s=2.0)  # it was on its way
    cluster.look()
    assert "honest" in cluster.record("n3").namespaces


@pytest.mark.parametrize(
    ("ahead_s", "is_believed"),
    [
        pytest.param(3, [], id="a little: it waits"),
        pytest.param(59, [("n3", "StaleVerdict")], id="more: it is told"),
    ],
)
def test_a_verdict_that_is_ahead_of_now_counts_once_its_time_has_come(ahead_s, is_believed):
    cluster = Cluster().says("w2", "n3", ago_s=-ahead_s)
    cluster.look()
    assert (cluster.tainted, cluster.words) == (set(), is_believed)
    cluster.look(after_s=ahead_s)
    assert cluster.tainted == {"n3"}


def test_one_namespace_alone_takes_half_of_the_share_and_leaves_the_rest():
    cluster = Cluster(40)  # four may be tainted
    for at in range(10):
        cluster.says(f"liar{at}", f"n{at}", team="liars")
    cluster.look()
    assert len(cluster.tainted) == 2
    assert cluster.words.count(("n9", "ShareReached")) == 1
    cluster.says("honest", "n30", team="honest", ago_s=-1).look(after_s=1)
    assert "n30" in cluster.tainted


def test_of_many_namespaces_that_speak_of_a_node_the_last_are_remembered():
    cluster = Cluster().says("w", "n3", team="first")
    cluster.look()
    for at in range(3 * MAX_NAMESPACES):
        cluster.now_s += 1
        cluster.says("w", "n3", team=f"t{at}").look()
    record = cluster.record("n3")
    assert (len(record.handled_by_namespace), len(record.proofs)) == (MAX_NAMESPACES, MAX_PROOFS)
    assert not cluster.says("w", "n3", team="first", ago_s=2 * MAX_NAMESPACES).look().steps


def test_a_suspicion_ends_by_itself():
    cluster = Cluster(min_namespaces=2).says("a-0", "n3")
    cluster.look()
    cluster.look(after_s=HOUR_S)
    assert (cluster.tainted, cluster.notes["n3"]) == (set(), {})


@pytest.mark.parametrize(
    ("nodes", "share", "maximum"),
    [
        pytest.param(20, 0.1, 2, id="ten percent of twenty"),
        pytest.param(3, 0.1, 1, id="one in any case"),
        pytest.param(30, 0.1, 3, id="a share that floats make a little less"),
        pytest.param(4, 1.0, 4, id="all, where an admin says so"),
    ],
)
def test_at_most_a_share_is_tainted_and_the_first_reported_comes_first(nodes, share, maximum):
    cluster = Cluster(nodes, share=share, fresh_s=1e6)
    for at in range(nodes):
        cluster.says(f"w{at}", f"n{at}", ago_s=at, team=f"t{at}")
    cluster.look()
    assert cluster.tainted == {f"n{at}" for at in range(nodes - maximum, nodes)}
    refused = [node for node, word in cluster.words if word == "ShareReached"]
    assert len(refused) == nodes - maximum
    cluster.look(after_s=HOUR_S)
    cluster.look()
    assert len(cluster.tainted) == min(maximum, nodes - maximum), (
        "the time of the first is up: the next ones have their turn"
    )


def test_a_report_over_the_share_is_kept_and_foreign_taints_count():
    cluster = Cluster(10)
    cluster.tainted.add("n9")
    cluster.says("w3", "n3").look()
    assert (cluster.tainted, cluster.last()) == ({"n9"}, ("n3", "ShareReached"))
    cluster.free("n9").look(after_s=60)
    assert cluster.tainted == {"n3"}


def test_what_stands_on_a_node_and_is_no_record_counts_as_none():
    cluster = Cluster()
    cluster.notes["n3"] = {"turnout.dev/node-record": "{}"}
    assert cluster.cache().faults.keys() == {"n3"}
    cluster.says("w3", "n3").look()
    assert cluster.tainted == {"n3"}
    with pytest.raises(BadNodeRecord):
        read_record("x" * 100_000)


def test_the_word_of_a_pod_that_is_gone_counts_until_its_node_is_gone():
    cluster = Cluster().says("w2", "n3")
    cache = cluster.cache()
    cache.drop_pod("uid-w2")
    assert [pod_report.pod for pod_report in cache.state({}).pod_reports] == ["team/w2"]
    cache.drop_node("n3")
    assert cache.state({}).pod_reports == ()


def test_thousands_of_healthy_reports_change_nothing_and_stale_ones_go():
    cluster, news = Cluster().says("w1", "n1", CheckResult.FINE).says("w2", "n3", ago_s=700), []
    cache = FaultReportCache(cluster.rules.key, (GPU,), lambda: news.append(1))
    for name in cluster.gpus:
        cache.put_node(cluster.node(name))
    cache.put_pod(cluster.pods["w1"])
    assert not news
    cache.put_pod(cluster.pods["w2"])
    cache.put_pod(cluster.pods["w2"])
    assert len(news) == 1, "the same word is said once"
    cache.forget(cluster.now_s - cluster.rules.fresh_s)
    assert [pod_report.pod for pod_report in cache.state({}).pod_reports] == ["team/w1"]


# Laws.

EVENTS = st.one_of(
    st.tuples(
        st.just("says"), st.integers(0, 7), st.integers(0, 9), st.sampled_from([*CheckResult]), st.integers(-90, 900)
    ),
    st.tuples(st.just("lies"), st.integers(0, 7), st.integers(0, 9), st.sampled_from(["", "{}", "[1]", garbage()])),
    st.tuples(st.just("foreign"), st.integers(0, 7), st.integers(0, 9), st.integers(0, 9)),
    st.tuples(st.just("later"), st.integers(0, 5000)),
    st.tuples(st.just("frees"), st.integers(0, 9)),
)


def happen(cluster, event, proven):
    """Let it happen. proven: the nodes of which a pod there has ever said that they are faulty."""
    match event:
        case ("says", pod, node, kind, ago_s):
            cluster.says(f"w{pod}", f"n{node}", kind, ago_s=ago_s, team=f"team{pod % 3}")
            if kind is CheckResult.FAULTY:
                proven.add(f"n{node}")
        case ("lies", pod, node, text):
            cluster.says(f"w{pod}", f"n{node}", text=text.replace("faulty", "guilty"))
        case ("foreign", pod, node, other) if node != other:
            cluster.says(f"w{pod}", f"n{node}", node=f"n{other}")
        case ("later", seconds):
            cluster.now_s += seconds
        case ("frees", node):
            cluster.free(f"n{node}")


@pytest.mark.contract("DL-82")
@given(
    events=st.lists(EVENTS, max_size=25),
    share=st.floats(0.01, 1),
    min_namespaces=st.integers(1, 3),
    taint_s=st.sampled_from([10.0, 1000.0]),
)
@settings(max_examples=scaled(150), deadline=None)
def test_laws_of_any_sequence(events, share, min_namespaces, taint_s):
    """The share is kept, none is tainted without a proof, none for ever, and a look at rest changes nothing."""
    cluster, proven = (
        Cluster(10, share=share, min_namespaces=min_namespaces, taint_s=taint_s, longest_s=4 * taint_s),
        set(),
    )
    for event in events:
        happen(cluster, event, proven)
        was = {name: cluster.record(name) for name in cluster.tainted}
        for step in cluster.look().steps:
            if step.taints and step.node not in was:
                times, lasts_s = step.record.times, step.record.until.timestamp() - cluster.now_s
                assert len(step.record.namespaces) >= min_namespaces or times > 1
                assert lasts_s == pytest.approx(min(taint_s * 2 ** (times - 1), 4 * taint_s))
        assert len(cluster.tainted) <= cluster.rules.max_tainted(10)
        assert cluster.tainted <= proven
        for name in cluster.tainted:
            record = cluster.record(name)
            assert record.state is FaultState.TAINTED
            assert record.until.timestamp() > cluster.now_s
            assert record.namespaces
        assert not cluster.look().steps
    cluster.pods.clear()
    cluster.look(after_s=4 * taint_s)
    assert cluster.tainted == set()
    cluster.look(after_s=1e6)
    assert not any(cluster.notes.values()), "at last nothing is left on any node"


def test_a_rule_of_the_times():
    rules = TaintRules(taint_s=10, longest_s=5)
    assert [rules.duration_s(times) for times in (1, 2, 2000)] == [10, 10, 10]


@given(
    kind=st.sampled_from([*CheckResult]),
    names=st.lists(st.text(max_size=253), min_size=4, max_size=4),
    why=st.text(max_size=512),
    at_s=st.floats(0, 4e9),
    time_s=st.none() | st.floats(0, 1e7),
)
def test_every_verdict_is_read_again(kind, names, why, at_s, time_s):
    report = NodeReport(kind, utc_datetime(at_s), 7, names[0], 3, names[1], names[2], names[3], why, time_s, time_s)
    assert node_health.decode_report(node_health.encode_report(report)) == report


def test_the_largest_verdict_is_read_again():
    worst = "\x01" * 512
    report = NodeReport(
        CheckResult.FAULTY, utc_datetime(0), 1 << 40, worst[:253], 1 << 40, *[worst[:253]] * 3, worst, 1e7, 1e7
    )
    assert node_health.decode_report(node_health.encode_report(report)) == report


def test_what_a_check_finds_is_what_a_verdict_says():
    assert [found.value for found in NodeResult] == [kind.value for kind in CheckResult]
