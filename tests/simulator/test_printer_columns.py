"""The STATUS column of pods, as kubectl prints it for the same pods on a real cluster."""

import pytest

from turnout.simulator.api.kinds.printer_columns import POD

READY, RUNNING = {"type": "Ready", "status": "True"}, {"running": {}}
CRASHED, COMPLETED = {"waiting": {"reason": "CrashLoopBackOff"}}, {"terminated": {"reason": "Completed", "exitCode": 0}}


def status_column(*states, phase="Running", init=(), conditions=(), init_specs=(), **meta):
    """The cell of a pod whose containers have these states; running ones are ready."""
    (column,) = (each for each in POD if each.name == "Status")
    statuses = [{"state": state, "ready": "running" in state} for state in states]
    status = {"phase": phase, "containerStatuses": statuses, "conditions": list(conditions)}
    status["initContainerStatuses"] = [{"name": f"i{at}", **each} for at, each in enumerate(init)]
    specs = [{"name": f"i{at}", **each} for at, each in enumerate(init_specs)]
    return column.show({"metadata": meta, "spec": {"initContainers": specs}, "status": status}, 0.0)


@pytest.mark.parametrize(
    ("states", "conditions", "text"),
    [
        pytest.param([RUNNING], [READY], "Running", id="the phase"),
        pytest.param([CRASHED, COMPLETED], [], "CrashLoopBackOff", id="the first container with a reason"),
        pytest.param([COMPLETED, CRASHED], [], "Completed", id="the first, though the second waits"),
        pytest.param([RUNNING, COMPLETED], [READY], "Running", id="one has ended, and the pod is ready"),
        pytest.param([RUNNING, COMPLETED], [], "NotReady", id="one has ended, and the pod is not ready"),
        pytest.param([{"terminated": {"exitCode": 3}}], [], "ExitCode:3", id="an exit code without a reason"),
        pytest.param([{"terminated": {"exitCode": 137, "signal": 9}}], [], "Signal:9", id="a signal"),
    ],
)
def test_the_containers_decide(states, conditions, text):
    assert status_column(*states, conditions=conditions) == text


@pytest.mark.parametrize(
    ("init", "specs", "text"),
    [
        pytest.param([{"state": RUNNING}], [{}], "Init:0/1", id="the first runs"),
        pytest.param([{"state": COMPLETED}, {"state": RUNNING}], [{}, {}], "Init:1/2", id="the second runs"),
        pytest.param([{"state": CRASHED}], [{}], "Init:CrashLoopBackOff", id="it waits"),
        pytest.param(
            [{"state": {"terminated": {"reason": "Error", "exitCode": 1}}}], [{}], "Init:Error", id="it has failed"
        ),
        pytest.param([{"state": {"waiting": {"reason": "PodInitializing"}}}], [{}], "Init:0/1", id="it is not begun"),
        pytest.param([{"state": COMPLETED}], [{}], "Pending", id="all have ended"),
        pytest.param(
            [{"state": RUNNING, "started": True}], [{"restartPolicy": "Always"}], "Pending", id="a sidecar has started"
        ),
    ],
)
def test_init_containers_that_are_not_finished_come_first(init, specs, text):
    assert status_column(phase="Pending", init=init, init_specs=specs) == text


def test_a_pod_that_was_initialized_shows_its_containers():
    conditions = [{"type": "Initialized", "status": "True"}]
    assert (
        status_column(CRASHED, init=[{"state": RUNNING}], init_specs=[{}], conditions=conditions) == "CrashLoopBackOff"
    )


def test_a_pod_that_is_being_deleted_is_terminating():
    assert status_column(CRASHED, deletionTimestamp="2026-01-01T00:00:00Z") == "Terminating"
