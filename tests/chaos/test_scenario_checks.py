"""The invariants of scenarios, each with a violation planted: what they look at would tell them."""

import errno
import os
import random
import subprocess
import sys

import pytest

from hack.chaos.chart import changes
from hack.chaos.history import Record
from hack.chaos.scenarios import leavers, partition
from hack.chaos.scenarios.object_cache import ObjectCache
from hack.chaos.testbed.manifests import ROOT
from hack.chaos.testbed.shifted_clock import ShiftedClock
from turnout.kube.objects import ConfigMap, ObjectMeta
from turnout.kube.watch_events import Key


def told(name, uid, version):
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="ns", uid=uid, resource_version=str(version)))


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        pytest.param([told("a", "1", 5), told("a", "1", 7)], 0, id="a newer version"),
        pytest.param([told("a", "1", 7), told("a", "1", 5)], 1, id="an older version"),
        pytest.param([told("a", "1", 5), "a", told("a", "2", 9)], 0, id="a new object of the same name"),
        pytest.param([told("a", "1", 5), "a", told("a", "1", 5)], 1, id="an object that was dropped"),
        pytest.param(["a"], 1, id="a drop of what nobody told of"),
    ],
)
def test_a_cache_that_goes_back_is_seen(events, wrong):
    seen = ObjectCache()
    for event in events:
        seen.drop(Key("ns", event, "")) if isinstance(event, str) else seen.put(event)
    assert len(seen.wrong) == wrong


@pytest.fixture
def storm():
    """Ten members, of whom six left as they were told."""
    made = leavers.Storm(random.Random(1), 10, 6)
    made.run()
    return made


def violated(storm):
    return {check.invariant for check in leavers.checks(storm) if check.violations}


def one_ended_with_an_error(storm):
    storm.finished[storm.leavers[0]] = (1, "failed", 2.0)


def one_stayed_too_long(storm):
    storm.gone_s[storm.leavers[0]] = storm.told_s + leavers.GRACE_S + 1


def one_was_never_told(storm):
    storm.dead, _ = [], storm.finished.pop(storm.leavers[0])


def one_more_world(storm):
    storm.worlds[9] = set(storm.worlds[max(storm.worlds)])


def one_who_stays_is_missing(storm):
    storm.worlds[max(storm.worlds)].discard("m0/0")


@pytest.mark.parametrize(
    ("plant", "law"),
    [
        pytest.param(one_ended_with_an_error, leavers.DRAINED, id="a leaver ends with an error"),
        pytest.param(one_was_never_told, leavers.DRAINED, id="a leaver is never told"),
        pytest.param(one_stayed_too_long, leavers.IN_GRACE, id="a leaver outstays its grace"),
        pytest.param(one_more_world, leavers.ONCE, id="a world too many"),
        pytest.param(one_who_stays_is_missing, leavers.STAYED, id="a member that is left out"),
    ],
)
def test_a_storm_that_breaks_a_law_is_seen(storm, plant, law):
    assert violated(storm) == set()
    plant(storm)
    assert violated(storm) == {law}


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
    assert len(partition.apart(records)) == overlaps


def test_the_clock_of_a_program_is_moved_while_it_runs(tmp_path):
    clock = ShiftedClock(tmp_path / "clock")
    (tmp_path / "told.py").write_text("import time\nfor _ in range(2): print(int(time.time()), flush=True), input()\n")
    command = (sys.executable, "-m", "hack.chaos.testbed.shifted_clock", str(clock.path), "told")
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True) as program:
        before = int(program.stdout.readline())
        clock.set(3600.0)
        program.stdin.write("\n")
        program.stdin.flush()
        after = int(program.stdout.readline())
        program.communicate("\n", timeout=20)
    assert 3600 <= after - before < 3660


MOUNTED = """
import errno, sys, time
from pathlib import Path
from hack.chaos.testbed.faulty_filesystem import FaultyFilesystem
home = Path(sys.argv[1])
with FaultyFilesystem(home / "at", home / "behind") as device:
    file = device.at / "file"
    file.write_bytes(b"before")
    device.fail(int(sys.argv[2]))
    try:
        file.write_bytes(b"after")
        print("written")
    except OSError as error:
        print(error.errno)
    print(device.heal())
    device.slow(4.0)
    began_s = time.monotonic()
    file.write_bytes(bytes(1 << 20))
    print(time.monotonic() - began_s >= 0.25, file.read_bytes() == bytes(1 << 20), device.heal() > 0)
"""


@pytest.mark.root
@pytest.mark.debian("util-linux")
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_faulty_file_system_fails_and_is_slow_as_asked(tmp_path, number):
    command = ("unshare", "--mount", "--propagation", "private", sys.executable, "-c", MOUNTED, tmp_path, str(number))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert ran.stdout.split() == [str(number), "1", "True", "True", "True"], ran.stderr


@pytest.mark.parametrize(
    ("told", "violated"),
    [
        pytest.param({"asked": 9, "answers": {"gpu-0"}, "silent_s": 2.9}, None, id="all went well"),
        pytest.param({"asked": 9, "silent_s": 3.1}, changes.SERVED, id="nobody answered for too long"),
        pytest.param({}, changes.SERVED, id="nobody was ever asked"),
        pytest.param({"asked": 9, "answers": {"gpu-0", "gpu-1"}}, changes.SAME, id="the plan moved"),
        pytest.param({"asked": 9, "maps": ["lost"]}, changes.EDITED, id="the edited map is gone"),
        pytest.param({"asked": 9, "leaders": ["nobody"]}, changes.LEADS, id="nobody leads"),
        pytest.param({"asked": 9, "failed": ["helm"]}, changes.READY, id="a change does not end"),
    ],
)
def test_a_change_of_the_chart_that_breaks_something_is_seen(told, violated):
    broken = [check.invariant for check in changes.Story(**told).checks() if check.violations]
    assert broken == ([violated] if violated else [])
