"""Megatron's training script with its import line changed, for several versions: `trains_megatron.py HOME`.

The versions are files of megatrons.py; the last two runs are of the real megatron-core.
"""

import importlib
import os
import sys
from pathlib import Path

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import megatrons
import torch
import torch.distributed as dist
from forks import digest, example, folder, fork, world

import turnout.launcher.flash_checkpoint.named_parts  # noqa: F401 - once for all that are forked
from hack.lint.code_blocks import run_by
from turnout.launcher.errors import LauncherError
from turnout.launcher.flash_checkpoint import StorageType

HOME = sys.argv[1]
MEMORY, DISK = StorageType.MEMORY, StorageType.DISK


class Wrapped(torch.nn.Module):
    """A module that wraps a chunk for data parallelism, as Megatron's does."""

    def __init__(self, module):
        super().__init__()
        self.module = module


class Distributed:
    """A distributed optimizer, as far as checkpoints go: its tensors are not in its state_dict()."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.seen = 0

    def state_dict(self):
        return {"param_groups": [{"lr": 0.1, "params": [0, 1]}]}

    def load_state_dict(self, state):
        self.seen += len(state["param_groups"])

    def get_parameter_state_dp_reshardable(self):
        states = [dict(each) for each in self.optimizer.state.values()]
        return {"per_bucket_numel": [{torch.float32: [20]}], 0: {(torch.float32, torch.float32): [states]}}

    def load_parameter_state_from_dp_reshardable(self, state):
        (bucket,) = state[0][(torch.float32, torch.float32)]
        assert not any(each.pop("padding") for each in bucket)
        for parameter, each in zip(self.optimizer.param_groups[0]["params"], bucket, strict=True):
            self.optimizer.state[parameter] = each


class Schedule:
    """Megatron's opt_param_scheduler."""

    num_steps = 0

    def state_dict(self):
        return {"num_steps": self.num_steps}

    def load_state_dict(self, state):
        self.num_steps = state["num_steps"]


def trains(name, version, last, kind, *, new, distributed=False):
    home = folder(HOME, f"package-{name}")
    path = megatrons.write(home, version, new=new, distributed=distributed)
    sys.path.insert(0, str(home))
    training = importlib.import_module(path)
    arguments = training.get_args()
    arguments.save = arguments.load = str(folder(HOME, name))
    torch.manual_seed(5)
    model = torch.nn.Linear(4, 4)
    inner, schedule = torch.optim.Adam(model.parameters(), lr=0.1), Schedule()
    optimizer = Distributed(inner) if distributed else inner

    def step():
        inner.zero_grad()
        torch.nn.functional.dropout(model(torch.randn(2, 4)), 0.5).sum().backward()
        inner.step()
        schedule.num_steps += 1

    began = training.train([Wrapped(model)], optimizer, schedule, step, last, storage_type=kind)
    checkpointing = importlib.import_module("turnout.launcher.flash_checkpoint.megatron")
    checkpointing.wait_latest_checkpoint(60)
    updated = sys.modules[path.rpartition(".")[0]].UPDATED
    return {
        "began": began, "state": digest([model.state_dict(), list(inner.state.values()), torch.get_rng_state()]),
        "steps": schedule.num_steps, "updated": updated, "samples": arguments.consumed_train_samples,
        "files": sorted(each.name for each in folder(HOME, name).glob("step-*")),
    }  # fmt: skip


def page():
    home = folder(HOME, "package-page")
    training = megatrons.write(home, "0.12.1", new=True)
    sys.path.insert(0, str(home))
    arguments = importlib.import_module(training).get_args()
    arguments.save = arguments.load = str(folder(HOME, "page"))
    model, schedule = torch.nn.Linear(4, 4), Schedule()
    names = {"model": [model], "optimizer": torch.optim.Adam(model.parameters()), "opt_param_scheduler": schedule}
    shown = run_by("tests/launcher/checkpoint/adapters/test_megatron.py::test_the_example_of_the_page_runs")
    first = example(shown, "iteration, flops", train_step=lambda: None, last=2, **names)
    second_page = example(shown, "iteration, flops", train_step=lambda: None, last=0, **names)
    return {"first": (first["iteration"], first["flops"]), "again": (second_page["iteration"], second_page["flops"])}


def refused(version):
    try:
        return {"told": trains(f"v{version}", version, 1, MEMORY, new=False)}
    except ImportError as error:
        return {"told": str(error)}


