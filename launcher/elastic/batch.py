"""Divides a global batch among the ranks of any world, so that its size and its gradient stay the same.

Only numbers are known here. The samples are chosen in sampler.py, and the script passes them through its model.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.launcher.errors import LauncherError


class BadBatch(LauncherError):
    """The batch, world or rank is invalid. Correct the call."""


@dataclass(frozen=True, slots=True)
class MicroStep:
    """One forward and backward pass of one rank."""

    takes: range  # positions in the global batch; if empty, the rank passes any sample, to join every collective
    weight: float  # multiply the mean loss by this before the backward pass; 0 without samples
    sync: bool  # True only in the last pass of a batch, which averages gradients over the ranks
    global_samples: int  # of the whole batch, over all ranks

    @property
    def samples(self) -> int:
        """Return the number of this rank's own samples in the pass."""
        return len(self.takes)


@dataclass(frozen=True, slots=True)
class ElasticBatch:
    """A global batch of the same size in every world."""

    global_batch: int
    micro_batch: int | None = None  # the most samples of one pass; None for no limit

    def __post_init__(self) -> None:
        if self.global_batch < 1:
            raise BadBatch(f"the global batch is {self.global_batch}: 1 or more is needed")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise BadBatch(f"the micro batch is {self.micro_batch}: 1 or more is needed")

    def passes(self, world: int, samples: int | None = None) -> int:
        """Return the passes that every rank makes for one batch: as many as the rank with the most samples needs.

        samples: the size of this batch if it is a short one, None for the global batch. Raises BadBatch for a world
        below 1, or a size outside 1 to the global batch.
        """
        largest = -(-self._size(samples) // _checked_world(world))
        return -(-largest // self.micro_batch) if self.micro_batch else 1

    def share(self, world: int, rank: int, samples: int | None = None) -> tuple[MicroStep, ...]:
        """Divide a batch: return the passes of one rank. Every rank has equally many, and together they cover the batch
        once.

        samples: the size of this batch if it is a short one. Rank r takes positions r, r + world, r + 2 world...
        DDP and FSDP average gradients over the ranks with equal weight. With each mean loss times its weight, that
        average is the gradient of the batch's mean loss, however uneven the shares are. A pass without samples has an
        empty `takes` and the weight 0; the rank still makes it, with any sample. Raises BadBatch if the rank is not in
        the world, and as `passes` does.
        """
        size = self._size(samples)
        if not 0 <= rank < _checked_world(world):
            raise BadBatch(f"rank {rank} is not in a world of {world}")
        mine = range(rank, size, world)
        passes = self.passes(world, size)
        each, rest = divmod(len(mine), passes)
        steps, first = list[MicroStep](), 0
        for at in range(passes):
            after = first + each + (at < rest)
            takes, first = mine[first:after], after
            steps.append(MicroStep(takes, len(takes) * world / size, at == passes - 1, size))
        return tuple(steps)

    def _size(self, samples: int | None) -> int:
        """Return the number of samples of a batch, the global batch for None.

        Raises BadBatch if it is out of bounds.
        """
        if samples is None:
            return self.global_batch
        if not 1 <= samples <= self.global_batch:
            raise BadBatch(f"a batch of {samples} samples: 1 to {self.global_batch} are needed")
        return samples


def _checked_world(world: int) -> int:
    """Return the number of ranks unchanged. Raises BadBatch if it is below 1."""
    if world < 1:
        raise BadBatch(f"a world of {world} ranks: 1 or more is needed")
    return world
