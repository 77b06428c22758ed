"""Broadcasts two integers from rank 0 to all ranks, if torch.distributed is initialized."""

from __future__ import annotations

import torch
import torch.distributed as dist

from turnout.launcher.accelerator import collective_device


def is_connected(world: int) -> bool:
    """True if the world has other ranks and torch.distributed connects all `world` of them."""
    return world > 1 and dist.is_available() and dist.is_initialized() and dist.get_world_size() == world


def broadcast_pair(numbers: tuple[int, int]) -> tuple[int, int]:
    """Broadcast two integers from rank 0; return rank 0's numbers on every rank. A collective: every rank has to call
    it.
    """
    values = torch.tensor(numbers, dtype=torch.int64, device=collective_device(dist.get_backend()))
    dist.broadcast(values, src=0)
    first, second = values.tolist()
    return int(first), int(second)
