"""Sums of amounts over all resources that count as a GPU: a cluster may have several makes of them. Source: DL-20"""

from __future__ import annotations

from collections.abc import Mapping

Gpus = tuple[str, ...]  # the names of these resources
Amounts = Mapping[str, int]


def total(amounts: Amounts, gpus: Gpus) -> int:
    """Return how many GPUs these amounts have."""
    return sum(amounts.get(each, 0) for each in gpus)


def bound(limits: Amounts, gpus: Gpus) -> int | None:
    """Return how many GPUs these limits allow; None without a limit. Resources without a limit are not counted."""
    named = [limits[each] for each in gpus if each in limits]
    return sum(named) if named else None


def free(limits: Amounts, used: Amounts, gpus: Gpus) -> int | None:
    """Return how many GPUs these limits leave; None without a limit. Each resource is counted by itself."""
    named = [max(0, limits[each] - used.get(each, 0)) for each in gpus if each in limits]
    return sum(named) if named else None


def largest(amounts: Amounts, gpus: Gpus) -> int:
    """Return the largest of these amounts. A setting for GPUs in general stands under the name of each resource."""
    return max((amounts.get(each, 0) for each in gpus), default=0)
