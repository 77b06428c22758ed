"""A save whose larger part is copied while training goes on, up to the next step of its optimizer.

What an optimizer changes, parameters and its own state, stays as it is through forward and backward. That it did is
seen by torch's version of each tensor, which every in-place operation raises when it is over: so it is looked at when
no operation runs, before the optimizer's step. A write through .data, or from outside torch, raises no version: where
there are such, sums of the bytes tell, at the price of hashing them twice.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.optim import Optimizer as Optimizer

from turnout.launcher.checkpoint.layout import Entry
from turnout.launcher.checkpoint.sums import sum_of
from turnout.launcher.shell.saving.laying import Laid
from turnout.launcher.shell.saving.tensors import octets, versions_of


class Waits(NamedTuple):
    """What may be copied behind training. lie: where it does; verify: hash it before and after."""

    lie: frozenset[int]
    verify: bool


def addresses(optimizers: Iterable[Optimizer]) -> frozenset[int]:
    """Where that lies which only a step of these optimizers changes."""
    found = list[torch.Tensor]()
    for optimizer in optimizers:
        found.extend(chain.from_iterable(group["params"] for group in optimizer.param_groups))
        states = chain.from_iterable(state.values() for state in optimizer.state.values())
        found.extend(each for each in states if type(each) is torch.Tensor)
    return frozenset(map(torch.Tensor.data_ptr, found))


@dataclass(frozen=True, slots=True)
class Behind:
    """What one save copies behind training. versions, sums: of each such tensor when the save began; sums may be ()."""

    entries: tuple[Entry, ...]
    tensors: tuple[torch.Tensor, ...]
    versions: tuple[int, ...]
    sums: tuple[int, ...]

    @classmethod
    def of(cls, laid: Laid, mask: npt.NDArray[np.bool_], verify: bool) -> Behind:
        """mask: by entry. verify: hash them now, and what was copied of them in the end."""
        chosen = np.flatnonzero(mask).tolist()
        tensors = tuple([laid.tensors[at] for at in chosen])
        sums = tuple(sum_of(octets(tensor.data_ptr(), tensor.nbytes)) for tensor in tensors) if verify else ()
        return cls(tuple([laid.layout.entries[at] for at in chosen]), tensors, versions_of(tensors), sums)

    def changed(self, data: int) -> list[str]:
        """Which may have changed before they were copied. data: where the first tensor's bytes were copied to."""
        pairs = zip(self.entries, versions_of(self.tensors), self.versions, strict=True)
        names = [entry.name for entry, version, was in pairs if version != was]
        if not names and self.sums:
            copied = zip(self.entries, self.sums, strict=True)
            names = [
                each.name for each, was in copied if sum_of(octets(data + each.start, each.end - each.start)) != was
            ]
        return names


def may_wait(laid: Laid, lie: frozenset[int], not_these: set[str]) -> npt.NDArray[np.bool_]:
    """Which entries can be copied behind training. lie: where such tensors do. not_these: names that were not still."""
    lying = np.fromiter(map(lie.__contains__, laid.sources.tolist()), np.bool_, len(laid.tensors)) & laid.plain
    if lying.any():
        lying &= ~np.fromiter(map(torch.Tensor.is_inference, laid.tensors), np.bool_, len(lying))
    if not_these:
        lying &= ~np.fromiter((each.name in not_these for each in laid.layout.entries), np.bool_, len(lying))
    return lying


class BeforeSteps:
    """Before each step of an optimizer that was seen here, something is done. Optimizers are not kept alive."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before
        self._seen: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def see(self, optimizers: Iterable[Optimizer]) -> None:
        """From now on."""
        for optimizer in optimizers:
            if optimizer not in self._seen:
                self._seen.add(optimizer)
                optimizer.register_step_pre_hook(lambda *_: self._before())
