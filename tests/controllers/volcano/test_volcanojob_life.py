"""The life of a Volcano Job: what leads from one phase to the next, and what its status tells."""

import pytest

from tests.controllers.jobs import NOW_S
from tests.controllers.volcano.volcanojobs import after, deleted, job, looked, made, others, phase, phased, pod, task
from turnout.controllers.model import PodPhase
from turnout.kube.labels import SUSPENDED

GOOD, BAD, WAITS = PodPhase.SUCCEEDED, PodPhase.FAILED, PodPhase.PENDING
FAILS = {"event": "PodFailed"}


def pods(*phases):
    return [pod(index, each) for index, each in enumerate(phases)]


def policy(action, **more):
    return [{**FAILS, "action": action, **more}]


@pytest.mark.parametrize(
    ("before", "phases", "comes_to"),
    [
        pytest.param("Pending", [PodPhase.RUNNING, WAITS], "Pending", id="too few run"),
        pytest.param("Pending", [PodPhase.RUNNING] * 2, "Running", id="as many run as the gang needs"),
        pytest.param("Pending", [PodPhase.RUNNING, GOOD], "Running", id="one that has ended has begun, too"),
        pytest.param("Running", [PodPhase.RUNNING] * 3, "Running", id="all run"),
        pytest.param("Running", [PodPhase.RUNNING, PodPhase.RUNNING, WAITS], "Running", id="the elastic one waits"),
        pytest.param("Running", [PodPhase.RUNNING, WAITS, WAITS], "Pending", id="too many wait again"),
    ],
)
def test_it_runs_while_its_gang_does(before, phases, comes_to):
    assert phase(after(phased(before, task(minimum=2), minAvailable=2), *pods(*phases))) == comes_to


@pytest.mark.contract("VE-27")
@pytest.mark.parametrize(
    ("minimum", "phases", "comes_to"),
    [
        pytest.param(3, [GOOD] * 3, "Completed", id="a rigid job: all have succeeded"),
        pytest.param(3, [GOOD, GOOD, BAD], "Failed", id="a rigid job: one has failed"),
        pytest.param(2, [PodPhase.RUNNING, PodPhase.RUNNING, BAD], "Running", id="an elastic job: one is lost"),
        pytest.param(2, [GOOD, GOOD, BAD], "Completed", id="an elastic job: as many succeed as it needs"),
        pytest.param(2, [GOOD, BAD, BAD], "Failed", id="an elastic job: fewer do"),
        pytest.param(2, [GOOD, GOOD, PodPhase.RUNNING], "Running", id="one goes on"),
    ],
)
def test_an_elastic_job_is_judged_by_what_its_gang_needs(minimum, phases, comes_to):
    assert phase(after(phased("Running", task(minimum=minimum), minAvailable=minimum), *pods(*phases))) == comes_to


@pytest.mark.contract("VE-27")
def test_a_rigid_job_fails_with_its_first_pod_by_policy_and_is_cleaned_up():
    raw = after(phased("Running", policies=policy("TerminateJob")), pod(0, BAD), pod(1), pod(2))
    assert phase(raw) == "Terminating"
    assert deleted(looked(raw, pod(0, BAD), pod(1), pod(2))) == ["bert-worker-2", "bert-worker-1"]
    raw = after(raw, pod(0, BAD))
    assert phase(raw) == "Terminated"
    assert deleted(looked(raw, pod(0, BAD))) == ["bert-uid-bert"]


@pytest.mark.parametrize(
    ("tasks", "spec", "ended", "comes_to"),
    [
        pytest.param(
            (task("ps", 1), task(replicas=2, minimum=1)),
            {"minAvailable": 2},
            [pod(0, BAD, "ps"), pod(0, GOOD), pod(1, GOOD)],
            "Failed",
            id="a task has fewer than its own min",
        ),
        pytest.param(
            (task("ps", 1), task(replicas=2)),
            {"minAvailable": 2},
            [pod(0, BAD, "ps"), pod(0, GOOD), pod(1, GOOD)],
            "Completed",
            id="whose mins together are above the job's",
        ),
    ],
)
def test_it_is_judged_once_all_pods_have_ended(tasks, spec, ended, comes_to):
    left = [each for each in ended if each.phase is not PodPhase.RUNNING]
    raw = after(phased("Running", *tasks, **spec), *ended)
    assert phase(after(raw, *left)) == comes_to


def test_pods_that_were_told_to_go_do_not_end_it():
    raw = phased("Running", task(replicas=1, minimum=1), minAvailable=1)
    assert phase(after(raw, pod(0), *(pod(index, BAD, deleting=True) for index in (1, 2)))) == "Running"


@pytest.mark.parametrize(
    ("before", "phases"),
    [
        pytest.param("Running", [PodPhase.RUNNING, GOOD], id="one above its size has succeeded"),
        pytest.param("Running", [PodPhase.RUNNING, WAITS], id="one above its size waits"),
    ],
)
def test_pods_above_its_size_decide_nothing(before, phases):
    raw = phased(before, task(replicas=1))
    assert phase(after(raw, *pods(*phases), rounds=2)) == before


