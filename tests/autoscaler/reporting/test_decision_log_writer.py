"""The decision log on disk: bounded, private, and never a reason for the autoscaler to stop."""

import logging
import threading

import pytest

from tests.autoscaler.world import NOW_S
from turnout.autoscaler.controller.decision_log_writer import DecisionLogWriter
from turnout.autoscaler.model import Reason, Step
from turnout.autoscaler.reporting.decision_log import BadLine, read_line
from turnout.jobs.model import JobKey

A, B = (JobKey("Job", "ns", name) for name in "ab")
FULL = Step(A, 4, 4, Reason.AT_MAX)
GROWS = Step(A, 4, 1, Reason.IDLE_ROOM)
WAITS = Step(B, 1, 1, Reason.NEEDS_MORE)


def lines_after(path, *observations, **more):
    """Write looks, a second apart, and return the lines of the file."""
    with DecisionLogWriter(path, **more) as writer:
        for second, steps in enumerate(observations):
            writer.note(NOW_S + second, steps)
    return path.read_bytes().splitlines()


def decisions(lines):
    return [(each.job[-1], each.reason) for each in map(read_line, lines)]


def test_each_changed_decision_is_one_line_for_the_owner_only(tmp_path):
    path = tmp_path / "decisions"
    lines = lines_after(path, [GROWS], [GROWS, WAITS], [GROWS, WAITS], [FULL, WAITS], [WAITS], [FULL, WAITS])
    assert decisions(lines) == [("a", "IdleRoom"), ("b", "NeedsMore"), ("a", "AtMax"), ("a", "AtMax")]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_others_may_read_is_closed_to_them(tmp_path):
    path = tmp_path / "decisions"
    path.write_text("")
    path.chmod(0o666)
    lines_after(path, [FULL])
    assert path.stat().st_mode & 0o777 == 0o600


def test_after_a_crash_it_goes_on_behind_the_line_that_was_cut_off(tmp_path):
    path = tmp_path / "decisions"
    (line,) = lines_after(path, [FULL])
    path.write_bytes(line + b"\n" + line[:50])
    first, cut, last = lines_after(path, [WAITS])
    assert decisions([first, last]) == [("a", "AtMax"), ("b", "NeedsMore")]
    with pytest.raises(BadLine):
        read_line(cut)


def test_it_never_takes_more_than_two_files_of_its_bound(tmp_path):
    path, maximum = tmp_path / "decisions", 1000
    for _ in range(4):
        lines_after(path, *([GROWS, WAITS] if second % 2 else [FULL, WAITS] for second in range(8)), max_bytes=maximum)
    old = tmp_path / "decisions.1"
    assert {file.name for file in tmp_path.iterdir()} == {"decisions", "decisions.1"}
    assert max(path.stat().st_size, old.stat().st_size) <= maximum
    assert old.stat().st_mode & 0o777 == 0o600
    for file in (old, path):  # each file begins with the decision of every job
        assert {job for job, _ in decisions(file.read_bytes().splitlines()[:2])} == {"a", "b"}


def test_a_full_disk_is_told_once(tmp_path, caplog):
    path = tmp_path / "decisions"
    path.symlink_to("/dev/full")
    with DecisionLogWriter(path) as writer:
        for second in range(5):
            writer.note(NOW_S + second, [FULL])
    assert [(each.message, each.why) for each in caplog.records] == [("decision_log_failed", "No space left on device")]


def test_once_there_is_room_again_the_decision_of_every_job_is_told(tmp_path):
    path, has_written = tmp_path / "decisions", threading.Event()
    path.symlink_to("/dev/full")
    handler = logging.Handler()
    handler.emit = lambda record: has_written.set()
    log = logging.getLogger("turnout.autoscaler")
    log.addHandler(handler)
    try:
        with DecisionLogWriter(path) as writer:
            writer.note(NOW_S, [FULL])
            assert has_written.wait(10)
            path.unlink()
            writer.note(NOW_S + 1, [FULL, WAITS])
    finally:
        log.removeHandler(handler)
    assert decisions(path.read_bytes().splitlines()) == [("a", "AtMax"), ("b", "NeedsMore")]


@pytest.mark.parametrize("where", ["no/such/folder/log", "."])
def test_a_place_that_cannot_be_written_stops_nobody(tmp_path, caplog, where):
    with DecisionLogWriter(tmp_path / where) as writer:
        writer.note(NOW_S, [FULL])
        writer.note(NOW_S, [WAITS])
    assert [each.message for each in caplog.records] == ["decision_log_failed"]


def test_looks_that_the_disk_has_no_time_for_are_left_out(tmp_path, caplog):
    """Nobody has begun to write, as with a disk that hangs."""
    writer = DecisionLogWriter(tmp_path / "decisions")
    for second in range(100):
        writer.note(NOW_S + second, [FULL])
    assert writer.left_out == 84
    assert [each.message for each in caplog.records] == ["decision_log_slow"]
