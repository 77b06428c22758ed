"""A training process that stands still, in a job of real agents: the stacks of all come to the coordinator's worker,
who stands apart is named, and the round ends, loses a worker, or goes on, as was asked for.
"""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from pathlib import Path

import pytest

from tests.kit.wait import until
from turnout.launcher.addresses import free_port
from turnout.launcher.model import Exit

pytestmark = pytest.mark.slow

PLAIN = Path(__file__).with_name("plain.py")
FORKS = ("--heartbeat-s", "0.2", "--silence-s", "9")
TORCH_S = 120.0  # three imports of torch and three py-spys take long on a busy machine


def hangs(job, size, rank, env=None, options=lambda name: ()):
    """Stop this rank's process in its loop, once it has made some steps. All stacks go to folders of their own."""
    for name in (f"w{at}" for at in range(size)):
        stacks = f"--stacks-dir={job.folder / f'stacks-{name}'}"
        agent = job.start(name, stacks, *options(name), arguments=("steps",), env=env)
        if name == "w0":
            agent.until("coordinator_begun")
    life = job.world(size)[rank]
    log = job.folder / "steps"
    until(lambda: log.exists() and f'"rank": {rank}, "step": 3' in log.read_text(), "some steps")
    os.kill(life.pid, signal.SIGSTOP)
    return life


def gauge(port, name, rank):
    """A rank's value on the metrics page of its agent, None if it is not there."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    found = re.search(rf'^{name}{{rank="{rank}",run="[^"]*"}} (\S+)$', page, re.M)
    return float(found[1]) if found else None


def rank_1_hangs(job):
    """Three workers, of which the second is named. Gives the first, and what it has gathered."""
    for name in ("w0", "w1", "w2"):
        agent = job.start(name, f"--stacks-dir={job.folder / f'stacks-{name}'}")
        if name == "w0":
            agent.until("coordinator_begun")
    gathered = job.agents[0].until("stacks_gathered", TORCH_S)
    assert (gathered["apart"], gathered["shown"]) == ("[1]", 3), gathered
    return job.agents[0], gathered


@pytest.mark.contract("DL-109")
def test_a_plain_script_rank_that_sleeps_is_named_and_all_start_again(crew):
    job = crew("3", "--hang-timeout=4", "--on-hang=restart", "--max-restarts=1", script=PLAIN, quick=FORKS)
    coordinator, gathered = rank_1_hangs(job)
    assert "rank 1 stands apart: fetch@" in gathered["verdict"], gathered
    assert [agent.code(TORCH_S) for agent in job.agents] == [0, 0, 0]
    assert [each["reason"] for each in coordinator.entries("round_ended")] == ["process_hung"]
    assert [each["restarts"] for each in coordinator.entries("world_formed")] == [0, 1]
    ours, theirs = job.folder / "stacks-w0", job.folder / "stacks-w2"
    ranks = [f"0000{rank}-00003.stacktrace" for rank in range(3)]
    merged = ["cpp_stack", "cpp_stack.svg", "py_stack", "py_stack.svg", "stacks.json", "stacks.txt"]
    assert sorted(os.listdir(ours)) == [*ranks, *merged]
    assert [path.name for path in theirs.iterdir()] == ranks[2:], "each agent writes down its own as well"
    assert json.loads((ours / "stacks.json").read_text())["outliers"] == "1"


def test_a_stopped_processs_worker_leaves_as_faulty_and_others_train_on(crew):
    job = crew("2:3", "--hang-timeout=2", "--on-hang=replace", "--max-restarts=1", "--shutdown-timeout=1")
    life = hangs(job, 3, 1)
    (leaver,) = (agent for agent in job.agents if agent.name == life.name)
    assert leaver.code() == Exit.FAULTY
    ended = leaver.until("agent_ended", reason="node_faulty")
    assert re.search("rank 1: .*stopped", ended["detail"]), ended
    second_world = job.world(2, after=1)
    assert [one.restarts for one in second_world] == [1, 1]
    assert leaver.name not in [one.name for one in second_world]
    job.finish()
    assert job.codes(*(agent for agent in job.agents if agent is not leaver)) == [0, 0]
    job.check_one_world()


@pytest.mark.contract("DL-110", "DL-113")
def test_in_ask_mode_the_suspect_is_told_once_and_the_job_resumes_with_it(crew):
    job, ports = crew("2"), {name: free_port("127.0.0.1") for name in ("w0", "w1")}
    # DL-113: after two seconds, and not before
    life = hangs(job, 2, 0, {"XPU_TIMER_HANG_TIMEOUT": "2"}, lambda name: (f"--metrics-port={ports[name]}",))
    (stopped,) = (agent for agent in job.agents if agent.name == life.name)
    hung = stopped.until("process_hung", rank=0)
    assert re.search(r"no progress for (2\.\d|3\.\d) s .*the limit is 2\.0 s", str(hung)), hung
    entry = job.agents[0].until("hang_asked")
    assert entry["workers"] == str([life.name])
    assert gauge(ports[life.name], "turnout_launcher_rank_hung", 0) == 1  # DL-110
    os.kill(life.pid, signal.SIGCONT)
    assert stopped.until("process_moved", rank=0)["after_s"] >= 2
    assert gauge(ports[life.name], "turnout_launcher_rank_hung", 0) == 0
    job.agents[0].until("hang_over")
    job.finish()
    assert job.codes() == [0, 0]
    assert {each.round for each in job.lives()} == {life.round}
    assert len(job.agents[0].entries("hang_asked")) == 1
