"""A job with default options goes on for long: nothing restarts it but what happens to it, and its daemon stays.

It imports packages late, grows late, and loses what it has grown by.
"""

from __future__ import annotations

import time

import pytest

from tests.kit.wait import until
from tests.launcher.agent.conftest import crew
from tests.launcher.agent.test_checkpoints import SAVES, lines
from tests.launcher.agent.test_replicas import lose

__all__ = ["crew"]

LATE = "late=30,networkx+lightning"  # networkx reads every variable of its name, and of others
STEPS = 40  # of a world before the next thing happens to it
IMPORTS_S = 120.0  # the parents of three agents import torch side by side


def trains_on(job, ranks, after):
    """Wait for a world of this size after that round, and until it has trained and imported late. Give its round."""

    def look():
        saves = lines(job, "saved")
        rounds = [each["round"] for each in lines(job, "starts") if each["round"] > after]
        return next((each for each in rounds if _steps(saves, each) >= ranks * STEPS), None)

    return until(look, job.log_text, IMPORTS_S)


def _steps(saves, round_):
    return sum(each["round"] == round_ for each in saves)


def soak(job, seconds):
    """Grow and lose a worker again and again for this long, at least once. Give how often."""
    began_s, times = time.monotonic(), 0
    agent = job.start("w0", arguments=("alike", "disk=0", LATE))
    round_ = trains_on(job, 1, 0)
    (daemon,) = job.daemons()
    while not times or time.monotonic() < began_s + seconds:
        times += 1
        grown = job.start(f"w{times}", arguments=("alike", "disk=0", LATE))
        round_ = trains_on(job, 2, round_)
        lose(job, grown)
        done = max(each["step"] for each in lines(job, "saved"))
        round_ = trains_on(job, 1, round_)
        (begun,) = {each["step"] for each in lines(job, "starts") if each["round"] == round_}
        assert begun >= done - 1, "memory has all but the step in progress"
    assert job.daemons() == [daemon]
    job.finish()
    assert job.codes(agent) == [0]
    assert agent.entries("daemon_lost") == agent.entries("process_failed") == []
    assert {each["restarts"] for each in agent.entries("processes_started")} == {0}
    assert {each["reason"] for each in agent.entries("round_ended")} == {"member_joined", "member_lost"}
    assert {each["name"] for each in lines(job, "imported")} == {f"w{at}" for at in range(times + 1)}
    return times


@pytest.fixture
def job(crew, tmp_path):
    """A crew with default options, except for a folder that grants rounds."""
    return crew("1:2", "--max-restarts=0", "--round-dir", str(tmp_path / "rounds"), script=SAVES, quick=())


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(0.0, id="each thing once"),
        pytest.param(180.0, id="three minutes", marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param(600.0, id="ten minutes", marks=[pytest.mark.long, pytest.mark.timeout(1_200)]),
    ],
)
def test_nothing_that_nothing_caused_happens(job, seconds):
    assert soak(job, seconds) > seconds / 120.0
