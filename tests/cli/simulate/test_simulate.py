"""`turnout simulate`: what is replayed, the figures of both runs, and the report as one file."""

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from turnout.cli.__main__ import main
from turnout.cli.exit_codes import Exit
from turnout.cli.simulate.model import BadSimulation, Held, Wanted, figures, jobs_of, simulate
from turnout.cli.simulate.page import Origin, page, verdict
from turnout.cli.simulate.svg import Plot, Scale, Tick, round_ticks
from turnout.simulator.replay.traces import Row

# Four GPUs, of which each job asks for one: with lending the first has all of them until the second comes.
TWO = (Row(0.0, "first", 1, 36_000.0), Row(7_200.0, "second", 1, 36_000.0))
TRACE = "submission_time,num_gpu,duration\n0,1,36000\n7200,1,36000\n9000,2,1800\n"


def told(rows=TWO, wanted=None, jobs=0):
    wanted = wanted or Wanted(nodes=(4,))
    submissions, rules = jobs_of(rows, wanted, jobs)
    return simulate(submissions, rules, wanted)


def test_jobs_that_grow_into_idle_gpus_end_sooner():
    found = figures(told())
    assert (found.jobs, found.gpus, found.nodes) == (2, 4, 1)
    assert found.faster > 1.5
    assert found.busy > found.busy_without
    assert (found.gained, found.lost, found.worse, found.late) == (2, 0, 0.0, 0)


def test_where_no_job_is_elastic_both_runs_are_the_same():
    found = figures(told(wanted=Wanted((4,), elastic=0.0)))
    assert (found.faster, found.gained, found.lost, found.restarts) == (1.0, 0, 0, 0.0)
    assert verdict(found).startswith("Jobs end no faster, and the cluster is busy to")


@pytest.mark.parametrize(
    ("rows", "wanted", "says"),
    [
        ((), {}, "the trace has no job"),
        ((Row(0.0, "wide", 16, 60.0),), {"nodes": (8,)}, "wide asks for 2 x 8 GPUs: no empty cluster of 1 nodes"),
        (TWO, {"elastic": 1.5}, "--elastic is 1.5"),
        (TWO, {"factor": 0}, "--factor must be at least 1"),
        (TWO, {"restart_s": -1.0}, "not negative"),
    ],
)
def test_what_cannot_be_replayed_is_refused(rows, wanted, says):
    with pytest.raises(BadSimulation) as error:
        told(rows, Wanted(**wanted))
    assert says in str(error.value)


def test_without_a_size_the_cluster_is_busy_to_two_thirds():
    rows = [Row(60.0 * at, f"job-{at}", 8, 600.0) for at in range(200)]
    _, rules = jobs_of(rows, Wanted())
    assert rules.nodes == (8,) * 16  # 200 x 8 x 600 s over 199 min, / 0.65


def test_the_first_jobs_are_those_that_came_first():
    submissions, _ = jobs_of(TWO[::-1], Wanted((4,)), 1)
    assert [each.name for each in submissions] == ["first"]


def test_progress_is_told_of_both_runs():
    wanted, counts = Wanted((4,)), []
    simulate(*jobs_of(TWO, wanted), wanted, counts.append)
    assert counts == sorted(counts)
    assert counts[-1] == 4


def test_spans_of_time_have_the_mean_of_what_was_held():
    held = Held([(0.0, 4, 0), (15.0, 0, 2), (20.0, 8, 0)])
    assert held.buckets(40.0, 4) == [(5.0, 4.0, 0.0), (15.0, 2.0, 1.0), (25.0, 8.0, 0.0), (35.0, 8.0, 0.0)]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 64, [0, 20, 40, 60]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-0.5, 2, [-0.5, 0, 0.5, 1.0, 1.5, 2.0]),
        (3, 3, [3]),
    ],
)
def test_ticks_are_round(low, high, ticks):
    assert round_ticks(low, high) == ticks


@pytest.mark.parametrize(
    ("scale", "value", "pixel"),
    [
        (Scale(0, 10, 50, 150), 5, 100),
        (Scale(0, 10, 50, 150), 99, 150),
        (Scale(1, 100, 50, 150, log=True), 10, 100),
        (Scale(7, 7, 50, 150), 7, 50),
    ],
)
def test_a_value_has_its_pixel(scale, value, pixel):
    assert scale.at(value) == pixel


