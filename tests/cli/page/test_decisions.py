"""Decisions on the page: the newest first, and no namespace can push out those of another."""

import pytest

from turnout.cli.page.decisions import MAX_DECISIONS, MAX_MESSAGE, MAX_OF_NAMESPACE, DecisionStore

NOW_S = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def event(name="bert", reason="IdleRoom", at="2026-01-01T00:00:00Z", component="turnout-autoscaler", message="m"):
    about = {"kind": "Job", "name": name}
    return {"involvedObject": about, "reason": reason, "message": message, "reportingComponent": component,
            "lastTimestamp": at, "count": 1, "type": "Normal"}  # fmt: skip


def test_a_tenant_who_writes_events_without_end_pushes_out_only_its_own():
    store = DecisionStore()
    store.put("honest", "team-a", event(at="2025-12-31T23:00:00Z"), NOW_S)
    for at in range(2 * MAX_DECISIONS):
        store.put(f"flood-{at}", "attacker", event(name=f"n{at}"), NOW_S)
    items = store.items({})
    assert [each.object for each in items if each.namespace == "team-a"] == ["Job/team-a/bert"]
    assert len(items) == MAX_OF_NAMESPACE + 1


def test_over_the_bound_the_largest_namespace_gives():
    store = DecisionStore()
    store.put("honest", "team-a", event(), NOW_S)
    for at in range(4 * MAX_DECISIONS):
        store.put(f"flood-{at}", f"attacker-{at % 40}", event(name=f"n{at}"), NOW_S)
    items = store.items({})
    assert len(items) <= MAX_DECISIONS
    assert "team-a" in {each.namespace for each in items}


def test_an_event_of_the_future_counts_as_now():
    store = DecisionStore()
    store.put("1", "attacker", event(at="2999-01-01T00:00:00Z"), NOW_S)
    assert store.items({})[0].at_s == NOW_S


def test_a_long_message_is_cut():
    store = DecisionStore()
    store.put("1", "attacker", event(message="x" * 1_000_000), NOW_S)
    assert len(store.items({})[0].sentence) == MAX_MESSAGE


def test_the_newer_state_of_an_event_replaces_the_older():
    store = DecisionStore()
    store.put("1", "team-a", event(at="2025-12-31T23:00:00Z"), NOW_S)
    store.put("1", "team-a", {**event(), "count": 2}, NOW_S)
    (item,) = store.items({"Job/team-a/bert": "q"})
    assert (item.times, item.at_s, item.queue) == (2, NOW_S, "q")


@pytest.mark.parametrize(
    ("reason", "kind", "glyph"),
    [
        pytest.param("IdleRoom", "Normal", "grow", id="a growth"),
        pytest.param("MakesRoom", "Normal", "shrink", id="a shrink"),
        pytest.param("AtMax", "Normal", "hold", id="a hold"),
        pytest.param("NodeTainted", "Warning", "fault", id="a warning"),
        pytest.param("Bound", "Normal", "other", id="another word"),
    ],
)
def test_each_decision_has_a_glyph(reason, kind, glyph):
    store = DecisionStore()
    store.put("1", "team-a", {**event(reason=reason), "type": kind}, NOW_S)
    assert store.items({})[0].glyph == glyph


def test_an_event_of_another_component_is_no_decision():
    store = DecisionStore()
    store.put("1", "team-a", event(component="kubelet"), NOW_S)
    assert store.items({}) == ()


@pytest.mark.parametrize(
    ("version", "kind", "job"),
    [
        pytest.param("batch/v1", "Job", "Job/team-a/bert", id="a Job of Kubernetes"),
        pytest.param("batch.volcano.sh/v1alpha1", "Job", "VolcanoJob/team-a/bert", id="a Job of Volcano"),
        pytest.param("kubeflow.org/v1", "PyTorchJob", "PyTorchJob/team-a/bert", id="a PyTorchJob"),
        pytest.param("ctyun.cn/v1", "PyTorchJob", "PyTorchJob.ctyun.cn/team-a/bert", id="one of another group"),
        pytest.param("v1", "Pod", "Pod/team-a/bert", id="a pod"),
    ],
)
def test_a_decision_is_of_the_job_as_the_page_names_it(version, kind, job):
    store = DecisionStore()
    raw = event()
    store.put("u", "team-a", {**raw, "involvedObject": {"apiVersion": version, "kind": kind, "name": "bert"}}, NOW_S)
    (item,) = store.items({job: "queue-a"})
    assert (item.object, item.queue) == (job, "queue-a")
