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

_WORDS = 624  # state words of a Mersenne Twister


class MersenneTwister(msgspec.Struct, frozen=True):
    """The state of a Mersenne Twister, as Python and numpy use it."""

    words: bytes
    at: Annotated[int, msgspec.Meta(ge=0, le=_WORDS)]  # index of the next word
    spare: float | None  # the second of a pair of normal numbers, None if it was used

    def numbers(self) -> list[int]:
        """Decode the words into integers. Raises ValueError if there are not 624."""
        found = np.frombuffer(self.words, "<u4").tolist()
        if len(found) != _WORDS:
            raise ValueError(f"a twister of {len(found)} words: it has {_WORDS}")
        return [int(each) for each in found]


class RngState(msgspec.Struct, frozen=True, tag=1):
    """The random number generators of one rank, as they were when its state was saved."""

    rank: int
    kind: str  # device type: "cuda", "npu", "xpu" ... or ""
    torch: bytes
    device: bytes | None  # generator of torch's current device, if there is one
    numpy: MersenneTwister | None
    python: MersenneTwister


_state = msgspec.json.Decoder(RngState)


def encode_state(rank: int) -> str:
    """Encode the current generators of this process as text. numpy's is left out if the user replaced its
    default kind.
    """
    _, words, spare = random.getstate()
    python = MersenneTwister(np.array(words[:-1], "<u4").tobytes(), words[-1], spare)
    legacy = np.random.get_state(legacy=False)
    numbers = None
    if isinstance(legacy, dict) and legacy["bit_generator"] == "MT19937":
        twister = legacy["state"]
        spare = float(legacy["gauss"]) if legacy["has_gauss"] else None
        numbers = MersenneTwister(twister["key"].astype("<u4").tobytes(), int(twister["pos"]), spare)
    kind = active_kind()
    device = _raw(generator_state(kind)) if kind else None
    return msgspec.json.encode(RngState(rank, kind, _raw(torch.get_rng_state()), device, numbers, python)).decode()


def restore(text: str, rank: int) -> bool:
    """Set the generators to a saved state; return False if another rank saved it. Raises BadCheckpoint for invalid
    text.
    """
    try:
        saved = _state.decode(text)
        if saved.rank != rank:
            return False
        random.setstate((3, (*saved.python.numbers(), saved.python.at), saved.python.spare))
        if saved.numpy is not None:
            gauss = (int(saved.numpy.spare is not None), saved.numpy.spare or 0.0)
            np.random.set_state(("MT19937", np.array(saved.numpy.numbers(), np.uint32), saved.numpy.at, *gauss))
        torch.set_rng_state(_tensor(saved.torch))
        if saved.device is not None and saved.kind == usable_kind():
            set_generator_state(saved.kind, _tensor(saved.device))
    except (msgspec.MsgspecError, ValueError, TypeError, RuntimeError) as error:
        raise BadCheckpoint(f"the state of random numbers cannot be read: {error}") from error
    return True


def _raw(state: torch.Tensor) -> bytes:
    return bytes(state.numpy())


def _tensor(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)
