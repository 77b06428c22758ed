"""One look at a job: children, order, limits, ends. Kinds are told apart elsewhere."""

from dataclasses import replace

import pytest

from tests.controllers.jobs import CONTAINER, NOW_S, conditions, job, looked, others, pod, role, view, with_status
from turnout.controllers import children
from turnout.controllers.conditions import with_condition
from turnout.controllers.kinds.pytorchjob import PYTORCHJOB
from turnout.controllers.model import (
    ChildKey,
    ChildState,
    Create,
    Delete,
    GangDialect,
    GangSettings,
    OwnedObjects,
    PodPhase,
    Reason,
    Update,
)
from turnout.controllers.reconcile import NOTHING, reconcile
from turnout.kube.times import rfc3339

RUNS = {
    "startTime": rfc3339(NOW_S - 100),
    "conditions": [{"type": "Created", "status": "True", "reason": "PyTorchJobCreated"}],
}


def made(outcome):
    """The names of what is created, in order."""
    return [each.body["metadata"]["name"] for each in outcome.writes if isinstance(each, Create)]


def deleted(outcome):
    """The names of what is deleted, in order."""
    return [each.key.name for each in outcome.writes if isinstance(each, Delete)]


def test_a_new_job_gets_its_services_first_then_its_pods():
    outcome = reconcile(PYTORCHJOB, job(worker=role(2)), OwnedObjects(), NOW_S)
    kinds = [(each.body["kind"], each.body["metadata"]["name"]) for each in outcome.writes]
    names = ["bert-worker-0", "bert-worker-1"]
    assert kinds == [("Service", name) for name in names] + [("Pod", name) for name in names]
    assert outcome.status["conditions"][0]["reason"] == "PyTorchJobCreated"


