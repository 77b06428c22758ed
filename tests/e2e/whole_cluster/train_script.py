"""Runs an example as it is and writes down what it does: one JSON line for each thing that happens to a rank.

argv: the example, the folder of its checkpoints, the folder of the history, seconds that each step takes at least. A
file `epochs` in the history's folder ends the training after so many. What is written is what is seen from outside:
samples as the loader fetches them, steps as they are saved, and the loss of the model that is saved, over all data.
"""

import importlib.util
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

from hack.chaos.train_script import HistoryWriter

script, checkpoints, folder, pace_s = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
spec = importlib.util.spec_from_file_location("example", script)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)


class History(HistoryWriter):
    """The records of this rank since its last step."""

    sampler, fetched, step = None, [], 0


class Watched(TensorDataset):
    def __getitem__(self, index):
        history.fetched.append(int(index))
        return super().__getitem__(index)


class Loader(example.DataLoader):
    """Tells what is trained on before ranks meet in a step: who is killed in it has had its part in it."""

    def __iter__(self):
        for batch in super().__iter__():
            sampler, samples, history.fetched = history.sampler, history.fetched, []
            history.note("took", step=history.step + 1, epoch=sampler.epoch, cursor=sampler.cursor, samples=samples)
            yield batch


class Sampler(example.ElasticSampler):
    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        history.sampler = self

    def next_epoch(self, **more):
        super().next_epoch(**more)
        if (epochs_file := folder / "epochs").exists():
            example.EPOCHS = int(epochs_file.read_text())


class Checkpointer(example.Checkpointer):
    def load(self, into=None):
        loaded = super().load(into)
        where = self.stats().source if loaded else "fresh"
        sampler = history.sampler
        history.step = loaded.step if loaded else 0
        history.note("begun", step=history.step, epoch=sampler.epoch, cursor=sampler.cursor, source=where)
        return loaded

    def save(self, step, state, *, disk=True, **more):
        sampler, history.step = history.sampler, step
        rate = state["optimizer"].param_groups[0]["lr"]
        place = {"epoch": sampler.epoch, "cursor": sampler.cursor, "rate": rate}
        history.note("stepped", step=step, loss=loss_of(state["model"]), **place)
        super().save(step, state, disk=disk, **more)
        history.note("saved", step=step, disk=disk)
        time.sleep(pace_s)


class Steps(example.Steps):
    def done(self, step):
        last = super().done(step)
        if last:
            history.note("ended", step=step, why="stop")
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
history = History(folder)
example.main(checkpoints)
if history.sampler.epoch == example.EPOCHS:
    history.note("ended", step=-1, why="done")
