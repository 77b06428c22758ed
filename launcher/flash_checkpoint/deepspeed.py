"""`DeepSpeedCheckpointer` saves what DeepSpeed's engine would write: to memory, and to storage in the background.

    checkpoints = DeepSpeedCheckpointer(engine, folder)
    checkpoints.save_checkpoint(storage_type=StorageType.MEMORY)
    path, client_state = checkpoints.load_checkpoint()

DeepSpeed decides what a checkpoint contains. Its files become parts as in named_parts.py, under their names. Each rank
saves all that it will read, so memory alone is enough. Source: DL-63; docs/facts/dlrover.md 6.4
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turnout.launcher.checkpoint.engine import rng
from turnout.launcher.checkpoint.engine.storage_type import StorageType, replicas_of
from turnout.launcher.errors import BadCheckpoint, NotUsable
from turnout.launcher.flash_checkpoint.named_parts import Kinds, Parts, decode_object, encode_object

__all__ = ["DeepSpeedCheckpointer", "FlashCheckpointEngine", "StorageType"]

try:
    from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.utils.tensor_fragment import fragment_address
except ImportError as error:
    raise NotUsable("deepspeed", "is not there") from error

_KINDS: Kinds = {
    "deepspeed.LossScaler": LossScaler,
    "deepspeed.DynamicLossScaler": DynamicLossScaler,
    "deepspeed.fragment_address": fragment_address,
}

_TAG, _RANDOM = "turnout/tag", "turnout/random"


class FlashCheckpointEngine(CheckpointEngine):  # type: ignore[misc, unused-ignore]
    """Implements DeepSpeed's checkpoint engine: files given between create() and commit() are saved as one step by
    commit().

    root: the folder in which DeepSpeed's paths lie; nothing is written there. Tensors are copied in commit(), so no
    training step may run between create() and commit(); DeepSpeed's engine runs none. `files`: content by name, of the
    checkpoint being saved or loaded.
    """

    def __init__(self, parts: Parts, root: str | os.PathLike[str]) -> None:
        super().__init__(None)
        self.name = "turnout"
        self.step, self.disk = 0, True
        self.files: dict[str, object] = {}
        self._parts, self._root = parts, Path(root)

    def create(self, info: Any) -> None:
        """Begin a checkpoint, and drop the files of one that was not committed. info: DeepSpeed's, with its tag."""
        self.files = {_TAG: str(getattr(info, "tag", info)), _RANDOM: rng.encode_state(self._parts.rank)}

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing: no files are written, so no folders are needed."""

    def save(self, state_dict: Any, path: str) -> None:
        """Add a file's content to the checkpoint. Raises BadState for a dict that has our marker key."""
        name = self._name(path)
        self.files[name] = encode_object(state_dict, _KINDS, name)

    def load(self, path: str, map_location: Any = None) -> Any:
        """Return a file's content from the loaded checkpoint, on the CPU. map_location: ignored.

        Raises BadCheckpoint if the checkpoint has no such file, or an object of an unlisted kind in it.
        """
        name = self._name(path)
        if name not in self.files:
            raise BadCheckpoint(f"the checkpoint has no {name}")
        return decode_object(self.files[name], _KINDS)

    def commit(self, info: Any) -> bool:
        """Save the whole checkpoint as `self.step`, in memory and, with `self.disk`, in storage. Return True.

        Raises BadState if a value cannot be saved, and torch's CheckpointException if a rank fails later, as without
        memory.
        """
        found, self.files = self.files, {}
        self._parts.save(self.step, found, disk=self.disk)
        return True

    def preserves_storage_sharing(self) -> bool:
        """Return False: a view is saved as its own values, so DeepSpeed need not clone it first."""
        return False

    def _name(self, path: str) -> str:
        """Return the part's name of a file: its path relative to the root."""
        return os.path.relpath(path, self._root)


