"""`turnout usage`: the sums of a replayed day, and the forms in which they are printed."""

import csv
import io
import json
import random
from collections import defaultdict

import pytest

from tests.autoscaler.world import GPU, NOW_S, job, state_of, world
from turnout.autoscaler.controller.metrics import Metrics
from turnout.autoscaler.model import Reason, Step
from turnout.autoscaler.reporting.decision_log import JobUsage, UsageLine, encode_decisions, encode_usage
from turnout.autoscaler.reporting.usage import IdleReason
from turnout.cli.__main__ import main
from turnout.cli.views.usage import MAX_OWNERS, Usage, day_of, read_usage, rows_by_queue, rows_by_user
from turnout.kube.times import rfc3339, unix_s

SHARES = {"a": 16, "b": 24, "c": 0}
TOTAL = 48
DAY_S = 86_400.0
BEGIN_S = (NOW_S // DAY_S) * DAY_S + 20 * 3600  # at eight in the evening


class Clock:
    """Moved by hand."""

    now_s = 5.0

    def monotonic(self):
        return self.now_s

    def wall(self):
        return BEGIN_S + self.now_s - 5.0


def draw_jobs(rng):
    """Jobs of a moment: sizes and queues by chance."""
    jobs, left = [], TOTAL
    for name, minimum in (("j1", 2), ("j2", 1), ("j3", 4), ("j4", 1), ("j5", 2)):
        size = rng.choice([0, minimum, minimum + 2, minimum + 6])
        gpus = rng.choice([1, 2])
        if size and size * gpus <= left:
            left -= size * gpus
            queue = "abc"[int(name[1]) % 3]
            jobs.append(
                state_of(job(name, minimum=minimum, maximum=99, replicas=size, gpus=gpus, queue=queue), rows=[0] * size)
            )
    return jobs, left


def own_sums(jobs, left, seconds, sums):
    """Add what a person would work out for one stretch of time, in GPU-hours."""
    used, elastic = defaultdict(int), defaultdict(int)
    for each in jobs:
        gpus = each.job.shape.gpus((GPU,))
        gpus_total, above = len(each.workers) * gpus, (len(each.workers) - each.job.bounds.minimum) * gpus
        used[each.job.queue] += gpus_total
        elastic[each.job.queue] += above
        sums["job", str(each.job.key)] += gpus_total * seconds / 3600
        sums["elastic", each.job.queue] += above * seconds / 3600
    for queue, gpus in used.items():
        sums["queue", queue] += gpus * seconds / 3600
    for queue, gpus in elastic.items():
        borrowed = min(gpus, max(0, used[queue] - SHARES[queue])) if SHARES[queue] else gpus
        sums["borrowed", queue] += borrowed * seconds / 3600
    sums["idle",] += left * seconds / 3600


@pytest.fixture(scope="module")
def replayed_day(tmp_path_factory):
    """The decision log of 26 hours of random jobs, and the sums of a person: of all days and of each day."""
    path, rng, clock = tmp_path_factory.mktemp("day") / "decisions", random.Random(7), Clock()
    metrics, sums, by_day = Metrics((GPU,), clock), defaultdict(float), defaultdict(lambda: defaultdict(float))
    free = [0]
    metrics.usage.set_sources(lambda: free[0], lambda key: "ann" if key.name in ("j1", "j2") else "", {})
    queues = {name: {"deserved": share} if share else {} for name, share in SHARES.items()}
    with path.open("wb") as log:
        end_s = clock.now_s + 26 * 3600
        while clock.now_s < end_s:
            jobs, free[0] = draw_jobs(rng)
            steps = [Step(each.job.key, len(each.workers), len(each.workers), Reason.AT_MAX) for each in jobs]
            metrics.record_decision(world([TOTAL], *jobs, queues=queues), steps)
            log.write(encode_decisions(steps, clock.wall()) + encode_usage(metrics.usage.due_lines(clock.wall())))
            seconds = min(rng.choice([70.0, 200.0, 300.0]), 900.0 - clock.wall() % 900.0)
            own_sums(jobs, free[0], seconds, sums)
            own_sums(jobs, free[0], seconds, by_day[rfc3339(clock.wall())[:10]])
            clock.now_s += seconds
        log.write(encode_usage(metrics.usage.take_lines(clock.wall())))
    return path, sums, by_day, clock.now_s - 5.0


def report(path, *words, capsys):
    """The rows of a report, as its CSV has them."""
    assert main(["usage", "--decision-log", str(path), "--since", "99999d", "-o", "csv", *words]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def total(rows, *fields):
    return sum(float(row[field]) for row in rows for field in fields)


IDLE = [f"idle_{reason.value}_gpu_hours" for reason in IdleReason]


def test_the_sums_of_queues_are_those_of_a_person(replayed_day, capsys):
    path, sums, _, seconds = replayed_day
    rows = report(path, "--by", "queue", capsys=capsys)
    for row in rows:
        assert float(row["gpu_hours"]) == pytest.approx(sums["queue", row["queue"]], rel=1e-6)
        assert float(row["elastic_gpu_hours"]) == pytest.approx(sums["elastic", row["queue"]], rel=1e-6)
        assert float(row["borrowed_gpu_hours"]) == pytest.approx(sums["borrowed", row["queue"]], rel=1e-6)
    assert total(rows, "lent_gpu_hours") == pytest.approx(total(rows, "borrowed_gpu_hours"), rel=1e-6)
    assert total(rows, *IDLE) == pytest.approx(sums["idle",], rel=1e-6)
    assert total(rows, "gpu_hours", *IDLE) == pytest.approx(TOTAL * seconds / 3600, rel=1e-6)


def test_the_sums_of_jobs_and_users_are_those_of_a_person(replayed_day, capsys):
    path, sums, *_ = replayed_day
    jobs = report(path, "--by", "job", capsys=capsys)
    assert {row["job"] for row in jobs} == {key[1] for key in sums if key[0] == "job"}
    for row in jobs:
        assert float(row["gpu_hours"]) == pytest.approx(sums["job", row["job"]], rel=1e-6)
    users = {row["user"]: float(row["gpu_hours"]) for row in report(path, "--by", "user", capsys=capsys)}
    ann = sums["job", "Job/ns/j1"] + sums["job", "Job/ns/j2"]
    rest = sum(hours for key, hours in sums.items() if key[0] == "job") - ann
    assert users == {"ann": pytest.approx(ann, rel=1e-6), "none": pytest.approx(rest, rel=1e-6)}


def test_each_day_has_its_own_sums(replayed_day, capsys):
    path, _, by_day, _ = replayed_day
    rows = report(path, "--by", "day", capsys=capsys)
    assert len(by_day) == 2
    assert {row["day"] for row in rows} == by_day.keys()
    for day, sums in by_day.items():
        mine = [row for row in rows if row["day"] == day]
        for row in mine:
            assert float(row["gpu_hours"]) == pytest.approx(sums["queue", row["queue"]], rel=1e-6)
        assert total(mine, *IDLE) == pytest.approx(sums["idle",], rel=1e-6)


def test_pairs_of_queues_sum_up_to_what_was_borrowed(replayed_day, capsys):
    path, sums, *_ = replayed_day
    rows = report(path, "--by", "lending", capsys=capsys)
    for borrower in {row["borrower"] for row in rows}:
        mine = [row for row in rows if row["borrower"] == borrower]
        assert total(mine, "gpu_hours") == pytest.approx(sums["borrowed", borrower], rel=1e-6)
        assert borrower not in {row["lender"] for row in mine}


def test_a_table_tells_what_was_measured(replayed_day, capsys):
    path, *_, seconds = replayed_day
    assert main(["usage", "--decision-log", str(path), "--since", "99999d"]) == 0
    head, *rows, note = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["QUEUE", "GPU", "HOURS"]
    assert note.startswith(f"measured: {seconds / 3600:.2f} h in ")
    assert len(rows) == 4  # of three queues, and of GPUs that nobody has a share of


def test_json_has_numbers(replayed_day, capsys):
    path, *_ = replayed_day
    assert main(["usage", "--decision-log", str(path), "--since", "99999d", "-o", "json", "--by", "lending"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(isinstance(row["gpu_hours"], float) for row in rows)


# -- single lines


def line(at="2026-01-02T00:05:00Z", seconds=900.0, queue="a", **more):
    return UsageLine(at, seconds, queue, **more)


@pytest.mark.parametrize(("at", "seconds", "day"), [
    pytest.param("2026-01-02T00:05:00Z", 299.0, "2026-01-02", id="it began after midnight"),
    pytest.param("2026-01-02T00:05:00Z", 301.0, "2026-01-01", id="it began before midnight"),
])  # fmt: skip
def test_a_period_counts_for_the_day_on_which_it_began(at, seconds, day):
    assert day_of(line(at, seconds)) == day


def test_other_lines_are_skipped_and_faulty_ones_counted():
    good = encode_usage([line(), line("2026-01-01T00:00:00Z")])
    lines = [*good.splitlines(), good[:40], b'{"at":"2026-01-01T00:00:00Z","job":"a"}', b"", b"\xff"]
    usage = read_usage(lines, unix_s("2026-01-01T12:00:00Z"))
    assert (len(usage.lines), usage.unread_lines, usage.older_lines) == (1, 1, 1)


def test_the_measured_time_counts_each_period_once():
    lines = (line(queue="a"), line(queue="b"), line("2026-01-02T00:20:00Z", 600.0))
    assert Usage(lines).measured_s == 1500.0


def test_users_beyond_the_bound_are_one_row():
    jobs = tuple(JobUsage(f"Job/ns/j{at}", f"u{at}", 3600.0 * (at + 1)) for at in range(MAX_OWNERS + 3))
    rows = rows_by_user(Usage((line(jobs=jobs),)))
    assert (len(rows), rows[0].user, rows[-1].user, rows[-1].gpu_hours) == (MAX_OWNERS + 1, "u202", "other", 6.0)


def test_a_queue_that_only_borrows_has_a_row():
    rows = {row.queue: row for row in rows_by_queue(Usage((line(lent_gpu_s={"z": 7200.0}, returned_gpus={"z": 4.0}),)))}
    assert (rows["z"].borrowed_gpu_hours, rows["a"].lent_gpu_hours, rows["a"].returned_gpus) == (2.0, 2.0, 4.0)


@pytest.mark.parametrize(("text", "fault"), [
    pytest.param(None, "No such file or directory", id="no file"),
    pytest.param(b'{"at":"2026-01-01T00:00:00Z"}\n', "has no line about usage of that time", id="an older autoscaler"),
    pytest.param(encode_usage([line()]), "of that time; 1 lines are older", id="only older lines"),
])  # fmt: skip
def test_without_usage_it_fails_in_a_line(tmp_path, capsys, text, fault):
    path = tmp_path / "decisions"
    if text is not None:
        path.write_bytes(text)
    assert main(["usage", "--decision-log", str(path), "--since", "1s"]) == 1
    complaint = capsys.readouterr().err
    assert complaint.startswith("turnout usage: ")
    assert fault in complaint
    assert complaint.count("\n") == 1


def test_the_previous_file_is_read_too(tmp_path, capsys):
    path = tmp_path / "decisions"
    jobs = (JobUsage("Job/ns/j", "", 3600.0),)
    path.with_name("decisions.1").write_bytes(encode_usage([line(jobs=jobs)]))
    path.write_bytes(encode_usage([line("2026-01-02T00:20:00Z", jobs=jobs)]))
    (row,) = report(path, "--by", "job", capsys=capsys)
    assert (row["job"], row["gpu_hours"]) == ("Job/ns/j", "2.0")
