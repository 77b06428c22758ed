"""The scripts of examples/, as a user runs them: what is copied from there works."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from tests.kit.saved_checkpoints import newest
from turnout.launcher.checkpoint.dcp.writer import FlashStorageReader

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
KILLED = Path(__file__).with_name("killed.py")
SHAPES = {"0.weight": (16, 2), "0.bias": (16,), "2.weight": (1, 16), "2.bias": (1,)}
STEPS = 64  # 4 epochs of 500 samples in batches of 32
AT = 37


def start(folder, *script):
    """Two processes of it, in the background."""
    argv = [sys.executable, "-m", "turnout.launcher", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    memory = folder.with_suffix(".memory")
    memory.mkdir()
    env = os.environ | {"TURNOUT_MEMORY_DIR": str(memory), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*argv, *script], cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)


def trained_with_ddp(folder):
    loaded = newest(folder)
    return loaded.step, loaded.state["model"]


def trained_with_fsdp(folder):
    state = {"model": {name: torch.zeros(shape).double() for name, shape in SHAPES.items()}, "step": 0}
    dcp.load(state, storage_reader=FlashStorageReader(folder), no_dist=True)
    return state["step"], state["model"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(("kind", "trained"), [
    pytest.param("ddp", trained_with_ddp, id="DDP", marks=pytest.mark.long),
    pytest.param("fsdp", trained_with_fsdp, id="FSDP2"),
])  # fmt: skip
def test_a_killed_process_changes_no_bit_of_the_model(tmp_path, kind, trained):
    script, calm, hit = str(ROOT / f"examples/{kind}/elastic.py"), tmp_path / "calm", tmp_path / "hit"
    runs = [start(calm, script, str(calm)), start(hit, str(KILLED), script, str(hit), str(AT))]
    outputs = [run.communicate(timeout=240)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], "\n".join(outputs)
    assert int(hit.with_suffix(".from").read_text()) in (AT - 1, AT)  # rank 0 may have saved the step already
    (step, model), (same_step, same_model) = trained(calm), trained(hit)
    assert step == same_step == STEPS
    assert all(torch.equal(model[name], same_model[name]) for name in SHAPES)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_the_plain_script_trains_under_torchrun(tmp_path, kind):
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    argv += [str(ROOT / f"examples/{kind}/plain.py"), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir())
