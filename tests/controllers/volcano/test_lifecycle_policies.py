"""Lifecycle policies: which event calls for which action, when, and for which pods."""

import pytest

from tests.controllers.jobs import NOW_S
from tests.controllers.volcano.volcanojobs import job, others, pod, task, view
from turnout.controllers.kinds.volcanojob import VOLCANOJOB
from turnout.controllers.lifecycle_policies import Due, decide
from turnout.controllers.model import Phase, Refused, Seen

ABORT = {"action": "AbortJob"}
FAILED = pod(0, Phase.FAILED, exit_code=3)


def due(raw, *pods, owned=None, **seen):
    whole = view(raw)
    return decide(whole.spec["policies"], whole.roles, Seen(pods, owned or {}, **seen), NOW_S)


def done(*indices):
    return [pod(index, Phase.SUCCEEDED) for index in indices]


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
        pytest.param({"event": "*"}, [FAILED], True, id="any event"),
        pytest.param({"event": "*"}, done(0, 1), False, id="any event, but for an end that is wished for"),
        pytest.param({"event": "*"}, [pod(0, Phase.PENDING)], False, id="any event, but for a pod that waits a while"),
        pytest.param({"event": "TaskCompleted"}, done(0, 1), True, id="all pods of a task have succeeded"),
        pytest.param({"event": "TaskCompleted"}, done(0), False, id="one pod has"),
        pytest.param({"event": "TaskCompleted"}, [*done(0), pod(1, Phase.SUCCEEDED, deleting=True)], False, id="goes"),
        pytest.param({"event": "PodPending"}, [pod(0, Phase.PENDING)], False, id="every pod is pending once"),
        pytest.param({"event": "TaskFailed"}, [pod(0, restarts=2), pod(1, restarts=1)], True, id="three restarts"),
        pytest.param({"event": "TaskFailed"}, [pod(0, restarts=2)], False, id="two restarts"),
        pytest.param({"event": "TaskFailed"}, [pod(0, Phase.FAILED, restarts=9)], False, id="of a pod that has ended"),
        pytest.param({"event": "JobUpdated"}, [FAILED], False, id="nothing here raises it"),
    ],
)
def test_a_policy_acts_on_its_event(policy, pods, acts):
    assert bool(due(job(task(replicas=2), policies=[{**policy, **ABORT}]), *pods).action) is acts


@pytest.mark.parametrize(
    ("most", "restarts", "acts"),
    [
        pytest.param(1, 1, True, id="as often as the task says"),
        pytest.param(5, 4, False, id="not yet"),
        pytest.param(-1, 99, False, id="never"),
        pytest.param(0, 3, True, id="three times where it says nothing"),
    ],
)
def test_a_task_fails_by_the_restarts_of_its_containers(most, restarts, acts):
    raw = job(task(replicas=1, maxRetry=most), policies=[{"event": "TaskFailed", **ABORT}])
    assert bool(due(raw, pod(0, restarts=restarts)).action) is acts


@pytest.mark.parametrize(
    ("phase", "acts"), [pytest.param("Unknown", True, id="unknown"), pytest.param("Running", False, id="running")]
)
def test_the_job_is_unknown_where_its_group_is(phase, acts):
    raw = job(policies=[{"event": "Unknown", "action": "RestartJob"}])
    assert due(raw, owned=others(raw, phase)) == (Due("RestartJob", "Unknown") if acts else Due())


def test_a_tasks_own_policy_comes_before_that_of_the_job():
    own = task(policies=[{"event": "PodFailed", "action": "CompleteJob"}])
    raw = job(own, policies=[{"event": "PodFailed", **ABORT}])
    assert due(raw, FAILED)[:2] == ("CompleteJob", "PodFailed of bert-worker-0 with 3")


@pytest.mark.parametrize("action", ["SyncJob", "ResumeJob"])
def test_an_action_that_changes_nothing_does_nothing(action):
    assert due(job(policies=[{"event": "PodFailed", "action": action}]), FAILED) == Due()