class DeepSpeedCheckpointer:
    """Saves and loads the checkpoints of one process's DeepSpeed engine. All ranks have to call its methods alike.

    engine: from deepspeed.initialize(). keep, every: storage keeps the `keep` newest steps and the multiples of
    `every`.
    replica_count: workers in a group that keep each other's shards in memory, 0 and 1 for none. environ: of this
    process.
    Raises NotImplementedError if the optimizer is on NVMe, since DeepSpeed then copies its files itself, and ValueError
    for a replica_count outside 0 to 4.
    """

    def __init__(
        self,
        engine: Any,
        checkpoint_dir: str | os.PathLike[str],
        *,
        keep: int = 0,
        every: int = 0,
        replica_count: int = 0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        if engine.zero_nvme_offload_optimizer():
            raise NotImplementedError("an optimizer that lies on NVMe is not saved in memory")
        self.checkpoint_dir, self._engine = Path(checkpoint_dir).absolute(), engine
        replicas = replicas_of(replica_count)
        self._parts = Parts(self.checkpoint_dir, keep=keep, every=every, replicas=replicas, environ=environ)

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike[str] = "",
        tag: str | None = None,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,
        storage_type: StorageType = StorageType.DISK,
    ) -> bool:
        """Save this step in memory; training may continue when this returns. DISK also writes it to storage in the
        background.

        The step is DeepSpeed's `global_steps`. save_dir: the checkpointer's folder, or "". tag: DeepSpeed's name of the
        step, None for the one that it gives. client_state: plain values and tensors, None for none. save_latest:
        ignored, since the newest step is found without it. Returns what DeepSpeed's own method returns.

        Raises ValueError for another folder, TypeError for another storage type, and BadState if a value cannot be
        saved. If a rank fails later, as without memory (NoMemory), all ranks raise torch's CheckpointException.
        """
        self._check_folder(save_dir)
        if not isinstance(storage_type, StorageType):
            raise TypeError(f"storage_type is {storage_type!r}: StorageType.MEMORY or StorageType.DISK")
        with self._with_own_engine() as (files, root):
            files.step, files.disk = self._engine.global_steps, storage_type is StorageType.DISK
            return bool(self._engine.save_checkpoint(root, tag, dict(client_state or {}), save_latest=False))

    def load_checkpoint(
        self, load_dir: str | os.PathLike[str] = "", tag: str | None = None, **deepspeed_options: Any
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Load the newest step into the engine: from memory if all ranks hold it, else from storage.

        Returns (its path, the client state), and (None, None) if nothing is stored. load_dir: the checkpointer's
        folder, or "". tag: the expected tag, None for any. deepspeed_options: further arguments of DeepSpeed's own
        load_checkpoint. Random number generators are restored too.

        Raises BadCheckpoint if what is stored cannot be read, or if `tag` is not that of the newest step, NewerFormat
        if only a newer version can read it, StorageFailed if storage fails, and ValueError for another folder. If a
        rank cannot read its tensors, all ranks raise torch's CheckpointException.
        """
        self._check_folder(load_dir)
        loaded = self._parts.load(lambda name: name != _RANDOM)
        if loaded is None:
            return None, None
        parts = dict(loaded.parts)
        saved_tag, rng_state = str(parts.pop(_TAG, "")), parts.pop(_RANDOM, None)
        if tag not in (None, saved_tag):
            raise BadCheckpoint(f"the newest step is {saved_tag}: only that one can be loaded, not {tag}")
        with self._with_own_engine() as (files, root):
            files.files = parts
            for name in parts:  # DeepSpeed lists the files before it reads them
                path = Path(root, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            path_of, client_state = self._engine.load_checkpoint(root, saved_tag, **deepspeed_options)
        if isinstance(rng_state, str):
            rng.restore(rng_state, self._parts.rank)
        return (None if path_of is None else str(self.checkpoint_dir / os.path.relpath(path_of, root))), client_state

    def wait_latest_checkpoint(self, timeout: float = 1800) -> None:
        """Wait until this rank's part of the last save is in storage, if storage is its target; on rank 0, until the
        whole step is. A failed write is logged, not raised. Raises TimeoutError after `timeout` seconds, and DaemonLost
        if the daemon is lost. Does nothing before the first save.
        """
        self._parts.wait(timeout)

    def _check_folder(self, folder: str | os.PathLike[str]) -> None:
        """Raise ValueError if a folder is named that is not this checkpointer's. "" names none."""
        if str(folder) and Path(folder).absolute() != self.checkpoint_dir:
            raise ValueError(f"{folder} is not {self.checkpoint_dir}, which this checkpointer is for")

    @contextmanager
    def _with_own_engine(self) -> Iterator[tuple[FlashCheckpointEngine, str]]:
        """Replace the checkpoint engine of DeepSpeed's engine by ours within a block, and let every rank save its part
        (`save_non_zero_checkpoint`).

        Yields our engine and an empty folder, which is deleted after the block.
        """
        engine = self._engine
        own_engine, first = engine.checkpoint_engine, getattr(engine, "save_non_zero_checkpoint", True)
        with tempfile.TemporaryDirectory(prefix="turnout-") as root:
            engine.checkpoint_engine = files = FlashCheckpointEngine(self._parts, root)
            engine.save_non_zero_checkpoint = True  # each rank keeps what it will read again; storage has it once
            try:
                yield files, root
            finally:
                engine.checkpoint_engine, engine.save_non_zero_checkpoint = own_engine, first
