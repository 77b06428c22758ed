"""What one device and its node can do alone: a matrix product, room on disks, memory that others hold."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import torch

from turnout.launcher.errors import ProbeFailed
from turnout.launcher.health.probe import ON_CPU, ON_DEVICE, Plan, Sizes


def room_bytes(folder: str) -> int | None:
    """What is free where this folder lies; None for no folder. Raises OSError."""
    if not folder:
        return None
    system = os.statvfs(folder)
    return system.f_bavail * system.f_frsize


def device_of(plan: Plan) -> tuple[torch.device, Sizes]:
    """Where to measure, and how much."""
    name = plan.device
    if not name:
        usual = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        name = f"{usual.type}:{plan.rank % plan.local}" if usual is not None else "cpu"
    where = torch.device(name)
    return where, plan.measures(ON_CPU if where.type == "cpu" else ON_DEVICE)


def device_used(where: torch.device) -> float | None:
    """The share of a device's memory that is taken before we take any; None on CPUs, and where it is not told."""
    if where.type != "cuda":
        return None
    free_bytes, total_bytes = torch.cuda.mem_get_info(where)
    used: float = 1 - free_bytes / total_bytes
    return used


def product_s(where: torch.device, sizes: Sizes) -> float:
    """The median time of a product of two square matrices. Raises ProbeFailed where it is no number."""
    if where.type == "cpu":
        torch.set_num_threads(1)  # threads that wait for one another on busy cores tell nothing of a node
    fine = where.type == "cuda" and torch.cuda.is_bf16_supported()
    one = torch.rand(sizes.matmul, sizes.matmul, device=where, dtype=torch.bfloat16 if fine else torch.float32)
    product = torch.matmul(one, one)
    if not bool(torch.isfinite(product).all()):
        raise ProbeFailed("a product of finite matrices is not finite")
    return median_s(lambda: torch.matmul(one, one, out=product), where, sizes.matmul_times, sizes.warm_up)


def median_s(once: Callable[[], object], where: torch.device, times: int, warm_up: int) -> float:
    """The median time of what is done so often, each to its end on the device."""
    took = []
    for _ in range(warm_up + times):
        began = time.perf_counter()
        once()
        if where.type != "cpu":
            torch.accelerator.synchronize(where)
        took.append(time.perf_counter() - began)
    return statistics.median(took[warm_up:])
