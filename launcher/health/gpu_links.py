"""Decides if the links between a node's GPUs and its switchbox are fast enough. Source: the guide, DL-32 to DL-35,
DL-96

A link goes from GPU A over the switchbox to GPU B. One below the minimum bandwidth is broken. A node with too few
working links is faulty. A probe measures the links.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Pair: TypeAlias = tuple[int, int]  # GPU numbers, as in --box-pairs
Bandwidths: TypeAlias = tuple[tuple[Pair, float | None], ...]  # MB/s of 10^6 bytes; None if nothing came through


@dataclass(frozen=True, slots=True)
class Box:
    """The result of judging a node's links."""

    broken: tuple[Pair, ...] = ()
    faulty: bool = False  # the node must not train
    why: str = ""


def judge(found: Bandwidths, least_mb_per_s: int, least_channels: int) -> Box:
    """Judge the links of one node. Without links nothing is broken."""
    broken = tuple(pair for pair, mb_per_s in found if mb_per_s is None or mb_per_s < least_mb_per_s)
    working = len(found) - len(broken)
    if not broken:
        return Box()
    named = ", ".join(_link_text(pair, mb_per_s) for pair, mb_per_s in found if pair in broken)
    why = f"{working} of {len(found)} links reach {least_mb_per_s} MB/s, {least_channels} are needed: {named}"
    return Box(broken, working < least_channels, why)


def _link_text(pair: Pair, mb_per_s: float | None) -> str:
    return f"{pair[0]}:{pair[1]} {'failed' if mb_per_s is None else f'has {mb_per_s:.0f}'}"
