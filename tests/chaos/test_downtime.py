"""The table of times, from histories whose times are known."""

import pytest

from hack.chaos.downtime import figures, table
from hack.chaos.fault_schedule import Fault
from hack.chaos.history import Record


def round_(number, world, steps_s, stops=False):
    """A round of which rank 0 tells: when its steps were done."""
    who = {"round": number, "world": world, "rank": 0}
    lines = [Record("stepped", at_s, step=step, **who) for step, at_s in enumerate(steps_s)]
    return [*lines, Record("ended", steps_s[-1], why="stop", **who)] if stops else lines


def fault(kind, at_s, round_=1, who="w"):
    return Record("fault", at_s, kind=kind.name, who=who, round=round_)


@pytest.mark.parametrize(
    ("records", "found"),
    [
        pytest.param([], [], id="nothing happened"),
        pytest.param(
            [*round_(1, 2, [1, 2, 3], stops=True), *round_(2, 3, [5.5, 6])],
            [("grows", "last step to next", (2.5,))],
            id="a growth",
        ),
        pytest.param(
            [*round_(1, 3, [1, 2, 3], stops=True), *round_(2, 1, [4, 6])],
            [("shrinks", "last step to next", (1,))],
            id="a shrink",
        ),
        pytest.param(
            [*round_(1, 2, [1, 2]), fault(Fault.POD, 2.5), *round_(2, 2, [7, 8])],
            [("pod killed", "kill to next step", (4.5,))],
            id="a pod that is killed",
        ),
        pytest.param(
            [*round_(1, 2, [1, 2]), fault(Fault.POD, 2.5), fault(Fault.NODE, 3), *round_(2, 2, [7, 8])],
            [("node lost", "kill to next step", (4,))],
            id="of two at once the later one counts",
        ),
        pytest.param(
            [*round_(1, 2, [1, 2]), fault(Fault.POD, 2.5, who=""), *round_(2, 2, [7, 8])], [], id="nobody was hit"
        ),
        pytest.param(
            [*round_(1, 2, [1, 1.5, 2, 2.9, 9]), fault(Fault.API, 1.7)],
            [("API server restarts", "longest pause between steps", (0.9,))],
            id="what nobody should notice",
        ),
        pytest.param(
            [fault(Fault.RIVAL, 2, who="rigid-1"), Record("served", 3.5, who="rigid-1")],
            [("rigid job comes", "submitted to started", (1.5,))],
            id="a rigid job that waits",
        ),
    ],
)
def test_what_a_history_took(records, found):
    assert [(row.kind, row.what, tuple(map(pytest.approx, row.times_s))) for row in table([records])] == found


def test_figures_are_for_machines():
    one = [*round_(1, 2, [1, 2]), fault(Fault.POD, 2.5), *round_(2, 2, [7, 8])]
    two = [*round_(1, 2, [1, 2]), fault(Fault.POD, 2.5), *round_(2, 2, [4, 8])]
    assert figures(table([one, two])) == {"pod_killed_median_s": 3.0, "pod_killed_worst_s": 4.5}
