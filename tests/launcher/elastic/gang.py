"""Real torch in real processes, for test_with_torch.py: one import of torch, of which every rank is a fork.

`python -m tests.launcher.elastic.gang FOLDER` writes what it saw to FOLDER/seen.json.
"""

import json
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path

import torch
import torch._dynamo  # DDP and optimizers import it: here once, else in each fork
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from tests.launcher.elastic.names import BATCHES, WORLDS
from turnout.launcher import addresses
from turnout.launcher.elastic.batch import ElasticBatch
from turnout.launcher.elastic.gradients import synced
from turnout.launcher.elastic.sampler import ElasticSampler

SCRIPT = Path(__file__).resolve().parents[3] / "deploy/examples/train_elastic.py"
LENGTH = 12


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def points():
    dice = torch.Generator().manual_seed(5)
    return torch.randn(LENGTH, 4, generator=dice).double(), torch.randn(LENGTH, 1, generator=dice).double()


def whole_batch(samples):
    """The gradients of the mean over these samples, in one process and one pass."""
    model, (inputs, targets) = network(), points()
    nn.functional.mse_loss(model(inputs[samples]), targets[samples]).backward()
    return [parameter.grad for parameter in model.parameters()]


def with_ddp(world):
    """A wrapped network, and how often its gradients were averaged."""
    model, syncs = DistributedDataParallel(network()), Counter()

    def counted(group, bucket):
        syncs["all"] += 1
        return allreduce_hook(group, bucket)

    model.register_comm_hook(None, counted)
    return model, syncs


def with_fsdp2(world):
    model, syncs = network(), Counter()
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer)
    fully_shard(model)
    next(model.parameters()).register_post_accumulate_grad_hook(lambda _: syncs.update(all=1))
    return model, syncs


def single_passes(world):
    return network(), Counter(all=1)


def passes(model, batch, world, rank, samples, weighed=True):
    """Run one global batch, and give its gradients, whole, and the samples it was made of."""
    inputs, targets = points()
    order = torch.arange(LENGTH).flip(0)[:samples]
    for step in batch.share(world, rank, samples):
        takes = order[list(step.takes) or [0]]
        with synced(model, step.sync):
            loss = nn.functional.mse_loss(model(inputs[takes]), targets[takes])
            (loss * (step.weight if weighed else float(step.samples > 0))).backward()
    grads = [parameter.grad for parameter in model.parameters()]
    return [grad.full_tensor() if hasattr(grad, "full_tensor") else grad for grad in grads], order


def off(grads, expected):
    """The largest difference of any gradient, in parts of the largest gradient."""
    scale = max(grad.abs().max() for grad in expected)
    return float(max((one - two).abs().max() for one, two in zip(grads, expected, strict=True)) / scale)


