"""DeepSpeed's engine over gloo: `trains_deepspeed.py HOME`. Three steps, a save, three more; again from the save."""

import os
import sys

os.environ |= {"DS_ACCELERATOR": "cpu", "TORCHINDUCTOR_COMPILE_THREADS": "1"}

import deepspeed
import deepspeed.runtime.zero.muon.original_muon  # compiles, as each first engine would
import torch
import torch.distributed as dist
from forks import digest, example, folder, world

from hack.lint.code_blocks import run_by
from turnout.launcher.flash_checkpoint.deepspeed import DeepSpeedCheckpointer, StorageType

HOME, ENDS = sys.argv[1], 6
# DeepSpeed would compile an extension of its own for collectives on one machine: minutes, and gloo does as well.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def engine_of(stage):
    torch.manual_seed(11)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    config = {
        "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage}, "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
    }  # fmt: skip
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config, dist_init_required=False,
        lr_scheduler=schedule if stage < 3 else None,
    )  # fmt: skip
    return engine


def step(engine):
    rows = torch.randn(2, 4).bfloat16()
    engine.backward(engine(rows).float().sum())
    engine.step()


def trains(name, stage, kind=StorageType.MEMORY):
    """From the newest step, if there is one, to the end; saved at the third."""
    deepspeed.init_distributed("gloo")
    engine = engine_of(stage)
    before = dict(engine.__dict__)["checkpoint_engine"], engine.save_non_zero_checkpoint
    torch.manual_seed(100 + dist.get_rank())
    checkpoints = DeepSpeedCheckpointer(engine, folder(HOME, name))
    path, client = checkpoints.load_checkpoint()
    began = engine.global_steps
    while engine.global_steps < ENDS:
        step(engine)
        if engine.global_steps == 3:
            checkpoints.save_checkpoint(folder(HOME, name), client_state={"epoch": 1}, storage_type=kind)
            checkpoints.wait_latest_checkpoint(60)
    weights = {key: each.detach().clone() for key, each in engine.module.state_dict().items()}
    after = engine.checkpoint_engine, engine.save_non_zero_checkpoint
    dist.barrier()
    return {
        "began": began, "client": client and client["epoch"], "same": before == after,
        "path": path and os.path.relpath(path, HOME),
        "state": digest([weights, engine.optimizer.state_dict()["base_optimizer_state"] if stage in (1, 2) else None]),
        "dice": digest(torch.get_rng_state()), "files": sorted(each.name for each in folder(HOME, name).rglob("*")),
    }  # fmt: skip


def page():
    deepspeed.init_distributed("gloo")
    engine, data = engine_of(1), [torch.randn(2, 4).bfloat16() for _ in range(3)]
    shown = run_by("tests/launcher/checkpoint/adapters/test_deepspeed.py::test_the_example_of_the_page_runs")
    found = example(shown, "DeepSpeedCheckpointer", engine=engine, data=data, folder=folder(HOME, "page"))[
        "checkpoints"
    ]
    step(engine)
    found.load_checkpoint()
    return {"step": engine.global_steps}


world(HOME, "page", 1, page)
for stage in (1, 3):
    world(HOME, f"zero{stage}", 1, lambda stage=stage: trains(f"zero{stage}", stage), dies=True)
    world(HOME, f"zero{stage}-again", 1, lambda stage=stage: trains(f"zero{stage}", stage), memory=f"zero{stage}")
world(HOME, "two", 2, lambda: trains("two", 2, StorageType.DISK))
world(HOME, "two-again", 2, lambda: trains("two", 2, StorageType.DISK))
