"""Chooses the next samples: one cursor per epoch, in one order for all ranks, so no resize loses or repeats a sample.

A batch is divided among ranks in batch.py. The script owns and loads the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import isqrt
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from turnout.launcher.elastic.batch import ElasticBatch, MicroStep
from turnout.launcher.errors import LauncherError

MAX_SAMPLES = 1 << 62
NOT_SHUFFLED = -1  # stands for the seed in a state
STATE = ("seed", "epoch", "cursor", "length")

Item = TypeVar("Item")


class BadData(LauncherError):
    """The length, seed or step is invalid. Correct the call."""


class OtherData(LauncherError):
    """The state belongs to another data set or another order. Load the right state, or start again."""


def shuffle_positions(positions: NDArray[np.int64], length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the samples at these positions of an epoch's order: a permutation of range(length) that needs no memory.

    positions: one dimension, each 0 to length - 1. Seed and epoch are the key. The order never changes between
    versions, since a saved cursor is only valid in its order. The method is a Feistel network on a table of about
    sqrt(length) rows and columns, where a result outside the data is permuted again: see Black and Rogaway, "Ciphers
    with arbitrary finite domains".
    """
    keys = np.frombuffer(blake2b(f"{seed}/{epoch}".encode()).digest(), dtype="<u8").astype(np.uint64)
    rows = isqrt(length - 1) + 1
    columns = -(-length // rows)
    samples = _stir(positions.astype(np.uint64), rows, columns, keys)
    while (outside := samples >= length).any():
        samples[outside] = _stir(samples[outside], rows, columns, keys)
    return samples.astype(np.int64)


def _stir(cells: NDArray[np.uint64], rows: int, columns: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Permute the cells of a table: rows and columns are shifted in turn, each by a hash of the other.

    cells: indices below rows * columns. keys: an even number of random words, two for each turn.
    """
    wide, high = np.uint64(columns), np.uint64(rows)
    row, column = cells // wide, cells % wide
    for for_row, for_column in zip(keys[::2], keys[1::2], strict=True):
        row = (row + _mix(column + for_row) % high) % high
        column = (column + _mix(row + for_column) % wide) % wide
    mixed: NDArray[np.uint64] = row * wide + column
    return mixed


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash 64 bits so that every output bit depends on every input bit. Source: the finalizer of SplitMix64."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


class ElasticSampler:
    """A cursor in the order of an epoch: the number of its samples that are committed, over all ranks.

    Only `done` moves it, after the optimizer's step. Samples that a loader fetches ahead do not move it, and
    uncommitted samples come again after a restart. length: of the data set. seed: 0 or more, the same on every rank.
    """

    def __init__(self, length: int, *, seed: int, shuffle: bool = True) -> None:
        if not 1 <= length <= MAX_SAMPLES:
            raise BadData(f"a data set of {length} samples: 1 to 2**62 are needed")
        if seed < 0:
            raise BadData(f"the seed is {seed}: 0 or more is needed")
        self.length, self.seed, self.shuffle = length, seed, shuffle
        self.epoch = self.cursor = 0

    @property
    def left(self) -> int:
        """Return the number of samples of this epoch that are not committed yet."""
        return self.length - self.cursor

    def plan(self, batch: ElasticBatch, *, world: int, rank: int, drop_last: bool = False) -> Plan:
        """Return the rest of the epoch for one rank of a world. drop_last: leave out a short last batch.

        Raises BadBatch if the rank is not in the world.
        """
        batch.share(world, rank)  # refuses a rank outside the world now, not at the first batch
        return Plan(self, batch, world, rank, drop_last)

    def done(self, samples: int) -> None:
        """Commit a global batch of `MicroStep.global_samples`. Every rank calls it after the optimizer's step.

        Raises BadData if `samples` is below 1, or more than are left in the epoch.
        """
        if not 1 <= samples <= self.left:
            raise BadData(f"{samples} samples are committed, {self.left} are left in epoch {self.epoch}")
        self.cursor += samples

    def next_epoch(self, *, drop_rest: bool = False) -> None:
        """Begin the next epoch, in a new order. Raises BadData if samples are left, unless `drop_rest` allows it."""
        if self.left and not drop_rest:
            raise BadData(f"{self.left} samples of epoch {self.epoch} are not committed: drop_rest would lose them")
        self.epoch, self.cursor = self.epoch + 1, 0

    def at(self, positions: NDArray[np.int64], epoch: int) -> list[int]:
        """Return the samples at these positions of an epoch's order."""
        order = shuffle_positions(positions, self.length, self.seed, epoch) if self.shuffle else positions
        samples: list[int] = order.tolist()
        return samples

    def state_dict(self) -> dict[str, int]:
        """Return the position of training as four numbers, valid in any world. Save them with the model."""
        return {"seed": self._key, "epoch": self.epoch, "cursor": self.cursor, "length": self.length}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from a saved state.

        Raises OtherData if length, seed or shuffling differ, or if it is no state of a sampler; then nothing changes.
        """
        if sorted(state) != sorted(STATE) or not all(type(value) is int for value in state.values()):
            raise OtherData(f"the sampler's state is {dict(state)!r}: whole numbers for {', '.join(STATE)} are needed")
        if state["length"] != self.length:
            raise OtherData(f"the sampler's state is of {state['length']} samples, the data set has {self.length}")
        if state["seed"] != self._key:
            raise OtherData(f"the sampler's state has {_key_text(state['seed'])}, the sampler {_key_text(self._key)}")
        if state["epoch"] < 0 or not 0 <= state["cursor"] <= self.length:
            raise OtherData(
                f"the sampler's state is outside its data: epoch {state['epoch']}, cursor {state['cursor']}"
            )
        self.epoch, self.cursor = state["epoch"], state["cursor"]

    @property
    def _key(self) -> int:
        """Return what determines the order of samples: the seed, NOT_SHUFFLED without shuffling."""
        return self.seed if self.shuffle else NOT_SHUFFLED


def _key_text(key: int) -> str:
    """Describe a key for an error message."""
    return "no shuffling" if key == NOT_SHUFFLED else f"seed {key}"


@dataclass(frozen=True, slots=True)
class Plan:
    """One rank's micro-steps from the cursor to the end of the epoch, for use as a DataLoader's `batch_sampler`.

    Each iteration starts at the current cursor, so one plan and one loader serve every epoch of a process.
    """

    sampler: ElasticSampler
    batch: ElasticBatch
    world: int
    rank: int
    drop_last: bool = False

    def __len__(self) -> int:
        """Return the number of micro-steps left in the epoch, which is equal on every rank."""
        full, rest = divmod(self.sampler.left, self.batch.global_batch)
        passes = full * self.batch.passes(self.world)
        return passes + (self.batch.passes(self.world, rest) if rest and not self.drop_last else 0)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the sample indices of each micro-step.

        A micro-step in which this rank has no samples gets the first sample of its global batch, to be weighted 0.
        """
        return self._samples(self.sampler.epoch, self.sampler.cursor)

    def over(self, loader: Iterable[Item]) -> Iterator[tuple[MicroStep, Item]]:
        """Yield each item of `loader` with its micro-step, from the cursor on.

        loader: one item for each micro-step of this plan. Raises ValueError at the end if it has more or fewer items.
        """
        return zip(self._steps(self.sampler.cursor), loader, strict=True)

    def _shares(self, cursor: int) -> Iterator[tuple[int, tuple[MicroStep, ...]]]:
        """Yield the first position of each global batch from `cursor` on, and this rank's micro-steps in the batch.

        The last batch may be smaller; with `drop_last` it is omitted.
        """
        size, length = self.batch.global_batch, self.sampler.length
        batch_share = self.batch.share(self.world, self.rank)
        for first in range(cursor, length - size + 1, size):
            yield first, batch_share
        rest = (length - cursor) % size
        if rest and not self.drop_last:
            yield length - rest, self.batch.share(self.world, self.rank, rest)

    def _steps(self, cursor: int) -> Iterator[MicroStep]:
        """Yield this rank's micro-steps from `cursor` to the end of the epoch."""
        for _, steps in self._shares(cursor):
            yield from steps

    def _samples(self, epoch: int, cursor: int) -> Iterator[list[int]]:
        """Yield this rank's sample indices of each micro-step in an epoch.

        A micro-step without samples of this rank gets one spare sample. cursor: samples of the epoch that are consumed.
        """
        for first, steps in self._shares(cursor):
            mine = np.arange(self.rank, steps[0].global_samples, self.world, dtype=np.int64)
            *samples, spare = self.sampler.at(first + np.append(mine, 0), epoch)
            used = 0
            for step in steps:
                yield samples[used : used + step.samples] if step.samples else [spare]
                used += step.samples