def gpt(tensor):
    """A GPTModel and a scheduler of megatron-core."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
    from megatron.core.transformer import TransformerConfig

    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor, 1)
    torch.manual_seed(5)
    config = TransformerConfig(
        num_layers=2, hidden_size=16, num_attention_heads=2, use_cpu_initialization=True, bias_dropout_fusion=False,
        masked_softmax_fusion=False, gradient_accumulation_fusion=False, tensor_model_parallel_size=tensor,
    )  # fmt: skip
    model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=32, max_sequence_length=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = OptimizerParamScheduler(
        optimizer, init_lr=0.0, max_lr=0.1, min_lr=0.0, lr_warmup_steps=2, lr_decay_steps=10, lr_decay_style="linear",
        start_wd=0.0, end_wd=0.0, wd_incr_steps=1, wd_incr_style="constant", use_checkpoint_opt_param_scheduler=True,
        override_opt_param_scheduler=False,
    )  # fmt: skip
    return model, optimizer, schedule


def real(name, last, kind, tensor=1):
    """The attention of megatron-core needs CUDA, so the other half of each layer trains."""
    from turnout.launcher.flash_checkpoint.megatron import load_checkpoint, save_checkpoint, wait_latest_checkpoint

    model, optimizer, schedule = gpt(tensor)
    torch.manual_seed(100 + dist.get_rank() % tensor)  # data parallel ranks would be kept alike
    where = folder(HOME, name)
    began = load_checkpoint([model], optimizer, schedule, checkpoint_dir=where)
    for iteration in range(int(began[0]) + 1, last + 1):
        optimizer.zero_grad()
        rows = torch.randn(2, 3, 16)
        for layer in model.decoder.layers:
            rows = torch.nn.functional.dropout(layer.mlp(rows)[0], 0.1)
        rows.sum().backward()
        optimizer.step()
        schedule.step(1)
        if iteration == 3:
            save_checkpoint(
                iteration, [model], optimizer, schedule, iteration * 100, storage_type=kind, checkpoint_dir=where
            )
            wait_latest_checkpoint(60)
    state = [model.state_dict(), optimizer.state_dict(), schedule.state_dict(), torch.get_rng_state()]
    dist.barrier()
    return {"began": began, "state": digest(state), "trained": digest(state[:3])}


def wrong(name):
    try:
        return {"told": real(name, 3, DISK)}
    except (LauncherError, RuntimeError) as error:
        return {"told": f"{type(error).__name__}: {error}"}


def absent(library, module):
    """Make a library look as if it were not installed."""
    sys.modules[library] = None
    try:
        return {"told": str(importlib.import_module(f"turnout.launcher.flash_checkpoint.{module}"))}
    except LauncherError as error:
        return {"told": str(error)}


def versions(version, **how):
    """From nothing, killed at the third iteration; from memory, to storage; from storage alone."""
    fork(HOME, f"{version} first", lambda: trains(version, version, 3, MEMORY, **how), dies=True)
    fork(HOME, f"{version} memory", lambda: trains(version, version, 5, DISK, **how), memory=f"{version} first")
    fork(HOME, f"{version} storage", lambda: trains(version, version, 5, DISK, **how))


for library, module in (("transformers", "hf_trainer"), ("deepspeed", "deepspeed")):
    fork(HOME, f"no {library}", lambda library=library, module=module: absent(library, module))
fork(HOME, "page", page)
fork(HOME, "0.3.0", lambda: refused("0.3.0"))
fork(HOME, "undisturbed", lambda: trains("undisturbed", "0.5.0", 5, MEMORY, new=False))
versions("0.4.0", new=False)
versions("0.5.0", new=False)
versions("0.12.1", new=True, distributed=True)

import megatron.core.models.gpt  # noqa: E402, F401 - seconds; none of the runs before was to see it

world(HOME, "core", 1, lambda: real("core", 5, MEMORY), dies=True)
world(HOME, "core again", 1, lambda: real("core", 5, MEMORY), memory="core")
world(HOME, "tensor", 2, lambda: real("tensor", 5, DISK, 2))
world(HOME, "tensor again", 2, lambda: real("tensor", 5, DISK, 2))
world(HOME, "data", 2, lambda: real("data", 3, DISK))
world(HOME, "data alone", 1, lambda: real("data", 3, DISK))
world(HOME, "tensor alone", 1, lambda: wrong("tensor"))