@pytest.mark.parametrize(
    ("action", "on_the_way", "comes_to"),
    [
        ("AbortJob", "Aborting", "Aborted"),
        ("TerminateJob", "Terminating", "Terminated"),
        ("CompleteJob", "Completing", "Completed"),
    ],
)
def test_an_action_ends_a_job_once_nothing_runs(action, on_the_way, comes_to):
    raw = after(phased("Running", task(replicas=2), policies=policy(action)), pod(0, BAD, exit_code=3), pod(1))
    assert phase(raw) == on_the_way
    assert raw["status"]["state"]["message"] == f"{action}: PodFailed of bert-worker-0 with 3"
    assert phase(after(raw, pod(0, BAD), pod(1, deleting=True))) == on_the_way
    assert phase(after(raw, pod(0, BAD))) == comes_to


def test_a_restart_deletes_all_pods_and_begins_anew_once_they_are_gone():
    raw = after(phased("Running", task(replicas=2), policies=policy("RestartJob")), pod(0, BAD), pod(1))
    assert (phase(raw), raw["status"]["retryCount"], raw["status"]["version"]) == ("Restarting", 1, 1)
    pods = pod(0, BAD), pod(1)
    assert deleted(looked(raw, *pods)) == ["bert-worker-1", "bert-worker-0"]
    assert made(looked(raw, pod(1, deleting=True))) == []
    raw = after(raw)
    assert (phase(raw), made(looked(raw))) == ("Pending", ["bert-worker-0", "bert-worker-1"])


def test_it_is_restarted_maxretry_times_and_then_fails_with_its_logs():
    raw = phased("Running", task(replicas=2), policies=policy("RestartJob"), maxRetry=2, status={"retryCount": 2})
    raw = after(raw, pod(0, BAD), pod(1))
    assert phase(raw) == "Restarting"
    assert deleted(looked(raw, pod(0, BAD), pod(1))) == ["bert-worker-1"]
    raw = after(raw, pod(0, BAD))
    assert phase(raw) == "Failed"
    assert "it was restarted 2 times already" in raw["status"]["state"]["message"]


def test_those_above_the_size_leave_highest_first_and_strangers_too():
    outcome = looked(phased("Running", task(replicas=1)), *(pod(index) for index in (0, 9, 10)), pod(0, task="gone"))
    assert deleted(outcome) == ["bert-worker-10", "bert-worker-9", "bert-gone-0"]


def test_the_status_counts_pods_by_phase_and_task():
    raw = after(phased("Running", task(replicas=4, minimum=1), minAvailable=1, plugins={"env": []}), *pods(GOOD, WAITS))
    status = raw["status"]
    counts = {word: status[word] for word in ("pending", "running", "succeeded", "failed", "unknown", "terminating")}
    assert counts == {"pending": 1, "running": 0, "succeeded": 1, "failed": 0, "unknown": 0, "terminating": 0}
    assert status["taskStatusCount"] == {"worker": {"phase": {"Succeeded": 1, "Pending": 1}}}
    assert (status["minAvailable"], status["controlledResources"]) == (1, {"plugin-env": "env"})


def test_phases_are_remembered_as_conditions_the_newest_last():
    raw = after(job(task(replicas=1)), rounds=2)
    raw = after(raw, pod(0), rounds=2)
    assert [each["status"] for each in raw["status"]["conditions"]] == ["Pending", "Running"]


@pytest.mark.parametrize(
    ("ttl_s", "at_s", "is_deleted", "again_s"),
    [
        pytest.param(None, 99, False, None, id="no time to live"),
        pytest.param(60, 59, False, 1, id="not yet"),
        pytest.param(60, 60, True, 0, id="its time is over"),
    ],
)
def test_it_is_deleted_once_its_time_after_the_end_is_over(ttl_s, at_s, is_deleted, again_s):
    raw = phased("Completed", **({} if ttl_s is None else {"ttlSecondsAfterFinished": ttl_s}))
    raw["status"]["state"]["lastTransitionTime"] = "2027-01-15T08:00:00Z"
    outcome = looked(raw, now_s=NOW_S + at_s)
    assert (outcome.delete_job, outcome.requeue_s) == (is_deleted, again_s)
    jumped = looked(raw, now_s=NOW_S + at_s, jumped_s=60.0)
    assert (jumped.delete_job, jumped.requeue_s) == (False, None if again_s is None else 10.0)


@pytest.mark.contract("XD-09")
def test_the_group_of_a_job_that_has_ended_goes_and_pods_with_logs_stay():
    raw = phased("Completed", plugins={"svc": []})
    assert deleted(looked(raw, pod(0, GOOD), pod(1))) == ["bert-worker-1", "bert-uid-bert"]


def test_a_suspended_job_has_no_pods_and_begins_anew_when_it_is_resumed():
    raw = phased("Running", task(replicas=1), notes={SUSPENDED: "true"}, ttlSecondsAfterFinished=1)
    raw = after(raw, pod(0))
    assert phase(raw) == "Aborting"
    raw = after(raw)
    assert (phase(raw), raw["status"]["state"]["reason"]) == ("Aborted", "Suspended")
    assert looked(raw, now_s=NOW_S + 99).delete_job is False
    raw["metadata"]["annotations"] = {SUSPENDED: "false"}
    raw = after(raw, rounds=2, owned=others(raw))
    assert (phase(raw), raw["status"].get("retryCount")) == ("Pending", 0)
    assert made(looked(raw)) == ["bert-worker-0"]


def test_a_job_that_a_policy_has_aborted_is_not_resumed():
    raw = after(phased("Running", task(replicas=1), policies=policy("AbortJob")), pod(0, BAD))
    raw = after(raw, pod(0, BAD), rounds=3)
    assert phase(raw) == "Aborted"
