"""Converts between the torch tensors of a state and bytes in memory. state_tree.py encodes its other values."""

from __future__ import annotations

import ctypes
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeGuard, cast

import numpy as np
import torch

from turnout.launcher.checkpoint.format import state_tree
from turnout.launcher.checkpoint.format.shard_file import Entry, Layout, Spec
from turnout.launcher.checkpoint.format.state_tree import TreeCache, cache_tree
from turnout.launcher.errors import BadCheckpoint, BadState

NAMES: Mapping[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
}
_TYPES = {name: dtype for dtype, name in NAMES.items()}
_TORCH = {str(dtype).removeprefix("torch."): dtype for dtype in NAMES}
_KINDS = (torch.Tensor, torch.nn.Parameter)
_DTYPE, _SHAPE, _CPU, _VERSION = map(attrgetter, ("dtype", "shape", "is_cpu", "_version"))
_NUMBERS = "biufc"  # numpy's kinds of numbers
_COMPILED = "_orig_mod."  # torch.compile's prefix for names in a wrapped module


def flatten(state: object) -> tuple[str, dict[str, torch.Tensor]]:
    """Split a state into the text of its tree and its tensors by name, in the order of the state.

    Tensors over the same bytes in the same view, such as tied weights, are listed once, under the first name. Raises
    BadState for an unsupported value, and for a tensor without bytes or of another kind than a plain one.
    """
    identity = _TensorIdentity()
    text, tensors_by_name = state_tree.flatten(state, _is_tensor, _encode_value, identity)
    tensors = cast(dict[str, torch.Tensor], tensors_by_name)
    if identity.odd:
        for name, tensor in tensors.items():
            if type(tensor) not in _KINDS or tensor.layout is not torch.strided:
                kind = type(tensor).__name__ if tensor.layout is torch.strided else str(tensor.layout)
                raise BadState(name, f"a {kind} is no plain tensor: save it with torch.distributed.checkpoint")
            if tensor.is_meta:
                raise BadState(name, "a tensor on the meta device has no bytes")
            if tensor.is_cpu and tensor.numel() and not tensor.data_ptr():
                raise BadState(name, "its storage was freed: it has no bytes")
    return text, tensors


def cache_tree_of(state: object) -> TreeCache | None:
    """Return the cached tree of a state that `flatten` accepted, for the next save; None if it cannot be cached."""
    return cache_tree(state, _is_tensor, _encode_value, _TensorIdentity())


class TensorSpecs(NamedTuple):
    """The properties that decide how tensors are saved. Lists are in the order of the tensors."""

    dtypes: list[torch.dtype]
    shapes: list[torch.Size]
    cpu: list[bool]
    contiguous: list[bool]
    negative: list[bool]
    conjugate: list[bool]  # [] if no dtype is complex
    shared: list[tuple[int, int]]  # pairs: a tensor that may share its address, and the first tensor equal to it


class AddressedTensors(NamedTuple):
    """The current addresses of tensors, and how they are saved."""

    addresses: list[int]  # of the first byte, 0 for a tensor without bytes
    specs: TensorSpecs


def specs_of(tensors: Sequence[torch.Tensor]) -> AddressedTensors | None:
    """Return addresses and properties of all tensors at once; None if one has no storage address, so that each has to
    be checked on its own.

    tensors: that `flatten` accepts. It runs one loop in C per property, since a save of a thousand tensors has half a
    millisecond for all of them.
    """
    kind = torch.Tensor
    try:
        addresses, cpu, dtypes = list(map(kind.data_ptr, tensors)), list(map(_CPU, tensors)), list(map(_DTYPE, tensors))
        specs = TensorSpecs(
            dtypes,
            list(map(_SHAPE, tensors)),
            cpu,
            list(map(kind.is_contiguous, tensors)),
            list(map(kind.is_neg, tensors)),
            list(map(kind.is_conj, tensors)) if any(each.is_complex for each in set(dtypes)) else [],
            _shared_tensors(tensors, addresses),
        )
    except (RuntimeError, NotImplementedError):  # its layout has no storage
        return None
    without_address = [index for index, address in enumerate(addresses) if not address] if specs.shared else []
    return (
        None
        if any(not cpu[index] or tensors[index].numel() for index in without_address)
        else AddressedTensors(addresses, specs)
    )


