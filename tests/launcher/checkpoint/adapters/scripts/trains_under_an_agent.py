"""The Trainer of transformers in two ranks of DDP under turnout-run: `trains_under_an_agent.py FOLDER KILLED`.

Each step is saved, in memory alone but for the last. Rank 1 kills itself once, when step KILLED is saved (0: never).
"""

import json
import os
import signal
import sys

import torch
import transformers
from forks import digest
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments

from turnout.launcher.flash_checkpoint.hf_trainer import FlashCkptTrainer

FOLDER, KILLED = sys.argv[1], int(sys.argv[2])
RANK, RESTARTS = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])


class Watch(TrainerCallback):
    began = None

    def on_train_begin(self, args, state, control, **more):
        self.began = state.global_step

    def on_save(self, args, state, control, **more):
        if (state.global_step, RANK, RESTARTS) == (KILLED, 1, 0):
            os.kill(os.getpid(), signal.SIGKILL)


def sees(model, arguments, inputs):
    model.seen += inputs["input_ids"].float().mean()


transformers.set_seed(7)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=8, vocab_size=32, use_cache=False))
model.register_buffer("seen", torch.zeros(1))  # each rank of DDP has its own
model.register_forward_pre_hook(sees, with_kwargs=True)
dice = torch.Generator().manual_seed(3)
rows = [torch.randint(0, 32, (8,), generator=dice) for _ in range(12)]
arguments = TrainingArguments(
    output_dir=os.path.join(FOLDER, "checkpoints"), max_steps=8, per_device_train_batch_size=2, save_steps=1,
    report_to=[], use_cpu=True, ddp_backend="gloo", disable_tqdm=True, learning_rate=0.01,
)  # fmt: skip
watch = Watch()
trainer = FlashCkptTrainer(
    model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows], callbacks=[watch],
    storage_steps=100,
)  # fmt: skip
trainer.train(resume_from_checkpoint=True)
state = trainer.model.state_dict(), trainer.optimizer.state_dict(), trainer.lr_scheduler.state_dict()
report = {"rank": RANK, "began": watch.began, "state": digest(state), "dice": digest(torch.get_rng_state())}
out = os.open(os.path.join(FOLDER, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.write(out, json.dumps(report).encode() + b"\n")
