"""A training loop of fully_shard over gloo, saved by torch.distributed.checkpoint: `trains.py LOG FOLDER LAST KILLED`.

Every step is saved in memory alone. The process of the last rank kills itself once, when step KILLED is saved. Each
rank writes a line of JSON for the step that it goes on from, and for each that it has trained, with a digest of all.
"""

import json
import os
import signal
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from worlds import Model, fully_shard, init_device_mesh, learn, leaves

from turnout.launcher.checkpoint.dcp.writer import FlashStorageReader, FlashStorageWriter

log, folder, last, killed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def tell(at, step, state):
    line = {"restarts": restarts, "rank": dist.get_rank(), "at": at, "step": step, "bits": leaves(state)}
    with open(log, "ab", buffering=0) as out:
        out.write(json.dumps(line).encode() + b"\n")


def state_of(model, optimizer, step):
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optim": of_optimizer, "step": step}


def main():
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    model = Model(1)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    begin = 0
    reader = FlashStorageReader(folder)
    if reader:
        state = state_of(model, optimizer, -1)
        dcp.load(state, storage_reader=reader)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        begin = state["step"]
    tell("starts", begin, state_of(model, optimizer, begin))
    for step in range(begin + 1, last + 1):
        torch.manual_seed(step)
        optimizer.zero_grad()
        learn(model)
        optimizer.step()
        model.seen += 1
        state = state_of(model, optimizer, step)
        dcp.save(state, storage_writer=FlashStorageWriter(folder, step=step, disk=False))
        tell("saved", step, state)
        dist.barrier()
        if (restarts, step, dist.get_rank()) == (0, killed, dist.get_world_size() - 1):
            os.kill(os.getpid(), signal.SIGKILL)


main()
