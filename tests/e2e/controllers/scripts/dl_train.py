"""Trains five steps of a linear model in step, as the workers of DLRover's samples. argv: the folder of notes."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(step * 100 + dist.get_rank()))
    loss = ((model(batch) - batch.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
world = dist.get_world_size()
dist.barrier()
if dist.get_rank() == 0:
    (folder / f"{os.environ['ELASTIC_JOB_NAME']}-of-{world}").touch()
dist.destroy_process_group()
