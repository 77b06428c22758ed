"""Replays of a few jobs, checked to the second, and the making of jobs from streams and traces."""

from dataclasses import replace
from random import Random

import pytest

from tests.simulator.replay.world import POLICY, job
from turnout.simulator.replay import trace_files
from turnout.simulator.replay.model import ReplayRules, Submission
from turnout.simulator.replay.run import Comparison, p99, replay
from turnout.simulator.replay.traces import (
    BadTrace,
    JobProperties,
    TraceRow,
    draw_trace,
    rows_of,
    submissions_of,
    tables_of,
)

LINEAR = ((1, 1.0), (2, 2.0), (4, 4.0), (8, 8.0))
TRACE = "job_id,submission_time,duration,num_gpu\nb,50,700,16\na,10,600.5,1\nc,60,700,0\n"
SPEEDS = "global_batch_size,1,2,4\n64,5,9,\n128,0,4.5,8\n256,,,0\n"


def lines_of(tape):
    return [(ran.started_s, round(ran.ended_s, 3)) for ran in tape.results]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param(ReplayRules((4,)), [(0, 100), (100, 200), (200, 210)], id="strictly in turn"),
        pytest.param(ReplayRules((4,), backfill=True), [(0, 100), (100, 200), (2, 12)], id="a later one passes"),
        pytest.param(ReplayRules((2, 2)), [(0, 100), (100, 200), (200, 210)], id="a gang spans nodes"),
    ],
)
def test_without_the_autoscaler_jobs_start_at_their_min_in_turn(rules, expected):
    jobs = [job("a", 0, 100, 3), job("b", 1, 100, 4), job("c", 2, 10, 1)]
    assert lines_of(replay(jobs, rules)) == expected


def test_a_job_that_starts_grows_at_once_and_loses_nothing():
    """Alone on 4 GPUs: it runs four times as fast from the beginning."""
    jobs = [job("a", 0, 1000, 1, 4, curve=LINEAR)]
    tape = replay(jobs, ReplayRules((4,)), POLICY)
    assert lines_of(tape) == [(0, 1000 / 4)]
    assert (tape.results[0].restarts, replay(jobs, ReplayRules((4,))).results[0].ended_s) == (0, 1000)


def test_a_job_that_starts_between_two_looks_loses_what_it_ran_till_then():
    jobs = [job("a", 2, 1000, 1, 4, curve=LINEAR)]
    assert lines_of(replay(jobs, ReplayRules((4,)), POLICY)) == [(2, 5 + 1000 / 4)]


def test_lent_workers_speed_a_job_up_once_settled_and_restarted():
    """From 100 three GPUs are free. They are lent 45 s later; it stands still for 60, and is four times as fast."""
    jobs = [job("b", 0, 100, 3), job("a", 0, 1000, 1, 4, curve=LINEAR)]
    tape = replay(jobs, ReplayRules((4,)), POLICY)
    assert lines_of(tape) == [(0, 100), (0, 145 + 60 + (1000 - 145) / 4)]
    assert (tape.results[1].restarts, replay(jobs, ReplayRules((4,))).results[1].ended_s) == (1, 1000)


def test_room_that_is_taken_before_it_has_settled_restarts_nobody():
    jobs = [job("b", 0, 100, 3), job("a", 0, 1000, 1, 4, curve=LINEAR), job("c", 140, 2000, 3)]
    assert [ran.restarts for ran in replay(jobs, ReplayRules((4,)), POLICY).results] == [0, 0, 0]


def test_workers_that_leave_hold_their_gpus_for_their_grace():
    """Seen at 105, gone at 135; the giver stands still until 165. Once `b` is done its room is lent again after the
    cooldown, at 705: it has long settled by then."""
    jobs = [job("a", 0, 4000, 1, 4, curve=LINEAR), job("b", 101, 100, 2)]
    tape = replay(jobs, ReplayRules((4,)), POLICY)
    done_s = 105 * 4 + (705 - 165) * 2
    assert lines_of(tape) == [(0, 705 + 60 + (4000 - done_s) / 4), (135, 235)]
    assert (tape.results[0].restarts, tape.results[0].shrinks_for_others, tape.evictions[0].beneficiary) == (2, 1, "b")


def test_only_gpus_that_made_progress_count_as_busy():
    """Four GPUs for 1000 s until the last submission: all four of one job from its start, but one where it does not
    grow; or its only restart, for room that has settled."""
    jobs = [job("a", 0, 100_000, 1, 4, curve=LINEAR), job("late", 1000, 1, 1)]
    rules = ReplayRules((4,))
    assert replay(jobs, rules).utilisation == pytest.approx(1 / 4)
    assert replay(jobs, rules, POLICY).utilisation == pytest.approx(1)
    restarts = [job("b", 0, 100, 3), *jobs]
    assert replay(restarts, rules, POLICY).utilisation == pytest.approx((100 * 4 + 45 + 795 * 4) / 4000)


def test_an_autoscaler_that_does_not_know_a_flat_curve_grows_in_vain():
    flat = ((1, 1.0), (8, 1.01))
    jobs = [job("a", 0, 1000, 1, 8, curve=flat)]
    assert replay(jobs, ReplayRules((8,)), POLICY).results[0].restarts == 0
    assert replay([job("b", 0, 100, 7), *jobs], ReplayRules((8,), known_curves=False), POLICY).results[1].restarts == 1


