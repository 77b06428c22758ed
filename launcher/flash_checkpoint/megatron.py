"""Saves what Megatron-LM would write: to memory, and to storage in the background.

The state of one rank is collected as named parts (named_parts.py): the model chunks, the states of the optimizer and
the scheduler, and the random number generators of tensor parallelism. get_args() is in `megatron` up to 0.5, and in
`megatron.training` since then. megatron-core alone, without the training scripts, has no arguments; callers then name
their folder.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from turnout.launcher.checkpoint.dcp.reader import absolute_folder
from turnout.launcher.checkpoint.engine import rng
from turnout.launcher.checkpoint.engine.storage_type import StorageType, replicas_of
from turnout.launcher.errors import BadCheckpoint, BadState, NotUsable
from turnout.launcher.flash_checkpoint.named_parts import Parts, decode_object, encode_object
from turnout.launcher.torch_version import counts_operations, too_old_megatron_message

__all__ = ["StorageType", "load_checkpoint", "save_checkpoint", "wait_latest_checkpoint"]

# Ways to get and set a distributed optimizer's own shard, newest first.
_SHARD_METHODS = (
    ("get_parameter_state_dp_reshardable", "load_parameter_state_from_dp_reshardable"),
    ("get_parameter_state_fs_bucket_space", "load_parameter_state_from_fs_bucket_space"),
)


@dataclass(frozen=True, slots=True)
class Megatron:
    """The installed Megatron, and this rank's place in its grid of parallelism."""

    version: str  # of megatron-core
    grid: tuple[int, int, int]  # sizes of tensor, pipeline and expert parallelism
    place: str  # of this rank in the grid, without data parallelism; begins the names of its parts
    data_rank: int  # rank in data parallelism

    @classmethod
    def of_process(cls) -> Megatron:
        """Find the installed Megatron, and this process's place in its parallel groups, which must exist already.

        Raises NotUsable if it is missing or too old.
        """
        core = _module("megatron.core")
        if core is None:
            old = _module("megatron")
            raise NotUsable("megatron-core", "is not there" if old is None else "is not there: Megatron is too old")
        version = str(
            getattr(core, "__version__", None) or getattr(_module("megatron.core.package_info"), "__version__", "")
        )
        if why := too_old_megatron_message(version):
            raise NotUsable("megatron-core", why)
        state: Any = _module("megatron.core.parallel_state")
        tensor, pipeline = state.get_tensor_model_parallel_rank(), state.get_pipeline_model_parallel_rank()
        expert = getattr(state, "get_expert_model_parallel_rank", lambda: 0)()  # since version 0.5
        experts = getattr(state, "get_expert_model_parallel_world_size", lambda: 1)()
        grid = state.get_tensor_model_parallel_world_size(), state.get_pipeline_model_parallel_world_size(), experts
        try:
            data = state.get_data_parallel_rank(with_context_parallel=True)
        except TypeError:  # a version without context parallelism
            data = state.get_data_parallel_rank()
        return cls(version, grid, f"tp{tensor:02}-pp{pipeline:03}-ep{expert:03}", data)

    def arguments(self) -> Any:
        """Return the namespace of Megatron's `get_args()`; an empty one if there is no such function, or if its
        arguments are not initialized.
        """
        with suppress(AssertionError):  # "args is not initialized."
            if get := _find_function("get_args"):
                return get()
        return SimpleNamespace()

    def set_consumed_samples(self, consumed: int) -> None:
        """Tell Megatron how many samples were consumed, so that a batch size that grows continues at its last size."""
        if update := _find_function("update_num_microbatches"):
            with suppress(AttributeError):  # megatron-core without its own calculator of micro batches
                update(consumed_samples=consumed, consistency_check=False)

    def part_names(self) -> frozenset[str]:
        """Return the names of the parts that this rank needs."""
        kinds = ("model", "optimizer", "scheduler", "tracker", f"shard{self.data_rank:05}")
        return frozenset(f"{self.place}/{kind}" for kind in kinds)

    def model_parts(self, model: Any) -> dict[str, object]:
        """Return {name: part} for the part with the model chunks of this rank: a list of their states.

        That is one chunk, or several with interleaved pipelines.
        """
        return {f"{self.place}/model": [_state_of(each) for each in _bare_chunks(model)]}

    def load_models(self, model: Any, parts: Mapping[str, object], strict: bool) -> None:
        """Load the model chunks of this rank. strict: as in load_state_dict.

        Raises BadCheckpoint if this rank's part is missing, or has another number of chunks.
        """
        states, chunks = self._part(parts, "model"), list(_bare_chunks(model))
        if not isinstance(states, list) or len(states) != len(chunks):
            raise BadCheckpoint(f"the model of this rank is saved in other than {len(chunks)} chunks")
        for chunk, state in zip(chunks, states, strict=True):
            chunk.load_state_dict(state, strict=strict)

    def optimizer_parts(self, optimizer: Any, scheduler: Any) -> dict[str, object]:
        """Return the parts with the states of optimizer and scheduler, by their names; None for either is omitted.

        A distributed optimizer gives a second part with this rank's own shard. Raises BadState if it cannot return that
        shard, or if a value cannot be saved.
        """
        parts: dict[str, object] = {}
        if optimizer is not None:
            parts[f"{self.place}/optimizer"] = encode_object(optimizer.state_dict(), {}, "optimizer")
            shards = [each for each in map(_shard, _single_optimizers(optimizer)) if each is not None]
            if shards:
                parts[f"{self.place}/shard{self.data_rank:05}"] = encode_object(
                    [get() for get, _ in shards], {}, "optimizer"
                )
        if scheduler is not None:
            parts[f"{self.place}/scheduler"] = encode_object(scheduler.state_dict(), {}, "opt_param_scheduler")
        return parts

    def load_optimizers(self, optimizer: Any, scheduler: Any, parts: Mapping[str, object]) -> None:
        """Load the states of optimizer and scheduler; None for either is skipped.

        Raises BadCheckpoint if a part is missing or has an object of an unlisted kind, and BadState if a distributed
        optimizer cannot set its own shard.
        """
        if optimizer is not None:
            optimizer.load_state_dict(decode_object(self._part(parts, "optimizer"), {}))
            shards = [each for each in map(_shard, _single_optimizers(optimizer)) if each is not None]
            if shards:
                saved_shards = decode_object(self._part(parts, f"shard{self.data_rank:05}"), {})
                for (_, set_shard), shard in zip(shards, saved_shards, strict=True):
                    set_shard(_add_padding_flags(shard))
        if scheduler is not None:
            scheduler.load_state_dict(decode_object(self._part(parts, "scheduler"), {}))

    def rng_states(self) -> dict[str, object]:
        """Return the part with the states of the random number generators of tensor parallelism; {} if there are
        none.
        """
        states = {name: _generator_state(each) for name, each in _rng_tracker().get_states().items()}
        return {f"{self.place}/tracker": states} if states else {}

    def load_rng_states(self, parts: Mapping[str, object]) -> None:
        """Set the random number generators of tensor parallelism to their saved states, if there are any.

        Raises BadCheckpoint if the part with these states is no dict.
        """
        saved_states = parts.get(f"{self.place}/tracker", {})
        if not isinstance(saved_states, dict):
            raise BadCheckpoint("the random numbers of tensor parallelism are no dict")
        tracker = _rng_tracker()
        current_states = tracker.get_states()
        for name, each in saved_states.items():
            if isinstance(current_states.get(name), torch.Generator):
                current_states[name].set_state(each)
            else:
                current_states[name] = each
        if saved_states:
            tracker.set_states(current_states)

    def _part(self, parts: Mapping[str, object], kind: str) -> Any:
        """Return this rank's part of a kind, such as the model. Raises BadCheckpoint if the checkpoint lacks it."""
        name = f"{self.place}/{kind}"
        if name not in parts:
            raise BadCheckpoint(f"there is no {name}: it was saved without, or in a world of another size")
        return parts[name]


