"""A tiny model trained with DDP, on CPU, in seconds. Argument: a folder for its checkpoints."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from turnout import Checkpointer, ElasticBatch, ElasticSampler, Steps

EPOCHS, BATCH, RATE = 4, 32, 0.05


def samples(count: int = 500) -> TensorDataset:
    """Points, and on which side of a curve they lie: the same on every rank."""
    dice = torch.Generator().manual_seed(7)
    points = torch.rand(count, 2, generator=dice, dtype=torch.float64) * 2 - 1
    return TensorDataset(points, (points[:, :1] > points[:, 1:] ** 2).double())


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    data = samples()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    sampler = ElasticSampler(len(data), seed=7)
    plan = sampler.plan(ElasticBatch(BATCH), world=world, rank=rank)
    loader = DataLoader(data, batch_sampler=plan)
    state = {"model": model.module, "optimizer": optimizer, "sampler": sampler}
    checkpoints, steps, last = Checkpointer(folder, replicated=True, keep=2), Steps(), False
    step, _ = checkpoints.load(into=state) or (0, None)
    while sampler.epoch < EPOCHS and not last:
        for part, (points, sides) in plan.over(loader):
            loss = nn.functional.binary_cross_entropy_with_logits(model(points), sides) * part.weight
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            sampler.done(part.global_samples)
            step, last = step + 1, steps.done(step + 1)
            checkpoints.save(step, state, disk=last or not sampler.left)
            if last:
                break
        else:
            sampler.next_epoch()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
