"""The heartbeat of a training process: its steps, how long they took, and what it does besides."""

import time

import pytest

from turnout.launcher.elastic.steps import Steps
from turnout.launcher.health.hang_detector import BUCKETS, MAX_COUNTED, bucket_of
from turnout.launcher.health.hang_monitor.progress import (
    NAME_BYTES,
    PROGRESS,
    ProgressReporter,
    SharedCounters,
    StepCounters,
)


@pytest.fixture
def watched(tmp_path, monkeypatch):
    agents = StepCounters(tmp_path, 2)
    monkeypatch.setenv(PROGRESS, str(agents.paths[0]))
    yield agents
    agents.close()


@pytest.fixture
def beats(watched):
    return ProgressReporter(SharedCounters(watched.paths[0]))


def busy(seconds):
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass


def test_a_new_process_has_done_nothing_and_its_neighbour_is_another(watched, beats):
    beats.count_step()
    first, second = watched.progress()
    assert (first.beats, first.marked) == (1, True)
    assert (second.beats, second.marked, second.phase, sum(second.counts)) == (0, False, "", 0)


def test_each_step_is_counted_but_the_first_which_has_no_beginning(watched, beats):
    before_s = time.monotonic()
    for _ in range(10):
        beats.count_step()
    progress = watched.progress()[0]
    assert (progress.beats, sum(progress.counts)) == (10, 9)
    assert before_s <= progress.beat_s <= time.monotonic()


def test_the_length_of_a_step_is_told(watched, beats):
    beats.count_step()
    busy(0.05)
    beats.count_step()
    (bucket,) = (at for at, count in enumerate(watched.progress()[0].counts) if count)
    assert bucket >= bucket_of(0.05)


def test_optimizers_are_heard_until_the_script_itself_marks_a_step(watched, beats):
    beats.count_optimizer_step(None, (), {})
    beats.count_optimizer_step(None, (), {})
    assert (watched.progress()[0].beats, watched.progress()[0].marked) == (2, False)
    beats.count_step()
    beats.count_optimizer_step(None, (), {})
    assert (watched.progress()[0].beats, watched.progress()[0].marked) == (3, True)
    assert sum(watched.progress()[0].counts) == 1, "between a guess and a mark is no step"


def test_a_phase_has_its_name_and_its_time_and_is_no_part_of_a_step(watched, beats):
    beats.count_step()
    with beats.phase("evaluation"):
        progress = watched.progress()[0]
        assert (progress.phase, progress.turns) == ("evaluation", 1)
        with beats.phase("saving"):
            assert watched.progress()[0].phase == "saving"
            busy(0.3)
        assert watched.progress()[0].phase == "evaluation"
        busy(0.3)
    assert (watched.progress()[0].phase, watched.progress()[0].turns) == ("", 4)
    beats.count_step()
    (bucket,) = (at for at, count in enumerate(watched.progress()[0].counts) if count)
    assert bucket < bucket_of(0.3)


def test_a_phase_that_never_began_may_end_and_one_that_fails_ends(watched, beats):
    beats.leave("compiling")
    assert watched.progress()[0].turns == 0
    with pytest.raises(ZeroDivisionError), beats.phase("evaluation"):
        _ = 1 / 0
    assert watched.progress()[0].phase == ""


@pytest.mark.parametrize(
    ("name", "shown_name"),
    [
        pytest.param("x" * 500, "x" * NAME_BYTES, id="a long name is cut"),
        pytest.param("ü" * 40, "ü" * (NAME_BYTES // 2), id="between letters"),
        pytest.param("a\x1b[31m\n", "a?[31m?", id="what cannot be printed is not"),
    ],
)
def test_the_name_of_a_phase_is_short(watched, beats, name, shown_name):
    with beats.phase(name):
        assert watched.progress()[0].phase == shown_name


def test_long_ago_counts_half(watched, beats):
    for _ in range(MAX_COUNTED + 2):
        beats.count_step()
    progress = watched.progress()[0]
    assert progress.beats == MAX_COUNTED + 2
    assert MAX_COUNTED // 2 <= sum(progress.counts) <= MAX_COUNTED // 2 + BUCKETS


def test_a_loop_is_watched_from_its_first_step_to_its_end(watched):
    steps = Steps()
    for step in steps.count():
        assert watched.progress()[0].phase == ""
        assert not steps.done(step)
        if step == 3:
            break
    assert watched.progress()[0].phase == "after the training loop"
    for step in steps.count(4):
        assert watched.progress()[0].phase == ""
        steps.done(step)
        break
    assert watched.progress()[0].beats == 5


def test_after_the_last_step_a_save_may_take_its_time(watched):
    steps = Steps()
    watched.stop_at(0, sure=True)
    assert steps.done(0)
    assert watched.progress()[0].phase == "after the training loop"


def test_without_an_agent_nothing_is_told_and_phases_cost_nothing(monkeypatch):
    monkeypatch.delenv(PROGRESS, raising=False)
    steps = Steps()
    with steps.phase("evaluation"):
        assert not steps.done(0)
