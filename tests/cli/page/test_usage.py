"""GPU-hours on the page: the rows of `turnout usage`, read little by little, with the rights of each viewer."""

import asyncio
import os

import pytest

from tests.cli.page.served import asking, page
from tests.cli.page.states import A, state_of
from tests.cli.page.test_access import Reviews
from tests.cli.page.usage_lines import HOUR_S, QUARTER_S, TEAM_B, days_of_log, period
from tests.kit.clock import ManualClock
from turnout.autoscaler.reporting.decision_log import JobUsage, encode_usage
from turnout.cli.page.access import ClusterAccess
from turnout.cli.page.answers import BadQuery, read_query
from turnout.cli.page.cluster_state import EVERYTHING, Rights, visible_state
from turnout.cli.page.usage_log import READ_S, UsageLog
from turnout.cli.page.usage_rows import FILTERS, LogReading, usage_list
from turnout.cli.views.usage import MAX_JOBS_OF_DAY, REPORTS, DailyUsage, Usage, fields, read_usage, rows, values
from turnout.kube.client.clock import RealClock

NOW_S = 1_800_000_000.0
LOG = days_of_log(NOW_S)


def sums(usage, report):
    return [values(report, row) for row in rows(report, usage)]


@pytest.mark.parametrize("report", REPORTS)
def test_days_have_the_sums_of_the_log(report):
    days = DailyUsage()
    for line in LOG.splitlines(keepends=True):
        days.add(line)
    usage = read_usage(LOG.splitlines(keepends=True), 0.0)
    assert sums(days.usage(""), report) == sums(usage, report)
    assert days.usage("").measured_s == usage.measured_s


def test_a_day_names_a_bounded_number_of_jobs():
    days = DailyUsage()
    jobs = tuple(JobUsage(f"Pod/team-a/j{at}", "", 36.0) for at in range(MAX_JOBS_OF_DAY + 5))
    days.add(encode_usage([period(NOW_S, jobs=jobs)]))
    found = rows("job", days.usage(""))
    assert len(found) == MAX_JOBS_OF_DAY + 1
    assert sum(row.gpu_hours for row in found) == pytest.approx((MAX_JOBS_OF_DAY + 5) / 100)


class Log:
    """A log in a folder of the test, and a clock that only the test moves."""

    def __init__(self, folder, content=LOG):
        self.file, self.clock = folder / "decisions", ManualClock(wall_s=NOW_S)
        self.file.write_bytes(content)
        self.log = UsageLog(self.file, self.clock)

    def hours(self, days=31, later_s=READ_S):
        """The GPU-hours of all queues at the next reading, and what is wrong."""
        self.clock.now_s += later_s
        reading, usage = asyncio.run(self.log.read(days))
        return sum(row.gpu_hours for row in rows("queue", usage)), reading.error

    def append(self, content):
        with self.file.open("ab") as out:
            out.write(content)


MORE = encode_usage([period(NOW_S)])
MORE_HOURS, LOG_HOURS = 3 * QUARTER_S / HOUR_S, 3 * 2 * 3.0


def test_what_is_new_is_read_at_most_once_a_minute(tmp_path):
    log = Log(tmp_path)
    assert log.hours() == (pytest.approx(LOG_HOURS), "")
    log.append(MORE)
    assert log.hours(later_s=READ_S - 1) == (pytest.approx(LOG_HOURS), "")
    assert log.hours() == (pytest.approx(LOG_HOURS + MORE_HOURS), "")


def test_days_that_are_not_asked_for_do_not_count(tmp_path):
    assert Log(tmp_path).hours(days=2)[0] == pytest.approx(LOG_HOURS * 2 / 3)


def test_a_line_without_its_end_is_read_once_it_is_whole(tmp_path):
    log = Log(tmp_path)
    log.append(MORE[:50])
    assert log.hours()[0] == pytest.approx(LOG_HOURS)
    log.append(MORE[50:])
    assert log.hours()[0] == pytest.approx(LOG_HOURS + MORE_HOURS)


def test_a_file_that_was_renamed_is_not_counted_twice(tmp_path):
    log = Log(tmp_path)
    log.hours()
    os.replace(log.file, log.file.with_name("decisions.1"))
    log.append(MORE)
    assert log.hours()[0] == pytest.approx(LOG_HOURS + MORE_HOURS)


def test_a_file_that_became_shorter_is_read_anew(tmp_path):
    log = Log(tmp_path)
    log.hours()
    log.file.write_bytes(MORE)
    assert log.hours()[0] == pytest.approx(MORE_HOURS)


def test_a_log_that_is_gone_keeps_its_hours_and_says_so(tmp_path):
    log = Log(tmp_path)
    log.hours()
    log.file.unlink()
    hours, error = log.hours()
    assert hours == pytest.approx(LOG_HOURS)
    assert "No such file" in error


def test_torn_and_foreign_lines_count_for_nothing(tmp_path):
    bad = b'{"line":"usage","at":"never"}\n{"line":"usage"\n\xff\xfe\n' + b'{"line":"usage",' + b"[" * 10_000 + b"\n"
    assert Log(tmp_path, bad + LOG).hours()[0] == pytest.approx(LOG_HOURS)


