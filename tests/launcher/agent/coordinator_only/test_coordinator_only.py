"""A coordinator that trains nothing: workers meet at it, it ends as the job does, and they go on without it."""

import signal

import pytest

from tests.launcher.agent.crew import QUICK, RUN
from tests.launcher.agent.test_goodput import seconds

pytestmark = pytest.mark.slow

JOB = {"JOB_UID": "4f1c"}  # the job's id, for a worker alone too


def master_of(job, *more):
    """Start the coordinator of a job, as its master pod does, and wait until workers may come."""
    master = job.start("master", argv=(*RUN, "--coordinator-only", *QUICK, *job.endpoint, *more), env=JOB)
    master.until("coordinator_waits")
    return master


def worker(job, name, *more, **options):
    """Start a worker that knows the job's master as DLRover's workers do."""
    where = job.endpoint[1]
    return job.start(name, *more, env={**JOB, "DLROVER_MASTER_ADDR": where, "NODE_RANK": name[1:]}, **options)


def test_workers_meet_at_it_and_it_ends_with_0_when_they_succeed(crew):
    job = crew("2")
    master = master_of(job)
    workers = [worker(job, name) for name in ("w0", "w1")]
    assert [life.name for life in job.world(2)] == ["w0", "w1"]
    assert [each.leads for each in (master, *workers)] == [True, False, False]
    job.finish()
    assert job.codes() == [0, 0, 0]
    job.check_one_world()


def test_it_ends_with_1_when_the_job_has_failed(crew):
    job = crew("1")
    master = master_of(job)
    one = worker(job, "w0", argv=(*RUN, *job.options, *job.endpoint, "--no-python", "false"))
    assert job.codes(one, master) == [1, 1]


def test_a_new_one_in_its_place_serves_who_comes_first(crew):
    job = crew("2")
    master_of(job).kill()
    job.codes()
    master = master_of(job)
    for name in ("w0", "w1"):
        worker(job, name)
    job.world(2)
    job.finish()
    assert job.codes(master, *job.agents[2:]) == [0, 0, 0]


def test_training_goes_on_without_it(crew):
    job = crew("3")
    master = master_of(job)
    workers = [worker(job, name) for name in ("w0", "w1", "w2")]
    before = job.world(3)
    master.kill()
    job.world(3, after=before[0].round)
    assert any(each.leads for each in workers)
    job.finish()
    assert job.codes(*workers) == [0, 0, 0]
    job.check_one_world()


def test_a_new_worker_and_those_without_it_meet_at_the_new_one(crew):
    """The worker that took over has too few, so it looks for others where the job began."""
    job = crew("3")
    master = master_of(job)
    workers = [worker(job, name) for name in ("w0", "w1", "w2")]
    first = job.world(3)
    master.kill()
    second = job.world(3, after=first[0].round)
    master = master_of(job)
    workers[1].kill()
    workers[1] = worker(job, "w1")
    job.world(3, after=second[0].round)
    assert master.leads
    job.finish()
    assert job.codes(master, *workers) == [0, 0, 0, 0]
    job.check_one_world()


def test_with_an_arbiter_the_new_one_sends_workers_to_the_one_that_leads(crew, tmp_path):
    job = crew("1:3", "--round-dir", str(tmp_path / "rounds"), "--last-call-s", "0")
    rounds = ("--round-dir", str(tmp_path / "rounds"))
    master = master_of(job, *rounds)
    workers = [worker(job, name) for name in ("w0", "w1")]
    before = job.world(2)
    master.kill()
    before = job.world(2, after=before[0].round)
    master = master_of(job, *rounds)
    workers.append(worker(job, "w2"))
    job.world(3, after=before[0].round)
    assert not master.leads
    job.finish()
    assert job.codes(*workers) == [0, 0, 0]
    master.signal(signal.SIGTERM)
    assert master.code() == 143
    job.check_one_world()


@pytest.mark.parametrize("options", [
    pytest.param(("--standalone",), id="for one worker alone"),
    pytest.param(("--rdzv-endpoint", "here.invalid:1"), id="at a name that nobody knows"),
])  # fmt: skip
def test_it_needs_a_place_to_listen_at(crew, options):
    job = crew("2")
    assert job.start("master", argv=(*RUN, "--coordinator-only", *options)).code() == 2


def test_it_waits_for_new_workers_when_all_have_left(crew):
    """A job that is suspended and resumed does this. The time between is part of its totals."""
    job = crew("2", "--drain-grace-s", "2")
    master = master_of(job)
    workers = [worker(job, name) for name in ("w0", "w1")]
    job.world(2)
    for each in workers:
        each.signal(signal.SIGTERM)
    assert job.codes(*workers) == [143, 143]
    workers = [worker(job, name) for name in ("w0", "w1")]
    for each in workers:
        each.until("processes_started")
    job.finish()
    assert job.codes(master, *workers) == [0, 0, 0]
    begun, totals = master.entries("coordinator_begun")[0], master.entries("goodput")[-1]
    assert totals["wall_s"] == pytest.approx(seconds(totals["time"]) - seconds(begun["time"]), abs=0.1)


def test_workers_that_wait_in_vain_end_and_it_waits_for_others(crew):
    job = crew("2", "--rdzv-conf", "join_timeout=2,last_call_timeout=0")
    master = master_of(job)
    assert worker(job, "w0").code() == 1
    workers = [worker(job, name) for name in ("w1", "w2")]
    job.world(2)
    job.finish()
    assert job.codes(master, *workers) == [0, 0, 0]
