"""`DeepSpeedCheckpointer`: what DeepSpeed's engine puts into files goes to memory, and to storage in the background.

    checkpoints = DeepSpeedCheckpointer(engine, folder)
    checkpoints.save_checkpoint(storage_type=StorageType.MEMORY)
    path, client_state = checkpoints.load_checkpoint()

DeepSpeed decides what a checkpoint is made of; its files are the parts of parts.py, by their names. Each rank gives all
that it reads again, so that memory alone is enough. Source: DL-63; docs/facts/dlrover.md 6.4
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turnout.launcher.errors import BadCheckpoint, NotUsable
from turnout.launcher.shell.saving import rng
from turnout.launcher.shell.saving.flash.choices import StorageType, copies_of
from turnout.launcher.shell.saving.frameworks.objects import Kinds, made, plain
from turnout.launcher.shell.saving.frameworks.parts import Parts

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
    """DeepSpeed's interface: files between create() and commit() are one step, saved by commit(). load() gives them.

    root: by which the paths begin that DeepSpeed asks for; nothing is written there. Tensors are not copied before
    commit(), so nothing may train in between, and DeepSpeed's engine does not.
    """

    def __init__(self, parts: Parts, root: str | os.PathLike[str]) -> None:
        super().__init__(None)
        self.name = "turnout"
        self.step, self.disk = 0, True
        self.found: dict[str, object] = {}
        self._parts, self._root = parts, Path(root)

    def create(self, info: Any) -> None:
        """A checkpoint begins. info: DeepSpeed's, with its tag."""
        self.found = {_TAG: str(getattr(info, "tag", info)), _RANDOM: rng.seen(self._parts.rank)}

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """There are no files, and no folders for them."""

    def save(self, state_dict: Any, path: str) -> None:
        """A part of it. Raises BadState."""
        name = self._name(path)
        self.found[name] = plain(state_dict, _KINDS, name)

    def load(self, path: str, map_location: Any = None) -> Any:
        """A part of what was loaded, on the CPU. Raises BadCheckpoint."""
        name = self._name(path)
        if name not in self.found:
            raise BadCheckpoint(f"the checkpoint has no {name}")
        return made(self.found[name], _KINDS)

    def commit(self, info: Any) -> bool:
        """All of it was given: it is in memory when this returns. Raises BadState, NoMemory."""
        found, self.found = self.found, {}
        self._parts.save(self.step, found, disk=self.disk)
        return True

    def preserves_storage_sharing(self) -> bool:
        """A view is saved as what it shows, so nobody has to clone it before."""
        return False

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self._root)


class DeepSpeedCheckpointer:
    """Of one process; all ranks call its methods alike. engine: what deepspeed.initialize() gave.

    keep, every: how many of the newest steps stay in storage, and which multiples. replica_count: workers in a group
    that keeps each other's shards in memory, 0 and 1: none. environ: of this process. Raises NotImplementedError where
    the optimizer lies on NVMe: DeepSpeed copies its files itself.
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
        copies = copies_of(replica_count)
        self._parts = Parts(self.checkpoint_dir, keep=keep, every=every, replicas=copies, environ=environ)

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike[str] = "",
        tag: str | None = None,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,
        storage_type: StorageType = StorageType.DISK,
    ) -> bool:
        """Have this step in memory; training may go on when this returns. DISK: and in storage, in the background.

        save_dir: the checkpointer's, or nothing. client_state: plain values and tensors. save_latest: taken, not
        needed: the newest step is found by itself. Raises BadState, NoMemory.
        """
        self._only(save_dir)
        if not isinstance(storage_type, StorageType):
            raise TypeError(f"storage_type is {storage_type!r}: StorageType.MEMORY or StorageType.DISK")
        with self._lent() as (files, root):
            files.step, files.disk = self._engine.global_steps, storage_type is StorageType.DISK
            return bool(self._engine.save_checkpoint(root, tag, dict(client_state or {}), save_latest=False))

    def load_checkpoint(
        self, load_dir: str | os.PathLike[str] = "", tag: str | None = None, **how: Any
    ) -> tuple[str | None, dict[str, Any] | None]:
        """The newest step into the engine: from memory where all ranks hold it, else from storage.

        Gives where it was, and the client state; None and None where nothing is stored. how: what DeepSpeed's own
        load_checkpoint takes. Random numbers go on where they were. Raises BadCheckpoint, also for a tag that is not
        the newest step's, and StorageFailed.
        """
        self._only(load_dir)
        found = self._parts.load(lambda name: name != _RANDOM)
        if found is None:
            return None, None
        parts = dict(found.parts)
        kept, dice = str(parts.pop(_TAG, "")), parts.pop(_RANDOM, None)
        if tag not in (None, kept):
            raise BadCheckpoint(f"the newest step is {kept}: only that one can be loaded, not {tag}")
        with self._lent() as (files, root):
            files.found = parts
            for name in parts:  # DeepSpeed looks which files there are before it asks for what is in them
                path = Path(root, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            path_of, client_state = self._engine.load_checkpoint(root, kept, **how)
        if isinstance(dice, str):
            rng.restore(dice, self._parts.rank)
        return (None if path_of is None else str(self.checkpoint_dir / os.path.relpath(path_of, root))), client_state

    def wait_latest_checkpoint(self, timeout: float = 1800) -> None:
        """Until this rank's part of the last save is where it was to go, on rank 0 all of it. Raises TimeoutError."""
        self._parts.wait(timeout)

    def _only(self, folder: str | os.PathLike[str]) -> None:
        if str(folder) and Path(folder).absolute() != self.checkpoint_dir:
            raise ValueError(f"{folder} is not {self.checkpoint_dir}, which this checkpointer is for")

    @contextmanager
    def _lent(self) -> Iterator[tuple[FlashCheckpointEngine, str]]:
        """The engine with our files in place of its own, and a folder that is empty."""
        engine = self._engine
        own, first = engine.checkpoint_engine, getattr(engine, "save_non_zero_checkpoint", True)
        with tempfile.TemporaryDirectory(prefix="turnout-") as root:
            engine.checkpoint_engine = files = FlashCheckpointEngine(self._parts, root)
            engine.save_non_zero_checkpoint = True  # each rank keeps what it reads again; storage has it once
            try:
                yield files, root
            finally:
                engine.checkpoint_engine, engine.save_non_zero_checkpoint = own, first