def _shared_tensors(tensors: Sequence[torch.Tensor], addresses: Sequence[int]) -> list[tuple[int, int]]:
    """Return (index, index of the first equal tensor) of each tensor that may share its memory with another one.

    The two are the same for the first of equal tensors. addresses: of the tensors, in the same order; 0 for a tensor
    without bytes. Returns [] if all addresses differ and none is 0.
    """
    distinct = set(addresses)
    if len(distinct) == len(addresses) and 0 not in distinct:
        return []
    identity, first, counts = _TensorIdentity(), dict[Hashable, int](), Counter(addresses)
    places = [index for index, address in enumerate(addresses) if not address or counts[address] > 1]
    return [(index, first.setdefault(identity(tensors[index]), index)) for index in places]


def _is_tensor(value: object) -> bool:
    """Return True for a tensor of any kind."""
    return isinstance(value, torch.Tensor)


class _TensorIdentity:
    """Maps a tensor to a key that is equal for tensors over the same bytes in the same view, such as tied weights.

    It runs for each tensor of each save, so most tensors cost one address look-up. `odd` becomes True once a tensor is
    of another kind, of another layout or without an address.
    """

    def __init__(self) -> None:
        self.odd = False
        self._first: dict[int, torch.Tensor] = {}

    def __call__(self, value: Any) -> Hashable:
        plain = type(value) in _KINDS and value.layout is torch.strided
        address: int = value.data_ptr() if plain else 0
        if not address:
            self.odd = True
            return "at", id(value)
        first = self._first.setdefault(address, value)
        if first is value or _view_key(first) == _view_key(value):
            return address
        return _view_key(value) if value.numel() else ("at", id(value))


def _view_key(tensor: torch.Tensor) -> Hashable:
    """Return a key that is equal for tensors with the same address, dtype, shape, strides and flags."""
    flags = tensor.is_neg(), tensor.is_conj()
    return tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride(), flags


def spec_of(name: str, tensor: torch.Tensor) -> Spec:
    """Describe a tensor for the layout. Raises BadState if checkpoints have no name for its dtype."""
    if tensor.dtype not in NAMES:
        raise BadState(name, f"a checkpoint cannot have a tensor of {tensor.dtype}")
    return Spec(name, NAMES[tensor.dtype], tuple(tensor.shape))


