"""Agents that really meet, jobs that are really killed, and what is made of the times that they tell."""

import math
import sys

import pytest

from hack.bench.rendezvous import jobs, mount_namespace, testbed
from hack.bench.rendezvous.agents import WorldTimes
from hack.bench.rendezvous.mount_namespace import Names
from hack.bench.rendezvous.phase_times import LOST, WORDS, Fault, Mark, fault, middle, stepped
from hack.bench.rendezvous.results import Results, burned, lost, p95, ratio


def marks(pid, rank, restart, began_s, words=WORDS):
    return [Mark(pid, rank, restart, word, began_s + at) for at, word in enumerate(words)]


BEFORE = [*marks(1, 0, 0, 0), *marks(2, 1, 0, 0)]


def test_a_mark_is_read_as_it_was_written():
    mark = Mark(7, 1, 2, "loaded", 12.25)
    assert Mark.read(mark.written()) == mark


@pytest.mark.parametrize(
    ("after", "stepped_s", "burned"),
    [
        pytest.param([], None, None, id="nobody is back"),
        pytest.param(marks(3, 0, 1, 20), None, None, id="one is not all"),
        pytest.param([*marks(3, 0, 1, 20), *marks(4, 1, 1, 21)], 15, 1, id="the last one counts"),
        pytest.param(
            [*marks(3, 0, 1, 20, WORDS[:2]), *marks(5, 0, 2, 30), *marks(6, 1, 2, 30)], 24, 2, id="a start that fails"
        ),
        pytest.param([*marks(3, 0, 1, 20), *marks(4, 1, 2, 25)], 19, 2, id="agents that count for themselves"),
    ],
)
def test_what_a_kill_cost(after, stepped_s, burned):
    found = fault([*BEFORE, *after], {1, 2}, 2, 10.0, {"detected": 10.5})
    assert (found and found.took_s, found and found.burned) == (stepped_s, burned)
    assert found is None or found.after_s["detected"] == 0.5


def test_phases_are_those_of_the_processes_that_went_on():
    after = [*marks(3, 0, 1, 20, WORDS[:3]), *marks(5, 0, 2, 30), *marks(6, 1, 2, 31)]
    found = fault([*BEFORE, *after], {1, 2}, 2, 10.0, {})
    assert [found.after_s[word] for word in WORDS] == [21, 22, 23, 24, 25]


def test_of_each_rank_the_newest_process_counts():
    assert {rank: mark.pid for rank, mark in stepped([*marks(4, 1, 1, 9), *BEFORE], ()).items()} == {0: 1, 1: 4}


def test_medians_are_those_of_the_jobs_that_survived():
    faults = [LOST, *(Fault({"stopped": math.nan, "stepped": took_s}, 1) for took_s in (1.0, 2.0, 9.0))]
    assert middle(faults)["stepped"] == 2.0
    assert math.isnan(middle(faults)["stopped"])
    assert (lost(faults), burned(faults)) == (1, 1)


def test_a_share_of_the_times_is_one_of_them():
    assert p95([1.0, 2.0, 3.0]) == 3.0
    assert p95([*range(101)]) == 95
    assert math.isnan(p95([]))
    assert p95([1.0, LOST.took_s]) == math.inf


@pytest.mark.parametrize(
    ("ours", "baseline", "known"),
    [
        pytest.param(1.0, 4.0, True, id="both"),
        pytest.param(1.0, math.inf, False, id="an baseline that was not done is no measure"),
        pytest.param(1.0, math.nan, False, id="nor one that is not here"),
    ],
)
def test_a_ratio_needs_its_anchor(ours, baseline, known):
    assert ratio(ours, baseline) == 0.25 if known else math.isnan(ratio(ours, baseline))


def test_without_anything_measured_no_target_is_met():
    assert [target.name for target in Results().targets() if target.met] == []


def test_every_target_can_be_met():
    meetings = {(kind, agents): [WorldTimes(agents, took_s), WorldTimes(agents)] for kind, agents, took_s in (
        ("ours", 1024, 0.3), ("nvrx", 1024, 0.7), ("ours", 4096, 1.1), ("ours", 10_000, 9.0),
    )}  # fmt: skip
    found = Results(
        meetings,
        beside=[WorldTimes(1024, 0.3)],
        deaths=[WorldTimes(1024, 0.3, noticed_s=0.1, renewed_s=0.4)],
        named=[WorldTimes(1024, 0.30)],
        unnamed=[WorldTimes(1024, 0.31), WorldTimes(1024, 0.30)],
        restarts={name: [Fault({"stepped": took_s}, 1)] for name, took_s in (
            ("turnout-run", 0.1), ("torchrun at its best", 1.7),
        )},
    )  # fmt: skip
    assert [target.name for target in found.targets() if not target.met] == []
    assert found.figures()["ours_1024_s"] == 0.3
    assert found.figures()["torchrun_at_its_best_stepped_s"] == 1.7
    assert all(len(row) == len(table.columns) for table in found.tables() for row in table.rows)


def test_a_command_apart_leaves_the_machines_files_alone(tmp_path):
    assert mount_namespace.command(["true"], Names.MACHINE, tmp_path) == ["true"]
    command = mount_namespace.command(["true"], Names.QUIET, tmp_path)
    assert command[0] == "unshare"
    assert command[-1] == "true"
    assert (tmp_path / "quiet" / "nsswitch.conf").read_text() == "hosts: files\n"


def test_why_a_namespace_is_not_to_be_had_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "unshare" in mount_namespace.permitted(Names.QUIET, tmp_path)


def test_crowds_meet_and_outlive_one_of_them(tmp_path):
    with testbed.Testbed([], Names.MACHINE, tmp_path) as stage:
        assert stage.meet("floor", 24, 20).took_s < 20
        met = stage.meet("ours", 24, 20, one_dies=True)
        late = stage.meet("ours", 24, 0.0)
    assert met.why == ""
    assert max(met.took_s, met.noticed_s, met.renewed_s) < 20
    assert (late.took_s, late.why) == (math.inf, "not done in 0 s")


def test_a_stage_that_cannot_begin_says_so(tmp_path):
    with testbed.Testbed(["no such kind"], Names.MACHINE, tmp_path) as stage:
        assert stage.meet("floor", 4, 5).why == "its process ended"


def test_a_job_that_never_starts_is_lost(tmp_path):
    ends = jobs.Launcher("ends", lambda port, folder: [[sys.executable, "-c", "raise SystemExit(3)"]])
    assert jobs.faults(ends, Names.MACHINE, tmp_path, 2, 5.0) == [LOST, LOST]


@pytest.mark.long
def test_a_killed_process_of_ours_costs_one_restart(tmp_path):
    found = jobs.faults(jobs.OURS, Names.MACHINE, tmp_path, 2, 30.0)
    assert [each.burned for each in found] == [1, 1]
    assert [[*each.after_s] for each in found] == [["detected", "stopped", *WORDS]] * 2


@pytest.mark.long
def test_the_loss_of_an_agent_of_ours_leaves_a_world_of_one(tmp_path):
    assert jobs.lost_agent(jobs.OURS_SHRINKS, Names.MACHINE, tmp_path, 60.0).took_s < 60