def test_every_child_is_owned_by_the_job():
    for each in reconcile(PYTORCHJOB, job(worker=role(2), elastic={"metrics": [{}]}), OwnedObjects(), NOW_S).writes:
        (owner,) = each.body["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == ("uid-bert", True)


def test_a_job_that_has_all_it_wants_writes_nothing():
    raw = job(worker=role(2))
    raw = with_status(raw, looked(raw, pod(0), pod(1)))
    assert looked(raw, pod(0), pod(1)) == NOTHING


@pytest.mark.contract("XD-05")
def test_a_smaller_job_loses_its_highest_indices_first():
    outcome = looked(job(worker=role(2), status=RUNS), *(pod(index) for index in (0, 3, 1, 2)))
    assert deleted(outcome) == ["bert-worker-3", "bert-worker-2"]


def test_services_above_the_size_go_too():
    large = others(job(worker=role(3)))
    outcome = reconcile(PYTORCHJOB, job(worker=role(1)), OwnedObjects((pod(0),), large), NOW_S)
    assert deleted(outcome) == ["bert-worker-2", "bert-worker-1"]


@pytest.mark.parametrize("gap", [0, 1, 2])
def test_a_gap_is_filled_with_its_own_index(gap):
    pods = [pod(index) for index in range(3) if index != gap]
    assert made(looked(job(worker=role(3), status=RUNS), *pods)) == [f"bert-worker-{gap}"]


@pytest.mark.contract("PE-47")
def test_an_hpa_that_differs_is_changed_and_one_that_is_not_wanted_goes():
    raw = job(worker=role(1), elastic={"maxReplicas": 2, "metrics": [{"type": "Resource"}]}, status=RUNS)
    key = ChildKey("HorizontalPodAutoscaler", "bert")
    children = others(raw)
    children[key] = replace(children[key], spec={**children[key].spec, "maxReplicas": 9})
    suspended = {**raw, "spec": {**raw["spec"], "runPolicy": {"suspend": True}}}
    assert "HorizontalPodAutoscaler" in {
        each.key.kind for each in reconcile(PYTORCHJOB, suspended, OwnedObjects((), children), NOW_S).writes
    }
    outcome = reconcile(PYTORCHJOB, raw, OwnedObjects((pod(0),), children), NOW_S)
    assert [each for each in outcome.writes if isinstance(each, Update)] == [Update(key, others(raw)[key].spec)]
    without = job(worker=role(1), elastic={"maxReplicas": 2}, status=RUNS)
    assert deleted(reconcile(PYTORCHJOB, without, OwnedObjects((pod(0),), children), NOW_S)) == ["bert"]


def test_a_condition_that_was_stored_without_its_times_is_updated():
    stored = [{"type": "Running", "status": "True"}]
    raw = job(worker=role(2), status={"conditions": stored})
    running = with_status(raw, looked(raw, pod(0), pod(1)))["status"]["conditions"][-1]
    assert (running["reason"], running["lastTransitionTime"]) == ("PyTorchJobRunning", rfc3339(NOW_S))


def pods_metric(name, quantity):
    return {"type": "Pods", "pods": {"metric": {"name": "load"}, "target": {"type": "AverageValue", name: quantity}}}


@pytest.mark.parametrize(
    ("stated", "stored", "updates"),
    [
        pytest.param("0.5", "500m", 0, id="a fraction is stored in thousandths"),
        pytest.param("1000m", "1", 0, id="whole thousandths are stored without a suffix"),
        pytest.param(2, "2", 0, id="a number is stored as a text"),
        pytest.param("1024Ki", "1Mi", 0, id="the largest binary suffix is stored"),
        pytest.param("1", "1500m", 1, id="another value is a difference"),
        pytest.param("0.1m", "0.2m", 1, id="values below a thousandth that differ are a difference"),
        pytest.param("many", "1", 1, id="a text that is no quantity is a difference"),
        pytest.param("1", None, 1, id="a missing value is a difference"),
    ],
)
@pytest.mark.parametrize("name", ["value", "averageValue"])
def test_quantities_of_an_hpa_are_compared_by_value(name, stated, stored, updates):
    raw = job(worker=role(1), elastic={"maxReplicas": 2, "metrics": [pods_metric(name, stated)]}, status=RUNS)
    key = ChildKey("HorizontalPodAutoscaler", "bert")
    children = others(raw)
    children[key] = replace(children[key], spec={**children[key].spec, "metrics": [pods_metric(name, stored)]})
    outcome = reconcile(PYTORCHJOB, raw, OwnedObjects((pod(0),), children), NOW_S)
    assert len([each for each in outcome.writes if isinstance(each, Update)]) == updates


def test_defaults_of_the_api_server_are_no_difference():
    raw = job(worker=role(1), elastic={"maxReplicas": 2, "metrics": [{"type": "Resource"}]}, status=RUNS)
    key = ChildKey("HorizontalPodAutoscaler", "bert")
    children = others(raw)
    children[key] = replace(children[key], spec={**children[key].spec, "behavior": {"scaleUp": {}}})
    assert reconcile(PYTORCHJOB, raw, OwnedObjects((pod(0),), children), NOW_S).writes == ()


@pytest.mark.parametrize(
    ("goal", "stored", "expected"),
    [
        pytest.param([1, 2], [1, 2], True, id="equal lists"),
        pytest.param([1, 2], [1], False, id="a shorter list"),
        pytest.param([1, 2], [1, 3], False, id="a list with another value"),
        pytest.param([1], "1", False, id="no list"),
        pytest.param({"a": 1}, {"a": 1, "b": 2}, True, id="a field more"),
        pytest.param({"a": 1}, {"b": 2}, False, id="a field that is missing"),
        pytest.param({"a": 1}, None, False, id="no object"),
        pytest.param({"value": "0.5"}, {"value": "500m"}, False, id="a text that looks like a quantity"),
    ],
)
def test_a_child_is_as_it_is_wanted_with(goal, stored, expected):
    assert children.has_expected_fields(goal, stored) is expected


@pytest.mark.contract("XD-09")
@pytest.mark.parametrize("end", ["Succeeded", "Failed"])
def test_an_ended_job_frees_its_pod_group_and_its_hpa(end):
    raw = job(
        worker=role(1), elastic={"metrics": [{}]}, status={**RUNS, "conditions": [{"type": end, "status": "True"}]}
    )
    setup = GangSettings(GangDialect.VOLCANO)
    (group,) = [
        each.body
        for each in reconcile(PYTORCHJOB, job(worker=role(1)), OwnedObjects(), NOW_S, setup).writes
        if each.body["kind"] == "PodGroup"
    ]
    key = ChildKey("PodGroup", "bert")
    children = {
        **others(raw),
        key: replace(others(raw)[ChildKey("Service", "bert-worker-0")], key=key, index=-1, spec=group["spec"]),
    }
    outcome = reconcile(PYTORCHJOB, raw, OwnedObjects((pod(0, PodPhase.SUCCEEDED),), children), NOW_S, setup)
    assert sorted(each.key.kind for each in outcome.writes) == ["HorizontalPodAutoscaler", "PodGroup"]


@pytest.mark.contract("XD-04")
@pytest.mark.parametrize("end", ["Succeeded", "Failed"])
@pytest.mark.parametrize("phase", list(PodPhase))
def test_no_status_leaves_an_end(end, phase):
    raw = job(
        worker=role(2), status={**RUNS, "conditions": [{"type": end, "status": "True", "reason": f"PyTorchJob{end}"}]}
    )
    assert conditions(with_status(raw, looked(raw, pod(0, phase), pod(1, phase)))) == [end]


@pytest.mark.parametrize(
    ("clean", "goes"),
    [
        pytest.param("None", [], id="none"),
        pytest.param(
            "Running",
            ["bert-worker-1", "bert-worker-1", "bert-worker-2", "bert-worker-2"],
            id="those that run or would",
        ),
        pytest.param("All", [f"bert-worker-{index}" for index in (0, 0, 1, 1, 2, 2)], id="all, with their Services"),
    ],
)
def test_which_pods_are_cleaned_up(clean, goes):
    raw = job(
        worker=role(3),
        run={"cleanPodPolicy": clean},
        status={**RUNS, "conditions": [{"type": "Succeeded", "status": "True"}]},
    )
    outcome = looked(raw, pod(0, PodPhase.SUCCEEDED), pod(1), pod(2, PodPhase.PENDING))
    assert deleted(outcome) == goes


@pytest.mark.parametrize(("after_s", "is_deleted", "again_s"), [(0, False, 60), (59, False, 1), (60, True, 0)])
def test_a_job_is_deleted_once_its_time_to_live_is_over(after_s, is_deleted, again_s):
    status = {"completionTime": rfc3339(NOW_S), "conditions": [{"type": "Succeeded", "status": "True"}]}
    raw = job(worker=role(1), run={"ttlSecondsAfterFinished": 60}, status=status)
    outcome = looked(raw, pod(0, PodPhase.SUCCEEDED), now_s=NOW_S + after_s)
    assert (outcome.delete_job, outcome.requeue_s) == (is_deleted, again_s)


@pytest.mark.parametrize(("after_s", "ends"), [(99, False), (100, True), (10_000, True)])
def test_a_job_past_its_deadline_fails_and_owns_no_pods(after_s, ends):
    raw = job(worker=role(2), run={"activeDeadlineSeconds": 100}, status={**RUNS, "startTime": rfc3339(NOW_S)})
    outcome = looked(raw, pod(0), pod(1), now_s=NOW_S + after_s)
    assert ("Failed" in conditions(with_status(raw, outcome))) is ends
    assert (deleted(outcome)[:2] == ["bert-worker-1", "bert-worker-0"]) is ends
    assert ends or outcome.requeue_s == 100 - after_s


def test_restarts_of_containers_count_against_the_limit():
    raw = job(worker=role(2), run={"backoffLimit": 2}, status=RUNS)
    assert "Failed" not in conditions(with_status(raw, looked(raw, pod(0, restarts=1), pod(1))))
    assert "Failed" in conditions(with_status(raw, looked(raw, pod(0, restarts=1), pod(1, restarts=1))))


def test_restarts_of_a_role_that_is_never_restarted_are_no_tries():
    raw = job(worker=role(2, restart="Never"), run={"backoffLimit": 2}, status=RUNS)
    assert "Failed" not in conditions(with_status(raw, looked(raw, pod(0, restarts=5), pod(1))))


def test_only_an_end_ends_what_a_job_was_running():
    running = {"type": "Running", "status": "True", "reason": "PyTorchJobRunning", "lastTransitionTime": rfc3339(NOW_S)}
    suspended = with_condition([running], Reason.SUSPENDED, "PyTorchJob", "held", NOW_S)
    done = with_condition([running], Reason.SUCCEEDED, "PyTorchJob", "done", NOW_S)
    created = {**running, "type": "Created"}
    both = with_condition([created, running], Reason.FAILED, "PyTorchJob", "failed", NOW_S)
    assert [each["status"] for each in suspended] == ["True", "True"]
    assert [each["status"] for each in done] == ["False", "True"]
    assert [each["status"] for each in both] == ["True", "False", "True"]


def test_a_suspended_job_counts_no_pod_as_active():
    raw = job(worker=role(2), run={"suspend": True}, status={**RUNS, "replicaStatuses": {"Worker": {"active": 2}}})
    assert with_status(raw, looked(raw, pod(0), pod(1)))["status"]["replicaStatuses"] == {"Worker": {"active": 0}}


@pytest.mark.contract("XD-10")
def test_a_pod_that_is_made_anew_counts_once_however_often_it_is_seen():
    raw = job(worker=role(1), run={"backoffLimit": 2}, status=RUNS)
    failed = pod(0, PodPhase.FAILED)
    for _ in range(3):
        outcome = looked(raw, failed)
        assert (deleted(outcome), outcome.status_first or outcome.status is None) == (["bert-worker-0"], True)
        raw = with_status(raw, outcome)
        assert raw["status"]["replicaStatuses"]["Worker"]["restarts"] == 1
    raw = with_status(raw, looked(raw, replace(failed, uid="the next one")))
    assert raw["status"]["replicaStatuses"]["Worker"]["restarts"] == 2
    assert "Failed" in conditions(with_status(raw, looked(raw, pod(0))))


@pytest.mark.parametrize(
    ("restart", "code", "recreates"),
    [
        pytest.param("OnFailure", 1, True, id="on failure"),
        pytest.param("Always", 1, True, id="always"),
        pytest.param("Never", 137, False, id="never"),
        pytest.param("ExitCode", 127, False, id="by exit code, one that a program chose"),
        pytest.param("ExitCode", 128, True, id="by exit code, one that a signal left"),
        pytest.param("ExitCode", None, False, id="by exit code, where none is known"),
    ],
)
def test_which_failed_pods_are_made_anew(restart, code, recreates):
    raw = job(worker=role(1, restart), status=RUNS)
    outcome = looked(raw, pod(0, PodPhase.FAILED, exit_code=code))
    assert (deleted(outcome) == ["bert-worker-0"]) is recreates
    assert ("Failed" in conditions(with_status(raw, outcome))) is not recreates


@pytest.mark.parametrize("restart", ["OnFailure", "Never", "ExitCode"])
def test_a_failed_pod_above_the_size_is_removed_and_not_counted(restart):
    raw = job(worker=role(1, restart), run={"backoffLimit": 1}, status=RUNS)
    outcome = looked(raw, pod(0), pod(1, PodPhase.FAILED, exit_code=1))
    assert (deleted(outcome), list(outcome.restarts)) == (["bert-worker-1"], [])
    raw = with_status(raw, outcome)
    assert "restarts" not in raw["status"]["replicaStatuses"]["Worker"]
    raw = with_status(raw, looked(raw, pod(0)))
    assert conditions(raw) == ["Created", "Running"]


def test_a_suspended_job_owns_nothing_and_starts_anew():
    raw = job(
        worker=role(2), run={"suspend": True}, status={**RUNS, "conditions": [{"type": "Running", "status": "True"}]}
    )
    outcome = looked(raw, pod(0), pod(1))
    assert sorted(deleted(outcome)) == sorted(["bert-worker-0", "bert-worker-1"] * 2)
    suspended = with_status(raw, outcome)
    assert (conditions(suspended), "startTime" in suspended["status"]) == (["Suspended"], False)
    del suspended["spec"]["runPolicy"]
    awake = reconcile(PYTORCHJOB, suspended, OwnedObjects(), NOW_S + 500)
    assert len(made(awake)) == 4
    assert with_status(suspended, awake)["status"]["startTime"] == rfc3339(NOW_S + 500)


@pytest.mark.contract("XD-07")
def test_a_job_that_cannot_be_obeyed_fails_with_the_path_and_is_told():
    raw = job(worker=role(containers=[{**CONTAINER, "name": "other"}]))
    outcome = reconcile(PYTORCHJOB, raw, OwnedObjects(), NOW_S)
    assert (outcome.writes, [each.reason for each in outcome.events]) == ((), [Reason.INVALID])
    (condition,) = outcome.status["conditions"]
    assert (condition["type"], "spec.pytorchReplicaSpecs.Worker.template" in condition["message"]) == ("Failed", True)


def test_a_change_that_cannot_be_obeyed_harms_no_job_that_runs():
    raw = job(worker=role(1, "Sometimes"), status=RUNS)
    outcome = reconcile(PYTORCHJOB, raw, OwnedObjects((pod(0),)), NOW_S)
    assert (outcome.writes, outcome.status, len(outcome.events)) == ((), None, 1)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(
            {**job(worker=role()), "metadata": {**job()["metadata"], "deletionTimestamp": rfc3339(NOW_S)}},
            id="is being deleted",
        ),
        pytest.param(job(worker=role(), run={"managedBy": "kueue.x-k8s.io/multikueue"}), id="another controller has"),
    ],
)
def test_a_job_is_left_alone_that(raw):
    assert reconcile(PYTORCHJOB, raw, OwnedObjects((pod(0),)), NOW_S) == NOTHING


