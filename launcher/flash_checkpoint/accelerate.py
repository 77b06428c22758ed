"""`FlashState` saves what Accelerate's `save_state` would write: to memory, and to storage in the background.

    flash = FlashState(accelerator, folder)
    start = flash.load_state() or 0
    flash.save_state(step, StorageType.MEMORY)

It saves models, optimizers, schedulers, the position in the data, the GradScaler, random number generators, and objects
given to `register_for_checkpointing`. Each is a part as in named_parts.py. Source: DL-63
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from torch.nn import Module

from turnout.launcher.checkpoint.engine import rng
from turnout.launcher.checkpoint.engine.state_dict import buffers, load_module, module_state
from turnout.launcher.checkpoint.engine.storage_type import StorageType, replicas_of
from turnout.launcher.errors import BadCheckpoint, NotUsable
from turnout.launcher.flash_checkpoint.named_parts import Parts, decode_object, encode_object

__all__ = ["FlashState", "StorageType"]

try:
    from accelerate.data_loader import SeedableRandomSampler
    from accelerate.utils import DistributedType
except ImportError as error:
    raise NotUsable("accelerate", "is not there") from error

_SHARDED = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "TP")  # names in DistributedType that are not supported here
_RANDOM, _BUFFERS = "random", "/buffers"  # name of the part with random number generators; suffix of a model's buffers


class FlashState:
    """Saves and loads the state of one process's Accelerator. All ranks have to call its methods alike.

    accelerator: with everything prepared and registered. keep, every: storage keeps the `keep` newest steps and the
    multiples of `every`. replica_count: workers in a group that keep each other's state in memory, 0 and 1 for none.
    environ: of this process. Raises NotImplementedError if models are sharded, or if hooks of save_state would write
    their own files, and ValueError for a replica_count outside 0 to 4.
    """

    def __init__(
        self,
        accelerator: Any,
        folder: str | os.PathLike[str],
        *,
        keep: int = 0,
        every: int = 0,
        replica_count: int = 0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        if accelerator.distributed_type in [getattr(DistributedType, each, None) for each in _SHARDED]:
            raise NotImplementedError(
                f"{accelerator.distributed_type}: use DeepSpeedCheckpointer, FsdpShardCheckpointer"
            )
        if accelerator._save_model_state_pre_hook or accelerator._load_model_state_pre_hook:
            raise NotImplementedError("hooks of save_state and load_state write and read files: they are not kept here")
        self._accelerator, replicas = accelerator, replicas_of(replica_count)
        self._parts = Parts(folder, keep=keep, every=every, replicas=replicas, environ=environ)

    def save_state(self, step: int, storage_type: StorageType = StorageType.DISK) -> None:
        """Save this step in memory; training may continue when this returns. DISK also writes it to storage in the
        background.

        Raises TypeError for another storage type, and BadState if the state has a value that cannot be saved. If a rank
        fails later, as without memory (NoMemory), all ranks raise torch's CheckpointException with its error.
        """
        if not isinstance(storage_type, StorageType):
            raise TypeError(f"storage_type is {storage_type!r}: StorageType.MEMORY or StorageType.DISK")
        parts: dict[str, object] = {_RANDOM: rng.encode_state(self._parts.rank)}
        own_parts: dict[str, object] = {}
        for name, each in self._named_objects():
            state = _state_of(each)
            parts[name] = encode_object(state, {}, name)
            if isinstance(each, Module):
                own_parts[f"{name}{_BUFFERS}"] = buffers(each, state)
        parts["accelerator"] = {"step": self._accelerator.step, "iteration": self._accelerator.save_iteration}
        self._parts.save(step, parts | own_parts, disk=storage_type is StorageType.DISK, own=own_parts)

    def load_state(self) -> int | None:
        """Restore everything from the newest step in memory or storage; return that step, or None if nothing is stored.

        Random number generators are restored if the number of ranks is the same. Raises BadCheckpoint if what is stored
        cannot be read, or lacks a prepared or registered object, NewerFormat if only a newer version can read it, and
        StorageFailed if storage fails. If a rank cannot read its tensors, all ranks raise torch's CheckpointException.
        """
        loaded = self._parts.load(lambda name: name != _RANDOM)
        if loaded is None:
            return None
        missing = sorted({name for name, _ in self._named_objects()} - {*loaded.parts})
        if missing:
            raise BadCheckpoint(f"step {loaded.step} has no {', '.join(missing)}: prepare and register what was saved")
        for name, each in self._named_objects():
            state = decode_object(loaded.parts[name], {})
            if own_buffers := decode_object(loaded.parts.get(f"{name}{_BUFFERS}"), {}):
                state = {**state, **own_buffers}
            _load_object(each, state)
        counts = loaded.parts.get("accelerator")
        if isinstance(counts, dict):
            self._accelerator.step = counts["step"]
            self._accelerator.project_configuration.iteration = counts["iteration"]
        rng_text = loaded.parts.get(_RANDOM)
        if loaded.same_world and isinstance(rng_text, str):
            rng.restore(rng_text, self._parts.rank)
        return loaded.step

    def wait(self, timeout: float = 1800) -> None:
        """Wait until this rank's part of the last save is in storage, if storage is its target; on rank 0, until the
        whole step is. A failed write is logged, not raised. Raises TimeoutError after `timeout` seconds, and DaemonLost
        if the daemon is lost. Does nothing before the first save.
        """
        self._parts.wait(timeout)

    def _named_objects(self) -> Iterator[tuple[str, Any]]:
        """Yield each saved object with its name, numbered in the order of `prepare` as in Accelerate's own files."""
        accelerator = self._accelerator
        kinds = {
            "model": [accelerator.unwrap_model(each) for each in accelerator._models],
            "optimizer": accelerator._optimizers,
            "scheduler": accelerator._schedulers,
            "data": [_LoaderPosition(each) for each in accelerator._dataloaders],
            "custom": accelerator._custom_objects,
        }
        for kind, objects in kinds.items():
            for index, each in enumerate(objects):
                yield f"{kind}_{index}", each
        if accelerator.scaler is not None:
            yield "scaler", accelerator.scaler


