"""Copies the larger part of a save while training goes on, up to the next optimizer step.

An optimizer changes parameters and its own state only in `step()`, so forward and backward leave them unchanged.
Every in-place operation of torch raises the tensor's version: on a CPU when the operation is over, on a device when it
is queued. The versions are compared before the optimizer steps, when this thread runs no operation.
On a CPU the optimizer's step waits until the copy has ended. On a device the step is queued at once, and the device
runs it after the copy; a write that was queued between the save and the step raised a version, whenever it runs.
A write through `.data`, or from outside torch, raises no version. `verify` finds such writes by checksums, which hashes
the bytes twice. It reads host memory, so with `verify` tensors on a device are copied before training goes on.
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

from turnout.launcher.checkpoint.engine.save_plan import SavePlan
from turnout.launcher.checkpoint.engine.state_dict import octets, versions_of
from turnout.launcher.checkpoint.format.shard_file import Entry, sum_of


class CopyPolicy(NamedTuple):
    """Says which tensors a save may copy while training goes on."""

    addresses: frozenset[int]  # data pointers of tensors that only the optimizers change
    verify: bool  # hash these tensors before and after the copy


def addresses(optimizers: Iterable[Optimizer]) -> frozenset[int]:
    """Collect the data pointers of all tensors that only a step of these optimizers changes."""
    found = list[torch.Tensor]()
    for optimizer in optimizers:
        found.extend(chain.from_iterable(group["params"] for group in optimizer.param_groups))
        states = chain.from_iterable(state.values() for state in optimizer.state.values())
        found.extend(each for each in states if type(each) is torch.Tensor)
    return frozenset(map(torch.Tensor.data_ptr, found))


@dataclass(frozen=True, slots=True)
class AsyncCopy:
    """Holds the tensors that one save copies while training goes on, with their versions and checksums at its
    beginning.
    """

    entries: tuple[Entry, ...]
    tensors: tuple[torch.Tensor, ...]
    versions: tuple[int, ...]  # by tensor, when the save began
    sums: tuple[int, ...]  # by tensor, when the save began; () without verify

    @classmethod
    def of(cls, laid: SavePlan, mask: npt.NDArray[np.bool_], verify: bool) -> AsyncCopy:
        """Choose the tensors that `mask` marks, by layout entry, and record their versions.

        With `verify`, also hash them now; `changed()` then compares the copy with these checksums.
        """
        chosen = np.flatnonzero(mask).tolist()
        tensors = tuple([laid.tensors[at] for at in chosen])
        sums = tuple(sum_of(octets(tensor.data_ptr(), tensor.nbytes)) for tensor in tensors) if verify else ()
        return cls(tuple([laid.layout.entries[at] for at in chosen]), tensors, versions_of(tensors), sums)

    def changed(self, data: int) -> list[str]:
        """List the names of tensors that may have changed before they were copied.

        data: the address to which the first tensor's bytes were copied.
        """
        pairs = zip(self.entries, versions_of(self.tensors), self.versions, strict=True)
        names = [entry.name for entry, version, was in pairs if version != was]
        if not names and self.sums:
            copied = zip(self.entries, self.sums, strict=True)
            names = [
                each.name for each, was in copied if sum_of(octets(data + each.start, each.end - each.start)) != was
            ]
        return names


def overlappable(
    laid: SavePlan, frozen_addresses: frozenset[int], excluded: set[str], on_device: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Mark the layout entries that can be copied while training goes on.

    frozen_addresses: data pointers of tensors that only optimizers change. excluded: names of tensors that an earlier
    save found changed. on_device: entries that a device copies in the background. CPU tensors have to be plain bytes.
    """
    mask = np.fromiter(map(frozen_addresses.__contains__, laid.sources.tolist()), np.bool_, len(laid.tensors))
    mask &= laid.plain | on_device
    if mask.any():
        mask &= ~np.fromiter(map(torch.Tensor.is_inference, laid.tensors), np.bool_, len(mask))
    if excluded:
        mask &= ~np.fromiter((each.name in excluded for each in laid.layout.entries), np.bool_, len(mask))
    return mask


class BeforeOptimizerSteps:
    """Calls a function before each step of the optimizers given to `watch()`. Holds only weak references to them."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before
        self._hooked: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def watch(self, optimizers: Iterable[Optimizer]) -> None:
        """Call the function before every later step of these optimizers."""
        for optimizer in optimizers:
            if optimizer not in self._hooked:
                self._hooked.add(optimizer)
                optimizer.register_step_pre_hook(lambda *_: self._before())
