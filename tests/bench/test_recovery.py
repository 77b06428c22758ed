"""Results from histories of jobs, and a quick run that tells every row."""

import json
import math
import subprocess
import sys

import pytest

from hack.bench.recovery.driver import Trial
from hack.bench.recovery.recovery import Act, Recovery, may_begin, went_on
from hack.bench.recovery.results import OURS, Results
from hack.bench.recovery.run import QUICK
from hack.chaos.history import Record
from hack.chaos.testbed.manifests import ROOT

EVERY = 20


def round_(number, world, start, steps_s, source="memory", homes="abc"):
    """A round that began a second before its first step, told by all of its ranks."""
    lines = []
    for rank, home in zip(range(world), homes, strict=False):
        who = {"round": number, "world": world, "rank": rank, "home": home}
        lines.append(Record("begun", steps_s[0] - 1, step=start, source=source, **who))
        lines += [Record("stepped", at_s, step=start + 1 + at, **who) for at, at_s in enumerate(steps_s)]
    return lines


BEFORE = round_(1, 3, 0, [1, 2, 3], "fresh")


@pytest.mark.parametrize(
    ("act", "after", "found"),
    [
        pytest.param(Act.KILLED, [], None, id="nothing comes of it"),
        pytest.param(
            Act.KILLED,
            round_(2, 3, 3, [7, 8]),
            Recovery(new_s=3.5, still_s=4, again=0, sources=("memory",), world=3),
            id="from memory: no step again",
        ),
        pytest.param(
            Act.KILLED, round_(2, 3, 0, [7, 8, 9], "disk"), None, id="steps that were made before are no new ones"
        ),
        pytest.param(
            Act.KILLED,
            round_(2, 3, 1, [7, 8, 9], "disk"),
            Recovery(new_s=5.5, still_s=6, again=2, sources=("disk",), world=3),
            id="from disk: until it is where it was",
        ),
        pytest.param(
            Act.KILLED,
            [*round_(2, 2, 1, [7], "disk"), *round_(3, 3, 1, [10, 11, 12], "disk")],
            Recovery(new_s=8.5, still_s=9, again=3, sources=("disk",), world=3),
            id="a world that ends again before it is where it was",
        ),
        pytest.param(
            Act.LOST,
            round_(2, 3, 3, [7], homes="abd"),
            Recovery(new_s=3.5, still_s=4, again=0, sources=("memory", "buddy"), world=3),
            id="who was not there before has another's memory",
        ),
        pytest.param(Act.GIVES_WAY, round_(2, 3, 3, [7]), None, id="a world that is not smaller is not what was asked"),
    ],
)
def test_how_a_job_went_on(act, after, found):
    assert went_on([*BEFORE, *after], act, 3.5) == found


def test_a_growing_job_stands_still_only_from_its_last_step_before():
    old = round_(1, 2, 0, [1, 2, 3, 9], "fresh", "ab")
    assert went_on([*old, *round_(2, 3, 4, [11])], Act.GROWS, 3.5) == Recovery(7.5, 2, 0, ("memory", "buddy"), 3)


def test_a_smaller_world_that_trains_on_the_way_does_not_stand_still():
    """A world that is too small still makes new steps."""
    after = [*round_(2, 1, 3, [5, 6], homes="a"), *round_(3, 2, 5, [8], homes="ab")]
    assert went_on([*BEFORE, *after], Act.GIVES_WAY, 3.5) == Recovery(4.5, 2, 0, ("memory",), 2)


@pytest.mark.parametrize(
    ("world", "steps", "begins"),
    [
        pytest.param(3, 10, False, id="no checkpoint was made yet"),
        pytest.param(3, 30, True, id="in the middle of two checkpoints"),
        pytest.param(3, 31, False, id="later than that"),
        pytest.param(2, 30, False, id="not all workers"),
    ],
)
def test_when_an_act_may_begin(world, steps, begins):
    records = round_(1, world, 0, [1 + at / 10 for at in range(steps)])
    assert may_begin(records, Act.KILLED, EVERY) is begins


def test_a_round_that_has_just_begun_is_waited_for():
    assert not may_begin(round_(2, 3, 29, [40]), Act.KILLED, EVERY)
    assert not may_begin([], Act.KILLED, EVERY)


def trials(*new_s, again=0, source="memory"):
    return [Trial(Recovery(each, each, again, (source,), 3) if each < math.inf else None) for each in new_s]


def found(**of):
    return Results({side: dict.fromkeys(Act, each) for side, each in of.items()}, 120)


def test_a_time_out_is_no_number():
    figures = found(torchrun=trials(3, math.inf, math.inf)).figures()
    assert math.isnan(figures["torchrun_killed_new_step_s"])
    assert figures["torchrun_killed_timed_out"] == 2
    assert figures["limit_s"] == 120
    rows = found(torchrun=trials(math.inf)).table().rows
    assert rows[0] == (Act.KILLED.what, "torchrun", "time-out, 120 s", "-", "-", "-", "1 of 1")


def test_a_median_counts_what_timed_out_as_longer_than_all():
    assert found(torchrun=trials(3, math.inf, 5)).figures()["torchrun_lost_new_step_s"] == 5


def test_every_row_has_a_cell_for_each_column():
    table = found(torchrun=trials(3, 4), ours=trials(1)).table()
    assert [row[:2] for row in table.rows] == [(act.what, side) for act in Act for side in ("torchrun", "ours")]
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert table.rows[0][2:] == ("3.50", "3.50", "0", "memory", "0 of 2")


@pytest.mark.parametrize(
    ("mine", "met"),
    [
        pytest.param(trials(1, 2), [True, True], id="from memory, nothing twice"),
        pytest.param(trials(1, again=2), [False, True], id="steps made twice"),
        pytest.param(trials(1, source="disk"), [True, False], id="from disk"),
        pytest.param(trials(math.inf), [False, True], id="nothing came of it"),
        pytest.param([], [False, False], id="nothing was measured"),
    ],
)
def test_what_ours_is_held_to(mine, met):
    story = Results({OURS[0]: dict.fromkeys(Act, mine), "torchrun": dict.fromkeys(Act, trials(9, again=9))}, 120)
    assert [target.met for target in story.targets()] == met


def test_why_a_job_never_came_to_an_act_is_told():
    assert found(torchrun=[Trial(None, "no world")]).notes()[0] == f"torchrun, {Act.KILLED.what}: no world"


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_the_quick_run_tells_every_row(tmp_path):
    command = [sys.executable, "-m", "hack.bench", "recovery", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1_150, check=True)
    figures = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert len([name for name in figures if name.endswith("_new_step_s")]) == len(QUICK) * len(Act)
    for act in Act:
        assert done.stdout.count(act.what) >= len(QUICK)
