"""The training script under faults: a tiny model in float64, saved after every step; each step is written down.

Argument: a home, a folder that every worker sees. Read there: `plan.json` (samples, batch, epochs, pace_s), and
`finish`: once it exists, steps no longer pause. Written there: `storage/run`, checkpoints; `history/`, files, each line
with one write, so that a kill cuts the last line at most.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from turnout.launcher.checkpoint.engine.checkpointer import Checkpointer
from turnout.launcher.elastic.batch import ElasticBatch
from turnout.launcher.elastic.gradients import synced
from turnout.launcher.elastic.sampler import ElasticSampler
from turnout.launcher.elastic.steps import Steps

DISK_EVERY, KEPT = 20, 5
UNPAUSED_STEPS = 3  # first steps of a round without a pause, so that the time of a recovery shows
MAX_PAUSE_S = 1.0
_LOOK_S = 0.02


class HistoryWriter:
    """Appends events of one process to its file of the history.

    The file is WORKER.ROUND.RANK.jsonl; launcher's variables in the environment name all three.
    """

    def __init__(self, folder: Path) -> None:
        env = os.environ
        worker = env.get("TURNOUT_WORKER", "alone")
        self._head = {
            "job": env.get("TURNOUT_RUN", "alone"),
            "worker": worker,
            "home": env.get("HISTORY_HOME", worker),
            "node": env.get("NODE_NAME", ""),
            "round": int(env.get("TURNOUT_ROUND", "1")),
            "world": int(env.get("WORLD_SIZE", "1")),
            "rank": int(env.get("RANK", "0")),
            "restarts": int(env.get("TORCHELASTIC_RESTART_COUNT", "0")),
        }
        folder.mkdir(exist_ok=True)
        name = f"{worker}.{self._head['round']}.{self._head['rank']}.jsonl"
        self._file = os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, event: str, **more: Any) -> None:
        """Append one event, with the time and what identifies the process. more: further fields of the event."""
        line = json.dumps({"event": event, "at_s": time.clock_gettime(time.CLOCK_MONOTONIC)} | self._head | more)
        os.write(self._file, line.encode() + b"\n")


def samples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (points, labels) of `count` samples, the same on every rank. The label says on which side of a curve a
    point is.
    """
    rng = torch.Generator().manual_seed(7)
    points = torch.rand(count, 2, generator=rng, dtype=torch.float64) * 2 - 1
    return points, (points[:, :1] > points[:, 1:] ** 2).double()


class Training:
    """One process's share of the job."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.plan = json.loads((home / "plan.json").read_text())
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        torch.manual_seed(7)
        self.points, self.sides = samples(self.plan["samples"])
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.sampler = ElasticSampler(self.plan["samples"], seed=7)
        self.batch = ElasticBatch(self.plan["batch"])
        self.total = self.plan["epochs"] * -(-self.plan["samples"] // self.plan["batch"])

    def state(self) -> dict[str, Any]:
        parts = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict()}
        return parts | {"sampler": self.sampler.state_dict()}

    def take(self, state: Any) -> None:
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sampler.load_state_dict(state["sampler"])

    def step(self, number: int, history: HistoryWriter) -> None:
        """Train on one global batch, and record the samples and the loss. number: of the step, from 1."""
        sampler = self.sampler
        if not sampler.left:
            sampler.next_epoch()
        plan = sampler.plan(self.batch, world=self.world, rank=self.rank)
        part, ids = next(iter(plan.over(plan)))
        history.note("took", step=number, epoch=sampler.epoch, samples=ids if part.samples else [])
        with synced(self.model, part.sync):
            right = nn.functional.binary_cross_entropy_with_logits(self.model(self.points[ids]), self.sides[ids])
            loss = right * part.weight
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        sampler.done(part.global_samples)
        trained = ids if part.samples else []
        result = {"samples": trained, "loss": float(loss.detach()), "cursor": sampler.cursor}
        history.note("stepped", step=number, epoch=sampler.epoch, **result)

    def pause_before_step(self, number: int) -> None:
        """Sleep before a step, longer the nearer the end is, unless the file "finish" exists. So each fault meets a job
        that trains.

        number: of the step.
        """
        pause_s = min(MAX_PAUSE_S, self.plan["pace_s"] * self.total / (self.total - number + 1))
        end_s = time.monotonic() + pause_s
        while time.monotonic() < end_s and not (self.home / "finish").exists():
            time.sleep(min(_LOOK_S, pause_s))

    def weights(self) -> list[float]:
        return [float(value) for each in self.model.parameters() for value in each.detach().flatten()]


def train_undisturbed(home: Path, history: HistoryWriter) -> None:
    """Train in one process without saves, and record the final model, which every other run has to reach."""
    training = Training(home)
    for step in range(1, training.total + 1):
        training.step(step, history)
    history.note("ended", step=training.total, why="done", model=training.weights())


def train(home: Path, history: HistoryWriter) -> None:
    """Train as one rank under turnout-run, from the newest checkpoint to the end of the plan, or to the step at which
    the job is drained. Each step is recorded in `history`.

    torch.distributed has to be initialised, and the variables of turnout-run to be set. home: a folder with plan.json;
    checkpoints go to home/storage/run.
    """
    training = Training(home)
    checkpoints, steps = Checkpointer(home / "storage" / "run", replicated=True, keep=KEPT), Steps()
    loaded = checkpoints.load()
    start = loaded.step if loaded else 0
    if loaded:
        training.take(loaded.state)
    place = {"epoch": training.sampler.epoch, "cursor": training.sampler.cursor, "pid": os.getpid()}
    history.note("begun", step=start, source=checkpoints.stats().source or "fresh", **place)
    checkpoints.prepare(training.state())
    for step in steps.count(start + 1):
        if step > training.total:
            history.note("ended", step=step - 1, why="done", model=training.weights())
            break
        if step > start + UNPAUSED_STEPS:
            training.pause_before_step(step)
        training.step(step, history)
        last = steps.done(step)
        disk = last or step % DISK_EVERY == 0 or step == training.total
        checkpoints.save(step, training.state(), disk=disk)
        history.note("saved", step=step, disk=disk)
        if last:
            history.note("ended", step=step, why="stop")
            break


def main() -> None:
    """Train as a rank under turnout-run; without it, do the undisturbed run."""
    torch.set_num_threads(1)
    home = Path(sys.argv[1])
    is_alone = "RANK" not in os.environ
    if is_alone:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group("gloo")
    try:
        (train_undisturbed if is_alone else train)(home, HistoryWriter(home / "history"))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
