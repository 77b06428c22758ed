"""Worlds of real processes over gloo, one after the other. `worlds.py FOLDER`, and on stdin as JSON what each is to do.

Each process is a fork of this one, which has imported torch: a world takes half a second. What its ranks have found is
a line of JSON each on stdout. A task: {"world": 2, "do": "save", ...}, its other fields are arguments of that function.
"""

import gc
import hashlib
import json
import os
import sys
import traceback
import warnings
from pathlib import Path

import torch
import torch._dynamo  # optimizers import it: here once, else in each fork
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from turnout.launcher.checkpoint.dcp.reader import memories
from turnout.launcher.checkpoint.dcp.writer import FlashStorageReader, FlashStorageWriter
from turnout.launcher.flash_checkpoint import FsdpShardCheckpointer
from turnout.launcher.flash_checkpoint.named_parts import Parts

folder = Path(sys.argv[1])


class Model(nn.Module):
    """Sizes that no world of 2, 3 or 4 divides, a parameter smaller than the world, and tied weights."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.middle, self.last = nn.Linear(5, 7), nn.Linear(7, 13, bias=False), nn.Linear(13, 1)
        self.register_buffer("seen", torch.arange(3.0) + seed)

    def forward(self, x):
        return self.last(torch.relu(self.middle(torch.relu(self.first(x)))))


def learn(model):
    """Gradients of one batch. fully_shard of torch 2.6 runs on GPUs alone: there they are any, and lie as it lays them.

    The same on all ranks that have the same dice.
    """
    if not isinstance(next(model.parameters()), DTensor) or hasattr(torch.cpu.Stream, "record_event"):
        model(torch.randn(4, 5)).sum().backward()
        return
    for each in model.parameters():
        each.grad = distribute_tensor(torch.randn(each.shape), each.device_mesh, each.placements)


def trained(seed, kind="fsdp2"):
    """A sharded model and its optimizer after a step of training."""
    model = Model(seed)
    if kind == "fsdp2":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(model, mesh=mesh)
    else:
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * (seed + 1), betas=(0.8, 0.9))
    torch.manual_seed(seed)
    learn(model)
    optimizer.step()
    return model, optimizer


def state_of(seed, more=True):
    """A nested state dict of DTensors, tensors and plain values."""
    model, optimizer = trained(seed)
    of_model, of_optimizer = get_state_dict(model, optimizer)
    state = {"model": of_model, "step": seed}
    if more:
        state |= {"optim": of_optimizer, "rates": [0.1 * seed, None, "ä"], "odd": {"size": torch.Size([seed, 2])}}
    return state


def leaves(value, path=""):
    """Digest the leaves of a nested state, by path. Tensors are gathered, so all ranks get the same."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        return {key: leaf for name, each in value.items() for key, leaf in leaves(each, f"{path}/{name}").items()}
    if isinstance(value, DTensor):
        value = value.full_tensor()
    if isinstance(value, torch.Tensor):
        value = value.dtype, value.shape, value.numpy().tobytes()
    return {path: hashlib.sha256(repr(value).encode()).hexdigest()[:12]}


def save(step, name="ours", theirs=False, more=True, disk=True):
    state = state_of(step, more)
    writer = FlashStorageWriter(folder / name, step=step, disk=disk)
    dcp.save(state, storage_writer=writer)
    if theirs:
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder / theirs))
    writer.wait(60)
    return leaves(state)


def load(name="ours", step=None, theirs=False, more=True, seed=90):
    state = state_of(seed, more)
    reader = FlashStorageReader(folder / name, step=step)
    assert reader
    dcp.load(state, storage_reader=reader)
    found = leaves(state)
    if theirs:
        state = state_of(seed + 1, more)
        dcp.load(state, storage_reader=dcp.FileSystemReader(folder / theirs))
        assert found == leaves(state)
    return found


def saves(sizes):
    """A step each, of these sizes: 1 for all of the state, 0 for a part."""
    return [save(step, more=bool(more)) for step, more in enumerate(sizes, 1)]


def loads(names):
    """Load what several worlds have saved, one after the other."""
    return [load(f"ours{name}", theirs=f"theirs{name}", seed=10 + name) for name in names]


