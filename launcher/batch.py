"""How a global batch is shared among the ranks of any world, so that its size and its gradient stay what they were.

Only numbers are known here: which samples these are is in data.py, and passing them through a model is the script's.
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.launcher.errors import LauncherError


class BadBatch(LauncherError):
    """A batch, a world or a rank that cannot be. Mend the call."""


@dataclass(frozen=True, slots=True)
class MicroStep:
    """One forward and backward pass of one rank.

    takes: positions in the global batch, 0 or more. A rank with none takes any sample of the batch, so that it meets
    the others in every collective. weight: what its mean loss is multiplied by before the backward pass; 0 without
    samples. sync: True for the last pass of a batch alone, in which gradients are averaged over the ranks.
    global_samples: of the whole batch, over all ranks.
    """

    takes: range
    weight: float
    sync: bool
    global_samples: int

    @property
    def samples(self) -> int:
        """How many samples of the batch are its own."""
        return len(self.takes)


@dataclass(frozen=True, slots=True)
class ElasticBatch:
    """A global batch of the same size in every world. micro_batch: the most samples of one pass; None for no limit."""

    global_batch: int
    micro_batch: int | None = None

    def __post_init__(self) -> None:
        if self.global_batch < 1:
            raise BadBatch(f"the global batch is {self.global_batch}: 1 or more is needed")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise BadBatch(f"the micro batch is {self.micro_batch}: 1 or more is needed")

    def passes(self, world: int, samples: int | None = None) -> int:
        """How many passes every rank makes for one batch: as many as the rank with the most samples needs."""
        largest = -(-self._size(samples) // _checked(world))
        return -(-largest // self.micro_batch) if self.micro_batch else 1

    def share(self, world: int, rank: int, samples: int | None = None) -> tuple[MicroStep, ...]:
        """The passes of one rank over one batch: as many for each rank, and together exactly the batch.

        samples: of this batch, where it is a short one. Rank r takes positions r, r + world, r + 2 world...
        DDP and FSDP average gradients over the ranks with equal weight. With each mean loss times its weight, that
        average is the gradient of the mean over the batch, however uneven the shares are.
        """
        size = self._size(samples)
        if not 0 <= rank < _checked(world):
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
        if samples is None:
            return self.global_batch
        if not 1 <= samples <= self.global_batch:
            raise BadBatch(f"a batch of {samples} samples: 1 to {self.global_batch} are needed")
        return samples


def _checked(world: int) -> int:
    if world < 1:
        raise BadBatch(f"a world of {world} ranks: 1 or more is needed")
    return world
