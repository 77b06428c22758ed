"""The Trainer of transformers, ten steps of a tiny model with dropout: `trains_hugging_face.py HOME`."""

import os
import random
import shutil
import signal
import sys
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed  # noqa: F401 - where it is there each Trainer imports it
import numpy as np
import torch
import transformers
from forks import digest, example, folder, fork
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments

from hack.lint.code_blocks import run_by
from turnout.launcher.flash_checkpoint.hf_trainer import FlashCkptTrainer
from turnout.launcher.health.hang_monitor.progress import PROGRESS, StepCounters

HOME, LAST, BATCHES = sys.argv[1], 10, 4


class Watch(TrainerCallback):
    """Sees where training begins; kills its process when step `killed` is trained, and not saved."""

    def __init__(self, killed=0):
        self.killed, self.began, self.trainer = killed, None, None

    def on_train_begin(self, args, state, control, **more):
        self.began = state.global_step

    def on_step_end(self, args, state, control, **more):
        if state.global_step == self.killed:
            self.trainer.flash.wait(60)
            shutil.copytree(folder(HOME, "killed"), Path(HOME, "from_storage"))
            os.kill(os.getpid(), signal.SIGKILL)


def given(name, last=LAST):
    """A model, arguments and data, as a script has them."""
    transformers.set_seed(7)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=8, vocab_size=32, use_cache=False))
    dice = torch.Generator().manual_seed(3)
    rows = [torch.randint(0, 32, (8,), generator=dice) for _ in range(2 * BATCHES)]
    arguments = TrainingArguments(
        output_dir=str(folder(HOME, name)), max_steps=last, per_device_train_batch_size=2, save_steps=2,
        logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True, learning_rate=0.01,
    )  # fmt: skip
    return model, arguments, [{"input_ids": row, "labels": row} for row in rows]


def trainer(name, killed):
    model, arguments, data = given(name)
    watch = Watch(killed)
    flash_trainer = FlashCkptTrainer(model, arguments, train_dataset=data, callbacks=[watch], storage_steps=4)
    watch.trainer = flash_trainer
    return flash_trainer, watch


def trains(name, killed=0):
    flash_trainer, watch = trainer(name, killed)
    flash_trainer.train(resume_from_checkpoint=True)
    flash_trainer.flash.wait(60)
    state = (
        flash_trainer.model.state_dict(),
        flash_trainer.optimizer.state_dict(),
        flash_trainer.lr_scheduler.state_dict(),
    )
    dice = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)
    tied = flash_trainer.model.lm_head.weight is flash_trainer.model.transformer.wte.weight
    steps = [each["step"] for each in flash_trainer.state.log_history if "loss" in each]
    files = sorted(each.name for each in folder(HOME, name).iterdir())
    return {
        "began": watch.began, "step": flash_trainer.state.global_step, "state": digest(state), "dice": digest(dice),
        "tied": tied, "logged": steps, "files": files,
    }  # fmt: skip


def page():
    watched = StepCounters(Path(HOME), 1)
    os.environ[PROGRESS] = str(watched.paths[0])
    model, arguments, data = given("page", last=3)
    shown = run_by("tests/launcher/checkpoint/adapters/test_hugging_face.py::test_the_example_of_the_page_runs")
    page_trainer = example(shown, "hf_trainer", model=model, arguments=arguments, data=data)["trainer"]
    trained = watched.progress()[0]
    page_trainer.evaluate(data)
    evaluated = watched.progress()[0]
    page_trainer.flash.wait(60)
    files = sorted(each.name for each in folder(HOME, "page").iterdir())
    report = {"turns": [trained.turns, evaluated.turns], "phase": evaluated.phase}
    return {"step": page_trainer.state.global_step, "files": files, "watched": report}


fork(HOME, "page", page)
fork(HOME, "undisturbed", lambda: trains("undisturbed"))
fork(HOME, "killed", lambda: trains("killed", killed=7))
fork(HOME, "from_memory", lambda: trains("killed"), memory="killed")
fork(HOME, "from_storage", lambda: trains("from_storage"))
