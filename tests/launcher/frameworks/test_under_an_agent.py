"""Two ranks of the real Trainer under turnout-run: one is killed, and all go on from memory, as if nothing had been."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).parent / "scripts" / "trains_under_an_agent.py"
AHEAD = "torch,torch._dynamo,transformers,launcher.flash_checkpoint.hf_trainer"


def turnout_run(folder, killed):
    """What each rank told at its end, by rank."""
    folder.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNOUT_")}
    with tempfile.TemporaryDirectory(prefix="turnout-test-", dir="/dev/shm") as memory:
        done = subprocess.run(
            [
                "setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "launcher", "--standalone",
                "--nproc-per-node", "2", "--max-restarts", "2", "--preload", AHEAD, str(SCRIPT), str(folder),
                str(killed),
            ],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=200, check=False,
            env=kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TURNOUT_MEMORY_DIR": memory},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5_000:]
    lines = map(json.loads, (folder / "log").read_text().splitlines())
    return {line.pop("rank"): line for line in lines}


@pytest.mark.long
def test_a_killed_rank(tmp_path):  # DL-48, DL-63
    undisturbed, killed = turnout_run(tmp_path / "whole", 0), turnout_run(tmp_path / "killed", 5)
    assert [undisturbed[rank].pop("began") for rank in (0, 1)] == [0, 0]
    assert [killed[rank].pop("began") for rank in (0, 1)] == [5, 5]
    assert killed == undisturbed
    steps = [each.name for each in (tmp_path / "killed" / "checkpoints").iterdir()]
    assert sorted(steps) == ["step-0000000005", "step-0000000008"]
