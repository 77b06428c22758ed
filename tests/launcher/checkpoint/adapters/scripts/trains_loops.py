"""Loops of Accelerate and of Lightning over ten steps of a tiny model with dropout: `trains_loops.py HOME`.

Each step is saved in memory, each fourth in storage. One process of each kind kills itself in the seventh step.
"""

import os

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "1", "DS_ACCELERATOR": "cpu"}

import random
import shutil
import signal
import sys
import warnings
from pathlib import Path

import lightning
import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from forks import digest, example, folder, fork
from rows import Rows
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hack.lint.code_blocks import run_by
from turnout.launcher.flash_checkpoint.accelerate import FlashState, StorageType
from turnout.launcher.flash_checkpoint.lightning import FlashCheckpoint

HOME, LAST, BATCHES = sys.argv[1], 10, 4
warnings.simplefilter("ignore")


def data():
    dice = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(2 * BATCHES, 4, generator=dice))


def rows():
    return Rows(data(), batch_size=2, generator=torch.Generator())


def network():
    return nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.2), nn.Linear(6, 1))


def dies(name, wait):
    """When storage has what is to be there; a copy of that goes on without this one's memory."""
    wait(60)
    shutil.copytree(folder(HOME, name), Path(HOME, f"{name}-stored"))
    os.kill(os.getpid(), signal.SIGKILL)


def print_report(name, began, step, state):
    dice = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)
    files = sorted(each.name for each in folder(HOME, name).iterdir())
    return {"began": began, "step": step, "state": digest(state), "dice": digest(dice), "files": files}


class Seen:
    """A class of the script's own: it counts how often each row came."""

    def __init__(self):
        self.sums = torch.zeros(4)

    def state_dict(self):
        return {"sums": self.sums}

    def load_state_dict(self, state):
        self.sums = state["sums"]


def prepared(compiles=False):
    """An Accelerator, and what it has prepared."""
    set_seed(7)
    own = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    loader = DataLoader(data(), batch_size=2, shuffle=True, generator=torch.Generator())
    model = torch.compile(model, backend="eager") if compiles else model
    return own, own.prepare(model, optimizer, schedule, loader)


def accelerate(name, killed=0, last=LAST):
    own, (model, optimizer, schedule, loader) = prepared()
    watcher = Seen()
    own.register_for_checkpointing(watcher)
    flash = FlashState(own, folder(HOME, name))
    began = step = flash.load_state() or 0
    while step < last:
        epoch, done = divmod(step, BATCHES)
        loader.set_epoch(epoch)
        for (rows,) in own.skip_first_batches(loader, done):
            own.backward(model(rows).sum())
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            watcher.sums += rows.sum(0) * step + random.random() + np.random.rand()
            step += 1
            if step == killed:
                dies(name, flash.wait)
            flash.save_state(step, StorageType.MEMORY if step % 4 else StorageType.DISK)
            if step == last:
                break
    flash.wait(60)
    parts = model.state_dict(), optimizer.state_dict(), schedule.state_dict(), watcher.sums
    return print_report(name, began, step, parts)


def other():
    """Build other models: what is loaded has to be what was saved, found by its names."""
    own, (model, *_) = prepared(compiles=True)
    plain = FlashState(own, folder(HOME, "other"))
    plain.save_state(1)
    plain.wait(60)
    weights = digest(list(model.state_dict().values()))
    second_accelerator, (model, *_) = prepared()
    model.load_state_dict({name: each + 1 for name, each in model.state_dict().items()})
    FlashState(second_accelerator, folder(HOME, "other")).load_state()
    found = digest(list(model.state_dict().values()))
    second_accelerator.register_for_checkpointing(Seen())
    try:
        FlashState(second_accelerator, folder(HOME, "other")).load_state()
    except Exception as error:
        return {"same": found == weights, "why": str(error)}


class Net(lightning.LightningModule):
    def __init__(self, rate=0.01):
        super().__init__()
        self.save_hyperparameters()
        self.net = network()

    def training_step(self, batch, at):
        return self.net(batch[0]).sum() + 0 * random.random()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.rate)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Kills(lightning.Callback):
    """Kills its process when a step is trained, and not saved."""

    def __init__(self, name, killed, flash):
        self.name, self.killed, self.flash, self.began = name, killed, flash, None

    def on_train_start(self, trainer, model):
        self.began = trainer.global_step

    def on_train_batch_end(self, trainer, *more):
        if trainer.global_step == self.killed:
            dies(self.name, self.flash.wait)


def trainer_of(name, callbacks, last):
    return lightning.Trainer(
        max_steps=last, accelerator="cpu", callbacks=callbacks, logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder(HOME, f"{name}-root"),
    )  # fmt: skip


def fits(name, killed=0, last=LAST):
    set_seed(7)
    model = Net()
    flash = FlashCheckpoint(folder(HOME, name), storage_steps=4)
    kills = Kills(name, killed, flash)
    trainer = trainer_of(name, [flash, kills], last)
    trainer.fit(model, rows(), ckpt_path=flash.newest())
    flash.wait(60)
    state = (
        model.state_dict(),
        trainer.optimizers[0].state_dict(),
        trainer.lr_scheduler_configs[0].scheduler._step_count,
    )
    checkpoint_files = [str(each) for each in folder(HOME, f"{name}-root").rglob("*.ckpt")]
    return print_report(name, kills.began, trainer.global_step, state) | {"written": checkpoint_files}


def page(word):
    own, (model, optimizer, *_) = prepared()
    names = {
        "flash_checkpoint.accelerate": {
            "accelerator": own, "model": model, "optimizer": optimizer,
            "batches": [torch.randn(2, 4) for _ in range(3)],
        },
        "flash_checkpoint.lightning": {
            "Trainer": lambda **more: trainer_of("page", more["callbacks"], 3), "model": Net(),
            "data": rows(),
        },
    }[word]  # fmt: skip
    home = folder(HOME, f"page-{word}")
    shown = run_by("tests/launcher/checkpoint/adapters/test_loops.py::test_the_example_of_the_page_runs")
    flash = example(shown, word, folder=home, **names)["flash"]
    flash.wait(60)
    return {"files": sorted(each.name for each in home.iterdir())}


for name, run in {"accelerate": accelerate, "lightning": fits}.items():
    fork(HOME, f"{name}-page", lambda name=name: page(f"flash_checkpoint.{name}"))
    fork(HOME, f"{name}-undisturbed", lambda name=name, run=run: run(f"{name}-undisturbed"))
    fork(HOME, f"{name}-killed", lambda name=name, run=run: run(f"{name}-killed", killed=7))
    fork(HOME, f"{name}-memory", lambda name=name, run=run: run(f"{name}-killed"), memory=f"{name}-killed")
    fork(HOME, f"{name}-stored", lambda name=name, run=run: run(f"{name}-killed-stored"))
fork(HOME, "accelerate-other", other)
