"""A script written for DLRover's flash checkpoint of DDP works here, with only its import line changed."""

import os
import signal
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.kit.wait import until
from tests.launcher.checkpoint.engine.states import same, training
from turnout.launcher.errors import BadCheckpoint, BadState, StorageFailed
from turnout.launcher.flash_checkpoint import (
    DdpCheckpointer,
    KeepLatestStepStrategy,
    KeepStepIntervalStrategy,
    StorageType,
)

ROOT = Path(__file__).resolve().parents[4]
MEMORY, DISK = StorageType.MEMORY, StorageType.DISK
LONG = pytest.mark.long  # a process imports torch for each file
DIES = """
import os, sys
from turnout.launcher.flash_checkpoint import DdpCheckpointer, StorageType
from tests.launcher.checkpoint.engine.states import training
folder = sys.argv[1]
checkpoints = DdpCheckpointer(folder)
checkpoints.save_checkpoint(1, training(1), f"{folder}/checkpoint-1.pt", storage_type=StorageType.DISK)
checkpoints.wait_latest_checkpoint(60)
for step in range(2, 6):
    checkpoints.save_checkpoint(step, training(step), f"{folder}/checkpoint-{step}.pt", storage_type=StorageType.MEMORY)
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def flash(environ):
    """Makes DdpCheckpointers that end with the test."""
    checkpointers = []

    def make(folder, **options):
        checkpointers.append(DdpCheckpointer(folder, environ=environ, **options))
        return checkpointers[-1]

    yield make
    for each in checkpointers:
        each.close()


def files(folder):
    """Those that users see."""
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*.pt"))


def resident(pid):
    """Bytes that are this process's own, without what it shares with the arena."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


@pytest.mark.contract("DL-43", "DL-44", "DL-46", "DL-51")
def test_the_guides_loop_runs_and_goes_on_from_what_it_has_saved(flash, tmp_path):  # DL-43, DL-44, DL-46, DL-51
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoints = flash(tmp_path)
    assert checkpoints.load_checkpoint() == {}
    for step in range(1, 5):
        model(torch.ones(4)).sum().backward()
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        path = os.path.join(tmp_path, f"checkpoint-{step}.pt")
        if step % 2:
            checkpoints.save_checkpoint(step, state, path, storage_type=MEMORY)
        else:
            checkpoints.save_checkpoint(step, state, path, storage_type=DISK)
    checkpoints.wait_latest_checkpoint()
    assert files(tmp_path) == ["checkpoint-2.pt", "checkpoint-4.pt"]
    for loaded in (checkpoints.load_checkpoint(), torch.load(tmp_path / "checkpoint-4.pt", weights_only=True)):
        second_model = torch.nn.Linear(4, 4)
        moments = torch.optim.AdamW(second_model.parameters())
        second_model.load_state_dict(loaded["model"])
        moments.load_state_dict(loaded["optimizer"])
        assert loaded["step"] == 4
        assert same(second_model.state_dict(), model.state_dict())
        assert same(moments.state_dict(), optimizer.state_dict())


STATES = {
    "as most are": {"model": training()["model"], "optimizer": training()["optimizer"], "step": 3},
    "keys and kinds": {"a": {1: (None, [True, 2.5, b"x"])}, 2: OrderedDict(z=1, y=torch.Size([2]))},
    "other dtypes": {"half": torch.ones(3, dtype=torch.bfloat16), "none": torch.empty(0, 2)},
    "a part of a larger tensor": {"view": torch.arange(12.0).reshape(3, 4).t()[1:]},
    "odd numbers": {"big": 1 << 80, "nan": float("nan"), "": -0.0},
    "nothing": {},
    "numbers of numpy": {"dice": np.random.RandomState(3).get_state(), "number": np.float32(0.5)},
}
EACH = [pytest.param(state, id=name, marks=LONG) for name, state in STATES.items()]


@pytest.mark.contract("DL-45")
@pytest.mark.parametrize("state", [pytest.param(STATES, id="all of them in one"), *EACH])
def test_a_state_comes_back_from_memory_and_from_its_file(flash, memory, tmp_path, state):  # DL-45
    checkpoints = flash(tmp_path)
    checkpoints.save_checkpoint(7, state)
    assert same(state, checkpoints.load_checkpoint())
    checkpoints.wait_latest_checkpoint()
    assert files(tmp_path) == ["7/rank_0.pt"]
    checkpoints.close()
    assert not list(memory.glob("*.arena"))
    assert same(state, flash(tmp_path).load_checkpoint())


