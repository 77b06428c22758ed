"""`FlashCkptTrainer` is Hugging Face's Trainer with checkpoints in memory, and some of them also in storage.

    trainer = FlashCkptTrainer(model, arguments, train_dataset=data, storage_steps=500)
    trainer.train(resume_from_checkpoint=True)

The Trainer decides when it saves (`save_strategy`, `save_steps`) and how it resumes. What it would write to files and
read from them becomes parts as in named_parts.py. Source: DL-63; docs/facts/dlrover.md 6.4
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnout.launcher.checkpoint.engine import rng
from turnout.launcher.checkpoint.engine.state_dict import buffers, load_module, module_state
from turnout.launcher.checkpoint.engine.storage_type import replicas_of
from turnout.launcher.elastic.steps import Steps
from turnout.launcher.errors import BadCheckpoint, NotUsable
from turnout.launcher.flash_checkpoint.named_parts import Parts, Step
from turnout.launcher.health.hang_monitor.progress import EVALUATING_PHASE, progress_reporter

__all__ = ["FlashCkptTrainer", "FlashSaves"]

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise NotUsable("transformers", "with Trainer is not there") from error

_STATE = "trainer_state.json"  # transformers' name of its own state

_BUFFERS = "model/buffers"

_REPLICATED = ("model", _BUFFERS, "optimizer", "scheduler", "scaler", "trainer")


class FlashSaves:
    """Adds memory checkpoints to a class of Trainer, as its first base: `class Mine(FlashSaves, SFTTrainer)`.

    storage_steps: saves at multiples of this step count go to storage in the background, and the last save too; 0 for
    all. The others go there only if training resumes from them after a failure. flash_folder: the folder in storage,
    `output_dir` by default. `save_total_limit` is how many of the newest stay there. replica_count: workers in a group
    that keep each other's shards in memory, 0 and 1 for none. environ: of this process. Raises NotImplementedError with
    DeepSpeed, FSDP or load_best_model_at_end, and ValueError for a storage_steps or replica_count out of bounds.
    """

    def __init__(
        self,
        *arguments: Any,
        storage_steps: int = 0,
        flash_folder: str | os.PathLike[str] = "",
        replica_count: int = 0,
        environ: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        trainer: Any = self
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            raise NotImplementedError(
                "a Trainer with DeepSpeed or FSDP: use DeepSpeedCheckpointer, FsdpShardCheckpointer"
            )
        if trainer.args.load_best_model_at_end:
            raise NotImplementedError("load_best_model_at_end reads files of transformers' own")
        if storage_steps < 0:
            raise ValueError(f"storage_steps is {storage_steps}: 0 or more")
        folder = flash_folder or trainer.args.output_dir
        keep, replicas = trainer.args.save_total_limit or 0, replicas_of(replica_count)
        self.flash = Parts(folder, keep=keep, replicas=replicas, environ=environ)
        self._storage_steps = storage_steps
        self._loaded: Step | None = None
        self._loaded_at = ""
        trainer.add_callback(_Progress())

    def _save_checkpoint(self, model: Any, trial: Any, *more: Any, **named: Any) -> None:
        """Save the current step in memory, in place of transformers' files; every `storage_steps` and the last also to
        storage.

        model: unused, since the Trainer has it. trial: of a hyperparameter search, None for none. Raises BadState if a
        value cannot be saved, and torch's CheckpointException if a rank fails later, as without memory (NoMemory).
        """
        trainer: Any = self
        if trial is None and trainer.hp_search_backend is None:
            trainer.store_flos()
        step = trainer.state.global_step
        every = self._storage_steps or 1
        last = step >= trainer.state.max_steps or trainer.control.should_training_stop
        self.flash.save(step, self._trainer_state(), disk=last or step % every == 0, own={_BUFFERS})

    def _trainer_state(self) -> dict[str, object]:
        """Return everything that a resumed Trainer needs, by name of the part.

        The parts are model, buffers, optimizer, scheduler, trainer, random numbers and, if there is one, scaler. The
        states of callbacks are written into the trainer's state first.
        """
        trainer: Any = self
        for each in (*trainer.callback_handler.callbacks, trainer.control):
            if isinstance(each, ExportableState):
                callback_states, name = trainer.state.stateful_callbacks, type(each).__name__
                if isinstance(callback_states.get(name), list):
                    callback_states[name].append(each.state())
                else:
                    callback_states[name] = each.state()
        model = trainer.accelerator.unwrap_model(trainer.model)
        weights = module_state(model)
        parts: dict[str, object] = {
            "model": dict(weights),
            _BUFFERS: buffers(model, weights),
            "optimizer": trainer.optimizer.state_dict(),
            "scheduler": trainer.lr_scheduler.state_dict(),
            "trainer": json.dumps(dataclasses.asdict(trainer.state)),
            "random": rng.encode_state(self.flash.rank),
        }
        scaler = trainer.accelerator.scaler
        return parts if scaler is None else parts | {"scaler": scaler.state_dict()}

    def train(self, resume_from_checkpoint: str | bool | None = None, *more: Any, **named: Any) -> Any:
        """Train like transformers' Trainer, except that True means the newest step in memory or storage.

        resume_from_checkpoint: True to resume from that step, or to start fresh if there is none; a path to resume from
        transformers' own files. Returns what the Trainer's own method returns.

        With True it raises BadCheckpoint if what is stored cannot be read, NewerFormat if only a newer version can read
        it, StorageFailed if storage fails, and torch's CheckpointException if a rank cannot read its tensors. Saves
        during the training raise errors, too.
        """
        inherited: Any = super()
        if resume_from_checkpoint is not True:
            return inherited.train(resume_from_checkpoint, *more, **named)
        self._loaded = self.flash.load(lambda name: name in _REPLICATED)
        if self._loaded is None:
            return inherited.train(None, *more, **named)
        with tempfile.TemporaryDirectory(prefix="turnout-") as folder:  # the Trainer reads its own state from a path
            Path(folder, _STATE).write_text(self._text("trainer"))
            self._loaded_at = folder
            try:
                return inherited.train(folder, *more, **named)
            finally:
                self._loaded, self._loaded_at = None, ""

    def _text(self, name: str) -> str:
        """Return a part of the loaded checkpoint that is text. Raises BadCheckpoint if there is no part of this name,
        or if it is not text.
        """
        text = self._part(name)
        if not isinstance(text, str):
            raise BadCheckpoint(f"the part {name!r} is not text")
        return text

    def _part(self, name: str) -> Any:
        """Return a part of the loaded checkpoint, by its name in `_trainer_state`. Raises BadCheckpoint if no
        checkpoint is loaded, or if it has no part of this name.
        """
        if self._loaded is None or name not in self._loaded.parts:
            raise BadCheckpoint(f"the checkpoint has no part {name!r}")
        return self._loaded.parts[name]

    def _is_ours(self, path: object) -> bool:
        """Return True if the path stands for the loaded flash checkpoint."""
        return bool(self._loaded_at) and path == self._loaded_at

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load the model from a flash checkpoint; leave any other checkpoint to the Trainer.

        resume_from_checkpoint: the path that the Trainer was given. model: None for the Trainer's own. Raises
        BadCheckpoint if the flash checkpoint has no model.
        """
        trainer: Any = self
        inherited: Any = super()
        if not self._is_ours(resume_from_checkpoint):
            inherited._load_from_checkpoint(resume_from_checkpoint, model)
            return
        own_buffers = (
            self._part(_BUFFERS) if self._loaded and _BUFFERS in self._loaded.parts else {}
        )  # an older step has none
        load_module(trainer.accelerator.unwrap_model(model or trainer.model), self._part("model") | own_buffers)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load optimizer and scheduler from a flash checkpoint; leave any other checkpoint to the Trainer."""
        trainer: Any = self
        inherited: Any = super()
        if not self._is_ours(checkpoint):
            inherited._load_optimizer_and_scheduler(checkpoint)
            return
        trainer.optimizer.load_state_dict(self._part("optimizer"))
        trainer.lr_scheduler.load_state_dict(self._part("scheduler"))

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Load the gradient scaler from a flash checkpoint, if the Trainer has a scaler.

        Any other checkpoint is left to the Trainer.
        """
        trainer: Any = self
        inherited: Any = super()
        if not self._is_ours(checkpoint):
            inherited._load_scaler(checkpoint)
        elif trainer.accelerator.scaler is not None:
            trainer.accelerator.scaler.load_state_dict(self._part("scaler"))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore random number states from a flash checkpoint if the world has the same size.

        Any other checkpoint is left to the Trainer.
        """
        inherited: Any = super()
        if not self._is_ours(checkpoint):
            inherited._load_rng_state(checkpoint)
        elif self._loaded is not None and self._loaded.same_world:
            rng.restore(self._text("random"), self.flash.rank)


class _Progress(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Reports the step to the agent. When all ranks have to stop, it makes the Trainer save and leave its loop."""

    def __init__(self) -> None:
        self._steps, self._is_evaluating = Steps(), False

    def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Report to the agent that an evaluation or predict() runs, at its first step."""
        if not self._is_evaluating and (reporter := progress_reporter()) is not None:
            self._is_evaluating = True
            reporter.enter(EVALUATING_PHASE)

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Report to the agent that the evaluation has ended."""
        if self._is_evaluating and (reporter := progress_reporter()) is not None:
            self._is_evaluating = False
            reporter.leave(EVALUATING_PHASE)

    on_predict = on_evaluate

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        """Report a step to the agent. If all ranks stop after it, make the Trainer save and stop."""
        if self._steps.done(state.global_step):
            control.should_save = control.should_training_stop = True
        return control


class FlashCkptTrainer(FlashSaves, Trainer):  # type: ignore[misc, unused-ignore]
    """Hugging Face's Trainer with memory checkpoints, under the name that scripts know from DLRover."""
