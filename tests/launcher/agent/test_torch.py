"""Real torch over gloo, under our own agent and under torch's."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.kit.wait import until

pytestmark = pytest.mark.slow

REDUCES = Path(__file__).with_name("scripts") / "reduces.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


@pytest.mark.contract("PE-01")
def test_a_killed_process_under_gloo(crew):
    """Two agents, torch imported ahead: one process is killed in the middle of its collectives, all begin anew once."""
    job = crew("2", "--max-restarts", "3", script=REDUCES, quick=("--heartbeat-s", "0.5", "--silence-s", "5"))
    agents = job.gather(2)
    before = job.world(2)
    os.kill(before[1].pid, signal.SIGKILL)
    began_s = time.monotonic()
    after = job.world(2, after=before[0].round, seconds=120)
    print(f"SIGKILL to the first step of both: {time.monotonic() - began_s:.2f} s")
    job.finish()
    assert job.codes(*agents) == [0, 0]
    assert [life.restarts for life in after] == [1, 1]
    assert len(job.worlds()) == 2
    assert not any(agent.entries("processes_spawned") for agent in agents), "torch is imported once an agent"


def torchrun(job, name, nnodes):
    """torch's own agent with our rendezvous."""
    options = (f"--nnodes={nnodes}", "--rdzv-backend=turnout", f"--rdzv-endpoint=127.0.0.1:{job.port}", "--rdzv-id=r1")
    conf = ("--rdzv-conf=last_call_timeout=5", "--max-restarts=3", "--monitor-interval=0.1")
    env = {"POD_NAME": name, "OMP_NUM_THREADS": "1"}
    return job.start(name, argv=(*TORCHRUN, *options, *conf, str(REDUCES), str(job.folder)), env=env, cwd=job.folder)


@pytest.mark.contract("PE-03", "VE-21")
def test_torchs_own_agents_meet_here(crew):
    """`torchrun --rdzv-backend=turnout`: two agents form a world and end well, within seconds; then no port is held."""
    job = crew("2")
    agents = [torchrun(job, f"w{at}", 2) for at in range(2)]
    world = job.world(2, after=-1, seconds=120)
    job.finish()
    began_s = time.monotonic()
    assert job.codes(*agents) == [0, 0]
    took_s = time.monotonic() - began_s
    print(f"from the end of training to both exits: {took_s:.2f} s")
    assert took_s < 20  # torch alone takes seconds to end when the machine is busy
    assert sorted(life.rank for life in world) == [0, 1]


@pytest.mark.long
def test_one_of_torchs_own_agents_is_killed(crew):
    """With 1:3 of three, the two that are left go on in a world of their own: torch's agent starts anew."""
    job = crew("1:3")
    agents = [torchrun(job, f"w{at}", "1:3") for at in range(3)]
    world = job.world(3, after=-1, seconds=120)
    victim = next(agent for agent in agents if agent.name == world[2].name)
    os.killpg(victim.pid, signal.SIGKILL)
    os.kill(world[2].pid, signal.SIGKILL)
    left = [agent for agent in agents if agent is not victim]

    def pair():
        found = [life for life in job.lives() if life.world == 2 and life.began_s > world[0].began_s]
        return len({life.name for life in found}) == 2

    until(pair, job.log_text, 120)
    job.finish()
    assert job.codes(*left) == [0, 0]
