"""Whether the links between a node's GPUs and its switchbox are good enough. Source: the guide, DL-32 to DL-35, DL-96

A link is GPU A, the switchbox, GPU B. One below the least bandwidth is broken; a node with fewer working links than it
must have is faulty. How a link is measured is left to a probe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Pair: TypeAlias = tuple[int, int]  # sockets, as --box-pairs has them
Bandwidths: TypeAlias = tuple[tuple[Pair, float | None], ...]  # MB/s, 10^6 bytes; None: nothing came through


@dataclass(frozen=True, slots=True)
class Box:
    """What was found. broken: links; faulty: the node must not train."""

    broken: tuple[Pair, ...] = ()
    faulty: bool = False
    why: str = ""


def judge(found: Bandwidths, least_mb_per_s: int, least_channels: int) -> Box:
    """Of one node. Without any link there is nothing to judge."""
    broken = tuple(pair for pair, mb_per_s in found if mb_per_s is None or mb_per_s < least_mb_per_s)
    working = len(found) - len(broken)
    if not broken:
        return Box()
    named = ", ".join(_told(pair, mb_per_s) for pair, mb_per_s in found if pair in broken)
    why = f"{working} of {len(found)} links reach {least_mb_per_s} MB/s, {least_channels} are needed: {named}"
    return Box(broken, working < least_channels, why)


def _told(pair: Pair, mb_per_s: float | None) -> str:
    return f"{pair[0]}:{pair[1]} {'failed' if mb_per_s is None else f'has {mb_per_s:.0f}'}"
