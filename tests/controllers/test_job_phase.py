"""The phase of a job by its status, and why its pods restart: the words of two metrics."""

import pytest

from tests.controllers.jobs import job, looked, pod, role, with_status
from turnout.controllers.conditions import job_phase
from turnout.controllers.kinds.registry import KINDS
from turnout.controllers.model import JobPhase, PodPhase, RestartReason
from turnout.controllers.role_pods import restart_reason

PYTORCHJOB = KINDS["PyTorchJob"]


def conditions(*types, off=()):
    return {"conditions": [{"type": each, "status": "False" if each in off else "True"} for each in types]}


@pytest.mark.parametrize(("status", "phase"), [
    pytest.param({}, JobPhase.PENDING, id="a new job"),
    pytest.param(conditions("Created"), JobPhase.PENDING, id="a job whose pods do not run yet"),
    pytest.param(conditions("Created", "Running"), JobPhase.RUNNING, id="running"),
    pytest.param(conditions("Created", "Restarting"), JobPhase.RESTARTING, id="restarting"),
    pytest.param(conditions("Created", "Running", "Suspended", off=("Running",)), JobPhase.SUSPENDED, id="suspended"),
    pytest.param(conditions("Suspended", "Running", off=("Suspended",)), JobPhase.RUNNING, id="resumed"),
    pytest.param(conditions("Running", "Succeeded", off=("Running",)), JobPhase.SUCCEEDED, id="succeeded"),
    pytest.param(conditions("Restarting", "Failed"), JobPhase.FAILED, id="a failure decides"),
    pytest.param({"conditions": ["no condition"]}, JobPhase.PENDING, id="a status that is no status"),
])  # fmt: skip
def test_the_phase_of_a_job_with_conditions(status, phase):
    assert job_phase(PYTORCHJOB, status) is phase


@pytest.mark.parametrize(("word", "phase"), [
    ("Pending", JobPhase.PENDING),
    ("Running", JobPhase.RUNNING),
    ("Completing", JobPhase.RUNNING),
    ("Restarting", JobPhase.RESTARTING),
    ("Aborting", JobPhase.SUSPENDED),
    ("Aborted", JobPhase.SUSPENDED),
    ("Completed", JobPhase.SUCCEEDED),
    ("Terminating", JobPhase.FAILED),
    ("Terminated", JobPhase.FAILED),
    ("Failed", JobPhase.FAILED),
    ("a word of a later version", JobPhase.PENDING),
])  # fmt: skip
def test_the_phase_of_a_volcano_job(word, phase):
    assert job_phase(KINDS["VolcanoJob"], {"state": {"phase": word}}) is phase


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [{}, {"state": 3}, {"conditions": 3}, {"phase": [], "conditions": [3]}])
def test_no_status_of_any_kind_fails(kind, status):
    assert job_phase(KINDS[kind], status) is JobPhase.PENDING


@pytest.mark.parametrize(("pod", "reason"), [
    pytest.param(pod(0, PodPhase.FAILED, exit_code=1), RestartReason.PROCESS_FAILED, id="an exit code"),
    pytest.param(pod(0, PodPhase.FAILED), RestartReason.PROCESS_FAILED, id="an unknown end"),
    pytest.param(pod(0, PodPhase.FAILED, exit_code=137, reason="OOMKilled"), RestartReason.OUT_OF_MEMORY, id="memory"),
    pytest.param(pod(0, PodPhase.FAILED, reason="Evicted"), RestartReason.EVICTED, id="an eviction by the kubelet"),
    pytest.param(pod(0, PodPhase.FAILED, exit_code=143, deleting=True), RestartReason.EVICTED, id="a deleted pod"),
    pytest.param(pod(0, PodPhase.FAILED, exit_code=205), RestartReason.FAULTY_NODE, id="a faulty node"),
])  # fmt: skip
def test_why_a_pod_is_recreated(pod, reason):
    assert restart_reason(pod, 205) is reason


def test_a_recreated_pod_is_counted_once():
    raw = job(worker=role(2))
    first_round = looked(raw, pod(0), pod(1, PodPhase.FAILED, exit_code=1))
    assert first_round.restarts == (RestartReason.PROCESS_FAILED,)
    raw = with_status(raw, first_round)
    assert looked(raw, pod(0), pod(1, PodPhase.FAILED, exit_code=1)).restarts == ()


def test_a_pod_that_is_not_recreated_is_no_restart():
    assert looked(job(worker=role(1, restart="Never")), pod(0, PodPhase.FAILED, exit_code=1)).restarts == ()
