"""Trees of queues: their order, and the sums over each subtree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from turnout.jobs.queues.model import NOTHING, Amounts

CIRCLE = "its parents go in a circle"


def top_down(parents: Mapping[str, str]) -> tuple[list[str], set[str]]:
    """Return the names with each parent before its children, and the names that belong to a cycle.

    parents: by name; an unknown parent counts as none.
    """
    children: dict[str, list[str]] = {}
    order: list[str] = []
    for name, parent in parents.items():
        if parent in parents:
            children.setdefault(parent, []).append(name)
        else:
            order.append(name)
    for name in order:
        order.extend(children.get(name, ()))
    return order, parents.keys() - order


def added_up(order: Iterable[str], parents: Mapping[str, str], each: Mapping[str, Amounts]) -> dict[str, Amounts]:
    """Return for each queue the sum of its own amounts and those of its subtree. order: each parent before its
    children.
    """
    order = list(order)
    found: dict[str, Amounts] = {name: each.get(name, NOTHING) for name in order}
    own: dict[str, Counter[str]] = {}  # of those that have anybody below
    for name in reversed(order):
        parent = parents[name]
        if parent in found:
            if parent not in own:
                found[parent] = own[parent] = Counter(found[parent])
            own[parent].update(found[name])
    return found
