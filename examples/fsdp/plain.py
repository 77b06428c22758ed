"""A tiny model trained with FSDP2, on CPU, in seconds. Argument: a folder for its checkpoints."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
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
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    sampler = DistributedSampler(data, world, rank, seed=7)
    loader = DataLoader(data, BATCH // world, sampler=sampler)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "epoch": 0}
    if (folder / ".metadata").exists():
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    epoch = state["epoch"]
    while epoch < EPOCHS:
        sampler.set_epoch(epoch)
        for points, sides in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(points), sides)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        epoch += 1
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments, "epoch": epoch}, checkpoint_id=folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
