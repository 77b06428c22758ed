"""torch's tensors as bytes that lie somewhere, and the other way round. Everything else of a state is in the tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from launcher.checkpoint import tree
from launcher.checkpoint.layout import Entry, Layout, Spec
from launcher.errors import BadCheckpoint, BadState

NAMES: Mapping[torch.dtype, str] = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.uint16: "U16",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.int32: "I32", torch.uint32: "U32", torch.float32: "F32",
    torch.int64: "I64", torch.uint64: "U64", torch.float64: "F64", torch.complex64: "C64",
    torch.float8_e5m2: "F8_E5M2", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
}  # fmt: skip
_TYPES = {name: dtype for dtype, name in NAMES.items()}
_TORCH = {str(dtype).removeprefix("torch."): dtype for dtype in NAMES}
_NUMBERS = "biufc"  # of numpy, by kind


def flatten(state: object) -> tuple[str, dict[str, torch.Tensor]]:
    """The tree and the tensors of a state. Raises BadState with the path of what has no place in it."""
    text, tensors = tree.flatten(state, lambda value: isinstance(value, torch.Tensor), _plain, _identity)
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        assert isinstance(tensor, torch.Tensor)
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            kind = type(tensor).__name__ if tensor.layout is torch.strided else str(tensor.layout)
            raise BadState(name, f"a {kind} is no plain tensor: save it with torch.distributed.checkpoint")
        if tensor.dtype not in NAMES or tensor.is_quantized:
            raise BadState(name, f"{tensor.dtype} has no place in a checkpoint")
        found[name] = tensor.detach()
    return text, found


def spec_of(name: str, tensor: torch.Tensor) -> Spec:
    """What has to be laid out for it."""
    return Spec(name, NAMES[tensor.dtype], tuple(tensor.shape))


def is_bytes(tensor: torch.Tensor) -> bool:
    """Does it lie in this process's memory as it is to be saved?"""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def over(view: memoryview, entry: Entry, head_bytes: int) -> torch.Tensor:
    """A tensor over the bytes of a shard in memory, head included. It keeps the memory alive."""
    dtype = _TYPES.get(entry.dtype)
    if dtype is None:
        raise BadCheckpoint(f"{entry.name}: this torch has no {entry.dtype}")
    count = math.prod(entry.shape)
    if not count:
        return torch.empty(entry.shape, dtype=dtype)
    flat = torch.frombuffer(view, dtype=dtype, count=count, offset=head_bytes + entry.start)
    return flat.view(entry.shape)


def restored(text: str, layout: Layout, view: memoryview, head_bytes: int) -> object:
    """The state over the bytes of a shard. Raises BadCheckpoint where they are no state."""
    tensors = {entry.name: over(view, entry, head_bytes) for entry in layout.entries}
    return tree.unflatten(text, tensors, _MADE)


def _identity(value: object) -> tuple[object, ...]:
    """Tensors that are one: the same bytes seen in the same way, as tied weights are."""
    assert isinstance(value, torch.Tensor)
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided or not value.numel():
        return (id(value),)
    return (value.data_ptr(), str(value.device), value.dtype, tuple(value.shape), value.stride())


def _plain(value: object) -> tuple[str, object] | None:
    if isinstance(value, torch.Size):
        return "torch.Size", list(value)
    if isinstance(value, torch.dtype):
        return "torch.dtype", str(value).removeprefix("torch.")
    if isinstance(value, torch.device):
        return "torch.device", str(value)
    if isinstance(value, np.generic) and value.dtype.kind in _NUMBERS:
        return "numpy", [value.dtype.str, value.tobytes()]
    if type(value) is np.ndarray and value.dtype.kind in _NUMBERS:
        return "numpy.array", [value.dtype.str, list(value.shape), value.tobytes()]
    return None


def _number(found: Any) -> object:
    kind, data = found
    return np.frombuffer(data, _dtype(kind), 1)[0]


def _array(found: Any) -> object:
    kind, shape, data = found
    return np.frombuffer(data, _dtype(kind)).reshape(shape).copy()


def _dtype(kind: str) -> np.dtype[Any]:
    dtype = np.dtype(kind)
    if dtype.kind not in _NUMBERS:
        raise ValueError(f"{kind!r} is no number")
    return dtype


_MADE: Mapping[str, Callable[[Any], object]] = {
    "torch.Size": torch.Size,
    "torch.dtype": _TORCH.__getitem__,
    "torch.device": torch.device,
    "numpy": _number,
    "numpy.array": _array,
}