def _module(name: str) -> ModuleType | None:
    """Return a module by name; None if it cannot be imported."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _find_function(function: str) -> Callable[..., Any] | None:
    """Return a function of Megatron from the module where this version has it; None if no module has it."""
    for name in ("megatron.core.num_microbatches_calculator", "megatron.training", "megatron"):
        if match := getattr(_module(name), function, None):
            return match  # type: ignore[no-any-return]
    return None


def _bare_chunks(model: Any) -> Iterator[Any]:
    """Yield each model chunk without its wrappers for data parallelism or half precision."""
    for each in model if isinstance(model, list | tuple) else [model]:
        bare = each
        while isinstance(getattr(bare, "module", None), torch.nn.Module):
            bare = bare.module
        yield bare


def _state_of(chunk: Any) -> object:
    """Return the state of a model chunk, as Megatron itself would save it."""
    get = getattr(chunk, "state_dict_for_save_checkpoint", chunk.state_dict)
    return encode_object(get(), {}, "model")


def _single_optimizers(optimizer: Any) -> Iterator[Any]:
    """Yield the single optimizers; Megatron chains those of dense and expert parameters."""
    chain = getattr(optimizer, "chained_optimizers", None)
    yield from [optimizer] if chain is None else chain


def _shard(optimizer: Any) -> tuple[Callable[[], Any], Callable[[Any], None]] | None:
    """Return the functions that get and set an optimizer's own shard; None if it is not distributed.

    Raises BadState for a distributed optimizer of a Megatron without these functions.
    """
    for get, give in _SHARD_METHODS:
        if hasattr(optimizer, get) and hasattr(optimizer, give):
            return getattr(optimizer, get), getattr(optimizer, give)
    if hasattr(optimizer, "load_parameter_state"):
        raise BadState("optimizer", "the distributed optimizer of this Megatron cannot tell its own shard: 0.6 can")
    return None


def _add_padding_flags(shard: Any) -> Any:
    """Set the flag "padding" to False where a shard of the optimizer lacks it, and return the shard itself.

    Megatron's getter omits them, but its loader needs them.
    """
    for parameter_group in shard.values() if isinstance(shard, dict) else ():
        for buckets in parameter_group.values() if isinstance(parameter_group, dict) else ():
            for tensors in (each for bucket in buckets for each in bucket):
                tensors.setdefault("padding", False)
    return shard


def _rng_tracker() -> Any:
    """Return Megatron's tracker of random number generators; one without any if this version has none."""
    random: Any = _module("megatron.core.tensor_parallel.random") or _module("megatron.core.tensor_parallel")
    get = getattr(random, "get_cuda_rng_tracker", None)
    return get() if get else SimpleNamespace(get_states=dict, set_states=lambda states: None)


