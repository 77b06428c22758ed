"""The invariants of scenarios, each with a violation planted: what they look at would tell them."""

import pytest

from hack.chaos.history import Record
from hack.chaos.testbed import agents


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
    assert len(agents.split_worlds(records)) == overlaps
