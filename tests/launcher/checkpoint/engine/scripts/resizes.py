"""A training loop of fully_shard over gloo that stops where its agent says: `resizes.py FOLDER [BYTES]`.

Every step is saved in memory alone, until FOLDER/finish is there. Beside the model there are so many bytes more that
follow from the step, each rank's part of them. Each rank writes a line of JSON for the step from which it goes on and
where that came from, for each that is saved, and for the one at which it was to stop, with a digest of the model.
"""

import json
import os
import sys
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor, Shard
from worlds import Model, fully_shard, init_device_mesh, leaves

from turnout.launcher.checkpoint.dcp.writer import FlashStorageReader, FlashStorageWriter
from turnout.launcher.elastic.steps import Steps

folder, words = sys.argv[1], int(sys.argv[2] if len(sys.argv) > 2 else 0) // 8
checkpoints = os.path.join(folder, "checkpoints")
PACE_S = 0.03  # between two steps: else a world that waits for others trains as fast as two processors let it


def tell(file, **fields):
    """One line, whole."""
    line = {"name": os.environ["CREW_NAME"], "round": int(os.environ["TURNOUT_ROUND"]), "rank": dist.get_rank()}
    out = os.open(os.path.join(folder, file), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(out, json.dumps(line | {"ranks": dist.get_world_size()} | fields).encode() + b"\n")
    os.close(out)


def more_of(mesh, step):
    """This rank's part of so many numbers, no two of which are equal, nor equal to those of another step."""
    size, rank = mesh.size(), mesh.get_local_rank()
    each = -(-words // size)
    local = torch.arange(min(rank * each, words), min((rank + 1) * each, words)) + step * 1_000_000_007
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=torch.Size([words]), stride=(1,))


def main():
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Model(1)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def state_of(step):
        of_model, of_optimizer = get_state_dict(model, optimizer)
        return {"model": of_model, "optim": of_optimizer, "step": step}

    begin, reader = 0, FlashStorageReader(checkpoints)
    if reader:
        state = state_of(-1) | {"more": more_of(mesh, 0)}
        dcp.load(state, storage_reader=reader)
        begin = state["step"]
        assert torch.equal(state.pop("more").to_local(), more_of(mesh, begin).to_local())
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    tell("starts", step=begin, source=reader.source, bits=leaves(state_of(begin)))
    steps = Steps()
    for step in steps.count(begin + 1):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(4, 5)).sum().backward()
        optimizer.step()
        model.seen += 1
        last, state = steps.done(step), state_of(step)
        bits = leaves(state)
        writer = FlashStorageWriter(checkpoints, step=step, disk=False)
        dcp.save(state | {"more": more_of(mesh, step)}, storage_writer=writer)
        tell("saved", step=step, bits=bits)
        finishes = torch.tensor(os.path.exists(os.path.join(folder, "finish")), dtype=torch.int64)
        dist.broadcast(finishes, 0)
        if last or finishes:
            tell("stops", step=step, bits=bits)
            break
        time.sleep(PACE_S)
    dist.destroy_process_group()


main()
