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


_MB = 1_000_000

_INT_BYTES = 4


class LinkProbe(Protocol):
    """Measures one link. The slower direction counts."""

    def mb_per_s(self, one: int, other: int) -> float:
        """Measure the link between two GPUs in MB/s. Raises ProbeFailed if nothing arrives, or other bytes than were
        sent.
        """
        ...


def bandwidths(pairs: Sequence[Pair], probe: LinkProbe) -> Bandwidths:
    """Measure all these links one after another, since parallel copies would share the switchbox."""
    return tuple((pair, _measured(pair, probe)) for pair in pairs)


def _measured(pair: Pair, probe: LinkProbe) -> float | None:
    """Return the bandwidth of a pair of GPUs in MB/s; None if it cannot be measured."""
    try:
        return probe.mb_per_s(*pair)
    except (ProbeFailed, RuntimeError):  # RuntimeError is torch's
        return None


class PeerCopy:
    """Copies from the memory of one GPU to that of another, as CUDA numbers them."""

    def __init__(self, copy_bytes: int = 256 << 20, times: int = 10, warm_up: int = 2) -> None:
        self._copy_bytes, self._times, self._warm_up = copy_bytes, times, warm_up

    def mb_per_s(self, one: int, other: int) -> float:
        """Measure the link between two GPUs in MB/s. Raises ProbeFailed if a GPU is missing or they reach each other
        only through the host.
        """
        return min(self._measure_copy(one, other), self._measure_copy(other, one))

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

        def once() -> None:
            received.copy_(sent, non_blocking=True)
            accelerator.synchronize(received.device)

        took_s = median_s(once, sent.device, self._times, self._warm_up)
        if not torch.equal(received.cpu(), sent.cpu()):
            raise ProbeFailed(f"GPU {target} got something else than GPU {source} sent")
        return self._copy_bytes / took_s / _MB


_LOOK_S = 0.05

_FLOAT_BYTES = 4

_ASKED = 3  # clock readings; the fastest round trip is the most exact

_BROKEN = "broken"


def _reach(plan: ProbePlan) -> None:
    """Wait until the first process listens. A host that is up refuses connections until then; one that does not answer
    is down.

    torch's store would wait the full time in both cases. Raises ProbeFailed.
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

    Raises ProbeFailed if the first one's host does not answer.
    """

    def __init__(self, plan: ProbePlan) -> None:
        self._plan, self._where, self._sizes = plan, torch.device("cpu"), ON_CPU
        if plan.rank:
            _reach(plan)
        self._store = dist.TCPStore(
            plan.address,
            plan.port,
            plan.processes,
            plan.rank == 0,
            timedelta(seconds=plan.meet_s),
            wait_for_workers=False,
        )

    def meet(self, where: torch.device, sizes: ProbeSizes) -> None:
        """Wait for the other processes. Raises ProbeFailed if one is broken or time is up."""
        plan, until_s = self._plan, time.monotonic() + self._plan.meet_s
        self._where, self._sizes = where, sizes
        self._store.set(f"here/{plan.rank}", "1")
        while not self._store.check([f"here/{rank}" for rank in range(plan.processes)]):
            if self._store.check([_BROKEN]):
                raise ProbeFailed("another process of this group is broken")
            if time.monotonic() > until_s:
                raise ProbeFailed(f"the others have not come within {plan.meet_s:g} s")
            time.sleep(_LOOK_S)
        self._store.set_timeout(timedelta(seconds=plan.stage_s))
        dist.init_process_group(
            dist.get_default_backend_for_device(self._where),
            store=dist.PrefixStore("group", self._store),
            rank=plan.rank,
            world_size=plan.processes,
            timeout=timedelta(seconds=plan.stage_s),
            device_id=None if self._where.type == "cpu" else self._where,
        )

    def reduce_s(self) -> float:
        """Return the median time of an all-reduce in seconds. Raises ProbeFailed if its sum is wrong."""
        sizes = self._sizes
        ones = torch.ones(max(sizes.reduce_bytes // _FLOAT_BYTES, 1), device=self._where)
        dist.all_reduce(ones)
        if not bool((ones == self._plan.processes).all()):
            raise ProbeFailed("the sum of an all-reduce is wrong")
        ones.zero_()  # repeated sums of ones would overflow soon
        return median_s(lambda: dist.all_reduce(ones), self._where, sizes.reduce_times, sizes.warm_up)

    def bandwidth_bytes_s(self) -> float:
        """Return the bytes per second to the next member's device, while the member before sends as many."""
        plan, sizes = self._plan, self._sizes
        out = torch.zeros(max(sizes.pair_bytes // _FLOAT_BYTES, 1), device=self._where)
        into = torch.empty_like(out)
        to, source = (plan.rank + plan.local) % plan.processes, (plan.rank - plan.local) % plan.processes

        def once() -> None:
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, into, source)]):
                work.wait()

        sent_bytes: int = out.numel() * _FLOAT_BYTES
        return sent_bytes / median_s(once, self._where, sizes.pair_times, sizes.warm_up)

    def clock_s(self) -> tuple[float, float]:
        """Return how far this clock is ahead of the first process's, and the precision. One process of each member
        asks.
        """
        plan = self._plan
        if plan.rank == 0:
            for rank in range(plan.local, plan.processes, plan.local):
                for time_ in range(_ASKED):
                    self._store.wait([f"asked/{rank}/{time_}"])
                    self._store.set(f"told/{rank}/{time_}", repr(time.time()))
        if plan.rank == 0 or plan.rank % plan.local:
            return 0.0, 0.0
        best = (0.0, inf)
        for time_ in range(_ASKED):
            began_s = time.time()
            self._store.set(f"asked/{plan.rank}/{time_}", "1")
            told_s = float(self._store.get(f"told/{plan.rank}/{time_}"))
            ended_s = time.time()
            best = min(best, ((began_s + ended_s) / 2 - told_s, (ended_s - began_s) / 2), key=lambda each: each[1])
        return best

    def broken(self) -> None:
        """Tell the group that a process cannot take part, so that nobody waits for it."""
        with suppress(RuntimeError):
            self._store.set(_BROKEN, "1")

    def part(self) -> None:
        """Leave the group. The first process waits until all others have left, or until the wait times out."""
        plan = self._plan
        with suppress(RuntimeError):
            self._store.set(f"left/{plan.rank}", "1")
            if plan.rank == 0:
                self._store.wait([f"left/{rank}" for rank in range(plan.processes)])
