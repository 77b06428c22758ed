"""The decision log on disk: bounded, private, and nobody's reason to stop."""

import logging
import threading
from dataclasses import replace

import pytest

from tests.autoscaler.world import GPU, NOW_S, POLICY, job, seen, world
from turnout.autoscaler.controller.decision_log_writer import DecisionLogWriter
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import Queue
from turnout.autoscaler.reporting.replay import replay

SMALL = world([4], seen(job("a"), [0]))
BUSY = world([4], seen(job("a", replicas=4), [0] * 4), seen(job("b", least=2)))


def note(journal, at, now_s=NOW_S):
    journal.note(at, POLICY, now_s, decide(at, POLICY, now_s))


def written(path, looks, **more):
    """List the files once these looks were noted, each after the one before was written."""
    for at in looks:
        with DecisionLogWriter(path, **more) as journal:
            note(journal, at)
    return path.read_bytes().splitlines()


def faults(lines):
    return [each.fault or each.differs for each in replay(lines)]


def test_looks_are_written_as_they_come_for_its_owner_only(tmp_path):
    path = tmp_path / "decisions"
    with DecisionLogWriter(path) as journal:
        for second in range(5):
            note(journal, BUSY if second % 2 else SMALL, NOW_S + second)
    assert faults(path.read_bytes().splitlines()) == [""] * 5
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_others_may_read_is_closed_to_them(tmp_path):
    path = tmp_path / "decisions"
    path.write_text("")
    path.chmod(0o666)
    written(path, [SMALL])
    assert path.stat().st_mode & 0o777 == 0o600


def test_after_a_crash_it_goes_on_behind_the_line_that_was_cut_off(tmp_path):
    path = tmp_path / "decisions"
    (whole,) = written(path, [SMALL])
    path.write_bytes(whole + b"\n" + whole[:50])
    lines = written(path, [BUSY])
    assert len(lines) == 3
    first, cut, last = faults(lines)
    assert (first, last) == ("", "")
    assert "cannot be read" in cut


def test_it_never_takes_more_than_two_files_of_its_bound(tmp_path):
    path, most = tmp_path / "decisions", 4000
    for first in range(0, 64, 8):
        with DecisionLogWriter(path, most_bytes=most) as journal:
            for second in range(first, first + 8):
                note(journal, BUSY if second % 2 else SMALL, NOW_S + second)
    old = tmp_path / "decisions.1"
    assert {file.name for file in tmp_path.iterdir()} == {"decisions", "decisions.1"}
    assert max(path.stat().st_size, old.stat().st_size) <= most
    lines = [*old.read_bytes().splitlines(), *path.read_bytes().splitlines()]
    assert faults(lines) == [""] * len(lines)
    assert old.stat().st_mode & 0o777 == 0o600


def test_what_is_counted_on_after_a_look_does_not_change_what_is_written(tmp_path):
    path, used = tmp_path / "decisions", {GPU: 1}
    at = replace(SMALL, queues={"q": Queue("q", {GPU: 4}, used=used)})
    journal = DecisionLogWriter(path)
    note(journal, at)
    used[GPU] = 4
    with journal:
        pass
    assert faults(path.read_bytes().splitlines()) == [""]


def test_every_so_many_lines_one_says_everything(tmp_path):
    path = tmp_path / "decisions"
    with DecisionLogWriter(path, whole_each=3) as journal:
        for second in range(7):
            note(journal, SMALL, NOW_S + second)
    lines = path.read_bytes().splitlines()
    assert [b'"program"' in line for line in lines] == [True, False, False, True, False, False, True]
    assert faults(lines[3:]) == [""] * 4


def test_a_full_disk_is_told_once(tmp_path, caplog):
    path = tmp_path / "decisions"
    path.symlink_to("/dev/full")
    with DecisionLogWriter(path) as journal:
        for second in range(5):
            note(journal, SMALL, NOW_S + second)
    assert [(each.message, each.why) for each in caplog.records] == [("decision_log_failed", "No space left on device")]


def test_once_there_is_room_again_the_first_line_says_everything(tmp_path):
    path, told = tmp_path / "decisions", threading.Event()
    path.symlink_to("/dev/full")
    handler = logging.Handler()
    handler.emit = lambda record: told.set()
    log = logging.getLogger("turnout.autoscaler")
    log.addHandler(handler)
    try:
        with DecisionLogWriter(path) as journal:
            note(journal, SMALL)
            assert told.wait(10)
            path.unlink()
            note(journal, BUSY)
    finally:
        log.removeHandler(handler)
    assert faults(path.read_bytes().splitlines()) == [""]


@pytest.mark.parametrize("where", ["no/such/folder/log", "."])
def test_a_place_that_cannot_be_written_stops_nobody(tmp_path, caplog, where):
    with DecisionLogWriter(tmp_path / where) as journal:
        note(journal, SMALL)
        note(journal, BUSY)
    assert [each.message for each in caplog.records] == ["decision_log_failed"]


def test_looks_that_the_disk_has_no_time_for_are_left_out(tmp_path, caplog):
    """Nobody has begun to write, as with a disk that hangs."""
    journal = DecisionLogWriter(tmp_path / "decisions")
    for second in range(100):
        note(journal, SMALL, NOW_S + second)
    assert journal.left_out == 84
    assert [each.message for each in caplog.records] == ["decision_log_slow"]
