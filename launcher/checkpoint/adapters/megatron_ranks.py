"""Collects the state of one Megatron-LM rank as named parts: its version, its place in the grid, and its states.

get_args() is in `megatron` up to 0.5, and in `megatron.training` since then. megatron-core alone, without the training
scripts, has no arguments; callers then name their folder.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from turnout.launcher.checkpoint.adapters.object_codec import decode_object, plain
from turnout.launcher.errors import BadCheckpoint, BadState, NotUsable
from turnout.launcher.versions import too_old_megatron

# Ways to get and set a distributed optimizer's own shard, newest first.
_SHARDS = (
    ("get_parameter_state_dp_reshardable", "load_parameter_state_from_dp_reshardable"),
    ("get_parameter_state_fs_bucket_space", "load_parameter_state_from_fs_bucket_space"),
)


@dataclass(frozen=True, slots=True)
class Megatron:
    """Describes the Megatron that is installed, and this rank's place in it."""

    version: str
    grid: tuple[int, int, int]  # tensor, pipeline, expert
    place: str  # of this rank in the grid, without data parallelism
    data_rank: int

    @classmethod
    def of_process(cls) -> Megatron:
        """Find the installed Megatron. Raises NotUsable if it is missing or too old."""
        core = _module("megatron.core")
        if core is None:
            old = _module("megatron")
            raise NotUsable("megatron-core", "is not there" if old is None else "is not there: Megatron is too old")
        version = str(
            getattr(core, "__version__", None) or getattr(_module("megatron.core.package_info"), "__version__", "")
        )
        if why := too_old_megatron(version):
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
        """Return Megatron's arguments, or an empty namespace if it has none."""
        with suppress(AssertionError):  # "args is not initialized."
            if get := _first("get_args"):
                return get()
        return SimpleNamespace()

    def told_samples(self, consumed: int) -> None:
        """Tell Megatron how many samples were consumed, so that a growing batch size continues at its size."""
        if update := _first("update_num_microbatches"):
            with suppress(AttributeError):  # megatron-core without its own calculator of micro batches
                update(consumed_samples=consumed, consistency_check=False)

    def names(self) -> frozenset[str]:
        """List the parts that this rank needs if the world has another size."""
        kinds = ("model", "optimizer", "scheduler", "tracker", f"shard{self.data_rank:05}")
        return frozenset(f"{self.place}/{kind}" for kind in kinds)

    def models(self, model: Any) -> dict[str, object]:
        """Collect the model chunks of this rank: one, or several with interleaved pipelines."""
        return {f"{self.place}/model": [_state_of(each) for each in _chunks(model)]}

    def load_models(self, model: Any, parts: Mapping[str, object], strict: bool) -> None:
        """Load the model chunks of this rank. Raises BadCheckpoint."""
        found, chunks = self._part(parts, "model"), list(_chunks(model))
        if not isinstance(found, list) or len(found) != len(chunks):
            raise BadCheckpoint(f"the model of this rank is saved in other than {len(chunks)} chunks")
        for chunk, state in zip(chunks, found, strict=True):
            chunk.load_state_dict(state, strict=strict)

    def optimizers(self, optimizer: Any, scheduler: Any) -> dict[str, object]:
        """Collect the states of optimizer and scheduler. Raises BadState if a distributed optimizer cannot return its
        own shard.
        """
        parts: dict[str, object] = {}
        if optimizer is not None:
            parts[f"{self.place}/optimizer"] = plain(optimizer.state_dict(), {}, "optimizer")
            shards = [each for each in map(_shard, _links(optimizer)) if each is not None]
            if shards:
                parts[f"{self.place}/shard{self.data_rank:05}"] = plain([get() for get, _ in shards], {}, "optimizer")
        if scheduler is not None:
            parts[f"{self.place}/scheduler"] = plain(scheduler.state_dict(), {}, "opt_param_scheduler")
        return parts

    def load_optimizers(self, optimizer: Any, scheduler: Any, parts: Mapping[str, object]) -> None:
        """Load the states of optimizer and scheduler. Raises BadCheckpoint, and BadState as `optimizers` does."""
        if optimizer is not None:
            optimizer.load_state_dict(decode_object(self._part(parts, "optimizer"), {}))
            shards = [each for each in map(_shard, _links(optimizer)) if each is not None]
            if shards:
                found = decode_object(self._part(parts, f"shard{self.data_rank:05}"), {})
                for (_, give), shard in zip(shards, found, strict=True):
                    give(_without_padding(shard))
        if scheduler is not None:
            scheduler.load_state_dict(decode_object(self._part(parts, "scheduler"), {}))

    def tracked(self) -> dict[str, object]:
        """Collect the random number generators of tensor parallelism, if there are any."""
        states = {name: _dice(each) for name, each in _tracker().get_states().items()}
        return {f"{self.place}/tracker": states} if states else {}

    def load_tracked(self, parts: Mapping[str, object]) -> None:
        """Load the random number generators of tensor parallelism. Raises BadCheckpoint."""
        found = parts.get(f"{self.place}/tracker", {})
        if not isinstance(found, dict):
            raise BadCheckpoint("the random numbers of tensor parallelism are no dict")
        tracker = _tracker()
        known = tracker.get_states()
        for name, each in found.items():
            if isinstance(known.get(name), torch.Generator):
                known[name].set_state(each)
            else:
                known[name] = each
        if found:
            tracker.set_states(known)

    def _part(self, parts: Mapping[str, object], kind: str) -> Any:
        name = f"{self.place}/{kind}"
        if name not in parts:
            raise BadCheckpoint(f"there is no {name}: it was saved without, or in a world of another size")
        return parts[name]


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _first(function: str) -> Callable[..., Any] | None:
    """Find a function in the module where this Megatron version has it. None if it is in none."""
    for name in ("megatron.core.num_microbatches_calculator", "megatron.training", "megatron"):
        if found := getattr(_module(name), function, None):
            return found  # type: ignore[no-any-return]
    return None


