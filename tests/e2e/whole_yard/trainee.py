"""Runs an example as it is and writes down what it does: one JSON line for each thing that happens to a rank.

argv: the example, the folder of its checkpoints, the folder of the history, seconds that each step takes at least. A
file `epochs` in the history's folder ends the training after so many. What is written is what is seen from outside:
samples as the loader fetches them, steps as they are saved, and the loss of the model that is saved, over all data.
"""

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

script, checkpoints, folder, pace_s = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
spec = importlib.util.spec_from_file_location("example", script)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)


class History:
    """The file of this rank in this round, and what it has seen since its last step."""

    def __init__(self):
        said = os.environ
        self._same = {"job": said["TURNOUT_RUN"], "worker": said["TURNOUT_WORKER"], "node": said.get("NODE_NAME", "")}
        self._same |= {"round": int(said["TURNOUT_ROUND"]), "world": int(said["WORLD_SIZE"]), "rank": int(said["RANK"])}
        self._same["restarts"] = int(said["TORCHELASTIC_RESTART_COUNT"])
        name = "{worker}.{round}.{rank}.jsonl".format(**self._same)
        self._file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.sampler, self.fetched, self.step = None, [], 0

    def add(self, event, **fields):
        line = {"event": event, "at_s": time.clock_gettime(time.CLOCK_MONOTONIC), **self._same, **fields}
        os.write(self._file, json.dumps(line).encode() + b"\n")


class Watched(TensorDataset):
    def __getitem__(self, index):
        history.fetched.append(int(index))
        return super().__getitem__(index)


class Loader(example.DataLoader):
    """Tells what is trained on before ranks meet in a step: who is killed in it has had its part in it."""

    def __iter__(self):
        for batch in super().__iter__():
            sampler, samples, history.fetched = history.sampler, history.fetched, []
            history.add("took", step=history.step + 1, epoch=sampler.epoch, cursor=sampler.cursor, samples=samples)
            yield batch


class Sampler(example.ElasticSampler):
    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        history.sampler = self

    def next_epoch(self, **more):
        super().next_epoch(**more)
        if (told := folder / "epochs").exists():
            example.EPOCHS = int(told.read_text())


class Checkpointer(example.Checkpointer):
    def load(self, into=None):
        loaded = super().load(into)
        where = self.stats().source if loaded else "fresh"
        sampler = history.sampler
        history.step = loaded.step if loaded else 0
        history.add("begun", step=history.step, epoch=sampler.epoch, cursor=sampler.cursor, source=where)
        return loaded

    def save(self, step, state, *, disk=True, **more):
        sampler, history.step = history.sampler, step
        rate = state["optimizer"].param_groups[0]["lr"]
        place = {"epoch": sampler.epoch, "cursor": sampler.cursor, "rate": rate}
        history.add("stepped", step=step, loss=loss_of(state["model"]), **place)
        super().save(step, state, disk=disk, **more)
        history.add("saved", step=step, disk=disk)
        time.sleep(pace_s)


class Steps(example.Steps):
    def done(self, step):
        last = super().done(step)
        if last:
            history.add("ended", step=step, why="stop")
        return last


def loss_of(model):
    """Over all data."""
    with torch.no_grad():
        points, sides = data.tensors
        return float(torch.nn.functional.binary_cross_entropy_with_logits(model(points), sides))


data = Watched(*example.samples().tensors)
example.samples, example.ElasticSampler = (lambda: data), Sampler
example.DataLoader, example.Checkpointer, example.Steps = Loader, Checkpointer, Steps
example.EPOCHS = sys.maxsize
history = History()
example.main(checkpoints)
if history.sampler.epoch == example.EPOCHS:
    history.add("ended", step=-1, why="done")