def test_a_folder_has_the_logs_of_all_pods(tmp_path):
    (tmp_path / "pod-1").write_bytes(LOG)
    (tmp_path / "pod-2").write_bytes(MORE)
    (tmp_path / "lost+found").mkdir()
    log = UsageLog(tmp_path, ManualClock(wall_s=NOW_S))
    _, usage = asyncio.run(log.read(31))
    assert sum(row.gpu_hours for row in rows("queue", usage)) == pytest.approx(LOG_HOURS + MORE_HOURS)


USAGE = read_usage(LOG.splitlines(keepends=True), 0.0)
ANN = Rights(False, frozenset(["team-a"]), True)


def usage_answer(rights=EVERYTHING, usage=USAGE, **parameters):
    """The answer to a viewer with these rights."""
    state = visible_state(state_of(), rights)
    return usage_list(usage, state, rights, read_query(parameters, FILTERS), LogReading(1.0, 1))


def named(usage):
    """The usage in the queues of `state_of`."""
    return Usage(
        tuple(
            period(NOW_S, queue, jobs=(JobUsage(job, user, HOUR_S),), lent_gpu_s=lent)
            for queue, job, user, lent in (
                ("queue-team-a", A, "ann", {"queue-team-b": 900.0}),
                ("queue-team-a", "Job/team-b/guest", "bob", {}),
                ("queue-team-b", "Job/team-b/ocr", "bob", {}),
                ("queue-team-c", "Job/team-c/x", "eve", {"queue-team-b": 900.0}),
            )
        )
    )


@pytest.mark.parametrize(("rights", "report", "rows_of"), [
    pytest.param(EVERYTHING, "job", ["Job/team-a/bert", "Job/team-b/guest", "Job/team-b/ocr", "Job/team-c/x"],
                 id="all rights: all jobs"),
    pytest.param(ANN, "job", ["", "Job/team-a/bert"], id="jobs of other namespaces are one sum without a name"),
    pytest.param(ANN, "user", ["ann", "other"], id="users of jobs that the viewer may not see have no name"),
    pytest.param(ANN, "queue", ["queue-team-a"], id="a hidden queue has no row, not even as a borrower"),
    pytest.param(ANN, "lending", ["queue-team-a"], id="the viewer's queue lends; others among themselves are hidden"),
])  # fmt: skip
def test_a_viewer_sees_the_hours_of_visible_queues_and_jobs(rights, report, rows_of):
    name = {"lending": "lender"}.get(report, report)
    assert sorted(row[name] for row in usage_answer(rights, named(USAGE), by=report).items) == rows_of


@pytest.mark.parametrize(("parameters", "found"), [
    pytest.param({"by": "job", "job": "Pod/team-a/bert"}, ["Pod/team-a/bert"], id="one job"),
    pytest.param({"by": "job", "queue": TEAM_B}, ["Pod/team-b/bert", ""], id="the jobs of one queue"),
    pytest.param({"by": "lending", "queue": TEAM_B}, [TEAM_B] * 3, id="what a queue borrows, day by day"),
    pytest.param({"by": "queue", "queue": TEAM_B}, [TEAM_B], id="a queue itself"),
    pytest.param({"by": "user", "text": "AN"}, ["ann"], id="a text"),
    pytest.param({"by": "day", "limit": "2", "sort": "-day"}, ["2027-01-15"] * 2, id="sorted, the first page"),
])  # fmt: skip
def test_filters_order_and_pages(parameters, found):
    by = {"lending": "borrower"}.get(parameters["by"], parameters["by"])
    assert [row[by] for row in usage_answer(**parameters).items] == found


def test_the_pages_together_are_the_report():
    pages, after = [], "0"
    while after:
        answer = usage_answer(by="day", limit="1", **{"continue": after})
        pages += answer.items
        after = answer.next
    assert pages == list(usage_answer(by="day").items)
    assert answer.total == len(pages) == 6
    assert answer.columns == tuple(fields("day"))


@pytest.mark.parametrize("parameters", [
    {"by": "colour"}, {"days": "0"}, {"days": "32"}, {"days": "seven"}, {"sort": "colour"}, {"limit": "1000"},
    {"colour": "red"},
], ids=str)  # fmt: skip
def test_a_question_without_a_meaning_is_refused(parameters):
    with pytest.raises(BadQuery):
        usage_answer(**parameters)


@pytest.mark.asyncio
async def test_the_server_answers_from_the_log_or_says_why_not(tmp_path):
    (tmp_path / "decisions").write_bytes(days_of_log(RealClock().wall()))
    access = ClusterAccess(Reviews({"t1": "ann"}, {("ann", "pods", "team-a")}), ManualClock())
    async with page(tmp_path, access, decision_log=tmp_path / "decisions") as (address, _, _):
        async with asking(address, "t1") as ask:
            status, answer = await ask("usage?by=job&days=1")
            assert status == 200
            hours = {row["job"]: row["gpu_hours"] for row in answer["items"]}
            assert hours == {"Pod/team-a/bert": 2.0, "": 1.0}
            assert (await ask("usage?by=job&days=1"))[1] == answer
            assert (await ask("usage?by=secrets"))[0] == 400
            assert (await ask(f"usage?text={'x' * 3_000}"))[0] == 400
        async with asking(address, "wrong") as ask:
            assert (await ask("usage"))[0] == 401
    (tmp_path / "second").mkdir()
    async with page(tmp_path / "second") as (address, _, _), asking(address) as ask:
        _, answer = await ask("usage?by=user")
        assert answer["items"] == []
        assert "--decision-log" in answer["missing"]
