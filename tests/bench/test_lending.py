"""Each scene of the lending benchmark really runs, on a stream too short to measure anything; its rival is the HPA."""

import pytest

from hack.bench.lending.hpa import hpa
from hack.bench.lending.run import SEEDS
from hack.bench.lending.scenes import GENERATED, SCENES, ReplayTask, clusters, replay_task
from tests.autoscaler.world import job, world
from turnout.autoscaler.model import JobState, Policy, Worker
from turnout.simulator.replay import trace_files


@pytest.fixture(autouse=True)
def no_traces(monkeypatch, tmp_path):
    monkeypatch.setenv(trace_files.VARIABLE, str(tmp_path))


def test_without_traces_streams_are_drawn():
    assert clusters() == list(GENERATED)


def test_traces_that_are_there_are_replayed(tmp_path):
    (tmp_path / "itp").mkdir()
    (tmp_path / "itp" / "cluster06.csv").write_text("job_id,submission_time,duration,num_gpu\na,0,900,8\nb,60,900,1\n")
    assert clusters() == ["c06"]
    assert replay_task(ReplayTask("c06", SCENES[0], 0, 0)).jobs == 2


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_every_scene_runs(scene):
    found = replay_task(ReplayTask("drawn-64", scene, SEEDS, 60))
    assert (found.jobs, found.restarts > 0, found.looks_per_s > 0) == (60, True, True)
    assert (found.capture is None) is not scene.oracle


@pytest.mark.parametrize(
    ("nodes", "sizes"),
    [
        pytest.param([12], {"a": 2, "b": 2}, id="eight free: the target"),
        pytest.param(
            [20], {"a": 4, "b": 4}, id="sixteen free: twice as many for the first, and the second sees fourteen"
        ),
        pytest.param([6], {"a": 1, "b": 1}, id="two free: a quarter, so the least"),
    ],
)
def test_the_rival_is_the_formula(nodes, sizes):
    jobs = [JobState(job(name, maximum=8, replicas=2), (Worker(0, 0), Worker(1, 0))) for name in ("a", "b")]
    observation = world(nodes, *jobs)
    assert {step.key.name: step.target for step in hpa(observation, Policy(), 1e6)} == sizes
