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
from torch.utils.data import DataLoader, TensorDataset

from turnout import ElasticBatch, ElasticSampler, FlashStorageReader, FlashStorageWriter, Steps

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
    sampler = ElasticSampler(len(data), seed=7)
    plan = sampler.plan(ElasticBatch(BATCH), world=world, rank=rank)
    loader = DataLoader(data, batch_sampler=plan)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "sampler": sampler.state_dict(), "step": 0}
    if reader := FlashStorageReader(folder):
        dcp.load(state, storage_reader=reader)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        sampler.load_state_dict(state["sampler"])
    step, steps, last = state["step"], Steps(), False
    while sampler.epoch < EPOCHS and not last:
        for part, (points, sides) in plan.over(loader):
            loss = nn.functional.binary_cross_entropy_with_logits(model(points), sides) * part.weight
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            sampler.done(part.global_samples)
            step, last = step + 1, steps.done(step + 1)
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments, "sampler": sampler.state_dict(), "step": step}
            writer = FlashStorageWriter(folder, step=step, disk=last or not sampler.left, keep=2, replicas=1)
            dcp.save(state, storage_writer=writer)
            if last:
                break
        else:
            sampler.next_epoch()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
