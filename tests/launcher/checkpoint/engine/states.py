"""States as training has them, and odder ones; and whether two are the same to the last bit."""

import struct
from collections import OrderedDict

import numpy as np
import torch
from hypothesis import strategies as st

from turnout.launcher.checkpoint.engine.state_dict import NAMES

DTYPES = tuple(NAMES)
_WAYS = ("as it is", "transposed", "every other one", "the same row again", "a parameter")


def tensor_of(dtype, shape, seed=0, way="as it is"):
    """Any bits that the dtype has, NaNs of all kinds with them."""
    dice = torch.Generator().manual_seed(seed)
    wide = (2 * shape[0], *shape[1:]) if way == "every other one" and shape else shape
    raw = torch.randint(0, 256, (*wide, dtype.itemsize), dtype=torch.uint8, generator=dice)
    tensor = (raw % 2 == 0).reshape(wide) if dtype is torch.bool else raw.view(dtype).reshape(wide)
    if way == "transposed":
        return tensor.t() if tensor.dim() == 2 else tensor
    if way == "every other one" and shape:
        return tensor[::2]
    if way == "the same row again":
        return tensor.expand(3, *shape)
    if way == "a parameter" and (dtype.is_floating_point or dtype.is_complex):
        return torch.nn.Parameter(tensor)
    return tensor


def training(step=1):
    """A state as most are: tied weights, an optimizer with numbers as keys, plain values between."""
    dice = torch.Generator().manual_seed(step)
    weight = torch.nn.Parameter(torch.rand(8, 16, generator=dice))
    return {
        "model": OrderedDict(embedding=weight, head=weight, bias=torch.arange(8.0) * step),
        "optimizer": {"state": {0: {"step": torch.tensor(float(step)), "exp_avg": torch.rand(8, 16, generator=dice)}}},
        "scheduler": {"last_epoch": step, "betas": (0.9, 0.95), "name": "cosine"},
        "step": step,
    }


def same(one, other):
    """Kinds, order of keys and every bit; where one has a tensor twice, the other has, too."""
    return _same(one, other, {})


def _same(one, other, met):
    if isinstance(one, torch.Tensor):
        if not isinstance(other, torch.Tensor) or (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        return met.setdefault(id(one), other) is other and bits(one) == bits(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[key], other[key], met) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(_same(*pair, met) for pair in zip(one, other, strict=True))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return one == other


def bits(tensor):
    """All its bytes, in the order of its elements."""
    if not tensor.numel():  # which may have any strides
        return b""
    return tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
tensors = st.builds(
    tensor_of, st.sampled_from(DTYPES), shapes, st.integers(0, 1 << 30), st.sampled_from(_WAYS)
)  # fmt: skip
plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=8),
    st.sampled_from([torch.float16, torch.Size([2, 3]), torch.device("cpu")]),
)  # fmt: skip
keys = st.one_of(
    st.text(max_size=6), st.integers(), st.booleans(), st.none(), st.tuples(st.integers(), st.text(max_size=2))
)
values = st.recursive(
    plain | tensors,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=3).map(tuple), st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)
states = st.dictionaries(keys, values, max_size=5)