def versions_of(tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
    """Return torch's version of each tensor, which counts in-place writes.

    Raises RuntimeError for an inference tensor.
    """
    return tuple(map(_VERSION, tensors))


def is_bytes(tensor: torch.Tensor) -> bool:
    """Return True if the tensor's bytes lie in CPU memory exactly as they are saved."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def octets(address: int, size: int) -> memoryview:
    """Return a view of `size` bytes of this process's memory. The caller must keep the memory alive."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B") if size else memoryview(b"")


def tensor_over(view: memoryview, entry: Entry, head_bytes: int) -> torch.Tensor:
    """Return a tensor over the bytes of an entry in a shard. It keeps the shard's memory alive.

    view: the shard. head_bytes: length of its header. Raises BadCheckpoint for a dtype that this torch lacks.
    """
    dtype = _TYPES.get(entry.dtype)
    if dtype is None:
        raise BadCheckpoint(f"{entry.name}: this torch has no {entry.dtype}")
    count = math.prod(entry.shape)
    if not count:
        return torch.empty(entry.shape, dtype=dtype)
    flat = torch.frombuffer(view, dtype=dtype, count=count, offset=head_bytes + entry.start)
    return flat.view(entry.shape)


def restore_state(text: str, layout: Layout, view: memoryview, head_bytes: int) -> object:
    """Return the state of a shard. Its tensors share the memory of `view`.

    text: of its tree. view, head_bytes: the shard, and the length of its header. Raises BadCheckpoint if the text is
    invalid or names a tensor that the layout lacks, or if this torch lacks a dtype.
    """
    tensors = {entry.name: tensor_over(view, entry, head_bytes) for entry in layout.entries}
    return unflatten(text, tensors)


def unflatten(text: str, tensors: Mapping[str, torch.Tensor]) -> object:
    """Build the state from its tree's text and its tensors by name, as `flatten` split it.

    Raises BadCheckpoint if the text is invalid or names a tensor that is missing.
    """
    return state_tree.unflatten(text, tensors, _DECODERS)


def _encode_value(value: object) -> tuple[str, object] | None:
    """Return the type word and the content by which state_tree.py stores a value of torch or numpy; None for others."""
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


class Stateful(Protocol):
    """An object that saves and loads its own state: a model, an optimizer, a GradScaler, a scheduler or a sampler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the object's state as a dict to save."""

    def load_state_dict(self, state: dict[str, Any]) -> object:
        """Restore the object from a state that state_dict() returned."""


def _is_stateful(value: object) -> TypeGuard[Stateful]:
    """Return True for an object with state_dict() and load_state_dict()."""
    return hasattr(type(value), "state_dict") and hasattr(type(value), "load_state_dict")


def module_state(module: torch.nn.Module) -> dict[str, Any]:
    """Return a module's state_dict() with the names that the module has without torch.compile."""
    state: dict[str, Any] = module.state_dict()
    return {name.replace(_COMPILED, ""): each for name, each in state.items()} if _is_compiled(state) else state


def buffers(module: torch.nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Select the entries of a module's state that are buffers, such as BatchNorm's means. Ranks may differ in them."""
    names = {name.replace(_COMPILED, "") for name, _ in module.named_buffers(remove_duplicate=False)}
    return {name: each for name, each in state.items() if name.replace(_COMPILED, "") in names}


def load_module(module: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Load a state into a module. Names match even if the module, or the saved one, is wrapped by torch.compile.

    Raises the errors of load_state_dict, such as for missing names.
    """
    own: Mapping[str, Any] = module.state_dict()
    if _is_compiled(own) or _is_compiled(state):
        names = {name.replace(_COMPILED, ""): name for name in own}
        plain = ((name.replace(_COMPILED, ""), each) for name, each in state.items())
        state = {names.get(name, name): each for name, each in plain}
    module.load_state_dict(dict(state))


def _is_compiled(state: Mapping[str, Any]) -> bool:
    """Return True if some name in a state has torch.compile's prefix."""
    return any(_COMPILED in name for name in state)


def _state_of(value: Stateful) -> dict[str, Any]:
    """Return an object's state_dict(), for a module without torch.compile's prefixes."""
    return module_state(value) if isinstance(value, torch.nn.Module) else value.state_dict()


def plain_state(state: object) -> object:
    """Return a copy of a dict in which each object with a state_dict() is replaced by its state_dict().

    Only the values at the top are examined. A dict without such objects, and any other state, is returned unchanged.
    """
    if not isinstance(state, dict) or not any(map(_is_stateful, state.values())):
        return state
    parts = ((key, _state_of(each) if _is_stateful(each) else each) for key, each in state.items())
    return type(state)(parts) if type(state) in (dict, OrderedDict) else dict(parts)


def restore(into: Mapping[str, object], state: object) -> None:
    """Load each part of the state into the object with the same key: by load_state_dict(), or `load_module` for a
    module.

    into: objects by key. Objects without a part or without load_state_dict(), and parts without an object, are ignored.
    Raises BadCheckpoint if the state is no dict, and the errors of load_state_dict; objects before it are loaded then.
    """
    if not isinstance(state, dict):
        raise BadCheckpoint(f"the state is a {type(state).__name__}, and has no parts by name")
    for key, each in into.items():
        if isinstance(each, torch.nn.Module) and isinstance(state.get(key), dict):
            load_module(each, state[key])
        elif _is_stateful(each) and key in state:
            each.load_state_dict(state[key])


def _decode_number(content: Any) -> object:
    """Return the numpy number that `_encode_value` encoded."""
    kind, data = content
    return np.frombuffer(data, _dtype(kind), 1)[0]


def _decode_array(content: Any) -> object:
    """Return the numpy array that `_encode_value` encoded."""
    kind, shape, data = content
    return np.frombuffer(data, _dtype(kind)).reshape(shape).copy()


def _dtype(kind: str) -> np.dtype[Any]:
    """Return numpy's type of this name, such as "<f4". Raises ValueError for a type of other things than numbers,
    and TypeError for an unknown name.
    """
    dtype = np.dtype(kind)
    if dtype.kind not in _NUMBERS:
        raise ValueError(f"{kind!r} is no number")
    return dtype


_DECODERS: Mapping[str, Callable[[Any], object]] = {
    "torch.Size": torch.Size,
    "torch.dtype": _TORCH.__getitem__,
    "torch.device": torch.device,
    "numpy": _decode_number,
    "numpy.array": _decode_array,
}
