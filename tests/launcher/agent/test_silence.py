"""An agent that falls silent, stopped or cut off, is given up within the silence limit and trains in no old world."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.kit.wait import until
from tests.launcher.agent.crew import running

pytestmark = pytest.mark.slow

LIMIT_S = 1.0  # --silence-s of these crews
BACK_S = 120.0  # until the others are found again
SLACK_S = 1.0  # for a machine that is busy


def frozen(job, agent, number):
    """Stop or resume a whole worker: the agent and what it started."""
    agent.signal(number)
    for life in job.lives():
        if life.name == agent.name and running(life.pid):
            os.kill(life.pid, number)


BACK = "and comes back"  # without an arbiter a coordinator with too few looks for another one only now and then
CASES = [
    pytest.param(0, False, id="the coordinator"),
    pytest.param(2, False, id="a member"),
    pytest.param(0, True, id=f"the coordinator, {BACK}", marks=pytest.mark.long),
    pytest.param(2, True, id=f"a member, {BACK}", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("at", "back"), CASES)
def test_a_worker_that_is_stopped_and_resumed(crew, at, back):
    """SIGSTOP: the others go on without it; resumed, it ends what it had and takes part anew."""
    job = crew("2:3")
    agents = job.gather(3)
    old = {life.name: life for life in job.world(3)}
    stopped, others = agents[at], [agent for agent in agents if agent is not agents[at]]
    began_s = time.monotonic()
    frozen(job, stopped, signal.SIGSTOP)
    if at:
        agents[0].until("member_lost", reason="member_silent", member=stopped.name)
    else:
        others[0].until("coordinator_lost", reason="member_silent")
    assert time.monotonic() - began_s < LIMIT_S + SLACK_S
    small = job.world(2, after=1)
    frozen(job, stopped, signal.SIGCONT)
    until(lambda: not running(old[stopped.name].pid), "what was stopped ends", LIMIT_S + SLACK_S)
    if back:
        full_world = job.world(3, after=small[0].round, seconds=BACK_S)
        assert {life.restarts for life in full_world} == {0}
    job.finish()
    assert job.codes(*(agents if back else others)) == [0] * (2 + back)


@pytest.mark.root
@pytest.mark.debian("iproute2")
@pytest.mark.parametrize(("at", "back"), CASES)
def test_a_host_that_falls_silent(crew, hosts, tmp_path, at, back):
    """Its packets are lost: both sides notice within the limit, and what it ran ends with the old world."""
    net = hosts(3)
    token = tmp_path / "token"
    token.write_text("a token of these three hosts")
    job = crew("2:3", "--token-file", str(token))
    job.endpoint = ("--rdzv-endpoint", f"{net.address(1)}:29400")
    agents = [job.start("w0", prefix=net.inside(1))]
    agents[0].until("coordinator_begun")
    agents += [job.start(f"w{host - 1}", prefix=net.inside(host)) for host in (2, 3)]
    old = {life.name: life for life in job.world(3)}
    began_s = time.monotonic()
    net.cut(at + 1)
    cut, others = agents[at], [agent for agent in agents if agent is not agents[at]]
    until(lambda: not running(old[cut.name].pid), job.log_text, LIMIT_S + SLACK_S)
    small = job.world(2, after=1)
    print(f"cut off: the new world began after {min(life.began_s for life in small) - began_s:.2f} s")
    assert {life.name for life in small} == {agent.name for agent in others}
    job.check_one_world(over=min)
    net.reconnect(at + 1)
    if back:
        job.world(3, after=small[0].round, seconds=BACK_S)
    job.finish()
    assert job.codes(*(agents if back else others)) == [0] * (2 + back)
    job.check_one_world(over=min)
