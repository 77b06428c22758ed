"""The promises to a training process that saves and loads: real memory, a real daemon, real files."""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from functools import partial
from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.hypothesis_examples import scaled
from tests.kit.wait import until
from tests.launcher.checkpoint.daemon.test_daemon import DaemonProcess
from tests.launcher.checkpoint.engine.states import DTYPES, same, states, tensor_of, training
from tests.launcher.checkpoint.storage.world import Said
from turnout.launcher.checkpoint.arena.arena import ArenaBusy
from turnout.launcher.checkpoint.engine.checkpointer import Checkpointer
from turnout.launcher.checkpoint.storage.posix_store import open_store
from turnout.launcher.checkpoint.storage.step_reader import committed_steps
from turnout.launcher.errors import BadCheckpoint, BadState, NoMemory
from turnout.launcher.health.hang_monitor.progress import PROGRESS, StepCounters

WAYS = ["as it is", "transposed", "every other one", "the same row again", "a parameter"]
DIES = """
import os, sys
from turnout.launcher.checkpoint.engine.checkpointer import Checkpointer
from tests.launcher.checkpoint.engine.states import training
checkpoints = Checkpointer(sys.argv[1])
checkpoints.save(1, training(1))
checkpoints.wait()
checkpoints.save(2, training(2), disk=False)
os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def shared():
    """One for all examples, whose states follow one another in the same memory; and the number of the next save."""
    with tempfile.TemporaryDirectory(prefix="turnout-test-", dir="/dev/shm") as folder:
        checkpoints = Checkpointer(folder, environ=os.environ | {"TURNOUT_MEMORY_DIR": folder})
        yield checkpoints, count(1)
        checkpoints.close()


def blocks(folder):
    return sum(each.stat().st_blocks for each in folder.glob("*.arena"))


@settings(max_examples=scaled(40), deadline=None)
@given(saved=st.lists(states, min_size=1, max_size=3))
def test_what_is_saved_comes_back_bit_by_bit_though_each_save_differs(shared, saved):  # DL-45, DL-51
    checkpoints, steps = shared
    for state in saved:
        step = next(steps)
        checkpoints.save(step, state, disk=False)
        found = checkpoints.load()
        assert found.step == step
        assert same(state, found.state)


def test_every_dtype_and_shape_comes_back_from_memory_and_from_storage(make, memory, tmp_path):  # DL-45
    state = {
        f"{dtype}, {way}": [tensor_of(dtype, shape, 7, way) for shape in [(), (0, 3), (5,), (4, 6)]]
        for dtype in DTYPES
        for way in WAYS
    }
    checkpoints = make(tmp_path)
    checkpoints.save(3, state)
    checkpoints.wait()
    assert same(state, checkpoints.load().state)
    assert checkpoints.stats().source == "memory"
    elsewhere = make(tmp_path, TURNOUT_MEMORY_DIR=str(tmp_path))
    assert same(state, elsewhere.load().state)
    assert elsewhere.stats().source == "storage"


def test_between_saves_a_state_may_gain_or_lose_tensors_or_change_dtypes(make, tmp_path):
    checkpoints = make(tmp_path)
    first = training(1)
    grown = first | {"ema": torch.rand(1 << 20)}
    half = {"model": {name: each.detach().bfloat16() for name, each in first["model"].items()}}
    for step, state in enumerate([first, grown, half, {}, grown, first], 1):
        checkpoints.save(step, state, disk=False)
        assert same(state, checkpoints.load().state)


def test_tied_weights_are_one_tensor_again_and_take_the_memory_of_one(make, tmp_path):
    weight = torch.rand(1 << 18)
    checkpoints = make(tmp_path)
    checkpoints.save(1, {"one": weight, "other": weight.detach(), "part": weight[:8]}, disk=False)
    found = checkpoints.load().state
    assert found["one"] is found["other"]
    assert checkpoints.stats().saved_bytes < 1.5 * weight.nbytes


def test_what_was_loaded_is_the_callers_own(make, tmp_path):
    checkpoints = make(tmp_path)
    checkpoints.save(1, training(1), disk=False)
    checkpoints.load().state["model"]["bias"].fill_(9)
    assert same(training(1), checkpoints.load().state)


def cyclic():
    state = {}
    state["again"] = state
    return state


@pytest.mark.parametrize(
    ("state", "path"),
    [
        pytest.param({"a": {"b": object()}}, "a/b", id="an object of no kind that is known"),
        pytest.param({"a": [0, {1, 2}]}, "a/#1", id="a set"),
        pytest.param({"a": {(1.5, object()): 0}}, "a", id="a key that is an object"),
        pytest.param(cyclic(), "again", id="a dict in itself"),
        pytest.param({"a": lambda: 0}, "a", id="a function"),
        pytest.param({"a": torch.eye(2).to_sparse()}, "a", id="a sparse tensor"),
        pytest.param({"a": torch.empty(2, device="meta")}, "a", id="a tensor without bytes"),
        pytest.param({"a": torch.empty(2, dtype=torch.complex128)}, "a", id="a dtype that safetensors does not have"),
        pytest.param({"a": "\ud800"}, "a", id="text that is no Unicode"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_its_keys_and_nothing_is_lost(shared, state, path):
    checkpoints, steps = shared
    step = next(steps)
    checkpoints.save(step, training(step), disk=False)
    with pytest.raises(BadState) as refused:
        checkpoints.save(next(steps), state, disk=False)
    assert refused.value.path == path
    assert same((step, training(step)), tuple(checkpoints.load()))


def test_too_little_memory_is_told_with_lines_to_add_before_any_is_used(make, memory, tmp_path):
    checkpoints = make(tmp_path)
    checkpoints.save(1, training(1), disk=False)
    checkpoints.wait()  # for the memory of its other generations too
    had = blocks(memory)
    endless = torch.zeros(1).expand(1 << 36)  # 256 GiB to save, four bytes to have
    for ask in (checkpoints.prepare, lambda state: checkpoints.save(2, state)):
        with pytest.raises(NoMemory) as refused:
            ask({"endless": endless})
        assert "emptyDir: {medium: Memory, sizeLimit: " in str(refused.value)
        assert str(memory) in str(refused.value)
    assert blocks(memory) == had
    assert checkpoints.load().step == 1
    checkpoints.save(3, training(3), disk=False)
    assert same(training(3), checkpoints.load().state)


def test_what_was_prepared_is_all_that_a_hundred_saves_take(make, memory, tmp_path):  # DL-47
    checkpoints = make(tmp_path)
    state = {"w": torch.rand(1 << 20)}
    checkpoints.prepare(state)
    checkpoints.wait()
    block_count = blocks(memory)
    assert block_count * 512 >= 3 * state["w"].nbytes
    for step in range(100):
        state["w"].fill_(step)
        checkpoints.save(step, state, disk=False)
    assert blocks(memory) == block_count
    assert checkpoints.stats().saves == 100
    assert same((99, state), tuple(checkpoints.load()))


def test_storage_that_fails_is_told_and_training_goes_on_from_memory(make, tmp_path):
    (tmp_path / "file").touch()
    checkpoints = make(tmp_path / "file" / "checkpoints")
    events = []
    checkpoints.on_failure = lambda step, why: events.append((step, why))
    for step in (1, 2):
        checkpoints.save(step, training(step))
    checkpoints.wait()
    until(lambda: len(events) == 2)
    stats = checkpoints.stats()
    assert [step for step, _ in events] == [1, 2]
    assert (stats.failures, stats.persisted, stats.hashed) == (2, -1, 2)
    assert stats.why == events[-1][1] != ""
    assert same(training(2), checkpoints.load().state)


@pytest.fixture
def make_stuck(make, daemons):
    """A checkpointer, as of `make`, whose storage takes a byte a second: a write of it lasts as long as the test."""
    yield partial(make, TURNOUT_PERSIST_BYTES_S="1")
    for pid in daemons():  # else they would end with their writes
        os.kill(pid, signal.SIGKILL)


def test_each_save_during_a_persist_is_taken(make_stuck, tmp_path):  # DL-47
    state = {"w": torch.rand(1 << 20)}
    checkpoints = make_stuck(tmp_path)
    checkpoints.save(1, state)
    until(lambda: list(tmp_path.glob("step-*/.*.tmp")), "the write begins")
    for step in range(2, 12):
        state["w"].mul_(1.5)
        checkpoints.save(step, state, disk=False)
        assert same((step, state), tuple(checkpoints.load()))
    until(lambda: checkpoints.stats().in_flight == 1, "all but the write have ended")
    assert (checkpoints.stats().persisted, checkpoints.stats().sealed) == (-1, 11)


@pytest.mark.contract("DL-64")
def test_what_goes_to_storage_is_as_it_was_when_save_returned(make, tmp_path):  # DL-64
    state = {"w": torch.rand(1 << 21)}
    before = {"w": state["w"].clone()}
    checkpoints = make(tmp_path, TURNOUT_PERSIST_BYTES_S="16000000")
    checkpoints.save(1, state)
    assert checkpoints.stats().persisted == -1  # first the copy, then storage
    state["w"].zero_()
    checkpoints.wait()
    assert same(before, make(tmp_path, TURNOUT_MEMORY_DIR=str(tmp_path)).load().state)


def test_a_save_without_disk_goes_nowhere_but_into_memory(make, tmp_path):  # DL-66
    checkpoints = make(tmp_path / "none")
    checkpoints.save(1, training(1), disk=False)
    checkpoints.wait()
    assert not (tmp_path / "none").exists()
    assert checkpoints.stats().hashed == 1


@pytest.mark.slow
def test_memory_of_a_process_that_was_killed_is_taken_before_storage(make, environ, memory, tmp_path):  # DL-48, DL-65
    died = subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], env=environ, check=False)
    assert died.returncode == -9
    until((tmp_path / "step-0000000002" / "manifest.json").exists)  # its daemon has written what memory alone had
    checkpoints = make(tmp_path)
    assert same((2, training(2)), tuple(checkpoints.load()))
    assert checkpoints.stats().source == "memory"
    checkpoints.close()
    for arena in memory.glob("*.arena"):
        arena.unlink()
    after = make(tmp_path)
    assert same((2, training(2)), tuple(after.load()))
    assert after.stats().source == "storage"


def test_memory_that_is_older_than_storage_is_passed_over(make, tmp_path):  # DL-65
    ours, others = make(tmp_path), make(tmp_path, TURNOUT_MEMORY_DIR=str(tmp_path))
    ours.save(1, training(1), disk=False)
    others.save(5, training(5))
    others.wait()
    assert same((5, training(5)), tuple(ours.load()))
    assert ours.stats().source == "storage"


def test_where_nothing_was_saved_there_is_nothing_to_load(make, tmp_path):
    assert make(tmp_path / "none").load() is None


def test_one_process_of_a_worker_saves_what_all_of_them_have_alike(make, tmp_path):
    second = make(tmp_path, replicated=True, RANK="1", LOCAL_RANK="1", WORLD_SIZE="2")
    second.save(1, training(1))
    assert (second.saves_here, second.stats().saves) == (False, 0)
    first = make(tmp_path, replicated=True, RANK="0", LOCAL_RANK="0", WORLD_SIZE="2")
    first.save(1, training(1))
    first.wait()
    assert same((1, training(1)), tuple(second.load()))


def test_threads_of_a_loader_may_run_while_it_is_saved(make, tmp_path):
    checkpoints, stop = make(tmp_path), threading.Event()
    others = [threading.Thread(target=lambda: [torch.rand(100).sum() for _ in iter(stop.is_set, True)]) for _ in "ab"]
    for each in others:
        each.start()
    for step in range(20):
        checkpoints.save(step, training(step), disk=False)
    stop.set()
    for each in others:
        each.join()
    assert checkpoints.load().step == 19


@pytest.fixture
def second_checkpointer(make, memory, request):
    """Checkpointers whose daemon is an agent's: beside(folder, TURNOUT_ROUND="2"). daemon: in the environment of it."""
    daemons = []

    def maker(folder, daemon=None, **more):
        if not daemons:
            daemons.append(DaemonProcess(memory, **(daemon or {})))
            request.addfinalizer(daemons[0].close)
        env = {"TURNOUT_CHECKPOINT_DAEMON": str(daemons[0].path), "TURNOUT_RUN": "job", "TURNOUT_WORKER": "w0"}
        return make(folder, **{**env, "TURNOUT_ROUND": "1", "TURNOUT_RESTORE_STEP": "-1", **more})

    return maker


