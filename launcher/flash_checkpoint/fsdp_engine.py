"""`FsdpShardCheckpointer` saves each rank's own part through torch.distributed.checkpoint, one folder per step.

It supports both interfaces of DLRover's class: state dicts in and a storage reader out, or models and optimizers in and
out. launcher/checkpoint/dcp knows how parts become files, and how a world of another size reads them.
Source: DL-52 to DL-56; docs/facts/dlrover.md 6.4
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, overload

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from turnout.launcher.checkpoint.dcp.reader import process_info
from turnout.launcher.checkpoint.dcp.writer import FlashLoadPlanner, FlashStorageReader, FlashStorageWriter
from turnout.launcher.checkpoint.engine.process_info import choose_on_rank_0
from turnout.launcher.checkpoint.engine.state_dict import flatten
from turnout.launcher.checkpoint.engine.storage_type import StorageType, replicas_of
from turnout.launcher.checkpoint.storage.store import MAX_STEP, step_of
from turnout.launcher.errors import BadCheckpoint, BadState, NewerFormat
from turnout.launcher.health.hang_monitor.progress import SAVING_PHASE, in_phase

log = logging.getLogger("turnout.checkpoint")


class FsdpShardCheckpointer:
    """Saves and loads the sharded checkpoints of one training process. Its methods are collective: all ranks call the
    same ones in the same order.

    checkpoint_dir: has a folder for each step. comm_backend, save_timeout: ignored. deletion_strategy: must be None.
    replica_count: workers in a group that keep each other's shards in memory, 0 and 1 for none, 4 at most. environ: of
    this process. Raises NotImplementedError for a deletion_strategy, and ValueError for a replica_count outside 0 to 4.
    """

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        comm_backend: str = "",
        deletion_strategy: None = None,
        save_timeout: float = 600,
        replica_count: int = 0,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._replicas = replicas_of(replica_count)
        if deletion_strategy is not None:
            raise NotImplementedError(
                "deletion_strategy is not supported: remove old step folders yourself, and pass None"
            )
        self.checkpoint_dir = Path(checkpoint_dir).absolute()
        self._environ = dict(os.environ if environ is None else environ)
        self._writer: FlashStorageWriter | None = None

    @overload
    def save_checkpoint(
        self,
        step: int,
        model: Mapping[str, Any],
        optimizer: str | os.PathLike[str] = "",
        /,
        *,
        storage_type: StorageType = StorageType.DISK,
    ) -> None: ...

    @overload
    def save_checkpoint(
        self,
        step: int,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        extra_sd: Mapping[str, Any] | None = None,
        path: str | os.PathLike[str] = "",
        storage_type: StorageType = StorageType.DISK,
    ) -> None: ...

    @overload
    def save_checkpoint(
        self,
        step: int,
        *,
        state_dict: Mapping[str, Any],
        path: str | os.PathLike[str] = "",
        storage_type: StorageType = StorageType.DISK,
    ) -> None: ...

    def save_checkpoint(
        self,
        step: int,
        model: Any = None,
        optimizer: Any = None,
        extra_sd: Any = None,
        path: str | os.PathLike[str] = "",
        storage_type: StorageType = StorageType.DISK,
        *,
        state_dict: Mapping[str, Any] | None = None,
    ) -> None:
        """Save this step in memory; training may continue when this returns. DISK also writes a folder, in the
        background.

        Takes either (step, state_dict, path) or (step, model, optimizer, extra_sd, path). state_dict: with sharded
        tensors. extra_sd: plain values, the same on all ranks. path: a folder in checkpoint_dir, "" for
        <checkpoint_dir>/<step>; it gets a file for each rank and one about all. MEMORY: written only if training
        resumes from this step after a failure.

        Raises TypeError for arguments of other types, ValueError for a step outside 0 to MAX_STEP or a `path` that is
        not directly in checkpoint_dir, and BadState if extra_sd has a tensor or a value that is not supported. All
        ranks raise torch's CheckpointException, which is no Exception, if one cannot save its part: such as BadState
        for another value, or NoMemory.
        """
        if isinstance(model, Mapping):
            state_dict, path = model, path or optimizer or ""
        elif state_dict is None:
            state_dict = _state_of(model, optimizer) | {"extra": _only_values(extra_sd or {})}
        if not isinstance(storage_type, StorageType):
            raise TypeError(f"storage_type is {storage_type!r}: StorageType.MEMORY or StorageType.DISK")
        folder = self._folder(step, path)
        writer = FlashStorageWriter(
            folder, step=step, disk=storage_type is StorageType.DISK, environ=self._environ, replicas=self._replicas
        )
        writer.home = str(self.checkpoint_dir)
        with in_phase(SAVING_PHASE):
            dcp.save(dict(state_dict), storage_writer=writer)
        self._writer = writer

    def _folder(self, step: int, path: str | os.PathLike[str]) -> Path:
        """Return the folder of a step. path: its name, "" for the step's number.

        Raises ValueError unless it is the checkpoint folder or directly in it.
        """
        if not 0 <= step <= MAX_STEP:
            raise ValueError(f"step is {step}: 0 to {MAX_STEP}")
        folder = self.checkpoint_dir / (path or str(step))
        if self.checkpoint_dir not in (folder, folder.parent):
            raise ValueError(f"{folder} is no folder in {self.checkpoint_dir}: it would not be found again")
        return folder

    def get_storage_reader(self) -> FlashStorageReader | None:
        """Return a reader for torch.distributed.checkpoint, of the newest step in memory or in a folder. None if
        nothing is stored.

        It may serve several loads of that step. All ranks call it and get the same step. Raises BadCheckpoint if steps
        exist but none can be read, NewerFormat if only a newer version can read the newest one, and StorageFailed if
        storage fails.
        """
        world = process_info(str(self.checkpoint_dir), self._environ).world
        return choose_on_rank_0(
            world, self._newest_reader, lambda found: (0, found.step or 0), lambda _, step: self._reader_of(step)
        )

    def _newest_reader(self) -> FlashStorageReader | None:
        """Return a reader of the newest readable step; None if there is no step.

        Unreadable steps are logged. Raises the first BadCheckpoint if no step can be read, and NewerFormat at once.
        """
        fault: BadCheckpoint | None = None
        for step, folder in self._candidates():
            try:
                if reader := FlashStorageReader(folder, step=step, environ=self._environ):
                    return reader
            except NewerFormat:
                raise
            except BadCheckpoint as error:
                fault = fault or error
                log.warning("checkpoint_passed_over", extra={"step": step, "why": str(error)})
        if fault is not None:
            raise fault
        return None

    def _reader_of(self, step: int) -> FlashStorageReader:
        """Return a reader of the step that rank 0 chose. Raises BadCheckpoint if this rank does not find the step."""
        for _, folder in (each for each in self._candidates() if each[0] == step):
            if reader := FlashStorageReader(folder, step=step, environ=self._environ):
                return reader
        raise BadCheckpoint(f"rank 0 has found step {step}: this rank does not, in {self.checkpoint_dir}")

    def _candidates(self) -> Iterator[tuple[int, Path]]:
        """Yield steps and their folders: the step in memory, then those that may be in storage, newest first."""
        stored = sorted(_stored_steps(self.checkpoint_dir), key=lambda each: (-each[0], each[1]))
        rank = process_info(str(self.checkpoint_dir), self._environ)
        restore = rank.restore_step if rank.resharded_step is None else rank.resharded_step.step
        if restore is not None and restore >= 0:
            yield restore, next((folder for step, folder in stored if step == restore), self._folder(restore, ""))
        yield from stored

    def load_checkpoint(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Load the newest step into model and optimizer; return its extra_sd.

        {} if nothing is stored, and then nothing is loaded; {} also for a step that was saved without extra_sd. Raises
        what `get_storage_reader` raises, and TypeError if `model` or `optimizer` has another type. All ranks raise
        torch's CheckpointException if one cannot read its part; the model may then be partly loaded.
        """
        reader = self.get_storage_reader()
        if reader is None:
            return {}
        state = _state_of(model, optimizer) | {"extra": ({},)}
        dcp.load(state, storage_reader=reader, planner=FlashLoadPlanner())
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )  # the extra values are restored in place
        extra: dict[str, Any] = state["extra"][0]
        return extra

    def wait_latest_checkpoint(self, timeout: float = 1800) -> None:
        """Wait until this rank's part of the last save is in storage, if storage is its target; on rank 0, until the
        whole step is. A failed write is logged, not raised. Raises TimeoutError after `timeout` seconds, and DaemonLost
        if the daemon is lost. Does nothing before the first save.
        """
        if self._writer is not None:
            self._writer.wait(timeout)


def _stored_steps(checkpoint_dir: Path) -> Iterator[tuple[int, Path]]:
    """Yield (step, folder that holds the step's folder) of all steps in storage, in no order."""
    if not checkpoint_dir.is_dir():
        return
    for folder in (checkpoint_dir, *checkpoint_dir.iterdir()):
        if folder.is_dir():
            steps = (step_of(each.name) for each in folder.iterdir())
            yield from ((step, folder) for step in steps if step is not None)


def _only_values(extra_sd: Mapping[str, Any]) -> tuple[dict[str, Any]]:
    """Return the values in a tuple, which torch.distributed.checkpoint saves as one value. Raises BadState for a tensor
    among them, or for a value that cannot be saved, before other ranks wait for this one.
    """
    _, tensors = flatten(dict(extra_sd))
    for name in tensors:
        raise BadState(f"extra_sd/{name}", "a tensor among the extra values")
    return (dict(extra_sd),)


def _state_of(model: object, optimizer: object) -> dict[str, Any]:
    """Return the sharded state of a model and its optimizer. Raises TypeError for anything else."""
    if not isinstance(model, torch.nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError("a state dict and a path are needed, or a model and its optimizer")
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}
