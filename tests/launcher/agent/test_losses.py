"""Whoever is killed, the others go on where they may, and never two worlds at once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.kit.wait import until

KINDS = ("file", "majority", "none")


def victims_of(size):
    """Give the workers to kill, by the name of the case: each role alone and together, and half the world at once."""
    half = size // 2
    named = {
        (0,): "the coordinator",
        (size - 1,): "a member",
        tuple(range(half)): "half, the coordinator too",
        tuple(range(size - half, size)): "half, not the coordinator",
        (0, 1): "the coordinator and a member",
    }
    return {victims: name for victims, name in named.items() if len(victims) < size}


def arbiter(kind, folder):
    return {"file": ("--round-dir", str(folder / "rounds")), "majority": (), "none": ("--arbiter", "none")}[kind]


@pytest.mark.slow
def test_a_world_that_grows_while_its_processes_are_started(crew):
    """Each round ends before its processes have begun: those that began late must not train beside the next round."""
    job = crew("1:4", "--last-call-s", "0")
    job.gather(4)
    job.finish()
    assert job.codes() == [0] * 4
    job.check_one_world()


def goes_on(kind, size, victims):
    """True if the others may go on."""
    left = size - len(victims)
    if not left:
        return False
    return {"file": True, "majority": 2 * left > size, "none": 0 not in victims}[kind]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "size", "victims"), [
    pytest.param(kind, size, victims, id=f"{kind}, {size}: {name}")
    for kind in KINDS for size in (2, 3, 4) for victims, name in victims_of(size).items()
])  # fmt: skip
def test_kills_in_training(crew, tmp_path, kind, size, victims):
    kills_in_training(crew(f"1:{size}", *arbiter(kind, tmp_path)), kind, size, victims)


def kills_in_training(job, kind, size, victims):
    agents = job.gather(size)
    round_ = job.world(size)[0].round
    for at in victims:
        agents[at].kill()
    left = [agent for at, agent in enumerate(agents) if at not in victims]
    if goes_on(kind, size, victims):
        world = job.world(len(left), after=round_)
        assert {life.name for life in world} == {agent.name for agent in left}
        assert {life.restarts for life in world} == {0}, "the loss of a worker is no fault of the job"
        job.finish()
        assert job.codes(*left) == [0] * len(left)
    else:
        assert job.codes(*left) == [1] * len(left)
        assert all(agent.entries("agent_ended")[0]["reason"] == "no_arbiter" for agent in left), job.log_text()
        assert max(job.worlds()) == round_
    job.check_one_world()


def kills_in_join(job, size, victims):
    """One of the job's workers has not come yet when these are killed; then they and the last one come."""
    agents = [job.start("w0")]
    agents[0].until("coordinator_begun")
    agents += [job.start(f"w{at}") for at in range(1, size - 1)]
    for agent in agents:
        agent.until("coordinator_found")
    for at in victims:
        agents[at].kill()
    agents = [agent for at, agent in enumerate(agents) if at not in victims]
    agents += [job.start(f"w{at}") for at in [*victims, size - 1]]
    job.world(size, seconds=120)  # without an arbiter those who wait and those who come may each have a coordinator
    job.finish()
    assert job.codes(*agents) == [0] * size
    job.check_one_world()


@pytest.mark.long
@pytest.mark.parametrize(("kind", "size", "victims"), [
    pytest.param(kind, size, victims, id=f"{kind}, {size}: {name}")
    for kind in KINDS for size in (2, 3, 4)
    for victims, name in (victims_of(size - 1) | {(0,): "the coordinator"}).items()
])  # fmt: skip
def test_kills_in_join(crew, tmp_path, kind, size, victims):
    kills_in_join(crew(f"{size}", *arbiter(kind, tmp_path)), size, victims)


@pytest.mark.parametrize(("kind", "victims"), [
    pytest.param("file", (0, 1), id="a round file: the coordinator and a member of three"),
    pytest.param("majority", (0,), id="majority: the coordinator of three"),
    pytest.param("none", (0,), id="nobody: the coordinator of three"),
    pytest.param("none", (1, 2), id="nobody: both members of three"),
])  # fmt: skip
def test_a_few_kills_in_training(crew, tmp_path, kind, victims):
    kills_in_training(crew("1:3", *arbiter(kind, tmp_path)), kind, 3, victims)


