"""A claim of `make demo-train` is true only where the history says so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack.chaos.demo.claims import Act, check_end, check_resume, losses_of, sparkline
from hack.chaos.history import JobPlan, Record

ACT = Act("a worker's process killed", at_s=5.0, max_repeated_steps=1)


def round_(number, world, begun_s, start, end, source="memory"):
    """A round whose steps take a tenth of a second each."""
    who = [{"round": number, "world": world, "rank": rank, "home": f"pod-{rank}"} for rank in range(world)]
    begun = [Record("begun", begun_s, step=start, source=source, **each) for each in who]
    steps = [(step, begun_s + (step - start) / 10) for step in range(start + 1, end + 1)]
    return [
        *begun,
        *(Record("stepped", at_s, step=step, loss=1 / step, **each) for step, at_s in steps for each in who),
    ]


BEFORE = round_(1, 3, 1.0, 0, 40, "fresh")


@pytest.mark.parametrize(
    ("after", "text", "true"),
    [
        pytest.param(
            round_(2, 3, 6.0, 40, 44),
            "3 → 3 workers, training again after 1.1 s, from memory, no step",
            True,
            id="nothing is lost",
        ),
        pytest.param(
            round_(2, 2, 6.0, 39, 44),
            "3 → 2 workers, training again after 1.1 s, from memory, 1 step",
            True,
            id="the step in flight is made again",
        ),
        pytest.param(
            round_(2, 2, 6.0, 38, 44),
            "3 → 2 workers, training again after 1.1 s, from memory, 2 steps",
            False,
            id="one more is lost",
        ),
        pytest.param(
            round_(2, 3, 6.0, 40, 44, "storage"),
            "3 → 3 workers, training again after 1.1 s, from storage, no step",
            False,
            id="storage was read",
        ),
        pytest.param(
            [*round_(2, 2, 6.0, 40, 43), *round_(3, 3, 9.0, 42, 44)],
            "3 → 2 → 3 workers, training again after 1.1 s, from memory, 1 step",
            True,
            id="what two rounds cost counts together",
        ),
        pytest.param([], "no new round has trained", False, id="nobody trains again"),
    ],
)
def test_what_is_claimed_of_an_act(after, text, true):
    claim = check_resume([*BEFORE, *after], ACT, until_s=20.0)
    assert (claim.text.removesuffix(" made twice"), claim.holds) == (f"{ACT.what}: {text}", true)


def test_what_comes_after_the_act_is_over_does_not_count():
    assert not check_resume([*BEFORE, *round_(2, 3, 9.0, 40, 44)], ACT, until_s=8.0).holds


def done(model, samples=(0, 1)):
    who = {"round": 1, "world": 1, "rank": 0, "home": "pod"}
    return [
        Record("begun", 1.0, step=0, epoch=0, cursor=0, source="fresh", **who),
        Record("took", 1.5, step=1, epoch=0, samples=samples, **who),
        Record("stepped", 2.0, step=1, epoch=0, **who),
        Record("ended", 3.0, step=1, why="done", model=model, **who),
    ]


@pytest.mark.parametrize(
    ("records", "true"),
    [
        pytest.param(done((0.5, 1.0)), [True, True], id="as it was to be"),
        pytest.param(done((0.5, 1.0 + 1e-6)), [False, False], id="a weight is off"),
        pytest.param(done((0.5, 1.0), samples=(0, 0)), [True, False], id="a sample came twice"),
        pytest.param([], [False, False], id="nobody has ended"),
    ],
)
def test_what_is_claimed_of_the_end(records, true):
    terms = JobPlan(1, 3, samples=2, batch=2, epochs=1, model=(0.5, 1.0))
    assert [claim.holds for claim in check_end(records, terms)] == true


def test_the_loss_of_a_step_is_the_mean_over_ranks_in_its_last_round():
    assert losses_of([*round_(1, 2, 1.0, 0, 4), *round_(2, 1, 9.0, 3, 5)]) == pytest.approx(
        [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]
    )


@given(st.lists(st.floats(-1e6, 1e6), max_size=300), st.integers(1, 80))
def test_a_curve_fits_its_columns(losses, columns):
    drawn = sparkline(losses, columns)
    assert len(drawn) <= columns
    assert bool(drawn) == bool(losses)
