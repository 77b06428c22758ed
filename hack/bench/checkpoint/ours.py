"""Turnout's checkpointer, with the interface of the baselines; it is imported when it is needed.

What it cannot do yet is told by `absent`, in the words of the report; nothing stands in for it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NOT_BUILT = "not built"
MODULE = "turnout.launcher.checkpoint.engine.checkpointer"


def absent() -> str:
    """Give the reason why Turnout cannot be measured; "" if it can."""
    return "" if find_spec(MODULE) else NOT_BUILT


class Ours:
    """Checkpointer, as a Saver. It writes to the folder on request only. frozen: names of constant tensors."""

    def __init__(self, folder: Path, frozen: frozenset[str] = frozenset()) -> None:
        self._checkpointer: Any = import_module(MODULE).Checkpointer(folder, frozen=frozen or None)

    def prepare(self, state: dict[str, Any]) -> None:
        """Allocate and touch the memory."""
        self._checkpointer.prepare(state)
        self._checkpointer.wait()

    def save(self, step: int, state: dict[str, Any], *, disk: bool = False, overlap: Any = ()) -> None:
        """Save to memory, or with overlap before the next step of the optimizer. disk: persist it, too."""
        self._checkpointer.save(step, state, disk=disk, overlap=overlap)

    def wait(self) -> None:
        """Wait until all saves are hashed and persisted."""
        self._checkpointer.wait()

    def load(self) -> dict[str, Any]:
        """Load the newest state."""
        return self.newest()[1]

    def newest(self) -> tuple[int, dict[str, Any]]:
        """Load the newest state, and give its step."""
        found: tuple[int, dict[str, Any]] | None = self._checkpointer.load()
        if found is None:
            raise RuntimeError("nothing was saved")
        return found

    def persisted(self) -> int:
        """Give the newest step in storage; -1 for none."""
        step: int = self._checkpointer.stats().persisted
        return step

    def close(self) -> None:
        """Free the memory."""
        self._checkpointer.close()