@LONG
def test_random_states_of_numpy_come_back_from_a_file_too(flash, tmp_path):  # DL-45
    kind, keys, *more = np.random.RandomState(3).get_state()
    state = {"numpy": (kind, keys, *more), "number": np.float32(0.5)}
    checkpoints = flash(tmp_path)
    checkpoints.save_checkpoint(1, state)
    checkpoints.wait_latest_checkpoint()
    checkpoints.close()
    loaded = flash(tmp_path).load_checkpoint()
    assert (loaded["numpy"][0], loaded["numpy"][2:], loaded["number"]) == (kind, tuple(more), np.float32(0.5))
    assert np.array_equal(loaded["numpy"][1], keys)


@pytest.mark.contract("DL-47")
def test_a_hundred_saves_leave_as_much_memory_as_three(flash, memory, tmp_path, daemons):  # DL-47
    state = {"model": {f"w{at}": torch.ones(1 << 18) for at in range(16)}}  # 16 MiB
    checkpoints = flash(tmp_path)
    records = []
    for step in range(100):
        checkpoints.save_checkpoint(step, state, storage_type=MEMORY)
        if step in (9, 99):
            checkpoints.wait_latest_checkpoint()
            arenas = list(memory.glob("*.arena"))
            blocks = sum(each.stat().st_blocks for each in arenas)
            records.append((len(arenas), blocks, resident(os.getpid()), resident(*daemons())))
    (one, blocks, own, entries), (one_still, blocks_still, own_later, kept_later) = records
    assert (one, one_still) == (1, 1)
    assert blocks_still == blocks <= 3 * (17 << 20) // 512
    assert own_later - own < 16 << 20  # less than one state more, after ninety
    assert kept_later - entries < 16 << 20
    assert files(tmp_path) == []


@pytest.mark.slow
@pytest.mark.contract("DL-47")
def test_a_save_of_a_gibibyte_waits_for_nothing_but_its_its_own_copy(make, stopped, tmp_path):  # DL-47
    """How fast the copy itself is tells `hack.bench checkpoint`. Here nobody else does anything meanwhile."""
    state = {f"w{at}": torch.full((1 << 26,), float(at)) for at in range(4)}  # 256 MiB each
    checkpoints = make(tmp_path)
    checkpoints.save(1, state, disk=False)
    checkpoints.wait()
    before = checkpoints.stats()
    with stopped():
        state["w0"][-1] = 7.0
        checkpoints.save(2, state, disk=False)
    checkpoints.wait()
    after = checkpoints.stats()
    assert (after.sealed, after.hashed, after.saves - before.saves) == (2, 2, 1)
    assert after.waited_s == before.waited_s == 0.0
    assert after.copied_bytes - before.copied_bytes == 1 << 30, "each byte once"
    assert checkpoints.load().state["w0"][-1] == 7.0


@pytest.mark.contract("DL-49")
def test_a_save_to_disk_returns_before_its_file_is_there(flash, tmp_path, stopped):  # DL-49
    checkpoints = flash(tmp_path)
    checkpoints.save_checkpoint(1, training(1), storage_type=MEMORY)
    checkpoints.wait_latest_checkpoint()
    with stopped():
        checkpoints.save_checkpoint(2, training(2), tmp_path / "two.pt", storage_type=DISK)
        assert files(tmp_path) == []
    checkpoints.wait_latest_checkpoint(60)
    assert same(training(2), torch.load(tmp_path / "two.pt", weights_only=True))
    assert [each.name for each in tmp_path.iterdir() if each.name.endswith(".tmp")] == []


@pytest.mark.slow
@pytest.mark.contract("DL-50")
@pytest.mark.parametrize(
    ("strategy", "steps", "stay"),
    [
        pytest.param(KeepLatestStepStrategy(1, ""), [10, 20], [5, 20], id="the newest"),
        pytest.param(KeepLatestStepStrategy(2, ""), [10, 20, 30], [5, 20, 30], id="the newest two", marks=LONG),
        pytest.param(None, [10, 20, 30], [5, 10, 20, 30], id="nothing is deleted unless it is asked for", marks=LONG),
    ],
)
def test_which_files_stay(flash, tmp_path, strategy, steps, stay):  # DL-50
    (tmp_path / "5").mkdir()
    torch.save({"step": 5}, tmp_path / "5" / "rank_0.pt")  # what nobody here has written, nobody here removes
    checkpoints = flash(tmp_path, deletion_strategy=strategy)
    for step in steps:
        checkpoints.save_checkpoint(step, {"step": step})
    checkpoints.wait_latest_checkpoint()
    assert files(tmp_path) == sorted(f"{step}/rank_0.pt" for step in stay)


