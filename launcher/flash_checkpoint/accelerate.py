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
from turnout.launcher.checkpoint.engine.state_dict import buffers, load_module, named
from turnout.launcher.checkpoint.engine.storage_type import StorageType, copies_of
from turnout.launcher.errors import BadCheckpoint, NotUsable
from turnout.launcher.flash_checkpoint.named_parts import Parts, decode_object, plain

__all__ = ["FlashState", "StorageType"]

try:
    from accelerate.data_loader import SeedableRandomSampler
    from accelerate.utils import DistributedType
except ImportError as error:
    raise NotUsable("accelerate", "is not there") from error

_SHARDED = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "TP")

_RANDOM, _BUFFERS = "random", "/buffers"


class FlashState:
    """Saves and loads the state of one process's Accelerator. All ranks have to call its methods alike.

    accelerator: with everything prepared and registered. keep, every: how many of the newest steps stay in storage, and
    which multiples.
    replica_count: workers in a group that keep each other's state in memory, 0 and 1 for none. environ: of this
    process.
    Raises NotImplementedError if models are sharded, or if hooks of save_state would write their own files.
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
        self._accelerator, copies = accelerator, copies_of(replica_count)
        self._parts = Parts(folder, keep=keep, every=every, replicas=copies, environ=environ)

    def save_state(self, step: int, storage_type: StorageType = StorageType.DISK) -> None:
        """Save this step in memory; training may go on when this returns. DISK also stores it in the background.

        Raises BadState, NoMemory.
        """
        if not isinstance(storage_type, StorageType):
            raise TypeError(f"storage_type is {storage_type!r}: StorageType.MEMORY or StorageType.DISK")
        parts: dict[str, object] = {_RANDOM: rng.encode_state(self._parts.rank)}
        own: dict[str, object] = {}
        for name, each in self._named_objects():
            state = _state_of(each)
            parts[name] = plain(state, {}, name)
            if isinstance(each, Module):
                own[f"{name}{_BUFFERS}"] = buffers(each, state)
        parts["accelerator"] = {"step": self._accelerator.step, "iteration": self._accelerator.save_iteration}
        self._parts.save(step, parts | own, disk=storage_type is StorageType.DISK, own=own)

    def load_state(self) -> int | None:
        """Restore everything from the newest step in memory or storage; return that step, or None if nothing is stored.

        Random number generators are restored if the number of ranks is the same. Raises BadCheckpoint, also if a
        prepared or registered object was not saved, and StorageFailed.
        """
        found = self._parts.load(lambda name: name != _RANDOM)
        if found is None:
            return None
        missing = sorted({name for name, _ in self._named_objects()} - {*found.parts})
        if missing:
            raise BadCheckpoint(f"step {found.step} has no {', '.join(missing)}: prepare and register what was saved")
        for name, each in self._named_objects():
            state = decode_object(found.parts[name], {})
            if own := decode_object(found.parts.get(f"{name}{_BUFFERS}"), {}):
                state = {**state, **own}
            _load_object(each, state)
        counts = found.parts.get("accelerator")
        if isinstance(counts, dict):
            self._accelerator.step = counts["step"]
            self._accelerator.project_configuration.iteration = counts["iteration"]
        dice = found.parts.get(_RANDOM)
        if found.same_world and isinstance(dice, str):
            rng.restore(dice, self._parts.rank)
        return found.step

    def wait(self, timeout: float = 1800) -> None:
        """Wait until this rank's part of the last save has reached its target, and on rank 0 the whole save. Raises
        TimeoutError.
        """
        self._parts.wait(timeout)

    def _named_objects(self) -> Iterator[tuple[str, Any]]:
        """Give each saved object with its name, numbered in the order of preparing, as in Accelerate's own files."""
        own = self._accelerator
        kinds = {
            "model": [own.unwrap_model(each) for each in own._models],
            "optimizer": own._optimizers,
            "scheduler": own._schedulers,
            "data": [_LoaderPosition(each) for each in own._dataloaders],
            "custom": own._custom_objects,
        }
        for kind, found in kinds.items():
            for at, each in enumerate(found):
                yield f"{kind}_{at}", each
        if own.scaler is not None:
            yield "scaler", own.scaler


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
        """Set the position of the data loader to that of a saved state."""
        if hasattr(self._loader, "iteration"):
            self._loader.iteration = state["iteration"]
        if self._sampler is not None and "epoch" in state:
            self._sampler.epoch, self._sampler.initial_seed = state["epoch"], state["seed"]
        if getattr(self._loader, "use_stateful_dataloader", False) and "loader" in state:
            self._loader.load_state_dict(state["loader"])


def _state_of(each: Any) -> dict[str, Any]:
    return named(each) if isinstance(each, Module) else each.state_dict()


def _load_object(each: Any, state: Any) -> None:
    """Load a saved state into a module, or into any object with load_state_dict."""
    if isinstance(each, Module):
        load_module(each, state)
    else:
        each.load_state_dict(state)