def _generator_state(state: Any) -> torch.Tensor:
    """Return the state of a generator as a tensor; newer versions of Megatron track generators instead of states."""
    tensor: torch.Tensor = state.get_state() if isinstance(state, torch.Generator) else state
    return tensor


# Counts of samples in Megatron's arguments, which are saved.
_SAMPLE_COUNTS = ("consumed_train_samples", "skipped_train_samples", "consumed_valid_samples")

# Arguments of Megatron's own functions that are refused unless None, and those that have no effect here.
_UNSUPPORTED_ARGUMENTS = ("pipeline_rank", "expert_rank", "tensor_rank", "pipeline_parallel", "expert_parallel")

_IGNORED_ARGUMENTS = (
    "checkpointing_context",
    "train_data_iterator",
    "preprocess_common_state_dict_fn",
    "prune_state_dict_func",
)

_IGNORED_AT_LOAD = ("ft_client", "checkpointing_context")

_parts: dict[tuple[str, int], Parts] = {}  # by folder and number of replicas


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
    **other_arguments: Any,
) -> None:
    """Save this iteration in memory; training may continue when this returns. All ranks have to call it.

    DISK also writes it to storage in the background. MEMORY, and what Megatron calls a non-persistent checkpoint, is
    stored only if training resumes from it after a failure. num_floating_point_operations_so_far: 0 before Megatron
    0.5, which has no count. checkpoint_dir: --save by default. replica_count: workers in a group that keep each other's
    shards in memory, 0 and 1 for none; the same at each save. checkpointing_context, comm_backend: ignored.
    other_arguments: of Megatron's save_checkpoint; they have no effect.

    Raises BadState if a value cannot be saved, NotUsable if Megatron is missing or too old, NotImplementedError for an
    argument that is not supported, TypeError for one that Megatron does not have and for another storage type, and
    ValueError without a folder. If a rank fails later, as without memory (NoMemory), all ranks raise torch's
    CheckpointException, which is no Exception, with the error of that rank.
    """
    _check_arguments(other_arguments, _IGNORED_ARGUMENTS)
    if not isinstance(storage_type, StorageType):
        raise TypeError(f"storage_type is {storage_type!r}: StorageType.MEMORY or StorageType.DISK")
    megatron = Megatron.of_process()
    arguments = megatron.arguments()
    flops = num_floating_point_operations_so_far if counts_operations(megatron.version) else 0
    samples = {name: getattr(arguments, name) for name in _SAMPLE_COUNTS if hasattr(arguments, name)}
    files = _parts_for(checkpoint_dir or getattr(arguments, "save", None), "--save", replicas_of(replica_count))
    state: dict[str, object] = {
        "common": {"iteration": int(iteration), "operations": flops, "samples": samples, "grid": megatron.grid},
        **megatron.model_parts(model),
    }
    if not getattr(arguments, "no_save_optim", False):
        state |= megatron.optimizer_parts(optimizer, opt_param_scheduler)
    if not getattr(arguments, "no_save_rng", False):
        state |= {"random": rng.encode_state(files.rank)} | megatron.rng_states()
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
    **other_arguments: Any,
) -> tuple[int, float]:
    """Load the newest iteration into all three objects: from memory if all ranks hold it, else from storage.

    Returns the iteration and the count of floating-point operations (0 before Megatron 0.5). Returns (0, 0) if nothing
    is stored, and also with --finetune, which loads the model alone. --no-load-optim and --no-load-rng are obeyed.
    load_arg: name of Megatron's argument that holds the folder, used unless `checkpoint_dir` is given. strict: as in
    `load_state_dict`. replica_count: the same as at the saves. comm_backend: ignored. other_arguments: of Megatron's
    load_checkpoint; they have no effect. The sizes of tensor, pipeline and expert parallelism must equal the save's;
    with a distributed optimizer, the size of data parallelism too.

    Raises BadCheckpoint if what is stored cannot be read or does not fit, NewerFormat if only a newer version can read
    it, StorageFailed if storage fails, and NotUsable if Megatron is missing or too old. Raises NotImplementedError for
    an argument that is not supported, TypeError for one that Megatron does not have, and ValueError without a folder.
    If a rank cannot read its tensors, all ranks raise torch's CheckpointException.
    """
    _check_arguments(other_arguments, _IGNORED_AT_LOAD)
    megatron = Megatron.of_process()
    arguments = megatron.arguments()
    folder = checkpoint_dir or getattr(arguments, load_arg, None)
    files = _parts_for(folder, f"--{load_arg}", replicas_of(replica_count))
    loaded = files.load(lambda name: name == "common" or name in megatron.part_names())
    if loaded is None:
        return 0, 0
    common = _common_part(loaded.parts, megatron)
    megatron.load_models(model, loaded.parts, strict)
    if getattr(arguments, "finetune", False):
        return 0, 0
    if not getattr(arguments, "no_load_optim", False):
        megatron.load_optimizers(optimizer, opt_param_scheduler, loaded.parts)
    if not getattr(arguments, "no_load_rng", False):
        if loaded.same_world and "random" in loaded.parts:
            rng.restore(str(loaded.parts["random"]), files.rank)
        megatron.load_rng_states(loaded.parts)
    for name, value in common["samples"].items():
        setattr(arguments, name, value)
    megatron.set_consumed_samples(common["samples"].get(_SAMPLE_COUNTS[0], 0))
    return common["iteration"], common["operations"] if counts_operations(megatron.version) else 0


