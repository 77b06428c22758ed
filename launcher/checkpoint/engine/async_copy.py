"""Copies the larger part of a save while training continues, up to the next optimizer step.

An optimizer changes parameters and its own state only in `step()`, so forward and backward leave them unchanged.
Every in-place operation of torch increases the tensor's version: on a CPU when the operation has ended, on a device
when it is queued. The versions are compared before the optimizer steps, when this thread runs no operation.
On a CPU the optimizer's step waits until the copy has ended. On a device the step is queued at once, and the device
runs it after the copy. A write that was queued between the save and the step has increased a version by then.
A write through `.data`, or from outside torch, changes no version. `verify` finds such writes by checksums, so it
hashes the bytes twice. It reads host memory, so with `verify` tensors on a device are copied before training continues.
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
    """Says which tensors a save may copy while training continues."""

    addresses: frozenset[int]  # data pointers of tensors that only the optimizers change
    verify: bool  # hash these tensors before and after the copy


def addresses(optimizers: Iterable[Optimizer]) -> frozenset[int]:
    """Return the data pointers of the tensors that only a step of these optimizers changes: their parameters, and the
    tensors in their states.
    """
    tensors = list[torch.Tensor]()
    for optimizer in optimizers:
        tensors.extend(chain.from_iterable(group["params"] for group in optimizer.param_groups))
        states = chain.from_iterable(state.values() for state in optimizer.state.values())
        tensors.extend(each for each in states if type(each) is torch.Tensor)
    return frozenset(map(torch.Tensor.data_ptr, tensors))


@dataclass(frozen=True, slots=True)
class AsyncCopy:
    """The tensors that one save copies while training continues, with their versions and checksums at its beginning."""

    entries: tuple[Entry, ...]
    tensors: tuple[torch.Tensor, ...]
    versions: tuple[int, ...]  # by tensor, when the save began
    sums: tuple[int, ...]  # by tensor, when the save began; () without verify

    @classmethod
    def of(cls, plan: SavePlan, mask: npt.NDArray[np.bool_], verify: bool) -> AsyncCopy:
        """Record the tensors that `mask` marks, by layout entry, with their versions.

        verify: also hash them now; `changed_tensors()` then compares the copy with these checksums.
        """
        chosen = np.flatnonzero(mask).tolist()
        tensors = tuple([plan.tensors[index] for index in chosen])
        sums = tuple(sum_of(octets(tensor.data_ptr(), tensor.nbytes)) for tensor in tensors) if verify else ()
        return cls(tuple([plan.layout.entries[index] for index in chosen]), tensors, versions_of(tensors), sums)

    def changed_tensors(self, data: int) -> list[str]:
        """List the names of the tensors that were written to since the save began; [] if the copy is valid.

        data: the address of the first byte after the header in the copy.
        """
        pairs = zip(self.entries, versions_of(self.tensors), self.versions, strict=True)
        names = [entry.name for entry, version, was in pairs if version != was]
        if not names and self.sums:
            copied = zip(self.entries, self.sums, strict=True)
            names = [
                each.name for each, was in copied if sum_of(octets(data + each.start, each.end - each.start)) != was
            ]
        return names


def overlap_mask(
    plan: SavePlan, frozen_addresses: frozenset[int], excluded: set[str], on_device: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return a mask of the layout entries that can be copied while training continues.

    frozen_addresses: data pointers of tensors that only optimizers change. excluded: names of tensors that were written
    to during an earlier save. on_device: mask of the entries that a device copies in the background. Tensors on the CPU
    must lie in memory as they are saved.
    """
    mask = np.fromiter(map(frozen_addresses.__contains__, plan.sources.tolist()), np.bool_, len(plan.tensors))
    mask &= plan.copied_as_bytes | on_device
    if mask.any():
        mask &= ~np.fromiter(map(torch.Tensor.is_inference, plan.tensors), np.bool_, len(mask))
    if excluded:
        mask &= ~np.fromiter((each.name in excluded for each in plan.layout.entries), np.bool_, len(mask))
    return mask


class BeforeOptimizerSteps:
    """Calls `before` before each step of the optimizers given to `watch()`. Holds only weak references to them."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before
        self._hooked: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def watch(self, optimizers: Iterable[Optimizer]) -> None:
        """Register a hook that calls this object's function before every later step of these optimizers. A second call
        for the same optimizer does nothing.
        """
        for optimizer in optimizers:
            if optimizer not in self._hooked:
                self._hooked.add(optimizer)
                optimizer.register_step_pre_hook(lambda *_: self._before())
