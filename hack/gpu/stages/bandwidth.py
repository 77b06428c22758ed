"""Measures raw copies between host and device, pinned and pageable: the physical limit of every save and restore."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

from hack.gpu.figures import arguments
from turnout.launcher.accelerator import synchronize

_TIMES = 5


def gigabytes_s(copy: Callable[[], object], size: int, device: torch.device) -> float:
    """Time a copy several times, and return the median rate in GB/s. size: bytes of the copy.

    device: whose work is awaited.
    """
    took = []
    for _ in range(_TIMES + 1):
        synchronize(device)
        began_s = time.perf_counter()
        copy()
        synchronize(device)
        took.append(time.perf_counter() - began_s)
    return size / statistics.median(took[1:]) / 1e9


def main() -> int:
    """Report the rate in both directions, from pinned and from pageable memory; on a CPU only from pageable. Return
    0.
    """
    args = arguments()
    device = torch.device(args.device)
    size = (1 << 30) if args.device == "cuda" else (32 << 20)
    on_device = torch.ones(size, dtype=torch.uint8, device=device)
    kinds = {"pinned": True, "pageable": False} if args.device == "cuda" else {"pageable": False}
    for name, pinned in kinds.items():
        on_host = torch.ones(size, dtype=torch.uint8, pin_memory=pinned)
        to_host = partial(on_host.copy_, on_device, non_blocking=True)
        to_device = partial(on_device.copy_, on_host, non_blocking=True)
        args.report(f"{name}_to_host", gigabytes_s(to_host, size, device), "GB/s")
        args.report(f"{name}_to_device", gigabytes_s(to_device, size, device), "GB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
