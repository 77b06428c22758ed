"""Results from histories of jobs, jobs that are really killed, and a quick run that tells every row."""

import json
import math
import subprocess
import sys

import pytest

from hack.bench.recovery import jobs, restarts
from hack.bench.recovery.acts import RecoveryEvent, RecoveryMeasurement, RecoveryTrial, may_begin, measure_recovery
from hack.bench.recovery.events import OURS, QUICK, outcome
from hack.bench.recovery.phase_times import (
    LOST,
    MARKED_PHASES,
    KillResult,
    PhaseMark,
    first_steps,
    kill_result,
    median_phase_ends,
)
from hack.bench.rendezvous.mount_namespace import NameSource
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
        pytest.param(RecoveryEvent.KILLED, [], None, id="nothing comes of it"),
        pytest.param(
            RecoveryEvent.KILLED,
            round_(2, 3, 3, [7, 8]),
            RecoveryMeasurement(new_s=3.5, still_s=4, repeated_steps=0, sources=("memory",), world=3),
            id="from memory: no step again",
        ),
        pytest.param(
            RecoveryEvent.KILLED,
            round_(2, 3, 0, [7, 8, 9], "disk"),
            None,
            id="steps that were made before are no new ones",
        ),
        pytest.param(
            RecoveryEvent.KILLED,
            round_(2, 3, 1, [7, 8, 9], "disk"),
            RecoveryMeasurement(new_s=5.5, still_s=6, repeated_steps=2, sources=("disk",), world=3),
            id="from disk: until it is where it was",
        ),
        pytest.param(
            RecoveryEvent.KILLED,
            [*round_(2, 2, 1, [7], "disk"), *round_(3, 3, 1, [10, 11, 12], "disk")],
            RecoveryMeasurement(new_s=8.5, still_s=9, repeated_steps=3, sources=("disk",), world=3),
            id="a world that ends again before it is where it was",
        ),
        pytest.param(
            RecoveryEvent.NODE_LOST,
            round_(2, 3, 3, [7], homes="abd"),
            RecoveryMeasurement(new_s=3.5, still_s=4, repeated_steps=0, sources=("memory", "buddy"), world=3),
            id="who was not there before has another's memory",
        ),
        pytest.param(
            RecoveryEvent.LEAVES, round_(2, 3, 3, [7]), None, id="a world that is not smaller is not what was asked"
        ),
    ],
)
def test_how_a_job_went_on(act, after, found):
    assert measure_recovery([*BEFORE, *after], act, 3.5) == found


def test_a_growing_job_stands_still_only_from_its_last_step_before():
    old = round_(1, 2, 0, [1, 2, 3, 9], "fresh", "ab")
    assert measure_recovery([*old, *round_(2, 3, 4, [11])], RecoveryEvent.GROWS, 3.5) == RecoveryMeasurement(
        7.5, 2, 0, ("memory", "buddy"), 3
    )


def test_a_smaller_world_that_trains_on_the_way_does_not_stand_still():
    """A world that is too small still makes new steps."""
    after = [*round_(2, 1, 3, [5, 6], homes="a"), *round_(3, 2, 5, [8], homes="ab")]
    assert measure_recovery([*BEFORE, *after], RecoveryEvent.LEAVES, 3.5) == RecoveryMeasurement(
        4.5, 2, 0, ("memory",), 2
    )


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
    assert may_begin(records, RecoveryEvent.KILLED, EVERY) is begins


def test_a_round_that_has_just_begun_is_waited_for():
    assert not may_begin(round_(2, 3, 29, [40]), RecoveryEvent.KILLED, EVERY)
    assert not may_begin([], RecoveryEvent.KILLED, EVERY)


def trials(*new_s, repeated_steps=0, source="memory"):
    return [
        RecoveryTrial(RecoveryMeasurement(each, each, repeated_steps, (source,), 3) if each < math.inf else None)
        for each in new_s
    ]


def found(**of):
    return outcome({side: dict.fromkeys(RecoveryEvent, each) for side, each in of.items()})


@pytest.mark.parametrize(
    ("new_s", "row"),
    [
        pytest.param((3, 4), ["3.50", "3.50", "0", "memory", "0", "2"], id="medians"),
        pytest.param((3, math.inf, 5), ["5.00", "5.00", "0", "memory", "1", "3"], id="a time-out is longer than all"),
        pytest.param((math.inf,), ["never", "never", "never", "-", "1", "1"], id="nothing came of it"),
    ],
)
def test_the_row_of_an_event(new_s, row):
    (table,) = found(torchrun=trials(*new_s)).tables
    assert table.texts()[0] == [f"{RecoveryEvent.KILLED.what}, torchrun", *row]
    assert len(table.rows) == len(RecoveryEvent)


