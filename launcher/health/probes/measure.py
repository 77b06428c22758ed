"""Measures one node with torch: its device, the links between its GPUs, and collectives with its group.

Only a probe process imports this module (launcher/health/probes/__main__.py), and it is killed when it is stuck.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import Protocol

import torch
import torch.distributed as dist

from turnout.launcher import accelerator
from turnout.launcher.errors import ProbeFailed
from turnout.launcher.health.model import Bandwidths, Pair
from turnout.launcher.health.probe_messages import ON_CPU, ON_DEVICE, ProbePlan, ProbeSizes


def room_bytes(folder: str) -> int | None:
    """Return the free bytes of the file system of this folder; None for "". Raises OSError if the folder is missing."""
    if not folder:
        return None
    system = os.statvfs(folder)
    return system.f_bavail * system.f_frsize


def device_of(plan: ProbePlan) -> tuple[torch.device, ProbeSizes]:
    """Return the device that a plan's probe measures, and the sizes that suit it."""
    device = torch.device(plan.device or accelerator.device_name(plan.rank % plan.processes_per_member))
    return device, plan.measures(ON_CPU if device.type == "cpu" else ON_DEVICE)


def device_used(device: torch.device) -> float | None:
    """Return the share of a device's memory, 0 to 1, that others use, if called first; None on CPUs."""
    return accelerator.used_memory(device)


def product_s(device: torch.device, sizes: ProbeSizes) -> float:
    """Return the median time of a product of two square matrices in seconds. Raises ProbeFailed if the product is not
    finite.
    """
    if device.type == "cpu":
        torch.set_num_threads(1)  # threads that wait for one another on busy cores would distort the time
    matrix = torch.rand(sizes.matmul, sizes.matmul, device=device, dtype=accelerator.product_dtype(device))
    product = torch.matmul(matrix, matrix)
    if not bool(torch.isfinite(product).all()):
        raise ProbeFailed("a product of finite matrices is not finite")
    return median_s(lambda: torch.matmul(matrix, matrix, out=product), device, sizes.matmul_times, sizes.warm_up)


def median_s(run_once: Callable[[], object], device: torch.device, times: int, warm_up: int) -> float:
    """Return the median time of `times` runs of `run_once` in seconds, each until the device has finished.

    warm_up: runs before them that are not timed.
    """
    took = []
    for _ in range(warm_up + times):
        began = time.perf_counter()
        run_once()
        accelerator.synchronize(device)
        took.append(time.perf_counter() - began)
    return statistics.median(took[warm_up:])


_MB = 1_000_000

_INT_BYTES = 4


class LinkProbe(Protocol):
    """Measures one link between two GPUs, in both directions. The slower direction counts."""

    def mb_per_s(self, gpu: int, other_gpu: int) -> float:
        """Measure the link between two GPUs in MB/s. Raises ProbeFailed if nothing arrives, or other bytes than were
        sent.
        """
        ...


def bandwidths(pairs: Sequence[Pair], probe: LinkProbe) -> Bandwidths:
    """Measure links one after another, since parallel copies would share the switchbox. A link that fails gets None."""
    return tuple((pair, _link_mb_per_s(pair, probe)) for pair in pairs)


def _link_mb_per_s(pair: Pair, probe: LinkProbe) -> float | None:
    """Return the bandwidth of a pair of GPUs in MB/s; None if it cannot be measured."""
    try:
        return probe.mb_per_s(*pair)
    except (ProbeFailed, RuntimeError):  # RuntimeError is torch's
        return None


