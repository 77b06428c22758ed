"""The hosts on which a gang's pods complete the multiples that its members have begun."""

import numpy as np
import pytest

from turnout.topology.multiples import topped_up


@pytest.mark.parametrize(("held", "pods", "room", "found", "left"), [
    pytest.param([0, 0, 0, 1], 8, [8, 8], [0, 1, 1, 1], [7, 5], id="three lack one, one lacks three"),
    pytest.param([0, 1], 4, [8, 8], [0, 0, 0, 1], [5, 7], id="no more than there are pods, the first host before"),
    pytest.param([0, 1], 8, [2, 8], [0, 0, 1, 1, 1], [0, 5], id="no more than a host has room for"),
    pytest.param([0, 0, 0, 0], 4, [8], [], [8], id="a whole multiple lacks nobody"),
    pytest.param([], 4, [8], [], [8], id="where nobody is nothing has begun"),
])  # fmt: skip
def test_multiples_of_four_are_completed_first(held, pods, room, found, left):
    room = np.array(room, np.int32)
    assert topped_up(held, 4, pods, room) == found
    assert room.tolist() == left
