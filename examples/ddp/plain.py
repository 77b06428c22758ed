"""A tiny model trained with DDP, on CPU, in seconds. Argument: a folder for its checkpoints."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

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
    sampler = DistributedSampler(data, world, rank, seed=7)
    loader = DataLoader(data, BATCH // world, sampler=sampler)
    file, epoch = folder / "newest.pt", 0
    if file.exists():
        saved = torch.load(file, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        epoch = saved["epoch"]
    while epoch < EPOCHS:
        sampler.set_epoch(epoch)
        for points, sides in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(points), sides)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        epoch += 1
        if rank == 0:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
