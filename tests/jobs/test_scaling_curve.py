"""How fast a job is by its workers, and which sizes it may have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.jobs.model import DEFAULT_POWER, Sizes, gain, speed

MEASURED = ((1, 1.0), (4, 3.4), (8, 4.0))


@pytest.mark.parametrize(
    ("curve", "workers", "fast"),
    [
        pytest.param((), 4, 4**DEFAULT_POWER, id="without a curve, as jobs are on average"),
        pytest.param(MEASURED, 4, 3.4, id="a point that was measured is taken as it is"),
        pytest.param(MEASURED, 2, 3.4**0.5, id="between two points, as a power of the workers"),
        pytest.param(MEASURED, 16, 4.0 * 4.0 / 3.4, id="beyond the last, as the last two go on"),
        pytest.param(((4, 2.0), (8, 5.0)), 16, 5.0 * 2**DEFAULT_POWER, id="but never better than is usual"),
        pytest.param(((4, 2.0),), 8, 2.0 * 2**DEFAULT_POWER, id="a single point goes on as is usual"),
        pytest.param(((4, 2.0),), 2, 2.0 * 0.5**DEFAULT_POWER, id="and back"),
    ],
)
def test_speed(curve, workers, fast):
    assert speed(curve, workers) == pytest.approx(fast)


def test_a_worker_that_adds_nothing_gains_nothing():
    gains = gain(((1, 1.0), (2, 2.0), (4, 2.0)), 1, 2, 4)
    assert (gains.share, gains.per_worker) == (0.0, 0.0)
    assert gain(((1, 1.0), (2, 2.0)), 1, 1, 2) == (1.0, 1.0)


@given(st.integers(1, 9), st.booleans(), st.integers(0, 200))
def test_sizes_up_and_down_meet(unit, doubles, size):
    sizes = Sizes(unit, doubles)
    up = sizes.larger(size)
    assert up > size
    assert sizes.allows(up)
    assert sizes.smaller(up) == sizes.round_down(size)
    assert not any(sizes.allows(between) for between in range(size + 1, up))


@pytest.mark.parametrize(
    ("sizes", "up"),
    [(Sizes(), [1, 2, 3, 4]), (Sizes(2), [2, 4, 6, 8]), (Sizes(1, doubles=True), [1, 2, 4, 8])],
    ids=["any", "multiples of two", "powers of two"],
)
def test_the_sizes_in_order(sizes, up):
    found = [sizes.larger(0)]
    while len(found) < len(up):
        found.append(sizes.larger(found[-1]))
    assert found == up
