"""Trains in a trial of preload.py: one of three typical scripts, and a line for the first step of each life.

Arguments: ddp, transformers or lightning; a file, to which each life adds its round, rank, pid, and when its first step
was done.
"""

import os
import sys
import time

STEPS = 100_000
_noted = False


def note() -> None:
    """Write the line of this life, once, and leave the machine some time."""
    global _noted
    if not _noted:
        round_ = os.environ.get("TURNOUT_ROUND") or int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
        with open(sys.argv[2], "a") as file:
            file.write(f"{round_} {os.environ['RANK']} {os.getpid()} {time.monotonic()}\n")
        _noted = True
    time.sleep(0.05)


def ddp() -> None:
    """Train with plain DDP over gloo."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        note()


def transformers() -> None:
    """Train with the Trainer of transformers."""
    import tempfile

    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

    class Notes(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
        def on_step_end(self, *_: object, **__: object) -> None:
            note()

    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=64)
    one = {"input_ids": torch.zeros(8, dtype=torch.long), "labels": torch.tensor(0)}
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), max_steps=STEPS, report_to=[], use_cpu=True, ddp_backend="gloo",
        disable_tqdm=True, save_strategy="no", per_device_train_batch_size=2,
    )  # fmt: skip
    Trainer(BertForSequenceClassification(config), arguments, train_dataset=[one] * 64, callbacks=[Notes()]).train()


def lightning() -> None:
    """Train with the Trainer of Lightning."""
    import torch
    from lightning import LightningModule, Trainer
    from torch.utils.data import DataLoader

    class Model(LightningModule):  # type: ignore[misc]  # Lightning has no types here
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return self.layer(batch).sum()

        def on_train_batch_end(self, *_: object) -> None:
            note()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    trainer = Trainer(
        accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp", max_steps=STEPS, max_epochs=-1,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Model(), DataLoader(torch.ones(64, 4), batch_size=2))


if __name__ == "__main__":
    {"ddp": ddp, "transformers": transformers, "lightning": lightning}[sys.argv[1]]()
