"""A queue as its owner wrote it, and the reading of amounts that all dialects share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kube.errors import KubeError
from kube.shape import amount

Object = Mapping[str, Any]
Amounts = Mapping[str, int]
NAMESPACE = "namespace/"  # what the queue of a plain namespace is called by


class Dialect(Enum):
    """Who holds the queue to its share."""

    VOLCANO = "volcano"
    NAMESPACE = "namespace"
    KOORDINATOR = "koordinator"
    KUEUE = "kueue"


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue. Amounts by resource, as kube.shape counts them; absent: nothing is said.

    capability: never more. guarantee: kept for it. deserved: its own; beyond it, it borrows. parent: of a tree, or
    the cohort of Kueue. lending, borrowing: how much of its own others may have, and it of theirs. weight: its part
    of what others leave. faults: what could not be read; such an amount counts as absent.
    """

    name: str
    dialect: Dialect = Dialect.VOLCANO
    capability: Amounts = field(default_factory=dict)
    guarantee: Amounts = field(default_factory=dict)
    deserved: Amounts = field(default_factory=dict)
    lending: Amounts = field(default_factory=dict)
    borrowing: Amounts = field(default_factory=dict)
    parent: str = ""
    weight: int = 1
    open: bool = True
    faults: tuple[str, ...] = ()


def amounts(told: Any, where: str, faults: list[str]) -> dict[str, int]:
    """Quantities by resource; what cannot be read is left out and told in `faults`."""
    found = {}
    for what, text in (told or {}).items():
        try:
            found[what] = amount(what, text)
        except KubeError as error:
            faults.append(f"{where}.{what}: {error}")
    return found
