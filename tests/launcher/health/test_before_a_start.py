"""Real agents that check their nodes before each start, with real probes: the faulty one goes, the others train."""

from __future__ import annotations

import os
import signal

import pytest

from tests.kit.wait import until
from tests.launcher.agent.crew import Crew

pytestmark = pytest.mark.slow

# Read by each interpreter at its start: it makes a node of which no probe ever tells anything.
BREAKS = """
import os, sys
if "turnout.launcher.health.probes" in sys.orig_argv:
    os._exit(3)
"""


def measured_together(agent):
    """True if a collective with others was timed. Who computed slowly, on a busy machine, is measured again alone."""
    return any(each.get("collective_s", 0) > 0 for each in agent.entries("node_checked"))


USUAL = ("2:3", "--max-restarts", "1", "--last-call-s", "2")


@pytest.fixture
def job(tmp_path, request):
    """A crew of two or three agents, or with a test's own options. {folder} in an option: a new folder."""
    arguments = (each.format(folder=tmp_path / "rounds") for each in getattr(request, "param", USUAL))
    crew = Crew(tmp_path / "crew", *arguments, "--network-check")
    yield crew
    crew.end()


def log_entries(job, word):
    """Give the log entries of all agents together: the coordinator may change."""
    return [each for agent in job.agents for each in agent.entries(word)]


@pytest.mark.contract("CS-18", "DL-30", "DL-84", "DL-85", "DL-86", "DL-83")
@pytest.mark.parametrize(
    ("broken", "job"),
    [
        pytest.param("w2", USUAL, id="a member"),
        # A replacement of the first coordinator learns from the folder who leads now (docs/launcher.md).
        pytest.param(
            "w0",
            (*USUAL, "--round-dir", "{folder}"),
            marks=pytest.mark.long,
            id="the coordinator, which hands over first",
        ),
    ],
    indirect=["job"],
)
def test_a_check_comes_before_each_start_and_a_faulty_node_is_left_out(job, tmp_path, broken):
    """DL-30, DL-84, DL-85, DL-86"""
    (tmp_path / "sitecustomize.py").write_text(BREAKS)
    faults = {broken: {"PYTHONPATH": str(tmp_path)}}
    agents = {"w0": job.start("w0", env=faults.get("w0"))}
    agents["w0"].until("coordinator_begun")
    agents |= {name: job.start(name, env=faults.get(name)) for name in ("w1", "w2")}

    first = job.world(2, seconds=120)
    assert {life.name for life in first} == agents.keys() - {broken}
    assert job.codes(agents[broken]) == [138]
    assert agents[broken].entries("agent_ended")[0]["reason"] == "node_faulty"
    assert {each["member"] for each in log_entries(job, "node_left_out")} == {broken}
    well = [agent for name, agent in agents.items() if name != broken]
    assert all(measured_together(agent) for agent in well)
    (lead,) = [agent for agent in well if agent.entries("world_formed")]
    words = [each["event"] for each in lead.events]
    assert words.index("check_ended") < words.index("world_formed") < words.index("processes_started")

    checks = len(log_entries(job, "check_ended"))
    os.kill(first[0].pid, signal.SIGKILL)
    until(lambda: len(log_entries(job, "check_ended")) > checks, job.log_text)
    second = job.world(2, after=first[0].round)

    healthy = job.start(broken, "--host", "another-node")  # DL-83: its replacement, where a controller puts it
    third = job.world(3, after=second[0].round, seconds=120)
    assert {life.name for life in third} == agents.keys()
    assert log_entries(job, "check_started")[-1]["members"] == 3, "all were checked anew, the replacement among them"
    assert measured_together(healthy)
    job.finish()
    assert job.codes(*well, healthy) == [0, 0, 0]
    job.check_one_world()


@pytest.mark.contract("DL-34", "DL-35", "DL-96")
@pytest.mark.parametrize("job", [("1", "--switchbox-check")], indirect=True, ids=["one node"])
def test_a_node_whose_switchbox_has_no_working_link_does_not_train(job):
    """Here no pair of GPUs is there. DL-96, DL-35"""
    agent = job.start("w0")
    assert job.codes(agent) == [138]
    (ended,) = agent.entries("agent_ended")
    assert ended["reason"] == "node_faulty"
    assert "0 of 4 links" in ended["detail"]
    assert not job.lives()