@pytest.mark.parametrize(
    ("mine", "met"),
    [
        pytest.param(trials(1, 2), [True, True], id="from memory, nothing twice"),
        pytest.param(trials(1, repeated_steps=2), [False, True], id="steps made twice"),
        pytest.param(trials(1, source="disk"), [True, False], id="from disk"),
        pytest.param(trials(math.inf), [False, True], id="nothing came of it"),
        pytest.param([], [False, False], id="nothing was measured"),
    ],
)
def test_what_ours_is_held_to(mine, met):
    story = {
        OURS[0]: dict.fromkeys(RecoveryEvent, mine),
        "torchrun": dict.fromkeys(RecoveryEvent, trials(9, repeated_steps=9)),
    }
    assert [target.is_met for target in outcome(story).targets] == met


def test_why_a_job_never_came_to_an_act_is_told():
    assert f"torchrun, {RecoveryEvent.KILLED.what}: no world" in found(torchrun=[RecoveryTrial(None, "no world")]).notes


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_the_quick_run_tells_every_row(tmp_path):
    command = [sys.executable, "-m", "hack.bench", "recovery", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1_150, check=True)
    figures = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert len([name for name in figures if name.endswith(": next new step s")]) == len(QUICK) * len(RecoveryEvent)
    for act in RecoveryEvent:
        assert done.stdout.count(act.what) >= len(QUICK)


def marks(pid, rank, restart, began_s, words=MARKED_PHASES):
    return [PhaseMark(pid, rank, restart, word, began_s + at) for at, word in enumerate(words)]


MARKS = [*marks(1, 0, 0, 0), *marks(2, 1, 0, 0)]


def test_a_mark_is_read_as_it_was_written():
    mark = PhaseMark(7, 1, 2, "loaded", 12.25)
    assert PhaseMark.read(mark.line()) == mark


@pytest.mark.parametrize(
    ("after", "stepped_s", "burned"),
    [
        pytest.param([], None, None, id="nobody is back"),
        pytest.param(marks(3, 0, 1, 20), None, None, id="one is not all"),
        pytest.param([*marks(3, 0, 1, 20), *marks(4, 1, 1, 21)], 15, 1, id="the last one counts"),
        pytest.param(
            [*marks(3, 0, 1, 20, MARKED_PHASES[:2]), *marks(5, 0, 2, 30), *marks(6, 1, 2, 30)],
            24,
            2,
            id="a start that fails",
        ),
        pytest.param([*marks(3, 0, 1, 20), *marks(4, 1, 2, 25)], 19, 2, id="agents that count for themselves"),
    ],
)
def test_what_a_kill_cost(after, stepped_s, burned):
    found = kill_result([*MARKS, *after], {1, 2}, 2, 10.0, {"detected": 10.5})
    assert (found and found.took_s, found and found.restarts_used) == (stepped_s, burned)
    assert found is None or found.after_s["detected"] == 0.5


def test_phases_are_those_of_the_processes_that_went_on():
    after = [*marks(3, 0, 1, 20, MARKED_PHASES[:3]), *marks(5, 0, 2, 30), *marks(6, 1, 2, 31)]
    found = kill_result([*MARKS, *after], {1, 2}, 2, 10.0, {})
    assert [found.after_s[word] for word in MARKED_PHASES] == [21, 22, 23, 24, 25]


def test_of_each_rank_the_newest_process_counts():
    assert {rank: mark.pid for rank, mark in first_steps([*marks(4, 1, 1, 9), *MARKS], ()).items()} == {0: 1, 1: 4}


def test_medians_are_those_of_the_jobs_that_survived():
    faults = [LOST, *(KillResult({"stopped": math.nan, "stepped": took_s}, 1) for took_s in (1.0, 2.0, 9.0))]
    assert median_phase_ends(faults)["stepped"] == 2.0
    assert math.isnan(median_phase_ends(faults)["stopped"])
    row = restarts.outcome({"torchrun": faults}).tables[0].rows[0]
    assert row[:4] == ("torchrun", 4, 1, 1)


def test_restarts_are_held_against_torchrun_at_its_best():
    names = {"turnout-run": 0.1, "torchrun at its best": 1.7}
    found = restarts.outcome({name: [KillResult({"stepped": took_s}, 1)] for name, took_s in names.items()})
    assert all(target.is_met for target in found.targets)
    assert not any(target.is_met for target in restarts.outcome({}).targets)


def test_a_job_that_never_starts_is_lost(tmp_path):
    ends = jobs.Launcher("ends", lambda port, folder: [[sys.executable, "-c", "raise SystemExit(3)"]])
    assert jobs.kill_results(ends, NameSource.MACHINE, tmp_path, 2, 5.0) == [LOST, LOST]


@pytest.mark.long
def test_a_killed_process_of_ours_costs_one_restart(tmp_path):
    found = jobs.kill_results(jobs.OURS, NameSource.MACHINE, tmp_path, 2, 30.0)
    assert [each.restarts_used for each in found] == [1, 1]
    assert [[*each.after_s] for each in found] == [["detected", "stopped", *MARKED_PHASES]] * 2


@pytest.mark.long
def test_the_loss_of_an_agent_of_ours_leaves_a_world_of_one(tmp_path):
    assert jobs.kill_agent_result(jobs.OURS_SHRINKS, NameSource.MACHINE, tmp_path, 60.0).took_s < 60