@pytest.mark.slow
@pytest.mark.contract("DL-65", "DL-66")
def test_loading_tries_memory_then_the_named_file_then_the_newest(flash, memory, tmp_path):  # DL-65, DL-66
    checkpoints = flash(tmp_path / "run")
    torch.save({"step": 0}, tmp_path / "elsewhere.pt")
    checkpoints.save_checkpoint(1, {"step": 1}, tmp_path / "run" / "one.pt")
    checkpoints.save_checkpoint(2, {"step": 2}, "two.pt")
    checkpoints.wait_latest_checkpoint()
    checkpoints.save_checkpoint(3, {"step": 3}, storage_type=MEMORY)
    assert checkpoints.load_checkpoint(tmp_path / "elsewhere.pt") == {"step": 3}
    checkpoints.close()
    assert not list(memory.glob("*.arena"))
    second = flash(tmp_path / "run")
    assert second.load_checkpoint(tmp_path / "elsewhere.pt") == {"step": 0}
    assert second.load_checkpoint() == {"step": 2}
    (tmp_path / "run" / "two.pt").write_bytes(b"torn")
    assert second.load_checkpoint() == {"step": 1}
    (tmp_path / "run" / "one.pt").write_bytes(b"torn")
    with pytest.raises(BadCheckpoint, match="none of the checkpoints"):
        second.load_checkpoint()


@pytest.mark.slow
@pytest.mark.contract("DL-48")
def test_a_process_without_an_agent_is_killed(environ, tmp_path):  # DL-48
    """The daemon writes what only memory has, to the path that the save had named, and to no other."""
    done = subprocess.run([sys.executable, "-c", DIES, tmp_path], cwd=ROOT, env=environ, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    newest = tmp_path / "checkpoint-5.pt"
    until(newest.is_file)
    assert same(training(5), torch.load(newest, weights_only=True))
    assert files(tmp_path) == ["checkpoint-1.pt", "checkpoint-5.pt"]


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_told_and_memory_has_its_step(flash, tmp_path):
    checkpoints = flash(tmp_path)
    (tmp_path / "file").touch()
    checkpoints.save_checkpoint(1, {"step": 1}, tmp_path / "file" / "one.pt")
    with pytest.raises(StorageFailed, match="step 1"):
        checkpoints.wait_latest_checkpoint(60)
    assert checkpoints.load_checkpoint() == {"step": 1}
    checkpoints.save_checkpoint(2, {"step": 2})
    checkpoints.wait_latest_checkpoint(60)


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_logged_also_after_a_newer_save(flash, tmp_path, caplog):
    checkpoints = flash(tmp_path)
    (tmp_path / "file").touch()
    checkpoints.save_checkpoint(1, {"step": 1}, tmp_path / "file" / "one.pt")
    checkpoints.save_checkpoint(2, {"step": 2})
    checkpoints.wait_latest_checkpoint(60)
    found = until(lambda: [each for each in caplog.records if each.message == "persist_failed"])
    assert [(each.step, each.reason) for each in found] == [(1, "storage_failed")]


@pytest.mark.parametrize(
    ("options", "refusal", "says"),
    [
        pytest.param({"replica_count": 5}, ValueError, "0 to 4", id="more copies than there may be"),
        pytest.param({"global_shard_num": 2}, ValueError, "FsdpShardCheckpointer", id="a state of several shards"),
        pytest.param({"deletion_strategy": object()}, TypeError, "known here", id="a strategy of one's own"),
        pytest.param({"deletion_strategy": KeepLatestStepStrategy(1, "/a")}, ValueError, "/a", id="of another folder"),
        pytest.param({"save_timeout": 0}, ValueError, "save_timeout", id="no time"),
    ],
)
def test_what_is_refused_when_it_is_made(tmp_path, options, refusal, says):
    with pytest.raises(refusal, match=says):
        DdpCheckpointer(tmp_path, **options)


@pytest.mark.parametrize("strategy", [KeepLatestStepStrategy, KeepStepIntervalStrategy])
def test_a_strategy_keeps_at_least_one(strategy):
    with pytest.raises(ValueError, match="at least 1"):
        strategy(0, "")


@pytest.mark.parametrize(
    ("call", "refusal"),
    [
        pytest.param((-1, {}), ValueError, id="a step below 0"),
        pytest.param((1, [1]), TypeError, id="no dictionary"),
        pytest.param((1, {}, "", "disk"), TypeError, id="a storage type by its name"),
        pytest.param((1, {"hook": print}), BadState, id="a function in the state"),
    ],
)
def test_what_is_refused_when_it_is_saved(flash, tmp_path, call, refusal):
    with pytest.raises(refusal):
        flash(tmp_path).save_checkpoint(*call)