def gradients(world, rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{world}", rank=rank, world_size=world)
    results = {}
    wrappers = {"DDP": with_ddp, "FSDP2": with_fsdp2} | ({"nothing": single_passes} if world == 1 else {})
    for wrapper, wrap in wrappers.items():
        for name, (size, micro, samples) in BATCHES.items():
            batch = ElasticBatch(size, micro)
            model, syncs = wrap(world)
            grads, order = passes(model, batch, world, rank, samples)
            results[f"{wrapper}, world of {world}, {name}"] = [off(grads, whole_batch(order)), syncs["all"]]
    grads, order = passes(with_ddp(world)[0], ElasticBatch(7), world, rank, 7, weighed=False)
    results[f"unweighed, world of {world}"] = [off(grads, whole_batch(order)), 1]
    (folder / f"gradients-{world}-{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


class Numbers(Dataset):
    """Each sample is its own number."""

    def __len__(self):
        return 40

    def __getitem__(self, at):
        return at


class Told:
    """A plan that notes how far its loader has looked."""

    def __init__(self, plan):
        self.plan, self.pulled = plan, 0

    def __len__(self):
        return len(self.plan)

    def __iter__(self):
        for samples in self.plan:
            self.pulled += 1
            yield samples


def fetching(workers):
    """Rank 1 of 2 with workers that fetch ahead: it dies after two batches, and another world of 1 goes on."""
    sampler, batch = ElasticSampler(40, seed=9), ElasticBatch(4, 1)
    plan_of_rank = Told(sampler.plan(batch, world=2, rank=1))
    loader = DataLoader(
        Numbers(), batch_sampler=plan_of_rank, num_workers=workers, prefetch_factor=4, multiprocessing_context="fork"
    )
    looked_at, cursors, mine = [], [], []
    for step, samples in plan_of_rank.plan.over(loader):
        looked_at.append(plan_of_rank.pulled)
        mine += samples.tolist()
        if step.sync:
            sampler.done(step.global_samples)
        cursors.append(sampler.cursor)
        if len(cursors) == 5:  # in the middle of the third batch
            break
    return {"looked": looked_at, "cursors": cursors, "mine": mine, "state": sampler.state_dict()}


def two_epochs(workers):
    """One loader whose workers live through both epochs."""
    sampler = ElasticSampler(40, seed=9)
    plan = sampler.plan(ElasticBatch(16, 8), world=1, rank=0)
    loader = DataLoader(
        Numbers(), batch_sampler=plan, num_workers=workers, persistent_workers=True, multiprocessing_context="fork"
    )
    epochs = []
    for _ in range(2):
        epochs.append([])
        for step, samples in plan.over(loader):
            epochs[-1] += samples.tolist()
            if step.sync:
                sampler.done(step.global_samples)
        sampler.next_epoch()
    return epochs


def forked(world, work, *args):
    """Run `work` in every rank of a world, each a fork of this process, and give their exit codes."""
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=work, args=(world, rank, *args)) for rank in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
        process.kill()
        process.join()
    return [process.exitcode for process in ranks]


def example(world, rank, port, output_file, *flags):
    """The example as a launcher of that world would start this rank. told: where rank 0's words go."""
    place = {"WORLD_SIZE": world, "RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    sys.argv = [str(SCRIPT), *flags]
    with open(output_file, "a", buffering=1) if rank == 0 else open(os.devnull, "w") as out, redirect_stdout(out):
        runpy.run_path(str(SCRIPT), run_name="__main__")


def free_port():
    return addresses.free_port("127.0.0.1")


def examples(folder):
    """The example to its end in one world; and stopped in mid-epoch under torchrun, ended in a larger world."""
    whole_batch, parted = folder / "whole.pt", folder / "parted.pt"
    output_file, epochs = folder / "told.txt", ["--epochs", "3"]
    codes = [forked(1, example, free_port(), output_file, "--checkpoint", str(whole_batch), *epochs)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    stops = ["--checkpoint", str(parted), *epochs, "--save-every", "7", "--stop-at", "30"]
    with output_file.open("a") as out:
        died = subprocess.run([*torchrun, *stops], stdout=out, stderr=subprocess.DEVNULL, timeout=120, check=False)
    codes += [[died.returncode], forked(3, example, free_port(), output_file, "--checkpoint", str(parted), *epochs)]
    for world in (1, 2):
        following_file = str(folder / f"following-{world}.pt")
        codes += [
            forked(
                world, example, free_port(), output_file, "--checkpoint", following_file, "--epochs", "1", "--follow"
            )
        ]
    ends = [torch.load(path, weights_only=True) for path in (whole_batch, parted)]
    models = [list(end.pop("model").values()) for end in ends]
    for end in ends:
        end.pop("optimizer")
    return {"codes": codes, "told": output_file.read_text().splitlines(), "ends": ends, "off": off(*models)}


def main(folder):
    codes = {world: forked(world, gradients, folder) for world in WORLDS}
    reports = [json.loads(path.read_text()) for path in sorted(folder.glob("gradients-*.json"))]
    loading = {"fetching": fetching(2), "epochs": two_epochs(2)}
    reports = {"codes": codes, "gradients": reports, "example": examples(folder), **loading}
    (folder / "seen.json").write_text(json.dumps(reports))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
