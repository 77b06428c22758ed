"""Saves and restores one process's random number generators: torch's, its device's, numpy's and Python's.

They are stored as text in the metadata of a shard, so they take no key of the state.
"""

from __future__ import annotations

import random
from typing import Annotated

import msgspec
import numpy as np
import torch

from turnout.launcher.accelerator import active_kind, generator_state, set_generator_state, usable_kind
from turnout.launcher.errors import BadCheckpoint

_STATE_WORDS = 624  # 32-bit words in the state of a Mersenne Twister


class MersenneTwister(msgspec.Struct, frozen=True):
    """The state of a Mersenne Twister, as Python and numpy use it."""

    words: bytes  # 624 words, little endian
    at: Annotated[int, msgspec.Meta(ge=0, le=_STATE_WORDS)]  # index of the next word
    spare: float | None  # the second of a pair of normal numbers, None if it was used

    def numbers(self) -> list[int]:
        """Return the words as integers. Raises ValueError if there are not 624."""
        words = np.frombuffer(self.words, "<u4").tolist()
        if len(words) != _STATE_WORDS:
            raise ValueError(f"a twister of {len(words)} words: it has {_STATE_WORDS}")
        return [int(each) for each in words]


class RngState(msgspec.Struct, frozen=True, tag=1):
    """The random number generators of one rank at a save."""

    rank: int
    kind: str  # device type: "cuda", "npu", "xpu" ... or ""
    torch: bytes  # torch's generator on the CPU
    device: bytes | None  # generator of torch's current device, if there is one
    numpy: MersenneTwister | None  # None if the user replaced its default kind of generator
    python: MersenneTwister


_state = msgspec.json.Decoder(RngState)


def encode_state(rank: int) -> str:
    """Encode the current state of this process's generators as text. rank: of this process."""
    _, words, spare = random.getstate()
    python = MersenneTwister(np.array(words[:-1], "<u4").tobytes(), words[-1], spare)
    legacy = np.random.get_state(legacy=False)
    numbers = None
    if isinstance(legacy, dict) and legacy["bit_generator"] == "MT19937":
        twister = legacy["state"]
        spare = float(legacy["gauss"]) if legacy["has_gauss"] else None
        numbers = MersenneTwister(twister["key"].astype("<u4").tobytes(), int(twister["pos"]), spare)
    kind = active_kind()
    device = _bytes_of(generator_state(kind)) if kind else None
    return msgspec.json.encode(RngState(rank, kind, _bytes_of(torch.get_rng_state()), device, numbers, python)).decode()


def restore(text: str, rank: int) -> bool:
    """Set this process's generators to the state in `text`, which `encode_state` returned.

    Returns False, and changes nothing, if another rank saved it. Raises BadCheckpoint for invalid text; some generators
    may be set then.
    """
    try:
        saved = _state.decode(text)
        if saved.rank != rank:
            return False
        random.setstate((3, (*saved.python.numbers(), saved.python.at), saved.python.spare))
        if saved.numpy is not None:
            gauss = (int(saved.numpy.spare is not None), saved.numpy.spare or 0.0)
            np.random.set_state(("MT19937", np.array(saved.numpy.numbers(), np.uint32), saved.numpy.at, *gauss))
        torch.set_rng_state(_tensor_of(saved.torch))
        if saved.device is not None and saved.kind == usable_kind():
            set_generator_state(saved.kind, _tensor_of(saved.device))
    except (msgspec.MsgspecError, ValueError, TypeError, RuntimeError) as error:
        raise BadCheckpoint(f"the state of random numbers cannot be read: {error}") from error
    return True


def _bytes_of(state: torch.Tensor) -> bytes:
    """Return the bytes of a uint8 tensor on the CPU."""
    return bytes(state.numpy())


def _tensor_of(raw: bytes) -> torch.Tensor:
    """Return a uint8 tensor with these bytes."""
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)
