"""`turnout simulate --report`: what the curves keep, and the document in Debian's Chromium."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.page.test_browser import SCREENS, axe, browser  # noqa: F401 - a fixture
from turnout.cli.__main__ import main
from turnout.cli.exit_codes import ExitCode
from turnout.cli.simulate.report import MAX_POINTS, UseRecorder

TRACE = "submission_time,num_gpu,duration\n0,1,36000\n7200,1,36000\n9000,2,1800\n"


@pytest.fixture
def report(tmp_path):
    trace = tmp_path / "<" / "script><img src=x onerror=alert(1)>.csv"
    trace.parent.mkdir()
    trace.write_text(TRACE)
    file = tmp_path / "report.html"
    assert main(["simulate", str(trace), "--nodes", "1x4", "--report", str(file)]) == ExitCode.DONE
    return file


def values(file):
    return json.loads(re.search(r'id="report">(.*?)</script>', file.read_text(), re.DOTALL)[1])


events = st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 512), st.integers(0, 40)), min_size=1, max_size=3_000)


@given(events)
def test_a_curve_is_bounded_rises_in_time_and_ends_with_the_last_state(states):
    recorder, at_s = UseRecorder(100.0), 100.0
    for step_s, gpus, jobs in states:
        at_s += step_s
        recorder.add(at_s, gpus, jobs)
    curve = recorder.curve()
    assert len(curve.at_s) == len(curve.used_gpus) == len(curve.waiting_jobs) <= MAX_POINTS
    assert all(one < other for one, other in zip(curve.at_s, curve.at_s[1:], strict=False))
    assert (curve.used_gpus[-1], curve.waiting_jobs[-1]) == states[-1][1:]
    assert curve.at_s[0] == 0.0


def test_a_short_replay_keeps_every_state():
    recorder = UseRecorder(10.0)
    for now_s, gpus in ((10.0, 1), (20.0, 2), (20.0, 3), (30.0, 0)):
        recorder.add(now_s, gpus, 0)
    assert list(zip(recorder.curve().at_s, recorder.curve().used_gpus, strict=True)) == [(0.0, 1), (10.0, 3), (20.0, 0)]


def test_the_report_holds_both_runs(report):
    found = values(report)
    assert found["gpus"] == 4
    assert max(found["lent"]["used_gpus"]) == 4
    assert max(found["without"]["used_gpus"]) == 4
    assert len(found["wait_s"]) == len(found["completion_without_s"]) == 101
    winner = found["winners"][0]
    assert winner["completion_s"] < winner["completion_without_s"]


def test_a_name_cannot_end_the_element_that_holds_the_values(report):
    assert "<img" not in report.read_text()
    assert values(report)["trace"].endswith("</script><img src=x onerror=alert(1)>.csv")


def test_the_report_comes_with_the_notices_of_the_libraries_in_it(report):
    assert report.read_text().count("Permission is hereby granted") == 2


def test_a_folder_that_does_not_exist_is_named(tmp_path, capsys):
    file = tmp_path / "missing" / "report.html"
    assert main(["simulate", "drawn", "--jobs", "3", "--report", str(file)]) == ExitCode.FAILED
    assert "No such file or directory" in capsys.readouterr().err


@pytest.mark.asyncio
@pytest.mark.slow
@pytest.mark.debian("chromium")
@pytest.mark.parametrize(
    ("theme", "width"), [("light", 1_440), ("dark", 1_440), ("light", 390)], ids=["light", "dark", "phone"]
)
async def test_the_report_opens_from_a_disk_without_an_error(report, axe, theme, width):  # noqa: F811
    async with browser(f"file://{report}?", theme=theme, width=width) as (tab, console):
        await tab.get_by_text("Jobs that gain most").wait_for()
        await tab.screenshot(path=SCREENS / f"report-{theme}-{width}.png", full_page=True)
        assert await tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert await tab.locator("canvas").count() == 4
        assert console == []
        if width > 1_000:
            await tab.evaluate(axe)
            script = "axe.run().then(found => found.violations.map(each => [each.impact, each.id]))"
            assert [each for each in await tab.evaluate(script) if each[0] in ("serious", "critical")] == []
