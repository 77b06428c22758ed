"""SIGTERM with grace: all stop after the same step, save, and go on without who leaves."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.kit.wait import until
from tests.launcher.agent.crew import lines

BIN = Path(sys.executable).parent


def reached(job, step, round_=0):
    """Wait until a rank is that far, in that round or a later one."""
    until(lambda: any(each["step"] >= step and each["round"] >= round_ for each in lines(job, "steps")), job.log_text)


def check_steps(job):
    """In each round every rank did the same steps, each once; the next round began behind where it stopped."""
    done, stops = lines(job, "steps"), lines(job, "stops")
    times = Counter((each["round"], each["rank"], each["step"]) for each in done)
    assert set(times.values()) == {1}
    before = -1
    for round_ in sorted({each["round"] for each in done})[:-1]:
        ends = {each["step"] for each in stops if each["round"] == round_}
        assert len(ends) == 1, f"round {round_} stopped at {ends}\n{job.log_text()}"
        for rank in {each["rank"] for each in done if each["round"] == round_}:
            steps = [each["step"] for each in done if (each["round"], each["rank"]) == (round_, rank)]
            assert steps == list(range(before + 1, ends.copy().pop() + 1)), (round_, rank, steps)
        before = ends.pop()


LEAVERS = {"a member": [2], "the coordinator": [0], "two at once": [1, 2], "the coordinator and another": [0, 1]}


@pytest.mark.parametrize("who", [
    "a member",
    pytest.param("the coordinator", marks=pytest.mark.slow),
    pytest.param("two at once", marks=pytest.mark.long),
    pytest.param("the coordinator and another", marks=pytest.mark.long),
])  # fmt: skip
def test_all_stop_after_the_same_step(crew, who):
    """XD-06, VE-07: none is repeated, none is lost, and the leaver ends with 143."""
    job = crew("1:4", "--last-call-s", "30")
    agents = [job.start("w0", arguments=("steps",))]
    agents[0].until("coordinator_begun")
    agents += [job.start(f"w{at}", arguments=("steps",)) for at in range(1, 4)]
    first = job.world(4)
    reached(job, 20)
    # A rank begins behind what rank 0 has saved: one that is late must not find what it saved at the stop.
    until(lambda: len({each["rank"] for each in lines(job, "steps")}) == 4, job.log_text)
    for at in LEAVERS[who]:
        agents[at].signal(signal.SIGTERM)
    leavers = [agents[at] for at in LEAVERS[who]]
    assert job.codes(*leavers) == [143] * len(leavers)
    left = [agent for agent in agents if agent not in leavers]
    world = job.world(len(left), after=first[0].round)
    reached(job, 0, world[0].round)
    job.finish()
    assert job.codes(*left) == [0] * len(left)
    assert len(lines(job, "stops")) >= 4
    assert not any(agent.entries("stop_step_missed") for agent in agents)
    check_steps(job)
    job.check_one_world()
    if len(leavers) == 1:
        assert len(job.worlds()) == 2, job.log_text()


@pytest.mark.slow
def test_growth_stops_after_the_same_step_too(crew):
    job = crew("1:3", "--last-call-s", "0")
    job.start("w0", arguments=("steps",))
    reached(job, 100)  # longer than two heartbeats: the coordinator knows that this job tells its steps
    for at in (1, 2):
        job.start(f"w{at}", arguments=("steps",))
    world = job.world(3, after=1)
    reached(job, 0, world[0].round)
    job.finish()
    assert job.codes() == [0, 0, 0]
    check_steps(job)
    job.check_one_world()


def test_without_steps_the_users_own_hook_saves(crew):
    """Every rank gets SIGTERM, the leaver ends with 143, the others go on."""
    job = crew("1:2")
    agents = [job.start("w0", arguments=("hook",))]
    agents[0].until("coordinator_begun")
    agents.append(job.start("w1", arguments=("hook",)))
    job.world(2)
    agents[1].signal(signal.SIGTERM)
    assert agents[1].code() == 143
    job.world(1, after=1)
    assert sorted((each["rank"], each["signal"]) for each in lines(job, "hooks")) == [(0, 15), (1, 15)]
    job.finish()
    assert agents[0].code() == 0
    job.check_one_world()


def test_who_waits_leaves_at_once(crew):
    """In join nobody has anything to save."""
    job = crew("3")
    agents = [job.start("w0")]
    agents[0].until("coordinator_begun")
    agents.append(job.start("w1"))
    agents[1].until("coordinator_found")
    agents[1].signal(signal.SIGTERM)
    agents[0].signal(signal.SIGTERM)
    assert job.codes(*agents) == [143, 143]


def test_everybody_leaves(crew):
    """A job that is deleted: nobody is done, and nobody waits for the others' grace to pass."""
    job = crew("3")
    agents = job.gather(3)
    for agent in agents:
        agent.signal(signal.SIGTERM)
    assert job.codes(*agents) == [143] * 3


def test_a_process_that_does_not_go(crew):
    """The grace is kept: what ignores SIGTERM is killed in time, and the others go on."""
    job = crew("1:2", "--drain-grace-s", "1.5", "--shutdown-timeout", "1")
    agents = [job.start("w0", arguments=("stubborn",))]
    agents[0].until("coordinator_begun")
    agents.append(job.start("w1", arguments=("stubborn",)))
    job.world(2)
    agents[1].signal(signal.SIGTERM)
    assert agents[1].code(6) == 143
    job.world(1, after=1)
    job.finish()
    assert agents[0].code() == 0
    job.check_one_world()


PID_1 = {
    "the last command of the line": "turnout-run {0}",
    "behind cd": "cd / && turnout-run {0}",
    "exec behind other commands": "export A=1; cd /; exec turnout-run {0}",
    "a trap where bash stays": "trap 'kill -TERM $!' TERM; turnout-run {0} & wait $!; wait $!",
}


@pytest.mark.slow
@pytest.mark.parametrize("line", PID_1)
def test_bash_as_the_first_process_of_a_container(crew, line):
    """`bash -c` execs its last command, so that SIGTERM of the kubelet reaches us; else the line has to say it."""
    job = crew("1", quick=("--no-fork",))
    command = " ".join((*job.options, "--standalone", "--log-format", "json", str(job.script), str(job.folder), "hook"))
    agent = in_container(job, PID_1[line].format(command))
    job.world(1)
    first = until(lambda: children(agent.pid), "the first process of the container")[0]
    os.kill(first, signal.SIGTERM)
    assert agent.code() == 143
    assert [each["signal"] for each in lines(job, "hooks")] == [15]


def test_bash_that_stays_the_first_process(crew):
    """With a command behind it, bash stays and gets the signal: the first process of a namespace does not die of it."""
    job = crew("1", quick=("--no-fork",))
    command = " ".join((*job.options, "--standalone", "--log-format", "json", str(job.script), str(job.folder), "hook"))
    agent = in_container(job, f"turnout-run {command}; echo done")
    job.world(1)
    os.kill(children(agent.pid)[0], signal.SIGTERM)
    job.finish()
    assert agent.code() == 0
    assert not lines(job, "hooks")
    assert not agent.entries("leave_asked")


def in_container(job, line):
    env = {"PATH": f"{BIN}:{os.environ['PATH']}", "pid_namespace": "1"}
    argv = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", line)
    return job.start("w0", argv=argv, env=env)


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
