"""Real processes that hang: found by their own steps, their stacks taken with and without leave to trace."""

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest

from tests.kit.wait import until_async
from tests.launcher.health.hang_monitor.scripts import COMPILES, REDUCES, UNMARKED
from tests.launcher.workers.testbed import WorkerTestbed
from turnout.launcher.errors import BadStacks
from turnout.launcher.health.hang_detector import HangLimits, HangPolicy
from turnout.launcher.health.hang_monitor.monitor import HangMonitor, RunningWorkers
from turnout.launcher.health.hang_monitor.progress import PROGRESS, StepCounters
from turnout.launcher.health.hang_monitor.stack_capture import capture_stacks, find_py_spy
from turnout.launcher.health.stack_traces.parse import read
from turnout.launcher.health.stack_traces.report import merge, verdict
from turnout.launcher.health.stack_traces.stack_tree import WorldStacks, rank_set_text

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
LIMITS = HangLimits(floor_s=0.5, look_s=0.05)
SPIES_S = 90.0  # for torch to be imported, and py-spy to read all of it, on a busy machine
MARKS, COMPILER, STRANGER = 3, 4, 5  # beside the three that reduce

Hung = namedtuple("Hung", "said folder seen written asked denied stopped stranger compiled")


@pytest.fixture(scope="module")
def hung():
    with tempfile.TemporaryDirectory() as folder:
        yield asyncio.run(hang(Path(folder)))


async def hang(root):
    """One world of three that hangs and two processes beside it, looked into in every way."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    testbed, watched, messages = WorkerTestbed(root, preload=("torch",), env=env), StepCounters(root, 5), []
    hangs = HangPolicy(folder=str(root / "timeline"))
    watching = HangMonitor(hangs, lambda what, fields: messages.append((what, fields)), LIMITS)
    try:
        await testbed.start(*orders(testbed, watched))
        watching.begin(RunningWorkers(watched, testbed.processes.pids, 0, 3))
        await until_async(lambda: [what for what, _ in messages if what == "stacks_taken"], "stacks are taken", SPIES_S)
        await until_async(lambda: len([what for what, _ in messages if what == "process_hung"]) == 3)
        files = {path.name: path.read_bytes() for path in (root / "timeline").iterdir()}
        pids = testbed.processes.pids()
        await testbed.line(MARKS)
        compiled = await testbed.line(COMPILER)
        progress = watched.progress()
        three = {rank: (pids[rank], watched.paths[rank]) for rank in range(3)}
        stacks = await capture_stacks(three, "")
        denied = await capture_stacks(three, without_leave(root)) if find_py_spy() else None
        os.kill(pids[0], signal.SIGSTOP)
        stopped = await capture_stacks({0: three[0]}, "")
        sleeper = await asyncio.create_subprocess_exec("sleep", "60")
        stranger = await capture_stacks({STRANGER: (sleeper.pid, root / "nobody")}, ""), sleeper.returncode
        sleeper.kill()
        await sleeper.wait()
    finally:
        await watching.end()
        await testbed.processes.close()
        watched.close()
    return Hung(messages, root / "timeline", progress, files, stacks, denied, stopped[0], stranger, compiled)


def orders(testbed, watched):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    scripts = [testbed.script(text) for text in (REDUCES, UNMARKED, COMPILES)]
    for rank in range(5):
        env = {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env |= {PROGRESS: str(watched.paths[rank])}
        yield testbed.order(scripts[max(0, rank - 2)], local_rank=rank, env=env)


def without_leave(root):
    """py-spy as most pods have it: the kernel refuses to trace."""
    tool = root / "py-spy"
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("denied.py")} {find_py_spy()} "$@"\n')
    tool.chmod(0o700)
    return str(tool)


def ranks_of_places(fields):
    """Give the suspects in these files, and the lines that tell of them."""
    merged = merge(WorldStacks(3, {rank: read(each.file) for rank, each in fields.items()}))
    return rank_set_text(merged.places.outlier_ranks), verdict(merged)


@pytest.mark.contract("DL-109")
def test_every_rank_of_the_world_is_found_to_hang_and_nobody_else(hung):
    assert sorted(fields["rank"] for what, fields in hung.said if what == "process_hung") == [0, 1, 2]
    assert all("in one step" in fields["why"] for what, fields in hung.said if what == "process_hung")


@pytest.mark.contract("DL-111", "DL-114")
def test_the_stacks_of_all_processes_lie_in_the_folder_that_the_user_named(hung):
    (entry,) = (fields for what, fields in hung.said if what == "stacks_taken")
    assert (entry["folder"], entry["ranks"]) == (str(hung.folder), [0, 1, 2, 3, 4])
    assert sorted(hung.written) == [f"0000{rank}-00003.stacktrace" for rank in range(5)]
    stacks_by_rank = {rank: read(hung.written[f"0000{rank}-00003.stacktrace"]) for rank in range(3)}
    assert rank_set_text(merge(WorldStacks(3, stacks_by_rank)).places.outlier_ranks) == "2"


@pytest.mark.contract("DL-111", "DL-114")
def test_without_py_spy_the_signal_shows_who_sleeps_while_the_others_wait(hung):
    outliers, lines = ranks_of_places(hung.asked)
    assert outliers == "2"
    assert lines[0].startswith("rank 2 stands apart: fetch@")
    assert "all_reduce@torch/distributed/distributed_c10d.py" in lines[1]
    assert {each.why for each in hung.asked.values()} == {"py-spy is not installed"}


@pytest.mark.contract("DL-111", "DL-114")
@pytest.mark.skipif(not find_py_spy(), reason="py-spy is not installed")
def test_where_tracing_is_denied_a_signal_shows_the_same_and_that_is_told(hung):
    outliers, lines = ranks_of_places(hung.denied)
    assert (outliers, lines) == ranks_of_places(hung.asked)
    assert {each.why for each in hung.denied.values()} == {
        "py-spy: Failed to get stack traces: Failed to suspend process: EPERM: Operation not permitted"
    }


@pytest.mark.skipif(not find_py_spy(), reason="py-spy is not installed")
def test_where_tracing_is_allowed_c_frames_are_shown_too(hung):
    stacks = read(hung.written["00000-00003.stacktrace"])
    assert any("c10d::" in frame.function for each in stacks.native for frame in each.frames)


def test_a_process_that_does_not_answer_is_told(hung):
    assert not hung.stopped.shown
    with pytest.raises(BadStacks, match="it did not answer a signal in 3 s, it is stopped"):
        read(hung.stopped.file)


def test_a_process_without_our_handler_is_not_signalled(hung):
    stacks, code = hung.stranger
    assert code is None, "the signal would have killed it"
    assert "no stack handler" in stacks[STRANGER].why


def test_a_script_without_a_line_of_ours_is_seen_by_its_optimizers_steps(hung):
    assert (hung.seen[MARKS].beats, hung.seen[MARKS].marked, sum(hung.seen[MARKS].counts)) == (25, False, 24)


def test_compiling_in_the_middle_of_the_loop_is_a_phase(hung):
    """The first time there was no step yet; the second time the shape has changed."""
    assert hung.compiled == "['', 'compiling'] ''\n"
