"""`FlashCheckpoint`: a callback of Lightning whose checkpoints lie in memory, and now and then in storage.

    flash = FlashCheckpoint(folder, storage_steps=500)
    trainer = Trainer(callbacks=[flash])
    trainer.fit(model, data, ckpt_path=flash.newest())

What a checkpoint is made of Lightning says (`dump_checkpoint`), and takes it up again; each rank keeps all of it in
memory, not the first alone. What would be keys of a file are the parts of parts.py. Source: DL-63
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from turnout.launcher.errors import BadCheckpoint, NotUsable
from turnout.launcher.shell.progress import Steps
from turnout.launcher.shell.saving import rng
from turnout.launcher.shell.saving.flash.choices import copies_of
from turnout.launcher.shell.saving.frameworks.objects import made, plain
from turnout.launcher.shell.saving.frameworks.parts import Parts
from turnout.launcher.shell.saving.tensors import buffers

try:
    from lightning.fabric.plugins.io import CheckpointIO
    from lightning.pytorch.callbacks import Checkpoint
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
except ImportError as error:
    raise NotUsable("lightning", "is not there") from error

_RANDOM, _BUFFERS = "turnout/random", "turnout/buffers"


class FlashCheckpoint(Checkpoint):  # type: ignore[misc, unused-ignore]
    """every_n_steps: of the optimizer; each such step is saved in memory. storage_steps: multiples of so many go to
    storage, and the last one; 0: all that are saved, in the background. The others go there only if training fails and
    goes on from them. keep: how many of the newest stay in storage, 0 for all. replica_count: workers in a group that
    keeps each other's memory, 0 and 1: none. environ: of this process.

    It is the Trainer's own checkpoint callback: without a ModelCheckpoint beside it Lightning writes no files.
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
        self._parts = Parts(folder, keep=keep, replicas=copies_of(replica_count), environ=environ)
        self._every, self._storage_steps = every_n_steps, storage_steps
        self._steps, self._seen, self._stored = Steps(), -1, -1
        self._dice = ""
        self.path = f"{self._parts.folder}/newest"

    def newest(self) -> str | None:
        """For `ckpt_path`: the newest step, whichever it is then; None where nothing is stored, for a fresh start.

        Raises BadCheckpoint, StorageFailed.
        """
        return self.path if self._parts.any() else None

    def wait(self, timeout: float = 1800) -> None:
        """Until this rank's part of the last save is where it was to go, on rank 0 all of it. Raises TimeoutError."""
        self._parts.wait(timeout)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Raises NotImplementedError where the model is sharded."""
        if not isinstance(trainer.strategy, DDPStrategy | SingleDeviceStrategy):
            kind = type(trainer.strategy).__name__
            raise NotImplementedError(
                f"{kind}: FlashCheckpoint is for one device and DDP, where each rank has all of it"
            )
        if not isinstance(trainer.strategy.checkpoint_io, _Files):
            trainer.strategy.checkpoint_io = _Files(trainer.strategy.checkpoint_io, self)

    def on_train_batch_start(self, *arguments: Any, **more: Any) -> None:
        """The first one after a load: since then Lightning has drawn numbers for its own setting up."""
        dice, self._dice = self._dice, ""
        if dice:
            rng.restore(dice, self._parts.rank)

    def on_train_batch_end(self, trainer: Any, *arguments: Any, **more: Any) -> None:
        """Where the optimizer has made a step. Raises BadState, NoMemory."""
        step = trainer.global_step
        if step == self._seen:  # gradients are gathered over several batches
            return
        self._seen = step
        last = self._steps.done(step) or step == trainer.max_steps
        if last:
            trainer.should_stop = True
        if last or step % self._every == 0:
            self._save(trainer, last or step % (self._storage_steps or 1) == 0)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Which step is the last one may be known only now. Raises BadState, NoMemory."""
        if self._stored != trainer.global_step:
            self._save(trainer, True)

    def _save(self, trainer: Any, disk: bool) -> None:
        found = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        parts = {name: plain(each, {}, name) for name, each in found.items()}
        parts |= {_RANDOM: rng.seen(self._parts.rank), _BUFFERS: buffers(trainer.lightning_module, found["state_dict"])}
        self._parts.save(trainer.global_step, parts, disk=disk, own={_BUFFERS})
        if disk:
            self._stored = trainer.global_step

    def load(self) -> dict[str, Any]:
        """The newest step, as Lightning's own files have it. Raises BadCheckpoint, StorageFailed."""
        found = self._parts.load(lambda name: name != _RANDOM)
        if found is None:
            raise BadCheckpoint(f"nothing is stored in {self._parts.folder}")
        dice = found.parts.get(_RANDOM)
        self._dice = dice if found.same_world and isinstance(dice, str) else ""
        told = {name: made(each, {}) for name, each in found.parts.items() if name not in (_RANDOM, _BUFFERS)}
        if own := made(found.parts.get(_BUFFERS), {}):
            told["state_dict"] = {**told["state_dict"], **own}
        return told


class _Files(CheckpointIO):  # type: ignore[misc, unused-ignore]
    """Lightning's own, but one path is no file."""

    def __init__(self, files: Any, flash: FlashCheckpoint) -> None:
        self._files, self._flash = files, flash

    def save_checkpoint(self, *arguments: Any, **more: Any) -> None:
        """To a path that a script names."""
        self._files.save_checkpoint(*arguments, **more)

    def load_checkpoint(self, path: Any, *arguments: Any, **more: Any) -> Any:
        """Raises BadCheckpoint, StorageFailed."""
        return self._flash.load() if path == self._flash.path else self._files.load_checkpoint(path, *arguments, **more)

    def remove_checkpoint(self, path: Any) -> None:
        """Of a path that a script names."""
        self._files.remove_checkpoint(path)

    def teardown(self) -> None:
        self._files.teardown()