def _chunks(model: Any) -> Iterator[Any]:
    """Give each model chunk without its wrappers for data parallelism or half precision."""
    for each in model if isinstance(model, list | tuple) else [model]:
        bare = each
        while isinstance(getattr(bare, "module", None), torch.nn.Module):
            bare = bare.module
        yield bare


def _state_of(chunk: Any) -> object:
    get = getattr(chunk, "state_dict_for_save_checkpoint", chunk.state_dict)
    return plain(get(), {}, "model")


def _links(optimizer: Any) -> Iterator[Any]:
    """Give the single optimizers; Megatron chains those of dense and expert parameters."""
    chain = getattr(optimizer, "chained_optimizers", None)
    yield from [optimizer] if chain is None else chain


def _shard(optimizer: Any) -> tuple[Callable[[], Any], Callable[[Any], None]] | None:
    """Return the functions that get and set an optimizer's own shard; None if it is not distributed.

    Raises BadState.
    """
    for get, give in _SHARDS:
        if hasattr(optimizer, get) and hasattr(optimizer, give):
            return getattr(optimizer, get), getattr(optimizer, give)
    if hasattr(optimizer, "load_parameter_state"):
        raise BadState("optimizer", "the distributed optimizer of this Megatron cannot tell its own shard: 0.6 can")
    return None


def _without_padding(shard: Any) -> Any:
    """Add the missing "padding" flags: Megatron's getter omits padding, but its loader asks for the flag."""
    for each in shard.values() if isinstance(shard, dict) else ():
        for buckets in each.values() if isinstance(each, dict) else ():
            for tensors in (found for bucket in buckets for found in bucket):
                tensors.setdefault("padding", False)
    return shard


def _tracker() -> Any:
    random: Any = _module("megatron.core.tensor_parallel.random") or _module("megatron.core.tensor_parallel")
    get = getattr(random, "get_cuda_rng_tracker", None)
    return get() if get else SimpleNamespace(get_states=dict, set_states=lambda states: None)


def _dice(state: Any) -> torch.Tensor:
    found: torch.Tensor = state.get_state() if isinstance(state, torch.Generator) else state
    return found
