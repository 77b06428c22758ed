"""Measures the speed of the links between a node's GPUs. Any probe that returns MB/s will do; this one copies between
GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from turnout.launcher.errors import ProbeFailed
from turnout.launcher.health.gpu_links import Bandwidths, Pair

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
        return min(self._copied(one, other), self._copied(other, one))

    def _copied(self, source: int, target: int) -> float:
        import torch

        from turnout.launcher import accelerator
        from turnout.launcher.health.probes.local import median_s

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
