"""The decision log: each changed decision is one line of JSON with its reason."""

import json

import pytest

from tests.autoscaler.world import NOW_S
from turnout.autoscaler.model import Reason, Step
from turnout.autoscaler.reporting.decision_log import BadLine, encode_decisions, read_line
from turnout.jobs.model import JobKey
from turnout.kube.times import rfc3339

A, B = JobKey("VolcanoJob", "team-a", "bert"), JobKey("Job", "team-b", "gpt")
SHRINK = Step(A, 3, 5, Reason.MAKES_ROOM, "2 workers\nof 5", B)
(GOOD,) = encode_decisions([SHRINK], NOW_S).splitlines()


def test_a_line_has_the_fields_that_programs_read():
    assert json.loads(GOOD) == {
        "at": rfc3339(NOW_S),
        "job": "VolcanoJob/team-a/bert",
        "reason": "MakesRoom",
        "workers_before": 5,
        "workers": 3,
        "detail": "2 workers\nof 5",
        "for_job": "Job/team-b/gpt",
    }


def test_each_decision_is_one_line_and_is_read_as_it_was_written():
    lines = encode_decisions([SHRINK, Step(B, 2, 2, Reason.AT_MAX)], NOW_S).splitlines()
    assert [(each.job, each.workers, each.reason, each.detail) for each in map(read_line, lines)] == [
        ("VolcanoJob/team-a/bert", 3, "MakesRoom", "2 workers\nof 5"),
        ("Job/team-b/gpt", 2, "AtMax", ""),
    ]
    assert encode_decisions([], NOW_S) == b""


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        pytest.param(GOOD[: len(GOOD) // 2], "cannot be read", id="cut off by a crash"),
        pytest.param(b"\x00" * 40, "cannot be read", id="not JSON"),
        pytest.param(GOOD.replace(b"team-a", b"\xff"), "cannot be read", id="not UTF-8"),
        pytest.param(GOOD.replace(b'"workers":3', b'"workers":"3"'), "cannot be read", id="a size that is no number"),
        pytest.param(GOOD.replace(b'"reason"', b'"because"'), "cannot be read", id="no reason"),
        pytest.param(GOOD.replace(rfc3339(NOW_S).encode(), b"noon"), "'noon' is no time", id="no time"),
        pytest.param(b'{"x":' + b"[" * 20_000, "cannot be read", id="nested without end"),
    ],
)
def test_a_line_that_is_no_decision_is_refused(line, fault):
    with pytest.raises(BadLine, match=fault):
        read_line(line)