@pytest.mark.slow
def test_the_coordinator_is_killed_in_join(crew, tmp_path):
    kills_in_join(crew("3", *arbiter("file", tmp_path)), 3, (0,))


@pytest.mark.slow
@pytest.mark.parametrize("victims", [(1, 0), (0, 1)], ids=["the coordinator last", "the coordinator first"])
def test_a_job_of_fixed_size_goes_on_once_the_killed_worker_is_back(crew, victims):
    job = crew("2")
    agents = job.gather(2)
    for victim in victims:
        round_ = max(job.worlds())
        agents[victim].kill()
        agents[1 - victim].until("round_waits", reason="below_min")
        agents[victim] = job.start(f"w{victim}")
        world = job.world(2, after=round_)
        assert {life.name for life in world} == {"w0", "w1"}
        assert {life.restarts for life in world} == {0}, "the loss of a worker is no fault of the job"
    job.finish()
    assert job.codes(*agents) == [0, 0]
    job.check_one_world()


@pytest.mark.slow
@pytest.mark.parametrize(("nnodes", "victim", "within_s"), [
    pytest.param("2", 0, 3.0, id="the coordinator of two"),
    pytest.param("2", 1, 2.0, id="the other one of two"),
    pytest.param("2:3", 0, 3.0, id="the coordinator of two that may be three"),
    pytest.param("3", 0, 3.0, id="the coordinator of three"),
])  # fmt: skip
def test_who_comes_back_after_two_seconds_is_soon_in_a_round(crew, nnodes, victim, within_s):
    """With the usual intervals: a coordinator elsewhere that has too few members asks at the endpoint each second."""
    size, job = int(nnodes[0]), crew(nnodes, "--last-call-s", "6", quick=("--no-fork",))
    agents = job.gather(size)
    round_ = max(job.worlds())
    agents[victim].kill()
    killed_s = time.monotonic()
    until(lambda: time.monotonic() > killed_s + 2.0, "two seconds")
    agents[victim] = job.start(f"w{victim}")
    agents[victim].until("processes_started")
    took_s = time.monotonic() - killed_s - 2.0
    assert {life.name for life in job.world(size, after=round_)} == {agent.name for agent in agents}
    job.finish()
    assert job.codes(*agents) == [0] * size
    job.check_one_world()
    assert took_s <= within_s, job.log_text()


@pytest.mark.slow
def test_half_the_world_has_no_arbiter(crew):
    """Without one half is not enough, with the coordinator or without: nobody knows whether the others train."""
    jobs = [(crew("1:2"), 0), (crew("1:2"), 1)]
    left = []
    for job, victim in jobs:
        agents = job.gather(2)
        agents[victim].kill()
        left.append(agents[1 - victim])
    for agent in left:
        assert agent.code() == 1
        ended = agent.until("agent_ended", reason="no_arbiter")
        assert "1 of the 2 workers of round 1 are left" in ended["detail"]


@pytest.mark.slow
def test_what_an_agent_costs_at_rest(crew, capsys):
    """Memory and CPU of an agent that only waits for its processes, told, and held to what a pod can spare."""
    job = crew("2", quick=("--no-fork",))
    agents = job.gather(2)
    before = [cpu_s(agent.pid) for agent in agents]
    began_s = time.monotonic()
    until(lambda: time.monotonic() > began_s + 3, "three seconds")
    used = [(cpu_s(agent.pid) - at) / (time.monotonic() - began_s) for agent, at in zip(agents, before, strict=True)]
    sizes = [resident_mib(agent.pid) for agent in agents]
    with capsys.disabled():
        print(f"  agents at rest: {sizes} MiB resident, {[f'{share:.2%}' for share in used]} of a CPU")
    job.finish()
    assert job.codes(*agents) == [0, 0]
    assert max(sizes) < 64
    assert max(used) < 0.05


def cpu_s(pid) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