class _LoaderPosition:
    """Saves the position of a prepared DataLoader: the epoch, the sampler's seed, and its own state if it has one."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        sampler = loader.get_sampler() if hasattr(loader, "get_sampler") else None
        self._sampler: Any = sampler if isinstance(sampler, SeedableRandomSampler) else None

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the data loader: iteration, epoch and seed of the sampler, own state if it has one."""
        state: dict[str, Any] = {"iteration": getattr(self._loader, "iteration", 0)}
        if self._sampler is not None:
            state |= {"epoch": self._sampler.epoch, "seed": self._sampler.initial_seed}
        if getattr(self._loader, "use_stateful_dataloader", False):
            state["loader"] = self._loader.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the position of the data loader to that of a saved state, as far as loader and state have one."""
        if hasattr(self._loader, "iteration"):
            self._loader.iteration = state["iteration"]
        if self._sampler is not None and "epoch" in state:
            self._sampler.epoch, self._sampler.initial_seed = state["epoch"], state["seed"]
        if getattr(self._loader, "use_stateful_dataloader", False) and "loader" in state:
            self._loader.load_state_dict(state["loader"])


def _state_of(object_: Any) -> dict[str, Any]:
    """Return the state of a module, without torch.compile's prefixes, or of any object with state_dict()."""
    return module_state(object_) if isinstance(object_, Module) else object_.state_dict()


def _load_object(object_: Any, state: Any) -> None:
    """Load a saved state into a module, or into any object with load_state_dict."""
    if isinstance(object_, Module):
        load_module(object_, state)
    else:
        object_.load_state_dict(state)
