"""The dice of one process, beside its state: those of torch, of its device, of numpy and of Python.

They travel as text in the metadata of a shard, so that no key of the state is taken.
"""

from __future__ import annotations

import random
from typing import Annotated, Literal

import msgspec
import numpy as np
import torch

from turnout.launcher.errors import BadCheckpoint

_WORDS = 624  # of a Mersenne twister


class Twister(msgspec.Struct, frozen=True):
    """Python's or numpy's. at: the next word; spare: the second of two normal numbers, None where it was taken."""

    words: bytes
    at: Annotated[int, msgspec.Meta(ge=0, le=_WORDS)]
    spare: float | None

    def numbers(self) -> list[int]:
        """The words as they are set."""
        found = np.frombuffer(self.words, "<u4").tolist()
        if len(found) != _WORDS:
            raise ValueError(f"a twister of {len(found)} words: it has {_WORDS}")
        return [int(each) for each in found]


class Dice(msgspec.Struct, frozen=True, tag=1):
    """Of one rank, each as it was when the state was saved. device: of torch's current one, where there is one."""

    rank: int
    kind: str
    torch: bytes
    device: bytes | None
    numpy: Twister | None
    python: Twister


def seen(rank: int) -> str:
    """All of them, as text. numpy's are left out where somebody has put another generator there."""
    _, words, spare = random.getstate()
    python = Twister(np.array(words[:-1], "<u4").tobytes(), words[-1], spare)
    legacy = np.random.get_state(legacy=False)
    numbers = None
    if isinstance(legacy, dict) and legacy["bit_generator"] == "MT19937":
        held = legacy["state"]
        spare = float(legacy["gauss"]) if legacy["has_gauss"] else None
        numbers = Twister(held["key"].astype("<u4").tobytes(), int(held["pos"]), spare)
    kind = _kind()
    device = _raw(getattr(torch, kind).get_rng_state()) if kind else None
    return msgspec.json.encode(Dice(rank, kind, _raw(torch.get_rng_state()), device, numbers, python)).decode()


def restore(text: str, rank: int) -> bool:
    """Set them as they were. False where they are another rank's. Raises BadCheckpoint for what are no dice."""
    try:
        dice = msgspec.json.decode(text, type=Dice)
        if dice.rank != rank:
            return False
        random.setstate((3, (*dice.python.numbers(), dice.python.at), dice.python.spare))
        if dice.numpy is not None:
            gauss = (int(dice.numpy.spare is not None), dice.numpy.spare or 0.0)
            np.random.set_state(("MT19937", np.array(dice.numpy.numbers(), np.uint32), dice.numpy.at, *gauss))
        torch.set_rng_state(_tensor(dice.torch))
        if dice.device is not None and dice.kind == _kind(idle=True):
            getattr(torch, dice.kind).set_rng_state(_tensor(dice.device))
    except (msgspec.MsgspecError, ValueError, TypeError, RuntimeError) as error:
        raise BadCheckpoint(f"the state of random numbers cannot be read: {error}") from error
    return True


def _kind(*, idle: bool = False) -> Literal["", "cuda", "xpu"]:
    """Of the device that this process uses. idle: or could use; asking an idle one for its dice would start it."""
    if torch.cuda.is_initialized() or (idle and torch.cuda.is_available()):
        return "cuda"
    if hasattr(torch, "xpu") and (torch.xpu.is_initialized() or (idle and torch.xpu.is_available())):
        return "xpu"
    return ""


def _raw(state: torch.Tensor) -> bytes:
    return bytes(state.cpu().numpy())


def _tensor(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)