def _common_part(parts: Mapping[str, object], megatron: Megatron) -> dict[str, Any]:
    """Return the part that all ranks of a Megatron checkpoint share.

    Raises BadCheckpoint if it is missing, or if it was saved with other parallel sizes.
    """
    common = parts.get("common")
    if not isinstance(common, dict):
        raise BadCheckpoint("this is no checkpoint of Megatron: it has no part 'common'")
    if common["grid"] != megatron.grid:
        raise BadCheckpoint(f"tensor, pipeline, expert parallelism: {common['grid']} when saved, {megatron.grid} now")
    return common


def wait_latest_checkpoint(timeout: float = 1800) -> None:
    """Wait until this rank's part of the last saves is in storage, if storage is its target; on rank 0, until the
    whole step is. A failed write is logged, not raised. timeout: seconds for each folder in use; then TimeoutError is
    raised. Raises DaemonLost if a daemon is lost. Does nothing before the first save.
    """
    for each in _parts.values():
        each.wait(timeout)


def _parts_for(folder: str | os.PathLike[str] | None, option: str, replicas: int) -> Parts:
    """Return the Parts of a folder and a number of replicas, the same object at each call with these two. Raises
    ValueError without a folder.

    option: Megatron's option for the folder, for the message. replicas: how many other workers keep each shard.
    """
    if not folder:
        raise ValueError(f"Megatron was started without {option}: where do checkpoints go? Give it, or checkpoint_dir")
    return _parts.setdefault((absolute_folder(folder), replicas), Parts(folder, replicas=replicas))


def _check_arguments(other_arguments: dict[str, Any], ignored: Iterable[str]) -> None:
    """Raise TypeError for an argument that Megatron's own function does not have, and NotImplementedError for an
    argument that is not supported here, unless its value is None.

    other_arguments: values by name. ignored: names that may have any value, since they have no effect.
    """
    for name, value in other_arguments.items():
        if name not in (*ignored, *_UNSUPPORTED_ARGUMENTS):
            raise TypeError(f"{name}: unknown argument: neither Turnout nor Megatron's function has it")
        if name in _UNSUPPORTED_ARGUMENTS and value is not None:
            raise NotImplementedError(f"{name} is for tools that convert checkpoints: use Megatron's own for these")