@pytest.mark.parametrize(
    ("timeout", "event", "there", "wait_s"),
    [
        pytest.param("10m", "PodFailed", {"phase": Phase.FAILED}, 540, id="minutes"),
        pytest.param("1h0m1.5s", "PodFailed", {"phase": Phase.FAILED}, 3_541.5, id="a Go duration"),
        pytest.param("60s", "PodFailed", {"phase": Phase.FAILED}, None, id="its time has come"),
        pytest.param("2m", "PodPending", {"phase": Phase.PENDING}, 60, id="a pod that waits for a node"),
        pytest.param("2m", "*", {"phase": Phase.PENDING}, 60, id="any event"),
        pytest.param("2m", "PodEvicted", {"deleting": True}, 60, id="a pod that goes slowly"),
    ],
)
def test_a_timeout_counts_from_the_event(timeout, event, there, wait_s):
    raw = job(policies=[{"event": event, "timeout": timeout, **ABORT}])
    found = due(raw, pod(0, since_s=NOW_S - 60, **there))
    assert (found.action, found.wait_s) == (("AbortJob", None) if wait_s is None else ("", wait_s))


def test_a_timeout_that_a_jump_of_a_clock_has_ended_waits_a_while_longer():
    raw = job(policies=[{"event": "PodFailed", "timeout": "60s", **ABORT}])
    failed = pod(0, phase=Phase.FAILED, since_s=NOW_S - 60)
    assert due(raw, failed, jumped_s=60.0) == Due(wait_s=10.0)
    assert due(raw, failed).action == "AbortJob"


SPLIT = {"partitionPolicy": {"totalPartitions": 2, "partitionSize": 2}}


@pytest.mark.parametrize(
    ("action", "about"),
    [
        pytest.param("RestartJob", [], id="the whole job"),
        pytest.param("RestartPod", ["pod-worker-0"], id="the pod"),
        pytest.param("RestartTask", [f"pod-worker-{n}" for n in range(4)], id="its task"),
        pytest.param("RestartPartition", ["pod-worker-0", "pod-worker-1"], id="its partition"),
    ],
)
def test_a_restart_is_about(action, about):
    raw = job(
        task(replicas=4, policies=[{"event": "PodFailed", "action": action}], **SPLIT), task("judge", 1), minAvailable=1
    )
    pods = [FAILED, *(pod(index) for index in (1, 2, 3)), pod(0, task="judge")]
    assert sorted(due(raw, *pods).pods) == about


@pytest.mark.parametrize(
    ("policies", "why"),
    [
        pytest.param([{"event": "PodFlew", **ABORT}], "has the event 'PodFlew'", id="an unknown event"),
        pytest.param([{"event": "OutOfSync", **ABORT}], "has the event 'OutOfSync'", id="an event of Volcano's own"),
        pytest.param([{"event": "PodFailed", "action": "Sleep"}], "action is 'Sleep'", id="an unknown action"),
        pytest.param([ABORT], "either events or an exitCode", id="neither event nor code"),
        pytest.param([{"event": "PodFailed", "exitCode": 1, **ABORT}], "either events or", id="both"),
        pytest.param([{"exitCode": 0, **ABORT}], "other than 0", id="success as an error"),
        pytest.param([{"event": "PodFailed", **ABORT}] * 2, "PodFailed twice", id="an event twice"),
        pytest.param([{"exitCode": 1, **ABORT}] * 2, "exitCode twice", id="a code twice"),
        pytest.param([{"events": ["*", "PodFailed"], **ABORT}], "beside other events", id="any event and one"),
        pytest.param([{"event": "PodFailed", "timeout": "soon", **ABORT}], "'soon'", id="a timeout in words"),
        pytest.param([{"event": "Unknown", "timeout": "1m", **ABORT}], "acted on at once", id="a timeout of Unknown"),
    ],
)
@pytest.mark.parametrize("of", ["the job", "a task"])
def test_policies_that_cannot_be_obeyed_are_refused(policies, why, of):
    found = VOLCANOJOB.read(job(policies=policies) if of == "the job" else job(task(policies=policies)))
    assert isinstance(found, Refused)
    assert why in found.why
    assert found.why.startswith("spec.policies" if of == "the job" else "spec.tasks[0].policies")