def test_names_in_a_plot_are_no_markup():
    plot = Plot("a & <b>", (0, 1), (0, 1))
    plot.axes([Tick(0, "<x>")], [], "x & y", "z")
    plot.bar(0, 1, 1, "gain", "<script>")
    assert "<script>" not in plot.drawn()
    assert "a &amp; &lt;b&gt;" in plot.drawn()


class Parsed(HTMLParser):
    """The tags of a page, and what is open while it goes on."""

    VOID = frozenset(["meta", "br"])

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.links = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for key, value in attrs if key in ("src", "href", "xlink:href", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def report():
    made = told((*TWO, Row(9_000.0, "<b>third</b>", 2, 1_800.0)))
    return page(made, figures(made), Origin("my & trace.csv", "turnout simulate", "0.1.0"))


def test_the_report_is_one_file_that_loads_nothing(report):
    parsed = Parsed(report)
    assert parsed.open == []
    assert parsed.links == []
    assert "script" not in parsed.tags
    assert not re.search(r"url\(|@import|https?://", report)
    assert parsed.tags.count("svg") in (3, 4)


def test_the_report_tells_figures_plots_and_jobs(report):
    for words in ("How full the cluster was", "How long jobs waited", "What each job won or lost", "What is assumed"):
        assert words in report
    assert "my &amp; trace.csv" in report
    assert "<b>third</b>" not in report
    (ratios,) = re.findall(r"<svg [^>]*job by job.*?</svg>", report)
    assert ratios.count("<rect ") == 3


def test_harm_is_drawn_in_seconds_beside_what_it_may_be():
    """Three jobs of two GPUs on four: the third waits for a worker of the first to leave."""
    rows = (Row(0.0, "a", 2, 3_600.0), Row(1_200.0, "b", 2, 3_600.0), Row(2_400.0, "c", 2, 3_600.0))
    made = told(rows, Wanted((2, 2), restart_s=600.0))
    lost = [loss_s for loss_s in made.compared.losses_s if loss_s > 1]
    text = page(made, figures(made), Origin("t", "c", "0"))
    assert (text.count('class="bar harm"') >= 1) == bool(lost)
    assert ("No job ended later by more than a second." in text) == (not lost)
    assert made.most_harm_s == 2 * 600 + 30


def test_lines_of_time_go_from_left_to_right(report):
    (line,) = re.findall(r'class="line with" d="M([^"]*)"', report)[:1]
    xs = [float(point.split()[0]) for point in line.split("L")]
    assert all(one < other for one, other in pairwise(xs))


@pytest.fixture
def trace(tmp_path):
    (tmp_path / "trace.csv").write_text(TRACE)
    return str(tmp_path / "trace.csv")


def test_the_command_prints_both_runs_and_writes_the_report(trace, tmp_path, capsys):
    assert main(["simulate", trace, "--nodes", "1x4", "--report", str(tmp_path / "r.html")]) == Exit.DONE
    out, err = capsys.readouterr()
    assert out.startswith("3 jobs on 1 nodes, 4 GPUs\n")
    assert "mean completion" in out
    assert err == f"written to {tmp_path / 'r.html'}\n"
    assert "turnout simulate trace.csv --nodes 1x4 --report r.html" in Path(tmp_path / "r.html").read_text()


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_read_the_figures(form, read, trace, capsys):
    assert main(["simulate", trace, "--nodes", "1x4", "-o", form]) == Exit.DONE
    assert read(capsys.readouterr().out)["jobs"] == 3


def test_a_drawn_trace_needs_no_file_and_is_the_same_each_time(capsys):
    assert main(["simulate", "drawn", "--jobs", "40", "--seed", "3"]) == Exit.DONE
    first = capsys.readouterr().out
    assert main(["simulate", "drawn", "--jobs", "40", "--seed", "3"]) == Exit.DONE
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        pytest.param(["none.csv"], Exit.FAILED, "none.csv", id="a file that is not there"),
        pytest.param(["TRACE", "--nodes", "8"], Exit.USAGE, "NxGPUS, as in 32x8", id="a cluster that is none"),
        pytest.param(["TRACE", "--jobs", "-1"], Exit.USAGE, "--jobs is -1", id="fewer than no jobs"),
        pytest.param(["TRACE", "--nodes", "1x1"], Exit.USAGE, "no empty cluster", id="a cluster that is too small"),
        pytest.param(["TRACE", "--report", "no/such/r.html"], Exit.FAILED, "r.html", id="a report that cannot be"),
    ],
)
def test_what_it_cannot_do_is_said_in_a_line(argv, code, says, trace, capsys):
    assert main(["simulate", *(trace if word == "TRACE" else word for word in argv)]) == code
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
