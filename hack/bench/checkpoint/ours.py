"""Turnout's checkpointer, with the interface of the baselines; it is imported when it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class TurnoutSaver:
    """Checkpointer, as a Saver. It writes to the folder on request only. frozen: names of constant tensors."""

    def __init__(self, folder: Path, frozen: frozenset[str] = frozenset()) -> None:
        from turnout.launcher.checkpoint.engine.checkpointer import Checkpointer

        self._checkpointer = Checkpointer(folder, frozen=frozen or None)

    def prepare(self, state: dict[str, Any]) -> None:
        """Allocate and touch the memory, and wait until that is done."""
        self._checkpointer.prepare(state)
        self._checkpointer.wait()

    def save(self, step: int, state: dict[str, Any], *, disk: bool = False, overlap: Any = ()) -> None:
        """Save the state in memory. disk: also write it to the folder in the background.

        overlap: optimizers whose tensors are copied while training continues, () to copy everything before the return.
        """
        self._checkpointer.save(step, state, disk=disk, overlap=overlap)

    def wait(self) -> None:
        """Wait until all saves are hashed and persisted."""
        self._checkpointer.wait()

    def load(self) -> dict[str, Any]:
        """Return the newest state, in new memory. Raises RuntimeError if nothing was saved."""
        return self.newest()[1]

    def newest(self) -> tuple[int, dict[str, Any]]:
        """Load the newest state; return (step, state). Raises RuntimeError if nothing was saved."""
        found = self._checkpointer.load()
        if found is None:
            raise RuntimeError("nothing was saved")
        state: Any = found.state
        return found.step, state

    def newest_stored_step(self) -> int:
        """Return the newest step in storage; -1 for none."""
        return self._checkpointer.stats().persisted

    def close(self) -> None:
        """Free the memory."""
        self._checkpointer.close()
