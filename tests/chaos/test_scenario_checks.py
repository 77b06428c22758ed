"""The invariants of scenarios, each with a violation planted: what they look at would tell them."""

import pytest

from hack.chaos.chart import changes
from hack.chaos.history import Record
from hack.chaos.scenarios import partition


def steps(round_, world, ranks, at_s):
    return [Record("stepped", at_s + rank / 100, round=round_, world=world, rank=rank, step=1) for rank in ranks]


@pytest.mark.parametrize(
    ("records", "overlaps"),
    [
        pytest.param([*steps(1, 3, (0, 1, 2), 1.0), *steps(2, 2, (0, 1), 2.0)], 0, id="one after the other"),
        pytest.param([*steps(1, 3, (0, 1, 2), 3.0), *steps(2, 2, (0, 1), 2.0)], 1, id="the old one goes on"),
        pytest.param([*steps(1, 3, (0,), 3.0), *steps(2, 2, (0, 1), 2.0)], 0, id="one rank alone makes no step"),
    ],
)
def test_two_worlds_at_once_are_seen(records, overlaps):
    assert len(partition.apart(records)) == overlaps


@pytest.mark.parametrize(
    ("told", "violated"),
    [
        pytest.param({"asked": 9, "answers": {"gpu-0"}, "silent_s": 2.9}, None, id="all went well"),
        pytest.param({"asked": 9, "silent_s": 3.1}, changes.SERVED, id="nobody answered for too long"),
        pytest.param({}, changes.SERVED, id="nobody was ever asked"),
        pytest.param({"asked": 9, "answers": {"gpu-0", "gpu-1"}}, changes.SAME, id="the plan moved"),
        pytest.param({"asked": 9, "maps": ["lost"]}, changes.EDITED, id="the edited map is gone"),
        pytest.param({"asked": 9, "leaders": ["nobody"]}, changes.LEADS, id="nobody leads"),
        pytest.param({"asked": 9, "failed": ["helm"]}, changes.READY, id="a change does not end"),
    ],
)
def test_a_change_of_the_chart_that_breaks_something_is_seen(told, violated):
    broken = [check.invariant for check in changes.Story(**told).checks() if check.violations]
    assert broken == ([violated] if violated else [])
