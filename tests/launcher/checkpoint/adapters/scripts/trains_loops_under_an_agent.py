"""Loops of Accelerate and of Lightning in two ranks: `trains_loops_under_an_agent.py FOLDER KIND LAST KILLED`.

KIND: "accelerate" and "lightning" for DDP, "fsdp-1" and "fsdp-2" for Accelerate's FSDP and FsdpShardCheckpointer. A
tiny model over passes of four batches a rank. Each step up to LAST is saved in memory, each fourth and the last in
storage. Rank 1 kills itself once, when step KILLED is trained, and not saved (0: never). Each rank tells the losses
that it has seen, and what it has in the end.
"""

import json
import os
import random
import signal
import sys
import warnings
from pathlib import Path

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "1", "DS_ACCELERATOR": "cpu"}

import lightning
import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, DistributedType, FullyShardedDataParallelPlugin, set_seed
from forks import digest
from rows import Rows
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

from turnout.launcher.flash_checkpoint import FsdpShardCheckpointer
from turnout.launcher.flash_checkpoint.accelerate import FlashState, StorageType
from turnout.launcher.flash_checkpoint.lightning import FlashCheckpoint

FOLDER, KIND, LAST, KILLED = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
RANK, RESTARTS = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
CHECKPOINTS, BATCHES = FOLDER / "checkpoints", 4
warnings.simplefilter("ignore")


def data():
    dice = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(4 * BATCHES, 4, generator=dice))


def network():
    """Dice, and what each rank of DDP has of its own: BatchNorm's means."""
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 1))


def loss_of(network, rows):
    """Compute a loss that depends on each random generator that a process has."""
    return network(rows).sum() * (1 + random.random() + np.random.rand())


def may_die(step):
    if (step, RANK, RESTARTS) == (KILLED, 1, 0):
        os.kill(os.getpid(), signal.SIGKILL)


def tell(began, step, losses, state):
    dice = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)
    report = {
        "rank": RANK, "began": began, "step": step, "losses": losses, "state": digest(state), "dice": digest(dice),
    }  # fmt: skip
    out = os.open(FOLDER / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(out, json.dumps(report).encode() + b"\n")
    os.close(out)


def accelerator(**more):
    set_seed(7 + RANK)
    return Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=5), **more
    )  # fmt: skip


def parts(model):
    """To be prepared: a model with its optimizer and scheduler, and the data."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(data(), batch_size=2, shuffle=True, generator=torch.Generator())
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3), loader


def steps(own, model, optimizer, schedule, loader, step, loss_of):
    """Train each step that is left; gives its number and its loss."""
    while step < LAST:
        epoch, done = divmod(step, BATCHES)
        loader.set_epoch(epoch)
        for (rows,) in own.skip_first_batches(loader, done):
            loss = loss_of(model, rows)
            own.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            may_die(step)
            yield step, loss.item()
            if step == LAST:
                break


def storage(step):
    return StorageType.DISK if step % 4 == 0 or step == LAST else StorageType.MEMORY


def accelerate():
    own = accelerator()
    model, optimizer, schedule, loader = own.prepare(*parts(network()))
    flash, losses = FlashState(own, CHECKPOINTS), []
    began = flash.load_state() or 0
    for step, loss in steps(own, model, optimizer, schedule, loader, began, loss_of):
        losses.append(loss)
        flash.save_state(step, storage(step))
    flash.wait(60)
    tell(began, step, losses, (model.state_dict(), optimizer.state_dict(), schedule.state_dict()))
    own.end_training()


def sharded(version):
    """Accelerate shards on GPUs alone: here it is told that it does. The last bias has fewer rows than the world."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=version, auto_wrap_policy="no_wrap", use_orig_params=True)
    own = accelerator(fsdp_plugin=plugin)
    own.state.fsdp_plugin, own.state.distributed_type = plugin, DistributedType.FSDP
    own.state.device = torch.device("cpu")
    torch.manual_seed(1)
    model, optimizer, schedule, loader = own.prepare(*parts(nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 1))))
    checkpoints, losses = FsdpShardCheckpointer(CHECKPOINTS), []
    extra_sd = checkpoints.load_checkpoint(model, optimizer)
    began = extra_sd.get("step", 0)
    schedule.load_state_dict(extra_sd.get("schedule", schedule.state_dict()))
    for step, loss in steps(own, model, optimizer, schedule, loader, began, lambda model, rows: model(rows).sum()):
        losses.append(loss)
        extra_sd = {"step": step, "schedule": schedule.state_dict()}
        checkpoints.save_checkpoint(step, model, optimizer, extra_sd, storage_type=storage(step))
    checkpoints.wait_latest_checkpoint(60)
    tensors = [*model.parameters(), *(each for of_one in optimizer.state.values() for each in of_one.values())]
    local = [each.to_local() if isinstance(each, DTensor) else each for each in tensors]
    tell(began, step, losses, (local, schedule.state_dict()))
    own.end_training()


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.began, self.losses = network(), 0, []

    def on_train_start(self):
        self.began = self.trainer.global_step

    def training_step(self, batch, at):
        loss = loss_of(self.net, batch[0])
        self.losses.append(loss.item())
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Dies(lightning.Callback):
    def on_train_batch_end(self, trainer, *more):
        may_die(trainer.global_step)


def fits():
    set_seed(7 + RANK)
    model, flash = Net(), FlashCheckpoint(CHECKPOINTS, storage_steps=4)
    loader = Rows(data(), batch_size=2, shuffle=True, generator=torch.Generator())
    trainer = lightning.Trainer(
        max_steps=LAST, accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp",
        callbacks=[flash, Dies()], logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=FOLDER,
    )  # fmt: skip
    trainer.fit(model, loader, ckpt_path=flash.newest())
    flash.wait(60)
    schedule = trainer.lr_scheduler_configs[0].scheduler
    state = model.state_dict(), trainer.optimizers[0].state_dict(), schedule.state_dict()
    tell(model.began, trainer.global_step, model.losses, state)


runs = {"accelerate": accelerate, "lightning": fits, "fsdp-1": lambda: sharded(1), "fsdp-2": lambda: sharded(2)}
runs[KIND]()
