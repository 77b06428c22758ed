"""One process without an agent that saves a small state by torch.distributed.checkpoint, and loads it."""

import torch
import torch.distributed.checkpoint as dcp

from turnout.launcher.checkpoint.dcp.reader import memories
from turnout.launcher.checkpoint.dcp.writer import FlashStorageReader, FlashStorageWriter


class Alone:
    """The process. Its memory lies in a folder of the test's own."""

    def __init__(self, folder, environ):
        self.folder, self.environ = folder, environ

    def save(self, step=1, value=1.0, **options):
        writer = FlashStorageWriter(self.folder, step=step, environ=self.environ, **options)
        dcp.save(a_state(value), storage_writer=writer)
        return writer

    def reader(self, step=None):
        return FlashStorageReader(self.folder, step=step, environ=self.environ)

    def load(self, reader=None, **options):
        state = a_state(0.0)
        dcp.load(state, storage_reader=reader or self.reader(), **options)
        return state

    def forget(self):
        """Its end, as far as memory goes: what is in flight is written first."""
        memories.close()

    @property
    def shard(self):
        return next(self.folder.rglob("*.safetensors"))


def a_state(value=1.0):
    return {"w": torch.full((3, 5), value), "n": {"step": int(value), "rate": 0.1}, "e": torch.zeros(0, 2)}


def same(state, value):
    expected = a_state(value)
    return torch.equal(state["w"], expected["w"]) and state["n"] == expected["n"]
