"""Baselines: the interface that every saver has, and the savers that torch ships.

All write to tmpfs, so that none waits for a disk. Save returns when training may go on.
"""

from __future__ import annotations

import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol


class Saver(Protocol):
    """One way to save. Its state keeps its tensors from prepare to close; their values change in place."""

    def prepare(self, state: dict[str, Any]) -> None:
        """Prepare as far as possible before the first save of `state`, and wait until that is done."""

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save `state`; return when it may be changed again. step: of the state."""

    def wait(self) -> None:
        """Wait until all background work is done."""

    def load(self) -> dict[str, Any]:
        """Return the newest saved state, in new memory."""

    def close(self) -> None:
        """Free everything, saved states included."""


class TorchSave:
    """torch.save into a file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "state.pt"

    def prepare(self, state: dict[str, Any]) -> None:
        """Do nothing: torch.save needs no preparation."""

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write the whole state to the file, in place of an earlier one. step: unused."""
        import torch

        self._path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, self._path)

    def wait(self) -> None:
        """Do nothing: there is no background work."""

    def load(self) -> dict[str, Any]:
        """Return the whole state from the file."""
        import torch

        state: dict[str, Any] = torch.load(self._path, weights_only=True)
        return state

    def close(self) -> None:
        """Remove the file."""
        shutil.rmtree(self._path.parent, ignore_errors=True)


class Dcp:
    """dcp.save into a folder, and dcp.load into existing tensors, as DCP requires."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._like: dict[str, Any] = {}

    def prepare(self, state: dict[str, Any]) -> None:
        """Remember the state's keys and shapes: DCP loads into tensors that exist already."""
        self._like = state

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write the whole state to the folder by dcp.save. step: unused."""
        import torch.distributed.checkpoint as dcp

        dcp.save(state, checkpoint_id=self._folder)

    def wait(self) -> None:
        """Do nothing: there is no background work."""

    def load(self) -> dict[str, Any]:
        """Load the state into new, empty tensors of the shapes that `prepare` got, and return it."""
        import torch
        import torch.distributed.checkpoint as dcp

        def empty(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: empty(each) for key, each in value.items()}
            return torch.empty_like(value) if isinstance(value, torch.Tensor) else value

        state: dict[str, Any] = empty(self._like)
        dcp.load(state, checkpoint_id=self._folder)
        return state

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._like = {}


class DcpAsync(Dcp):
    """dcp.async_save, whose save returns once it has a copy.

    reused: use one stager for all saves, else a new stager for each.
    """

    def __init__(self, folder: Path, *, reused: bool) -> None:
        super().__init__(folder)
        self._reused = reused
        self._stager: Any = None
        self._future: Future[object] | None = None

    def prepare(self, state: dict[str, Any]) -> None:
        """Remember the state, and create the stager if one is reused.

        The stager allocates its memory at the first save, because torch has no call to do it earlier.
        """
        super().prepare(state)
        if self._reused:
            from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

            self._stager = DefaultStager(StagingOptions(False, False, False, False))

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Wait for the last save, copy the whole state, and start a thread that writes it. step: unused."""
        import torch.distributed.checkpoint as dcp

        self.wait()  # the new save must not write into memory from which the last one still writes
        self._future = dcp.async_save(state, checkpoint_id=self._folder, async_stager=self._stager)

    def wait(self) -> None:
        """Wait until the last save is written. Raises the error of a save that failed."""
        if self._future is not None:
            self._future.result()

    def close(self) -> None:
        """Wait for the last save, free the stager's memory, and remove the folder."""
        self.wait()
        self._future = None
        if self._stager is not None:
            self._stager.close()
            self._stager = None
        super().close()