@pytest.mark.parametrize(("phase", "pods"), [("", 0), ("Pending", 0), ("Inqueue", 2), ("Running", 2)])
def test_no_pod_is_made_until_volcano_has_admitted_the_group(phase, pods):
    raw, setup = job(worker=role(2)), GangSettings(GangDialect.VOLCANO)
    key = ChildKey("PodGroup", "bert")
    outcome = reconcile(
        PYTORCHJOB, raw, OwnedObjects((), {key: ChildState(key, "g", spec={}, phase=phase)}), NOW_S, setup
    )
    assert len([name for name in made(outcome) if name.startswith("bert-worker")]) == 2 + pods
    fresh = reconcile(PYTORCHJOB, raw, OwnedObjects(), NOW_S, setup)
    assert [each.body["kind"] for each in fresh.writes] == ["PodGroup", "Service", "Service"]


def test_a_replica_that_failed_too_often_fails_the_job():
    def read(raw):
        view_of_job = view(raw)
        return replace(view_of_job, roles=tuple(replace(each, max_restarts=2) for each in view_of_job.roles))

    kind, raw = replace(PYTORCHJOB, read=read), job(worker=role(2), status=RUNS)
    for life in range(2):
        outcome = reconcile(kind, raw, OwnedObjects((pod(0), failed_pod(life)), others(raw)), NOW_S)
        assert deleted(outcome) == ["bert-worker-1"]
        raw = with_status(raw, outcome)
    raw = with_status(raw, reconcile(kind, raw, OwnedObjects((pod(0), failed_pod(2)), others(raw)), NOW_S))
    assert conditions(raw)[-1] == "Failed"
    assert "failed more than 2 times" in raw["status"]["conditions"][-1]["message"]


def failed_pod(life):
    return replace(pod(1, PodPhase.FAILED), uid=f"life-{life}")


@pytest.mark.contract("XD-01")
def test_another_kind_needs_one_value():
    def read(raw):
        return replace(view(job(raw["metadata"]["name"], worker=role(2))), kind="Dummy")

    rules = {
        "children": replace(PYTORCHJOB.children, others=lambda *_: []),
        "status": replace(PYTORCHJOB.status, conditions_of_pods=lambda *_: []),
    }
    dummy = replace(PYTORCHJOB, kind="Dummy", plural="dummies", read=read, **rules)
    outcome = reconcile(dummy, {**job(), "kind": "Dummy"}, OwnedObjects(), NOW_S)
    assert made(outcome) == ["bert-worker-0", "bert-worker-1"]
    assert outcome.status["conditions"][0]["reason"] == "DummyCreated"