def test_a_second_checkpointer_of_a_rank_is_refused_and_the_first_goes_on(second_checkpointer, tmp_path):
    first, second = second_checkpointer(tmp_path / "a"), second_checkpointer(tmp_path / "b")
    first.save(1, training(1), disk=False)
    with pytest.raises(ArenaBusy, match=r"one checkpointer at a time.*close\(\) it first"):
        second.save(2, training(2), disk=False)
    first.save(3, training(3), disk=False)
    first.close()
    second.save(4, training(4), disk=False)
    assert second.stats().sealed == 4


def stored(second_checkpointer, folder, *numbers):
    """Steps of both ranks of a world, committed."""
    ranks = [second_checkpointer(folder, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    for step in numbers:
        for checkpoints in ranks:
            checkpoints.save(step, training(step))
        until(lambda step=step: step in committed_steps(open_store(str(folder)), Said()))
    for checkpoints in ranks:
        checkpoints.close()


def second_round(second_checkpointer, folder, named, rank):
    return second_checkpointer(
        folder, TURNOUT_ROUND="2", RANK=str(rank), WORLD_SIZE="2",
        TURNOUT_STORED_STEP=str(named), TURNOUT_STORED_IN=str(folder),
    )  # fmt: skip


def test_all_ranks_read_the_named_step_and_none_committed_since(second_checkpointer, tmp_path, caplog):
    stored(second_checkpointer, tmp_path, 3, 5)
    with caplog.at_level(logging.WARNING):
        for rank in range(2):
            loaded = second_round(second_checkpointer, tmp_path, 3, rank).load()
            assert loaded.step == 3
            assert same(training(3), loaded.state)
    assert [(each.message, each.step) for each in caplog.records] == [("checkpoint_passed_over", 5)] * 2


def test_where_nothing_was_there_for_all_nobody_reads_what_has_come_since(second_checkpointer, tmp_path):
    stored(second_checkpointer, tmp_path, 3)
    assert second_round(second_checkpointer, tmp_path, -1, 0).load() is None


def test_a_step_that_was_named_for_another_folder_is_not_meant(second_checkpointer, tmp_path):
    stored(second_checkpointer, tmp_path / "a", 3)
    checkpoints = second_checkpointer(
        tmp_path / "a", RANK="0", WORLD_SIZE="2", TURNOUT_STORED_STEP="1", TURNOUT_STORED_IN=str(tmp_path / "b")
    )
    assert checkpoints.load().step == 3


def test_a_broken_named_step_is_an_error_unless_the_rank_reads_alone(second_checkpointer, tmp_path):
    stored(second_checkpointer, tmp_path, 3, 5)
    shard = tmp_path / "step-0000000005" / "rank-00000.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(BadCheckpoint):
        second_round(second_checkpointer, tmp_path, 5, 0).load()
    assert second_round(second_checkpointer, tmp_path, 5, 1).load().step == 5


def test_saves_overtake_where_storage_hangs_and_none_is_lost_from_memory(second_checkpointer, tmp_path):
    """The first is written for as long as the test lasts: none of the others has to wait for it for long."""
    events = []
    checkpoints = second_checkpointer(tmp_path, daemon={"TURNOUT_PERSIST_BYTES_S": "1"})
    checkpoints.on_failure = lambda step, why: events.append(step)
    large = training(0) | {"more": bytes(2 << 20)}
    checkpoints.save(1, large)
    until(lambda: list(tmp_path.glob("step-*/.*.tmp")))
    for step in (2, 3, 4, 5):
        checkpoints.save(step, training(step))
    until(lambda: events == [2, 3])
    found = checkpoints.stats()
    assert (found.overtaken, found.failures, found.in_flight, found.sealed) == (2, 0, 3, 5)
    assert found.waited_s >= 1


def test_a_save_is_a_phase_to_whoever_watches_but_not_in_another_thread(make, tmp_path, monkeypatch):
    watched = StepCounters(tmp_path, 1)
    monkeypatch.setenv(PROGRESS, str(watched.paths[0]))
    checkpoints = make(tmp_path / "saved")
    checkpoints.save(1, training(1))
    second_checkpointer = threading.Thread(target=checkpoints.save, args=(2, training(2)))
    second_checkpointer.start()
    second_checkpointer.join()
    seen = watched.progress()[0]
    watched.close()
    assert (seen.phase, seen.turns) == ("", 2)
