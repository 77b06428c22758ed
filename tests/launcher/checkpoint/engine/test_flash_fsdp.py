"""`FsdpShardCheckpointer` in one process: what is refused, what is found, and that memory does not grow."""

import pytest
import torch

from turnout.launcher.checkpoint.dcp.reader import memories
from turnout.launcher.errors import BadCheckpoint, BadState
from turnout.launcher.flash_checkpoint import FsdpShardCheckpointer, KeepLatestStepStrategy, StorageType

MEMORY, DISK = StorageType.MEMORY, StorageType.DISK
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:.*is deprecated")


@pytest.fixture
def checkpoints(environ, tmp_path):
    yield FsdpShardCheckpointer(tmp_path, environ=environ)
    memories.close()


def pair(seed):
    """A model that has been trained a little, and its optimizer."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.contract("DL-52", "DL-53", "DL-54")
def test_many_saves_leave_one_arena_and_one_daemon(checkpoints, memory, tmp_path, daemons):  # DL-54
    state = {"model": {f"w{at}": torch.ones(1 << 16) for at in range(16)}}
    blocks = []
    for step in range(40):
        checkpoints.save_checkpoint(step, state, tmp_path / str(step), storage_type=MEMORY)
        if step in (9, 39):
            checkpoints.wait_latest_checkpoint(60)
            blocks.append([each.stat().st_blocks for each in memory.glob("*.arena")])
    assert len(daemons()) == 1
    assert len(blocks[0]) == 1
    assert blocks[0] == blocks[1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.contract("DL-52", "DL-53", "DL-54")
def test_a_save_to_disk_returns_before_its_files_are_there(checkpoints, tmp_path, stopped):  # DL-54
    checkpoints.save_checkpoint(1, {"w": torch.ones(4)}, storage_type=MEMORY)
    checkpoints.wait_latest_checkpoint(60)
    with stopped():
        checkpoints.save_checkpoint(2, {"w": torch.ones(4)}, tmp_path / "two", storage_type=DISK)
        assert list(tmp_path.iterdir()) == []
    checkpoints.wait_latest_checkpoint(60)
    assert checkpoints.get_storage_reader().step == 2


@pytest.mark.contract("DL-55", "DL-56")
def test_models_and_optimizers_come_back_with_what_else_was_saved(checkpoints, tmp_path):  # DL-56
    extra_sd = {"step": 3, "schedule": {"rates": [0.1, (1, None)]}, 5: "five"}
    model, optimizer = pair(1)
    checkpoints.save_checkpoint(3, model, optimizer, extra_sd)
    checkpoints.wait_latest_checkpoint(60)
    second_model, moments = pair(2)
    assert checkpoints.load_checkpoint(second_model, moments) == extra_sd
    assert torch.equal(second_model.weight, model.weight)
    assert torch.equal(moments.state[second_model.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"])


@pytest.mark.contract("DL-55", "DL-56")
def test_nothing_is_stored(checkpoints):  # DL-55
    assert not checkpoints.get_storage_reader()
    assert checkpoints.load_checkpoint(*pair(1)) == {}


def test_a_step_that_is_not_whole_is_passed_over(checkpoints, tmp_path):  # DL-55
    for step in (1, 2):
        checkpoints.save_checkpoint(step, {"w": torch.full((4,), float(step))}, storage_type=DISK)
        checkpoints.wait_latest_checkpoint(60)
    memories.close()
    next((tmp_path / "2").rglob("manifest.json")).unlink()
    assert checkpoints.get_storage_reader().step == 1
    shard = next((tmp_path / "1").rglob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[9] ^= 1
    shard.write_bytes(data)
    with pytest.raises(BadCheckpoint):
        checkpoints.get_storage_reader()


@pytest.mark.parametrize(
    ("call", "refusal"),
    [
        pytest.param((-1, {}), ValueError, id="a step below 0"),
        pytest.param((1, {}, "/elsewhere/1"), ValueError, id="a folder that would not be found again"),
        pytest.param((1, torch.nn.Linear(1, 1)), TypeError, id="a model without its optimizer"),
        pytest.param((1,), TypeError, id="nothing"),
    ],
)
def test_what_is_refused_when_it_is_saved(checkpoints, call, refusal):
    with pytest.raises(refusal):
        checkpoints.save_checkpoint(*call)


def test_a_tensor_among_the_extra_values_is_refused(checkpoints):
    with pytest.raises(BadState):
        checkpoints.save_checkpoint(1, *pair(1), {"w": torch.ones(1)})


@pytest.mark.parametrize(("options", "refusal", "says"), [
    pytest.param({"replica_count": 5}, ValueError, "0 to 4", id="more copies than there may be"),
    pytest.param({"deletion_strategy": KeepLatestStepStrategy(1)}, NotImplementedError, "supported", id="a strategy"),
])  # fmt: skip
def test_what_is_refused_when_it_is_made(tmp_path, options, refusal, says):
    with pytest.raises(refusal, match=says):
        FsdpShardCheckpointer(tmp_path, **options)
