"""Real worlds of gloo that hang where all stacks are alike: who has not come is named by the numbers of its calls."""

import asyncio
import os
import socket
import tempfile
from pathlib import Path

import msgspec
import pytest

from tests.launcher.health.flight_recorder.scripts import HANGS
from tests.launcher.workers.testbed import WorkerTestbed, until
from turnout.launcher.health.hang_detector import HangLimits, HangPolicy
from turnout.launcher.health.hang_monitor.monitor import HangMonitor, RunningWorkers
from turnout.launcher.health.hang_monitor.shared_counters import PROGRESS
from turnout.launcher.health.hang_monitor.stack_capture import take
from turnout.launcher.health.hang_monitor.stack_merge import StackMerge, pack
from turnout.launcher.health.hang_monitor.step_counters import StepCounters
from turnout.launcher.health.stack_traces.hang_state import Merge

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
RANKS = 4
LIMITS = HangLimits(floor_s=1.5, look_s=0.05)
TORCH_S = 90.0  # an import of torch on a busy machine
HUNG = {"behind", "crossed", "differs", "holds_the_lock"}


@pytest.fixture(scope="module")
def told():
    """Run each way to hang; give what the coordinator's worker writes, and the line of its log."""
    with tempfile.TemporaryDirectory() as folder:
        yield asyncio.run(hang(Path(folder)))


async def hang(root):
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    testbed, found = WorkerTestbed(root, preload=("torch",), env=env), {}
    script = testbed.script(HANGS)
    try:
        for how in sorted(HUNG):
            found[how] = await one(testbed, script, how)
    finally:
        await testbed.processes.close()
    return found


async def one(testbed, script, how):
    """A world that hangs, as its agent and its coordinator see it."""
    (folder := testbed.root / how).mkdir()
    watched, said, hangs = StepCounters(folder, RANKS), [], HangPolicy(folder=str(folder / "stacks"))
    watching = HangMonitor(hangs, lambda what, fields: said.append((what, fields)), LIMITS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    orders = [
        testbed.order(script, how, local_rank=rank, env=env | {"RANK": str(rank), PROGRESS: str(watched.paths[rank])})
        for rank in range(RANKS)
    ]
    try:
        await testbed.start(*orders)
        watching.begin(RunningWorkers(watched, testbed.processes.pids, 0, RANKS))
        await until(lambda: len([what for what, _ in said if what == "process_hung"]) == RANKS, TORCH_S)
        pids = testbed.processes.pids()
        taken = await take({rank: (pids[rank], watched.paths[rank]) for rank in range(RANKS)}, "")
    finally:
        await watching.end()
        await testbed.stop()
        watched.close()
    merging = StackMerge(hangs, lambda what, fields: said.append((what, fields)))
    merged = await merging.merge(Merge(1, RANKS, {rank: pack(each.file) for rank, each in taken.items()}, {}))
    return merged, msgspec.json.decode((folder / "stacks" / "stacks.json").read_bytes()), taken


@pytest.mark.parametrize(
    ("how", "by", "said"),
    [
        pytest.param("behind", "behind", "rank 2 has not begun call 31 of group 0 (default_pg, gloo), all_reduce of "
                     "[[4]], in which ranks 0-1/3 wait", id="one number behind"),
        pytest.param("crossed", "crossed", "rank 2 has not begun call 31 of group 0 (default_pg, gloo), all_reduce of "
                     "[[4]], in which ranks 0-1/3 wait, but waits too", id="in another process group"),
        pytest.param("differs", "differs", "call 31 of group 0 (default_pg, gloo) is not the same to all: all_reduce "
                     "of [[4]] to ranks 0-1/3, barrier to rank 2", id="in another operation"),
    ],
)  # fmt: skip
def test_where_all_stacks_are_alike_the_numbers_name_the_rank(told, how, by, said):
    merged, written, _ = told[how]
    assert (merged.apart, written["outliers"], written["outliers_by"]) == ((2,), "2", by), merged
    assert said in merged.said
    assert [group["ranks"] for group in written["crowd"]] == ["0-3"], "no stack tells them apart"
    assert written["calls"]["known"] == "0-3"


def test_a_rank_holding_the_gil_is_reported_silent_and_not_named_for_it(told):
    merged, written, _ = told["holds_the_lock"]
    assert merged.apart == ()
    reason = "it did not answer: Python's lock is held, or the process does not run"
    assert written["calls"]["why_unknown"] == {reason: "2"}
    (waits,) = written["calls"]["waits"]
    assert (waits["number"], waits["waiting"], waits["behind"], waits["unknown"]) == (31, "0-1/3", "", "2")
    assert f"rank 2: no calls on record: {reason}" in merged.said


def test_our_own_thread_is_in_no_stack(told):
    for _, written, taken in told.values():
        assert "recorder_server.py" not in msgspec.json.encode(written).decode()
        assert any(b"recorder_server.py" in each.file for each in taken.values()), "though it is in what Python printed"
