"""Measures what one device and its node can do alone: a matrix product, free disk space, device memory in use."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import torch

from turnout.launcher import accelerator
from turnout.launcher.errors import ProbeFailed
from turnout.launcher.health.probe_messages import ON_CPU, ON_DEVICE, ProbePlan, ProbeSizes


def room_bytes(folder: str) -> int | None:
    """Return the free bytes of the file system of this folder; None for "". Raises OSError."""
    if not folder:
        return None
    system = os.statvfs(folder)
    return system.f_bavail * system.f_frsize


def device_of(plan: ProbePlan) -> tuple[torch.device, ProbeSizes]:
    """Return the device to measure, and the sizes."""
    where = torch.device(plan.device or accelerator.device_name(plan.rank % plan.local))
    return where, plan.measures(ON_CPU if where.type == "cpu" else ON_DEVICE)


def device_used(where: torch.device) -> float | None:
    """Return the share of a device's memory that is in use before the probe takes any; None on CPUs."""
    return accelerator.used_memory(where)


def product_s(where: torch.device, sizes: ProbeSizes) -> float:
    """Return the median time of a product of two square matrices in seconds. Raises ProbeFailed if the product is not
    finite.
    """
    if where.type == "cpu":
        torch.set_num_threads(1)  # threads that wait for one another on busy cores would distort the time
    one = torch.rand(sizes.matmul, sizes.matmul, device=where, dtype=accelerator.product_dtype(where))
    product = torch.matmul(one, one)
    if not bool(torch.isfinite(product).all()):
        raise ProbeFailed("a product of finite matrices is not finite")
    return median_s(lambda: torch.matmul(one, one, out=product), where, sizes.matmul_times, sizes.warm_up)


def median_s(once: Callable[[], object], where: torch.device, times: int, warm_up: int) -> float:
    """Return the median time of `times` runs in seconds, each until the device has finished."""
    took = []
    for _ in range(warm_up + times):
        began = time.perf_counter()
        once()
        accelerator.synchronize(where)
        took.append(time.perf_counter() - began)
    return statistics.median(took[warm_up:])
