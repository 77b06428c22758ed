"""The job of hack/chaos under plain torchrun: the same steps and notes, its state on disk every DISK_EVERY steps.

Argument: the home, as there; `checkpoint.pt` lies in it. A round is numbered by its first rank: torchrun tells none.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from hack.chaos.train_script import DISK_EVERY, UNPAUSED_STEPS, HistoryWriter, Training


def main() -> None:
    """Resume from the newest checkpoint and train until killed."""
    torch.set_num_threads(1)
    home = Path(sys.argv[1])
    dist.init_process_group("gloo")
    os.environ["TURNOUT_ROUND"] = str(_round(home / "history"))
    training, history = Training(home), HistoryWriter(home / "history")
    checkpoint, start = home / "checkpoint.pt", 0
    if checkpoint.exists():
        found = torch.load(checkpoint, weights_only=True)
        start = found.pop("step")
        training.take(found)
    place = {"epoch": training.sampler.epoch, "cursor": training.sampler.cursor, "pid": os.getpid()}
    history.note("begun", step=start, source="disk" if start else "fresh", **place)
    for step in range(start + 1, training.total + 1):
        if step > start + UNPAUSED_STEPS:
            training.pause_before_step(step)
        training.step(step, history)
        if training.rank == 0 and step % DISK_EVERY == 0:
            part = checkpoint.with_suffix(".part")
            torch.save({**training.state(), "step": step}, part)
            part.rename(checkpoint)


def _round(history: Path) -> int:
    """Return a round number above all in the history, the same on all ranks."""
    number = torch.tensor(1 + max((int(name.split(".")[-3]) for name in os.listdir(history)), default=0))
    dist.broadcast(number, 0)
    return int(number)


if __name__ == "__main__":
    main()
