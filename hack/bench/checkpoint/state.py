"""A training state as docs/facts/launcher.md 0 has it: fp32 parameters of a small GPT, both moments of Adam, scalars.

It has 36 tensors a layer and 12 more. At 29 layers of width 640 these are 1,056 tensors and 1.87 GB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

POSITIONS = 1_024
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A small GPT."""

    width: int
    layers: int
    words: int  # of the vocabulary

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter, by name."""
        width = self.width
        shapes: dict[str, tuple[int, ...]] = {"words": (self.words, width), "positions": (POSITIONS, width)}
        for layer in range(self.layers):
            for norm in ("before", "after"):
                shapes |= {f"{layer}.{norm}.weight": (width,), f"{layer}.{norm}.bias": (width,)}
            for name, rows, columns in (("qkv", 3, 1), ("projection", 1, 1), ("up", 4, 1), ("down", 1, 4)):
                shapes[f"{layer}.{name}.weight"] = (rows * width, columns * width)
                shapes[f"{layer}.{name}.bias"] = (rows * width,)
        return shapes | {"last.weight": (width,), "last.bias": (width,)}


def make(size: ModelSize, seed: int = 7) -> dict[str, Any]:
    """Return a state of model, optimizer, scheduler and random numbers, with random values.

    All memory is written, so that no save pays for page faults. seed: of the values.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    shapes = size.shapes()

    def values() -> dict[str, Any]:
        return {name: torch.rand(shape, generator=generator) for name, shape in shapes.items()}

    optimizer: dict[str, Any] = {name: values() for name in _MOMENTS}
    optimizer |= {"lr": 3e-4, "betas": [0.9, 0.95], "fused": None, "decoupled": True}
    return {
        "model": values(),
        "optimizer": optimizer,
        "scheduler": {"last_epoch": 12, "kind": "cosine"},
        "rng": generator.get_state(),
        "step": 0,
    }


def tensors(state: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, tensor) of every tensor in the state, depth first. The path joins the keys by "/"."""
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from tensors(value, f"{path}{name}/")
        elif hasattr(value, "untyped_storage"):
            yield f"{path}{name}", value


def bytes_of(state: Mapping[str, Any]) -> int:
    """Return the number of bytes of all tensors together."""
    return sum(tensor.nbytes for _, tensor in tensors(state))


def differ(one: object, other: object, path: str = "") -> str:
    """Return the path of the first difference of two states in a bit, a key, the order of keys or a type; "" without
    any.

    path: of the two within the whole state. A difference of the keys at the top is named "the keys".
    """
    import torch

    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if list(one) != list(other):
            return path or "the keys"
        return next((at for key in one if (at := differ(one[key], other[key], f"{path}/{key}"))), "")
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        return "" if same and torch.equal(_bits(one), _bits(other)) else path
    return "" if type(one) is type(other) and one == other else path


def _bits(tensor: Any) -> Any:
    """Return a tensor's bytes as one row of bytes, so that two NaN with equal bits compare equal."""
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8)
