"""Replaces Megatron-LM's `save_checkpoint` and `load_checkpoint`: a script only changes its import line.

    from turnout.launcher.flash_checkpoint.megatron import load_checkpoint, save_checkpoint

The state of a rank is collected in megatron_ranks.py, and saved as in named_parts.py. Megatron's arguments --save and
--load name the folders. Source: DL-57 to DL-59, DL-61, DL-62; docs/facts/dlrover.md 6.4
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from turnout.launcher.checkpoint.adapters.megatron_ranks import Megatron
from turnout.launcher.checkpoint.adapters.named_parts import Parts
from turnout.launcher.checkpoint.dcp.reader import named
from turnout.launcher.checkpoint.engine import rng
from turnout.launcher.checkpoint.engine.storage_type import StorageType, copies_of
from turnout.launcher.errors import BadCheckpoint
from turnout.launcher.versions import counts_operations

_SAMPLES = ("consumed_train_samples", "skipped_train_samples", "consumed_valid_samples")
_ONLY_NONE = ("pipeline_rank", "expert_rank", "tensor_rank", "pipeline_parallel", "expert_parallel")
_IDLE = ("checkpointing_context", "train_data_iterator", "preprocess_common_state_dict_fn", "prune_state_dict_func")
_IDLE_AT_LOAD = ("ft_client", "checkpointing_context")
_parts: dict[tuple[str, int], Parts] = {}


def save_checkpoint(
    iteration: int,
    model: Any,
    optimizer: Any,
    opt_param_scheduler: Any,
    num_floating_point_operations_so_far: float = 0,
    checkpointing_context: Any = None,
    *,
    storage_type: StorageType = StorageType.DISK,
    non_persistent_ckpt: bool = False,
    replica_count: int = 0,
    comm_backend: str = "",
    checkpoint_dir: str | os.PathLike[str] = "",
    **megatrons: Any,
) -> None:
    """Save this iteration in memory; training may go on when this returns. All ranks have to call it.

    DISK also stores it in the background. MEMORY, and what Megatron calls a non-persistent checkpoint, is stored only
    if training resumes from it after a failure.
    num_floating_point_operations_so_far: 0 before Megatron 0.5, which has no count. checkpoint_dir: --save by default.
    replica_count: workers in a group that keep each other's shards in memory, 0 and 1 for none; the same at each save.
    comm_backend: ignored. megatrons: Megatron's own. Raises BadState, NoMemory, NotUsable, NotImplementedError.
    """
    _refuse(megatrons, _IDLE)
    if not isinstance(storage_type, StorageType):
        raise TypeError(f"storage_type is {storage_type!r}: StorageType.MEMORY or StorageType.DISK")
    megatron = Megatron.of_process()
    arguments = megatron.arguments()
    flops = num_floating_point_operations_so_far if counts_operations(megatron.version) else 0
    samples = {name: getattr(arguments, name) for name in _SAMPLES if hasattr(arguments, name)}
    files = _of(checkpoint_dir or getattr(arguments, "save", None), "--save", copies_of(replica_count))
    state: dict[str, object] = {
        "common": {"iteration": int(iteration), "operations": flops, "samples": samples, "grid": megatron.grid},
        **megatron.models(model),
    }
    if not getattr(arguments, "no_save_optim", False):
        state |= megatron.optimizers(optimizer, opt_param_scheduler)
    if not getattr(arguments, "no_save_rng", False):
        state |= {"random": rng.encode_state(files.rank)} | megatron.tracked()
    files.save(int(iteration), state, disk=storage_type is StorageType.DISK and not non_persistent_ckpt)


def load_checkpoint(
    model: Any,
    optimizer: Any,
    opt_param_scheduler: Any,
    load_arg: str = "load",
    strict: bool = True,
    *,
    replica_count: int = 0,
    comm_backend: str = "",
    checkpoint_dir: str | os.PathLike[str] = "",
    **megatrons: Any,
) -> tuple[int, float]:
    """Load the newest iteration into all three objects: from memory if all ranks hold it, else from storage.

    Returns the iteration and the count of floating-point operations (0 before Megatron 0.5), or (0, 0) if nothing is
    stored. checkpoint_dir: --load by default. --finetune, --no-load-optim and --no-load-rng are obeyed.
    The sizes of tensor, pipeline and expert parallelism must equal the save's; with a distributed optimizer, data too.
    Raises BadCheckpoint, StorageFailed, NotUsable, NotImplementedError.
    """
    _refuse(megatrons, _IDLE_AT_LOAD)
    megatron = Megatron.of_process()
    arguments = megatron.arguments()
    files = _of(checkpoint_dir or getattr(arguments, load_arg, None), f"--{load_arg}", copies_of(replica_count))
    found = files.load(lambda name: name == "common" or name in megatron.names())
    if found is None:
        return 0, 0
    common = _common(found.parts, megatron)
    megatron.load_models(model, found.parts, strict)
    if getattr(arguments, "finetune", False):
        return 0, 0
    if not getattr(arguments, "no_load_optim", False):
        megatron.load_optimizers(optimizer, opt_param_scheduler, found.parts)
    if not getattr(arguments, "no_load_rng", False):
        if found.same_world and "random" in found.parts:
            rng.restore(str(found.parts["random"]), files.rank)
        megatron.load_tracked(found.parts)
    for name, value in common["samples"].items():
        setattr(arguments, name, value)
    megatron.told_samples(common["samples"].get(_SAMPLES[0], 0))
    return common["iteration"], common["operations"] if counts_operations(megatron.version) else 0


def _common(parts: Mapping[str, object], megatron: Megatron) -> dict[str, Any]:
    common = parts.get("common")
    if not isinstance(common, dict):
        raise BadCheckpoint("this is no checkpoint of Megatron: it has no part 'common'")
    if common["grid"] != megatron.grid:
        raise BadCheckpoint(f"tensor, pipeline, expert parallelism: {common['grid']} when saved, {megatron.grid} now")
    return common


def wait_latest_checkpoint(timeout: float = 1800) -> None:
    """Wait until this rank's part of the last saves has reached its target, and on rank 0 the whole saves. Raises
    TimeoutError.
    """
    for each in _parts.values():
        each.wait(timeout)


def _of(folder: str | os.PathLike[str] | None, option: str, copies: int) -> Parts:
    if not folder:
        raise ValueError(f"Megatron was started without {option}: where do checkpoints go? Give it, or checkpoint_dir")
    return _parts.setdefault((named(folder), copies), Parts(folder, replicas=copies))


def _refuse(megatrons: dict[str, Any], idle: Iterable[str]) -> None:
    for name, value in megatrons.items():
        if name not in (*idle, *_ONLY_NONE):
            raise TypeError(f"{name}: this is known neither here nor to Megatron's own")
        if name in _ONLY_NONE and value is not None:
            raise NotImplementedError(f"{name} is for tools that convert checkpoints: use Megatron's own for these")
