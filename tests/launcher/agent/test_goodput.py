"""The job's time by kind with real agents: kinds and undecided time are the wall time, whatever happens."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime
from urllib.request import urlopen

import pytest

from tests.kit.wait import until
from tests.launcher.agent.crew import lines
from turnout.launcher.addresses import free_port
from turnout.launcher.goodput.job_time import TimeKind
from turnout.launcher.model import RoundRecord
from turnout.launcher.rendezvous.arbiter import seal, unseal


def reached(job, step, round_=0):
    """Wait until rank 0 is that far, in that round or a later one."""
    until(
        lambda: any(
            each["step"] >= step and each["round"] >= round_ and each["rank"] == 0 for each in lines(job, "steps")
        ),
        job.log_text,
    )


def totals(job):
    """The last totals that any agent has logged."""
    found = [each for agent in job.agents for each in agent.entries("goodput")]
    return max(found, key=lambda each: each["wall_s"])


def kinds(line):
    """The seconds of each kind that a line of the log tells."""
    return {kind.value: line[f"{kind}_s"] for kind in TimeKind if f"{kind}_s" in line}


def check_sum(job, start):
    """The kinds and the undecided time are the wall time since the first coordinator began.

    start: of `gather`. Both ends of the wall time are moments between two lines of the log.
    """
    for agent in job.agents:
        for line in agent.entries("goodput"):
            assert sum(kinds(line).values()) + line["undecided_s"] == pytest.approx(line["wall_s"], rel=0.001)
    last = totals(job)
    done = max(each["time"] for agent in job.agents for each in agent.entries("processes_done"))
    shortest_s, longest_s = seconds(done) - start[1], seconds(last["time"]) - start[0]
    assert 0.999 * shortest_s - 0.001 <= last["wall_s"] <= 1.001 * longest_s + 0.001


def seconds(stamp):
    return datetime.fromisoformat(stamp).timestamp()


def gather(job, size, *words, more=()):
    """Start a job. Gives its agents, and the two moments (seconds since 1970) between which its coordinator began."""
    started_s = time.time()
    agents = [job.start("w0", *more, arguments=words)]
    begun = agents[0].until("coordinator_begun")
    before = [seconds(each["time"]) for each in agents[0].events if each["time"] < begun["time"]]
    agents += [job.start(f"w{at}", arguments=words) for at in range(1, size)]
    job.world(size)
    return agents, (max(before, default=started_s), seconds(begun["time"]))


@pytest.mark.slow
def test_a_killed_process_wastes_what_was_not_saved(crew):
    job, port = crew("1:2", "--last-call-s", "30", "--max-restarts", "3"), free_port("127.0.0.1")
    _, begun = gather(job, 2, "steps", "saves", more=("--metrics-port", str(port)))
    reached(job, 90)  # it saves no step after 50
    (victim,) = [life for life in job.worlds()[1] if life.rank == 1]
    os.kill(victim.pid, signal.SIGKILL)
    world = job.world(2, after=1)
    reached(job, 60, world[0].round)
    page = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    job.finish()
    assert job.codes() == [0, 0]
    last = totals(job)
    assert {"rendezvous", "startup", "productive", "save", "wasted", "recovery", "reinit"} <= kinds(last).keys()
    assert last["undecided_s"] == 0
    assert last["steps"] == "reported"
    assert kinds(last)["wasted"] > 0.1  # forty steps of 5 ms and more, without what one heartbeat may hide
    check_sum(job, begun)
    for kind in ("wasted", "hang"):
        assert f'turnout_job_time_seconds_total{{kind="{kind}"}}' in page
    assert 'turnout_job_gpu_seconds_total{kind="productive"}' in page
    assert "turnout_job_unsaved_seconds" in page


@pytest.mark.slow
def test_a_leave_is_a_shrink_and_a_join_a_growth(crew):
    job = crew("1:2", "--last-call-s", "0")
    _, begun = gather(job, 1, "steps")
    reached(job, 100)
    leaver = job.start("w1", arguments=("steps",))
    world = job.world(2, after=1)
    reached(job, 250, world[0].round)  # the coordinator knows that this round reports its steps
    leaver.signal(signal.SIGTERM)
    assert leaver.code() == 143
    world = job.world(1, after=world[0].round)
    reached(job, 300, world[0].round)
    job.finish()
    assert job.codes(job.agents[0]) == [0]
    last = totals(job)
    assert {"productive", "elastic_shrink", "elastic_grow", "reinit"} <= kinds(last).keys(), last
    assert "wasted" not in kinds(last)
    check_sum(job, begun)


@pytest.mark.slow
def test_the_totals_go_to_the_coordinator_after_a_leave(crew):
    job = crew("1:2", "--last-call-s", "30")
    agents, begun = gather(job, 2, "steps")
    reached(job, 200)
    agents[0].signal(signal.SIGTERM)
    assert agents[0].code() == 143
    world = job.world(1, after=1)
    reached(job, 220, world[0].round)
    job.finish()
    assert job.codes(agents[1]) == [0]
    last = totals(job)
    assert {"startup", "productive", "elastic_shrink", "reinit"} <= kinds(last).keys(), last
    assert "wasted" not in kinds(last)
    check_sum(job, begun)


def test_a_job_without_steps_has_no_goodput(crew):
    job = crew("1")
    _, begun = gather(job, 1)
    job.finish()
    assert job.codes() == [0]
    last = totals(job)
    assert last["steps"] == "no steps are reported"
    assert kinds(last).keys() <= {"rendezvous", "other"}
    check_sum(job, begun)


@pytest.mark.slow
def test_the_totals_outlive_a_killed_coordinator(crew):
    job = crew("1:3", "--last-call-s", "30")
    agents, begun = gather(job, 3, "steps", "saves")
    reached(job, 200)  # long after the save of step 50, which others know by now
    agents[0].kill()
    world = job.world(2, after=1)
    reached(job, 60, world[0].round)
    job.finish()
    assert job.codes(*agents[1:]) == [0, 0]
    assert {"startup", "productive", "recovery"} <= kinds(totals(job)).keys()
    check_sum(job, begun)


def stored_totals(folder):
    """The totals that the newest holder has written to the folder of rounds, "" for none."""
    files = sorted(folder.glob("holder-*"))
    return unseal(files[-1].read_bytes()).totals if files else ""


@pytest.mark.slow
@pytest.mark.parametrize("number", [
    pytest.param(signal.SIGKILL, id="the node pool is gone"),
    pytest.param(signal.SIGTERM, id="the whole gang is evicted"),
])  # fmt: skip
def test_the_totals_outlive_all_agents(crew, tmp_path, number):
    """The arbiter's record stores them: the time until the next start is recovery, its start is a re-initialisation."""
    rounds = tmp_path / "rounds"
    job = crew("1:2", "--last-call-s", "30", "--round-dir", str(rounds))
    agents, begun = gather(job, 2, "steps", "saves")
    reached(job, 90)  # it saves no step after 50
    until(lambda: '"step":-1' not in stored_totals(rounds) and stored_totals(rounds), job.log_text)
    for agent in agents:
        agent.signal(number)
    codes = [agent.code() for agent in agents]
    ended_s = time.time()
    new_agents = [job.start(f"w{at}", arguments=("steps", "saves")) for at in range(2)]
    world = job.world(2, after=1)
    reached(job, 200, world[0].round)
    job.finish()
    assert job.codes(*new_agents) == [0, 0], codes
    last = totals(job)
    assert {"startup", "productive", "recovery", "reinit"} <= kinds(last).keys(), last
    began = next(line for agent in new_agents for line in agent.entries("coordinator_begun"))
    assert kinds(last)["recovery"] > seconds(began["time"]) - ended_s - 0.001  # the log's times are milliseconds
    assert ("wasted" in kinds(last)) == (number == signal.SIGKILL), last  # a stop step is saved
    check_sum(job, begun)
    until(lambda: not stored_totals(rounds), job.log_text)  # the job is done: its next run starts from 0


def test_stored_totals_that_cannot_be_read_do_not_stop_the_job(crew, tmp_path):
    rounds = tmp_path / "rounds"
    rounds.mkdir()
    job = crew("1", "--round-dir", str(rounds), "--rdzv-id", "job")
    (rounds / "round-0000000001.json").write_bytes(seal(RoundRecord("job", 1, "w0/1", totals="[" * 900)))
    _, begun = gather(job, 1)
    job.finish()
    assert job.codes() == [0]
    assert len(job.agents[0].entries("totals_unreadable")) == 1
    check_sum(job, begun)
