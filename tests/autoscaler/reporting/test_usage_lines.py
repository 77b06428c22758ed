"""Lines about usage in the decision log: what they hold, and that programs of both kinds of lines read them."""

import json

import pytest

from tests.autoscaler.world import NOW_S
from turnout.autoscaler.model import Reason, Step
from turnout.autoscaler.reporting.decision_log import (
    BadLine,
    encode_decisions,
    encode_usage,
    is_usage,
    read_line,
    read_usage_line,
    usage_lines,
)
from turnout.autoscaler.reporting.usage import UsageSums, UsedBy
from turnout.jobs.model import JobKey
from turnout.kube.times import rfc3339

KEY = JobKey("Job", "ns", "bert")
SUMS = UsageSums(
    seconds=900.0,
    held_gpu_s={UsedBy("a", str(KEY), "ann"): 3600.12345, UsedBy("a"): 900.0},
    elastic={UsedBy("a", str(KEY), "ann"): 1800.0},
    gained={"a": 1700.0},
    cost={"a": 60.0},
    lent={("b", "a"): 1800.0, ("b", "c"): 0.0},
    returned={("b", "a"): 4.0},
    idle={("b", "nobody_waits"): 450.0, ("b", "headroom"): 0.0},
)
A, B = encode_usage(usage_lines(SUMS, NOW_S)).splitlines()


def test_a_line_has_the_fields_that_programs_read():
    at = {"line": "usage", "at": rfc3339(NOW_S), "seconds": 900.0}
    assert json.loads(A) == {
        **at,
        "queue": "a",
        "jobs": [["Job/ns/bert", "ann", 3600.123, 1800.0], ["", "", 900.0, 0.0]],
        "won_gpu_s": 1700.0,
        "cost_gpu_s": 60.0,
    }
    assert json.loads(B) == {
        **at,
        "queue": "b",
        "lent_gpu_s": {"a": 1800.0},
        "returned_gpus": {"a": 4.0},
        "idle_gpu_s": {"nobody_waits": 450.0},
    }


def test_a_line_is_read_as_it_was_written():
    assert [read_usage_line(line) for line in (A, B)] == usage_lines(SUMS, NOW_S)
    assert usage_lines(UsageSums(), NOW_S) == []


def test_both_kinds_of_lines_are_told_apart():
    (decision,) = encode_decisions([Step(KEY, 2, 2, Reason.AT_MAX)], NOW_S).splitlines()
    assert [is_usage(line) for line in (A, B, decision)] == [True, True, False]
    with pytest.raises(BadLine):  # a program that knows decisions only skips the line
        read_line(A)


@pytest.mark.parametrize(("line", "fault"), [
    pytest.param(A[: len(A) // 2], "cannot be read", id="cut off by a crash"),
    pytest.param(A.replace(b"3600.123", b'"3600"'), "cannot be read", id="an amount that is no number"),
    pytest.param(A.replace(b"3600.123", b"-1"), "below 0", id="a negative amount"),
    pytest.param(A.replace(b"900.0,", b"1e300,"), "too large", id="a huge amount"),
    pytest.param(A.replace(rfc3339(NOW_S).encode(), b"noon"), "is no time", id="no time"),
    pytest.param(b'{"line":"usage"}', "cannot be read", id="no fields"),
])  # fmt: skip
def test_a_line_that_cannot_be_read_is_refused(line, fault):
    with pytest.raises(BadLine, match=fault):
        read_usage_line(line)