class PeerCopy:
    """Copies from the memory of one GPU to that of another, as CUDA numbers them."""

    def __init__(self, copy_bytes: int = 256 << 20, times: int = 10, warm_up: int = 2) -> None:
        self._copy_bytes, self._times, self._warm_up = copy_bytes, times, warm_up

    def mb_per_s(self, gpu: int, other_gpu: int) -> float:
        """Measure the link between two GPUs in MB/s. Raises ProbeFailed if a GPU is missing, if they reach each other
        only through the host, or if other bytes arrive than were sent.
        """
        return min(self._measure_copy(gpu, other_gpu), self._measure_copy(other_gpu, gpu))

    def _measure_copy(self, source: int, target: int) -> float:
        """Return the bandwidth of a copy between two GPUs, in MB/s.

        source, target: device indices. Raises ProbeFailed if a GPU is missing, unreachable, or received other bytes.
        """
        import torch

        from turnout.launcher import accelerator

        if max(source, target) >= accelerator.device_count():
            raise ProbeFailed(f"there is no GPU {max(source, target)}")
        if not accelerator.has_peer_link(source, target):
            raise ProbeFailed(f"GPU {source} does not reach GPU {target}")
        sent = torch.arange(self._copy_bytes // _INT_BYTES, dtype=torch.int32, device=f"cuda:{source}")
        received = torch.zeros_like(sent, device=f"cuda:{target}")

        def copy_once() -> None:
            received.copy_(sent, non_blocking=True)
            accelerator.synchronize(received.device)

        took_s = median_s(copy_once, sent.device, self._times, self._warm_up)
        if not torch.equal(received.cpu(), sent.cpu()):
            raise ProbeFailed(f"GPU {target} got something else than GPU {source} sent")
        return self._copy_bytes / took_s / _MB


_LOOK_S = 0.05

_FLOAT_BYTES = 4

_CLOCK_READINGS = 3  # clock readings; the fastest round trip is the most exact

_BROKEN = "broken"


def _wait_for_listener(plan: ProbePlan) -> None:
    """Wait until the first process of the group listens. Raises ProbeFailed after `meet_s`, or if its host is down.

    A running host refuses connections until the process listens; a host that does not answer is down. torch's store
    would wait the full time in both cases.
    """
    until_s = time.monotonic() + plan.meet_s
    while True:
        try:
            socket.create_connection((plan.address, plan.port), plan.stage_s).close()
        except ConnectionRefusedError as error:
            if time.monotonic() > until_s:
                raise ProbeFailed(f"nobody listens at {plan.address}: {error}") from error
        except OSError as error:
            raise ProbeFailed(f"{plan.address} does not answer: {error}") from error
        else:
            return
        time.sleep(_LOOK_S)


class CollectiveProbe:
    """One process of a probe group. The first one holds the store through which they meet.

    Raises ProbeFailed if the first one's host does not answer. All calls raise torch's RuntimeError if the store or a
    collective fails; `report_broken` and `leave_group` raise nothing.
    """

    def __init__(self, plan: ProbePlan) -> None:
        self._plan, self._device, self._sizes = plan, torch.device("cpu"), ON_CPU
        if plan.rank:
            _wait_for_listener(plan)
        self._store = dist.TCPStore(
            plan.address,
            plan.port,
            plan.processes,
            plan.rank == 0,
            timedelta(seconds=plan.meet_s),
            wait_for_workers=False,
        )

    def meet(self, device: torch.device, sizes: ProbeSizes) -> None:
        """Wait for the other processes of the group, then connect them for collectives.

        Raises ProbeFailed if one of them reports that it is broken, or after `meet_s`, and torch's RuntimeError if the
        store or the group fails.
        """
        plan, until_s = self._plan, time.monotonic() + self._plan.meet_s
        self._device, self._sizes = device, sizes
        self._store.set(f"here/{plan.rank}", "1")
        while not self._store.check([f"here/{rank}" for rank in range(plan.processes)]):
            if self._store.check([_BROKEN]):
                raise ProbeFailed("another process of this group is broken")
            if time.monotonic() > until_s:
                raise ProbeFailed(f"the others have not come within {plan.meet_s:g} s")
            time.sleep(_LOOK_S)
        self._store.set_timeout(timedelta(seconds=plan.stage_s))
        dist.init_process_group(
            dist.get_default_backend_for_device(self._device),
            store=dist.PrefixStore("group", self._store),
            rank=plan.rank,
            world_size=plan.processes,
            timeout=timedelta(seconds=plan.stage_s),
            device_id=None if self._device.type == "cpu" else self._device,
        )

    def reduce_s(self) -> float:
        """Return the median time of an all-reduce in seconds. Raises ProbeFailed if its sum is wrong."""
        sizes = self._sizes
        ones = torch.ones(max(sizes.reduce_bytes // _FLOAT_BYTES, 1), device=self._device)
        dist.all_reduce(ones)
        if not bool((ones == self._plan.processes).all()):
            raise ProbeFailed("the sum of an all-reduce is wrong")
        ones.zero_()  # repeated sums of ones would overflow soon
        return median_s(lambda: dist.all_reduce(ones), self._device, sizes.reduce_times, sizes.warm_up)

    def bandwidth_bytes_s(self) -> float:
        """Return the bytes per second sent to the next member, while as many come from the member before."""
        plan, sizes = self._plan, self._sizes
        out = torch.zeros(max(sizes.pair_bytes // _FLOAT_BYTES, 1), device=self._device)
        into = torch.empty_like(out)
        to, source = (
            (plan.rank + plan.processes_per_member) % plan.processes,
            (plan.rank - plan.processes_per_member) % plan.processes,
        )

        def exchange_once() -> None:
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, into, source)]):
                work.wait()

        sent_bytes: int = out.numel() * _FLOAT_BYTES
        return sent_bytes / median_s(exchange_once, self._device, sizes.pair_times, sizes.warm_up)

    def clock_s(self) -> tuple[float, float]:
        """Return by how many seconds this clock is ahead of the first process's clock, and the precision in seconds.

        Only one process of each member asks; (0, 0) for the others and for the first process, which answers.
        """
        plan = self._plan
        if plan.rank == 0:
            for rank in range(plan.processes_per_member, plan.processes, plan.processes_per_member):
                for time_ in range(_CLOCK_READINGS):
                    self._store.wait([f"asked/{rank}/{time_}"])
                    self._store.set(f"told/{rank}/{time_}", repr(time.time()))
        if plan.rank == 0 or plan.rank % plan.processes_per_member:
            return 0.0, 0.0
        best = (0.0, inf)
        for time_ in range(_CLOCK_READINGS):
            began_s = time.time()
            self._store.set(f"asked/{plan.rank}/{time_}", "1")
            answered_s = float(self._store.get(f"told/{plan.rank}/{time_}"))
            ended_s = time.time()
            best = min(best, ((began_s + ended_s) / 2 - answered_s, (ended_s - began_s) / 2), key=lambda each: each[1])
        return best

    def report_broken(self) -> None:
        """Tell the group that this process cannot take part, so that nobody waits for it."""
        with suppress(RuntimeError):
            self._store.set(_BROKEN, "1")

    def leave_group(self) -> None:
        """Leave the group. The first process waits until all others have left, or until the wait times out."""
        plan = self._plan
        with suppress(RuntimeError):
            self._store.set(f"left/{plan.rank}", "1")
            if plan.rank == 0:
                self._store.wait([f"left/{rank}" for rank in range(plan.processes)])