def disagree(steps, more=True):
    """Each rank has found another step."""
    return load(step=steps[dist.get_rank()], more=more)


def fsdp1(step, name):
    """Save and load the sharded state dicts of model and optimizer, as FSDP's guide does, one by one."""
    model, optimizer = trained(step, "fsdp1")
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = {"model": model.state_dict(), "optim": FullyShardedDataParallel.optim_state_dict(model, optimizer)}
    writer = FlashStorageWriter(folder / name, step=step)
    dcp.save(state, storage_writer=writer)
    writer.wait(60)
    expected = full_state(model, optimizer)
    model, optimizer = trained(step + 1, "fsdp1")
    assert full_state(model, optimizer) != expected
    reader = FlashStorageReader(folder / name)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = {"model": model.state_dict()}
        dcp.load(state, storage_reader=reader)
        model.load_state_dict(state["model"])
        loaded = dcp.load_sharded_optimizer_state_dict(state["model"], "optim", reader)
        optimizer.load_state_dict(FullyShardedDataParallel.optim_state_dict_to_load(model, optimizer, loaded["optim"]))
    return full_state(model, optimizer) == expected


def fsdp1_at_once(step, name):
    """Model and optimizer together, where the last rank has nothing of a parameter: it has fewer rows than the world.

    A scheduler's rates are a list of dicts, as torch before 2.4 had saved in one piece.
    """
    model, optimizer = trained(step, "fsdp1")
    checkpoints, extra_sd = FsdpShardCheckpointer(folder / name), {"step": step, "rates": [{"lr": 0.1}]}
    checkpoints.save_checkpoint(step, model, optimizer, extra_sd)
    checkpoints.wait_latest_checkpoint(60)
    expected = full_state(model, optimizer)
    model, optimizer = trained(step + 1, "fsdp1")
    assert checkpoints.load_checkpoint(model, optimizer) == extra_sd
    return full_state(model, optimizer) == expected


def parts_of(step, name):
    """Buffers of its own on each rank, as those of BatchNorm, beside weights that all have alike."""
    weights, means = {"w": torch.arange(6.0)}, {"mean": torch.full((3,), float(dist.get_rank()), dtype=torch.bfloat16)}
    parts = Parts(folder / name)
    parts.save(step, {"model": weights | means, "buffers": means}, disk=True, own={"buffers"})
    parts.wait(60)
    found = parts.load(bool).parts
    assert torch.equal(found["model"]["w"], weights["w"])
    return found["buffers"]["mean"].tolist()


def full_state(model, optimizer):
    """All of it on each rank."""
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        return leaves([model.state_dict(), FullyShardedDataParallel.optim_state_dict(model, optimizer)])


def refused(step, name):
    """Only the last rank has what cannot be saved; all hear of it."""
    state = {"w": torch.zeros(3)}
    if dist.get_rank() == dist.get_world_size() - 1:
        state["extra"] = {"deep": [1, lambda: None]}
    dcp.save(state, storage_writer=FlashStorageWriter(folder / name, step=step, disk=False))


def steps_differ(name):
    dcp.save({"w": torch.zeros(3)}, storage_writer=FlashStorageWriter(folder / name, step=dist.get_rank()))


def in_world(task, rank, number):
    """One process of one world; says what it has found, and ends."""
    warnings.simplefilter("ignore")
    world = task.pop("world")
    dist.init_process_group("gloo", f"file://{folder}/store-{number}", rank=rank, world_size=world)
    try:
        found = {"found": globals()[task.pop("do")](**task)}
    except (Exception, CheckpointException) as error:  # DCP's own is no Exception
        found = {"error": str(error), "trace": traceback.format_exc()[-3000:]}
    memories.close()
    line = json.dumps({"task": number, "rank": rank, **found}) + "\n"
    os.write(1, line.encode())  # whole, whoever else writes
    dist.barrier()
    dist.destroy_process_group()


def main():
    gc.freeze()  # no fork's collector writes into pages that all of them share
    for number, task in enumerate(json.load(sys.stdin)):
        ranks = []
        for rank in range(task["world"]):
            if (pid := os.fork()) == 0:
                try:
                    in_world(task, rank, number)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            ranks.append(pid)
        for pid in ranks:
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
