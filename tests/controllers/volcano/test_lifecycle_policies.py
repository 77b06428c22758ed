"""Lifecycle policies: which event calls for which action."""

import pytest

from tests.controllers.jobs import NOW_S
from tests.controllers.volcano.volcanojobs import job, phased, pod, task, view
from turnout.controllers.kinds.volcanojob import VOLCANOJOB
from turnout.controllers.kinds.volcanojob_life import due_action
from turnout.controllers.model import OwnedObjects, PodPhase, RefusedJob, RestartReason
from turnout.controllers.reconcile import reconcile

ABORT = {"action": "AbortJob"}
FAILED = pod(0, PodPhase.FAILED, exit_code=3)


def due(raw, *pods):
    view_of_job = view(raw)
    return due_action(view_of_job.spec["policies"], view_of_job.roles, OwnedObjects(pods))


def done(*indices):
    return [pod(index, PodPhase.SUCCEEDED) for index in indices]


@pytest.mark.parametrize(
    ("policy", "pods", "acts"),
    [
        pytest.param({"event": "PodFailed"}, [FAILED], True, id="a pod has failed"),
        pytest.param({"events": ["PodEvicted", "PodFailed"]}, [FAILED], True, id="one of several events"),
        pytest.param({"event": "PodEvicted"}, [FAILED], False, id="a failure is no eviction"),
        pytest.param({"event": "PodEvicted"}, [pod(0, deleting=True)], True, id="a pod was told to go"),
        pytest.param({"event": "PodFailed"}, [pod(0, deleting=True)], False, id="which is no failure"),
        pytest.param({"exitCode": 3}, [FAILED], True, id="this exit code"),
        pytest.param({"exitCode": 4}, [FAILED], False, id="another exit code"),
        pytest.param({"event": "TaskCompleted"}, done(0, 1), True, id="all pods of a task have succeeded"),
        pytest.param({"event": "TaskCompleted"}, done(0), False, id="one pod has"),
        pytest.param(
            {"event": "TaskCompleted"}, [*done(0), pod(1, PodPhase.SUCCEEDED, deleting=True)], False, id="goes"
        ),
    ],
)
def test_a_policy_acts_on_its_event(policy, pods, acts):
    assert bool(due(job(task(replicas=2), policies=[{**policy, **ABORT}]), *pods).action) is acts


def test_a_tasks_own_policy_comes_before_that_of_the_job():
    own = task(policies=[{"event": "PodFailed", "action": "CompleteJob"}])
    raw = job(own, policies=[{"event": "PodFailed", **ABORT}])
    assert due(raw, FAILED)[:2] == ("CompleteJob", "PodFailed of bert-worker-0 with 3")


@pytest.mark.parametrize(
    ("event", "pods", "reason"),
    [
        pytest.param("PodFailed", [FAILED], RestartReason.PROCESS_FAILED, id="a process that failed"),
        pytest.param(
            "PodFailed", [pod(0, PodPhase.FAILED, reason="OOMKilled")], RestartReason.OUT_OF_MEMORY, id="memory"
        ),
        pytest.param("PodEvicted", [pod(0, deleting=True)], RestartReason.EVICTED, id="a deleted pod"),
        pytest.param("TaskCompleted", done(0, 1), RestartReason.TASK_COMPLETED, id="a task that is complete"),
    ],
)
def test_a_restart_by_a_policy_has_a_reason(event, pods, reason):
    raw = phased("Running", task(replicas=2), policies=[{"event": event, "action": "RestartJob"}])
    assert due(raw, *pods).restart is reason
    outcome = reconcile(VOLCANOJOB, raw, OwnedObjects(tuple(pods)), NOW_S)
    assert outcome.restarts == (reason,)


def test_other_policies_and_a_resumed_job_count_no_restart():
    abort = phased("Running", task(replicas=2), policies=[{"event": "PodFailed", **ABORT}])
    assert reconcile(VOLCANOJOB, abort, OwnedObjects((FAILED,)), NOW_S).restarts == ()
    resumed = phased("Aborted", status={"state": {"phase": "Aborted", "reason": "Suspended"}})
    assert reconcile(VOLCANOJOB, resumed, OwnedObjects(), NOW_S).restarts == ()


@pytest.mark.parametrize(
    ("policies", "why"),
    [
        pytest.param([{"event": "PodFlew", **ABORT}], "has the event 'PodFlew'", id="an unknown event"),
        pytest.param([{"event": "PodPending", **ABORT}], "has the event 'PodPending'", id="another event"),
        pytest.param([{"event": "PodFailed", "action": "RestartPod"}], "action is 'RestartPod'", id="another action"),
        pytest.param([ABORT], "either events or an exitCode", id="neither event nor code"),
        pytest.param([{"event": "PodFailed", "exitCode": 1, **ABORT}], "either events or", id="both"),
        pytest.param([{"exitCode": 0, **ABORT}], "other than 0", id="success as an error"),
        pytest.param([{"event": "PodFailed", **ABORT}] * 2, "PodFailed twice", id="an event twice"),
        pytest.param([{"exitCode": 1, **ABORT}] * 2, "exitCode twice", id="a code twice"),
        pytest.param([{"event": "PodFailed", "timeout": "1m", **ABORT}], "timeout is not supported", id="a timeout"),
    ],
)
@pytest.mark.parametrize("of", ["the job", "a task"])
def test_policies_that_cannot_be_obeyed_are_refused(policies, why, of):
    found = VOLCANOJOB.read(job(policies=policies) if of == "the job" else job(task(policies=policies)))
    assert isinstance(found, RefusedJob)
    assert why in found.why
    assert found.why.startswith("spec.policies" if of == "the job" else "spec.tasks[0].policies")
