"""`turnout simulate`: what is replayed, and the figures of both runs."""

import json

import pytest
import yaml

from turnout.cli.__main__ import main
from turnout.cli.exit_codes import ExitCode
from turnout.cli.simulate.model import BadSimulation, SimulationOptions, figures, jobs_of, simulate, verdict
from turnout.simulator.replay.traces import TraceRow

# Four GPUs, of which each job asks for one: with lending the first has all of them until the second comes.
TWO = (TraceRow(0.0, "first", 1, 36_000.0), TraceRow(7_200.0, "second", 1, 36_000.0))
TRACE = "submission_time,num_gpu,duration\n0,1,36000\n7200,1,36000\n9000,2,1800\n"


def report_text(rows=TWO, options=None, jobs=0):
    options = options or SimulationOptions(nodes=(4,))
    submissions, rules = jobs_of(rows, options, jobs)
    return simulate(submissions, rules, options)


def test_jobs_that_grow_into_idle_gpus_end_sooner():
    found = figures(report_text())
    assert (found.jobs, found.gpus, found.nodes) == (2, 4, 1)
    assert found.faster > 1.5
    assert found.busy > found.busy_without
    assert (found.gained, found.lost, found.worse, found.late) == (2, 0, 0.0, 0)


def test_where_no_job_is_elastic_both_runs_are_the_same():
    found = figures(report_text(options=SimulationOptions((4,), elastic=0.0)))
    assert (found.faster, found.gained, found.lost, found.restarts) == (1.0, 0, 0, 0.0)
    assert verdict(found).startswith("Jobs end no faster, and the cluster is busy to")


@pytest.mark.parametrize(
    ("rows", "options", "says"),
    [
        ((), {}, "the trace has no job"),
        ((TraceRow(0.0, "wide", 16, 60.0),), {"nodes": (8,)}, "wide asks for 2 x 8 GPUs: no empty cluster of 1 nodes"),
        (TWO, {"elastic": 1.5}, "--elastic is 1.5"),
        (TWO, {"factor": 0}, "--factor must be at least 1"),
        (TWO, {"restart_s": -1.0}, "not negative"),
    ],
)
def test_what_cannot_be_replayed_is_refused(rows, options, says):
    with pytest.raises(BadSimulation) as error:
        report_text(rows, SimulationOptions(**options))
    assert says in str(error.value)


def test_without_a_size_the_cluster_is_busy_to_two_thirds():
    rows = [TraceRow(60.0 * at, f"job-{at}", 8, 600.0) for at in range(200)]
    _, rules = jobs_of(rows, SimulationOptions())
    assert rules.nodes == (8,) * 16  # 200 x 8 x 600 s over 199 min, / 0.65


def test_the_first_jobs_are_those_that_came_first():
    submissions, _ = jobs_of(TWO[::-1], SimulationOptions((4,)), 1)
    assert [each.name for each in submissions] == ["first"]


def test_progress_is_told_of_both_runs():
    options, counts = SimulationOptions((4,)), []
    simulate(*jobs_of(TWO, options), options, counts.append)
    assert counts == sorted(counts)
    assert counts[-1] == 4


@pytest.fixture
def trace(tmp_path):
    (tmp_path / "trace.csv").write_text(TRACE)
    return str(tmp_path / "trace.csv")


def test_the_command_prints_both_runs(trace, capsys):
    assert main(["simulate", trace, "--nodes", "1x4"]) == ExitCode.DONE
    out, err = capsys.readouterr()
    assert out.startswith("3 jobs on 1 nodes, 4 GPUs\n")
    assert "mean completion" in out
    assert err == ""


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_read_the_figures(form, read, trace, capsys):
    assert main(["simulate", trace, "--nodes", "1x4", "-o", form]) == ExitCode.DONE
    assert read(capsys.readouterr().out)["jobs"] == 3


def test_a_drawn_trace_needs_no_file_and_is_the_same_each_time(capsys):
    assert main(["simulate", "drawn", "--jobs", "40", "--seed", "3"]) == ExitCode.DONE
    first = capsys.readouterr().out
    assert main(["simulate", "drawn", "--jobs", "40", "--seed", "3"]) == ExitCode.DONE
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        pytest.param(["none.csv"], ExitCode.FAILED, "none.csv", id="a file that is not there"),
        pytest.param(["TRACE", "--nodes", "8"], ExitCode.USAGE, "NxGPUS, as in 32x8", id="a cluster that is none"),
        pytest.param(["TRACE", "--jobs", "-1"], ExitCode.USAGE, "--jobs is -1", id="fewer than no jobs"),
        pytest.param(["TRACE", "--nodes", "1x1"], ExitCode.USAGE, "no empty cluster", id="a cluster that is too small"),
    ],
)
def test_what_it_cannot_do_is_said_in_a_line(argv, code, says, trace, capsys):
    assert main(["simulate", *(trace if word == "TRACE" else word for word in argv)]) == code
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