def test_the_oracle_pays_for_nothing():
    jobs = [job("a", 0, 1000, 1, 4, curve=LINEAR), job("b", 100, 100, 2)]
    oracle = replay(jobs, ReplayRules((4,), 0, 0, 0), replace(POLICY, restart_s=0.0, cooldown_s=0.0))
    assert lines_of(oracle) == [(0, 300.0), (100, 200)]


@pytest.mark.parametrize(("all_seen", "leave"), [(False, []), (True, ["behind"])])
def test_a_strict_queue_holds_back_whoever_is_behind_one_that_does_not_fit(all_seen, leave):
    """Show that an autoscaler that sees all jobs takes workers for one that a strict queue cannot start."""
    jobs = [job("rigid", 0, 5000, 2), job("wide", 0, 5000, 1, 2), job("head", 100, 10, 3), job("behind", 101, 10)]
    tape = replay(jobs, ReplayRules((4,), all_seen=all_seen), POLICY)
    assert [eviction.beneficiary for eviction in tape.evictions if eviction.at_s < 200] == leave
    assert tape.results[3].started_s > 2000


def test_a_job_that_no_empty_cluster_holds_is_told():
    with pytest.raises(ValueError, match="big asks for 1 x 8 GPUs"):
        replay([job("big", gpus=8)], ReplayRules((4, 4)))


@pytest.mark.parametrize(
    "more", [{"minimum": 0}, {"minimum": 3, "maximum": 2}, {"gpus": 0}, {"work_s": 0}, {"at_s": -1}]
)
def test_a_bad_submission_cannot_be_built(more):
    with pytest.raises(ValueError, match="submission x"):
        Submission(**{"name": "x", "at_s": 0.0, "work_s": 1.0, **more})


def test_two_replays_are_compared_job_by_job():
    jobs = [job("a", 0, 1000, 1, 4, curve=LINEAR), job("b", 101, 100, 2), job("c", 500, 10, 4)]
    rules = ReplayRules((4,))
    comparison = Comparison(replay(jobs, rules), replay(jobs, rules, POLICY))
    assert comparison.delays_s[:2] == [0, 34]
    assert (comparison.late, comparison.undisturbed) == (0, pytest.approx(2 / 3))
    assert comparison.faster == pytest.approx(comparison.without.mean_took_s / comparison.lent.mean_took_s)
    assert comparison.capture(comparison.lent) == pytest.approx(1)
    assert comparison.harm == pytest.approx(34 / 150)
    assert comparison.worse == 0
    later = [
        replace(ran, ended_s=ran.ended_s + late_s)
        for ran, late_s in zip(comparison.lent.results, (0, 95, 0), strict=True)
    ]
    assert Comparison(comparison.without, replace(comparison.lent, results=tuple(later))).worse == pytest.approx(1 / 3)


def test_p99():
    assert (p99([5.0]), p99(list(range(200)))) == (5.0, 198)


def test_a_trace_is_read_by_time_without_jobs_that_held_nothing():
    assert rows_of(TRACE) == (TraceRow(10.0, "job-000001", 1, 600.5), TraceRow(50.0, "job-000000", 16, 700.0))


@pytest.mark.parametrize("text", ["a,b\n1,2\n", TRACE + "d,now,1,1\n", TRACE + "d,1\n"])
def test_what_is_no_trace_is_told(text):
    with pytest.raises(BadTrace, match="not a trace"):
        rows_of(text)


def test_speeds_are_read_where_they_were_measured():
    assert tables_of(SPEEDS) == (((1, 5.0), (2, 9.0)), ((2, 4.5), (4, 8.0)))


def test_rows_become_jobs_of_whole_nodes_with_a_seed():
    properties = JobProperties(elastic=0.5, factor=2, tables=tables_of(SPEEDS))
    submissions = submissions_of(rows_of(TRACE) * 10, properties, Random(1))
    assert submissions == submissions_of(rows_of(TRACE) * 10, properties, Random(1))
    assert {(each.at_s, each.gpus, each.minimum) for each in submissions} == {(0.0, 1, 1), (40.0, 8, 2)}
    assert {each.maximum // each.minimum for each in submissions} == {1, 2}
    assert {each.curve for each in submissions if each.gpus == 1} == {((1, 5.0), (2, 9.0)), ((2, 4.5), (4, 8.0))}


def test_a_drawn_stream_asks_for_its_load():
    rows = draw_trace(500, 64, 0.7, Random(3))
    gpu_seconds = sum(row.gpus * row.took_s for row in rows)
    assert 0.65 < gpu_seconds / (64 * (rows[-1].at_s - rows[0].at_s)) < 0.75
    assert [row.at_s for row in rows] == sorted(row.at_s for row in rows)
    assert max(row.gpus for row in rows) <= 32


def test_traces_are_read_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv(trace_files.VARIABLE, str(tmp_path))
    assert (trace_files.read_cluster_trace("02"), trace_files.read_speed_tables()) == (None, ())
    (tmp_path / "itp").mkdir()
    (tmp_path / "itp" / "cluster02.csv").write_text(TRACE)
    (tmp_path / "elasticflow-throughput" / "throughputs_A100").mkdir(parents=True)
    (tmp_path / "elasticflow-throughput" / "throughputs_A100" / "bert.csv").write_text(SPEEDS)
    assert (trace_files.read_cluster_trace("02"), trace_files.read_speed_tables()) == (
        rows_of(TRACE),
        tables_of(SPEEDS),
    )
