"""`FlashCheckpoint` is a Lightning callback that saves checkpoints in memory, and some of them also in storage.

    flash = FlashCheckpoint(folder, storage_steps=500)
    trainer = Trainer(callbacks=[flash])
    trainer.fit(model, data, ckpt_path=flash.newest())

Lightning decides what a checkpoint contains (`dump_checkpoint`) and restores it. Every rank keeps all of it in memory,
not only the first. The keys of Lightning's file become parts as in named_parts.py. Source: DL-63
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from turnout.launcher.checkpoint.engine import rng
from turnout.launcher.checkpoint.engine.state_dict import buffers
from turnout.launcher.checkpoint.engine.storage_type import replicas_of
from turnout.launcher.elastic.steps import Steps
from turnout.launcher.errors import BadCheckpoint, NotUsable
from turnout.launcher.flash_checkpoint.named_parts import Parts, decode_object, encode_object

__all__ = ["FlashCheckpoint"]

try:
    from lightning.fabric.plugins.io import CheckpointIO
    from lightning.pytorch.callbacks import Checkpoint
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
except ImportError as error:
    raise NotUsable("lightning", "is not there") from error

_RANDOM, _BUFFERS = "turnout/random", "turnout/buffers"


class FlashCheckpoint(Checkpoint):  # type: ignore[misc, unused-ignore]
    """Saves memory checkpoints of a Lightning Trainer. It is the Trainer's own checkpoint callback.

    every_n_steps: optimizer steps between saves in memory. storage_steps: saves at multiples of this step count go to
    storage in the background, and the last save too; 0 for all. The others go there only if training resumes from them
    after a failure. keep: how many of the newest stay in storage, 0 for all. replica_count: workers in a group that
    keep each other's state in memory, 0 and 1 for none. environ: of this process. Unless a ModelCheckpoint is added,
    Lightning writes no files. Raises ValueError for a number out of its bounds.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every_n_steps: int = 1,
        storage_steps: int = 0,
        keep: int = 0,
        replica_count: int = 0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        if every_n_steps < 1 or storage_steps < 0:
            raise ValueError("every_n_steps is 1 or more, storage_steps 0 or more")
        super().__init__()
        self._parts = Parts(folder, keep=keep, replicas=replicas_of(replica_count), environ=environ)
        self._every, self._storage_steps = every_n_steps, storage_steps
        self._steps, self._last_step, self._last_stored_step = Steps(), -1, -1
        self._rng_text = ""
        self.path = f"{self._parts.folder}/newest"

    def newest(self) -> str | None:
        """Return the value for `ckpt_path` that stands for the newest step; None, for a fresh start, if there is no
        step.

        Raises BadCheckpoint if what is stored cannot be read, NewerFormat if only a newer version can read it, and
        StorageFailed if storage fails.
        """
        return self.path if self._parts.has_step() else None

    def wait(self, timeout: float = 1800) -> None:
        """Wait until this rank's part of the last save is in storage, if storage is its target; on rank 0, until the
        whole step is. A failed write is logged, not raised. Raises TimeoutError after `timeout` seconds, and DaemonLost
        if the daemon is lost. Does nothing before the first save.
        """
        self._parts.wait(timeout)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Replace the Trainer's checkpoint reader. Raises NotImplementedError if the model is sharded."""
        if not isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy):
            kind = type(trainer.strategy).__name__
            raise NotImplementedError(
                f"{kind}: FlashCheckpoint is for one device and DDP, where each rank has all of it"
            )
        if not isinstance(trainer.strategy.checkpoint_io, _Files):
            trainer.strategy.checkpoint_io = _Files(trainer.strategy.checkpoint_io, self)

    def on_train_batch_start(self, *arguments: Any, **more: Any) -> None:
        """Restore random number generators before the first batch after a load, since Lightning has drawn numbers until
        then.
        """
        rng_text, self._rng_text = self._rng_text, ""
        if rng_text:
            rng.restore(rng_text, self._parts.rank)

    def on_train_batch_end(self, trainer: Any, *arguments: Any, **more: Any) -> None:
        """Save after each optimizer step that is due. If all ranks have to stop after it, make the Trainer stop.

        Raises BadState if a value cannot be saved, and torch's CheckpointException if a rank fails later, as without
        memory (NoMemory).
        """
        step = trainer.global_step
        if step == self._last_step:  # gradient accumulation: the same step covers several batches
            return
        self._last_step = step
        last = self._steps.done(step) or step == trainer.max_steps
        if last:
            trainer.should_stop = True
        if last or step % self._every == 0:
            self._save(trainer, last or step % (self._storage_steps or 1) == 0)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the last step to storage, unless it is there already.

        Before the end, nobody knows which step is the last. Raises the errors of `on_train_batch_end`.
        """
        if self._last_stored_step != trainer.global_step:
            self._save(trainer, True)

    def _save(self, trainer: Any, disk: bool) -> None:
        """Save the current step of a Lightning trainer in memory. disk: also to storage."""
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        parts = {name: encode_object(each, {}, name) for name, each in checkpoint.items()}
        parts |= {
            _RANDOM: rng.encode_state(self._parts.rank),
            _BUFFERS: buffers(trainer.lightning_module, checkpoint["state_dict"]),
        }
        self._parts.save(trainer.global_step, parts, disk=disk, own={_BUFFERS})
        if disk:
            self._last_stored_step = trainer.global_step

    def load(self) -> dict[str, Any]:
        """Return the newest step in the form of Lightning's own files.

        Raises BadCheckpoint if nothing is stored or it cannot be read, NewerFormat if only a newer version can read it,
        StorageFailed if storage fails, and torch's CheckpointException if a rank cannot read its tensors.
        """
        loaded = self._parts.load(lambda name: name != _RANDOM)
        if loaded is None:
            raise BadCheckpoint(f"nothing is stored in {self._parts.folder}")
        rng_text = loaded.parts.get(_RANDOM)
        self._rng_text = rng_text if loaded.same_world and isinstance(rng_text, str) else ""
        parts = {
            name: decode_object(each, {}) for name, each in loaded.parts.items() if name not in (_RANDOM, _BUFFERS)
        }
        if own_buffers := decode_object(loaded.parts.get(_BUFFERS), {}):
            parts["state_dict"] = {**parts["state_dict"], **own_buffers}
        return parts


class _Files(CheckpointIO):  # type: ignore[misc, unused-ignore]
    """Lightning's own checkpoint files, except one path that means the newest step in memory or storage."""

    def __init__(self, files: Any, flash: FlashCheckpoint) -> None:
        self._files, self._flash = files, flash

    def save_checkpoint(self, *arguments: Any, **more: Any) -> None:
        """Write a file to a path that a script names."""
        self._files.save_checkpoint(*arguments, **more)

    def load_checkpoint(self, path: Any, *arguments: Any, **more: Any) -> Any:
        """Return the content of a file, or the newest step for the one path that is not a file.

        For that path it raises the errors of `FlashCheckpoint.load`.
        """
        return self._flash.load() if path == self._flash.path else self._files.load_checkpoint(path, *arguments, **more)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a file at a path that a script names."""
        self._files.remove_checkpoint(path)

    def teardown(self) -> None:
        """End the Trainer's own checkpoint files."""
        self._files.teardown()
