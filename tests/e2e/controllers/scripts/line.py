"""Fits a line to points of each rank, data-parallel: the training of the scripts beside this one.

torch computes the gradients and averages them over all ranks. Its optimizers and DistributedDataParallel are left out:
they import torch._dynamo, which would take longer than all else that a pod does.
"""

import torch
from torch import distributed

POINTS, WANTED = 64, torch.tensor([[1.0], [2.0], [3.0], [4.0]])


def fit(steps=60, rate=0.1):
    """Train within a process group. Returns this rank's losses, one a step."""
    rank, world = distributed.get_rank(), distributed.get_world_size()
    points = torch.randn(POINTS, len(WANTED), generator=torch.Generator().manual_seed(rank))
    weights = torch.zeros(len(WANTED), 1, requires_grad=True)
    losses = []
    for _ in range(steps):
        loss = ((points @ (weights - WANTED)) ** 2).mean()
        loss.backward()
        distributed.all_reduce(weights.grad)
        with torch.no_grad():
            weights -= rate / world * weights.grad
        weights.grad = None
        losses.append(loss.item())
    return losses
