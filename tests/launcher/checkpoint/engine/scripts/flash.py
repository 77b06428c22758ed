"""The guide's training loops, with only their import line changed: `flash.py FOLDER KIND LAST KILLED`.

KIND: "ddp", "fsdp" (state dict and storage reader) or "fsdp-newer" (model and optimizer). Every step is saved in
memory, each fourth to disk, up to step LAST. In its first life rank 1 kills itself after step KILLED (0: never), which
all have saved by then. FOLDER/finish ends it sooner. REPLICA_COUNT is its replica_count, with which all stays in
memory. With "ddp" every rank loads once more at the end. Each rank tells in FOLDER/log what it has: the bits of its
part of the model and its optimizer.
"""

import hashlib
import json
import os
import signal
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dist_cp
from torch import nn
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
from torch.nn.parallel import DistributedDataParallel

from turnout.launcher.flash_checkpoint import DdpCheckpointer, FsdpShardCheckpointer, StorageType

folder, kind, last, killed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
checkpoint_dir, copies = os.path.join(folder, "checkpoints"), int(os.environ.get("REPLICA_COUNT", "0"))
warnings.simplefilter("ignore")


def log(**fields):
    """One line, whole."""
    line = json.dumps({"rank": rank, "restarts": restarts, **fields}) + "\n"
    out = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(out, line.encode())
    os.close(out)


def bits(model, optimizer):
    """Give a digest of this rank's model and optimizer."""
    total = hashlib.sha256()
    for parameter in model.parameters():
        moments = optimizer.state.get(parameter, {})
        for tensor in (parameter, *(moments[key] for key in sorted(moments))):
            total.update(tensor.detach().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


class Ddp:
    def __init__(self, model):
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.checkpointer = DdpCheckpointer(checkpoint_dir, replica_count=copies)

    def load(self):
        state = self.checkpointer.load_checkpoint()
        if not state:
            return 0
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return state["step"]

    def save(self, step, storage_type):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step}
        path = os.path.join(checkpoint_dir, f"checkpoint-{step}.pt")
        self.checkpointer.save_checkpoint(step, state, path, storage_type=storage_type)


class Fsdp:
    """A training script for FSDP, as the guide has it."""

    def __init__(self, model):
        self.model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.checkpointer = FsdpShardCheckpointer(checkpoint_dir, replica_count=copies)

    def load(self):
        with FullyShardedDataParallel.state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT):
            state_dict = {"model": self.model.state_dict(), "step": 0}
            storage_reader = self.checkpointer.get_storage_reader()
            if not storage_reader:
                return 0
            dist_cp.load_state_dict(state_dict=state_dict, storage_reader=storage_reader)
            self.model.load_state_dict(state_dict["model"])
            optim_state = load_sharded_optimizer_state_dict(
                model_state_dict=state_dict["model"], optimizer_key="optim", storage_reader=storage_reader
            )
            flattened = FullyShardedDataParallel.optim_state_dict_to_load(
                self.model, self.optimizer, optim_state["optim"]
            )
            self.optimizer.load_state_dict(flattened)
        return state_dict["step"]

    def save(self, step, storage_type):
        with FullyShardedDataParallel.state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT):
            state = {
                "model": self.model.state_dict(),
                "optim": FullyShardedDataParallel.optim_state_dict(self.model, self.optimizer),
                "step": step,
            }
            ckpt_dir = os.path.join(checkpoint_dir, str(step))
            self.checkpointer.save_checkpoint(step, state, ckpt_dir, storage_type=storage_type)


class FsdpNewer(Fsdp):
    def load(self):
        extra_sd = self.checkpointer.load_checkpoint(self.model, self.optimizer)
        return extra_sd.get("step", 0)

    def save(self, step, storage_type):
        extra_sd = {"step": step, "schedule": {"rates": [0.1, 0.2]}}
        self.checkpointer.save_checkpoint(
            step, self.model, self.optimizer, extra_sd, os.path.join(checkpoint_dir, str(step)), storage_type
        )


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(restarts)  # what is loaded is not what is there anyhow
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    training = {"ddp": Ddp, "fsdp": Fsdp, "fsdp-newer": FsdpNewer}[kind](model)
    step = training.load()
    log(at="starts", step=step, bits=bits(training.model, training.optimizer))
    while step < last:
        step += 1
        torch.manual_seed(100 * step + rank)
        training.optimizer.zero_grad()
        training.model(torch.randn(4, 5)).sum().backward()
        training.optimizer.step()
        log(at="saves", step=step, bits=bits(training.model, training.optimizer))  # who is killed may say no more
        training.save(step, StorageType.MEMORY if step % 4 or copies else StorageType.DISK)
        log(at="saved", step=step, bits=bits(training.model, training.optimizer))
        finishes = torch.tensor(os.path.exists(os.path.join(folder, "finish")), dtype=torch.int64)
        dist.broadcast(finishes, 0)
        if restarts == 0 and step == killed:
            training.checkpointer.wait_latest_checkpoint(120)  # else what is gone on from may be overtaken on its way
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        if finishes:
            break
    if kind == "ddp":
        log(at="loads", step=training.load(), bits=bits(training.model, training.optimizer))
    training.checkpointer.wait_latest_checkpoint(120)
    dist.destroy_process_group()
    if torch.__version__ < (2, 7):  # 2.6 joins gloo's threads with the interpreter's lock, and one may wait for it
        os._exit(0)


main()
