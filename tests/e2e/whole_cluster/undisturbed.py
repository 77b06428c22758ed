"""Run the same training undisturbed: one process, alone, as fast as it can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.e2e.whole_cluster.history import History
from tests.e2e.whole_cluster.world import DDP, ROOT, TRAIN_SCRIPT
from tests.kit.saved_checkpoints import newest


class Alone(NamedTuple):
    """losses: by step, of the model after it. state: that was saved last."""

    losses: dict
    state: dict


def undisturbed(folder: Path, epochs: int) -> Alone:
    """Train so many epochs in a process of its own. Blocking."""
    history, checkpoints = folder / "undisturbed", folder / "undisturbed-checkpoints"
    history.mkdir()
    (history / "epochs").write_text(str(epochs))
    argv = [sys.executable, "-m", "turnout.launcher", "--standalone", "--nproc-per-node", "1", "--no-fork"]
    argv += [str(TRAIN_SCRIPT), str(DDP), str(checkpoints), str(history), "0"]
    memory = {"TURNOUT_MEMORY_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, env=os.environ | memory, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    losses = {each.step: each.loss for each in History(history).look().of("stepped")}
    loaded = newest(checkpoints)
    assert loaded is not None
    return Alone(losses, loaded.state)
