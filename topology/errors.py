"""Define the errors of a map. A refused placement is no error: it is model.Refusal."""

from __future__ import annotations

from collections.abc import Iterable

from turnout.topology.model import Fault


class TopologyError(Exception):
    """The base of this package's errors."""


class BadFabric(TopologyError):
    """Entries that do not form a tree. Keep the last good map and report every fault."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(f"line {fault.line}: {fault.text}" for fault in self.faults[:5]))
