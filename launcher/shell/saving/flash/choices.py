"""What a user of the flash-checkpoint classes chooses: where a save goes, and which files stay. Source: DL-43, DL-50"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from turnout.launcher.checkpoint.retention import Every, Latest
from turnout.launcher.keeping import MOST_COPIES


class StorageType(Enum):
    """Where a save goes. MEMORY: to storage only if training goes on from it after a failure; DISK: there too, soon."""

    MEMORY = 0
    DISK = 1


@dataclass(frozen=True, slots=True)
class KeepLatestStepStrategy:
    """Of the files in the folder the newest `max_to_keep` stay, 1 or more. checkpoint_dir: the checkpointer's."""

    max_to_keep: int
    checkpoint_dir: str | Path = ""

    def __post_init__(self) -> None:
        Latest(self.max_to_keep)


@dataclass(frozen=True, slots=True)
class KeepStepIntervalStrategy:
    """Of the files in the folder those of multiples of `keep_interval` stay, 1 or more, and the newest one."""

    keep_interval: int
    checkpoint_dir: str | Path = ""

    def __post_init__(self) -> None:
        Every(self.keep_interval)


DeletionStrategy: TypeAlias = KeepLatestStepStrategy | KeepStepIntervalStrategy


def keep_and_every(strategy: object, folder: Path) -> tuple[int, int]:
    """The two numbers that a strategy means, 0 and 0 for none. Raises ValueError and TypeError for what is not ours."""
    match strategy:
        case None:
            return 0, 0
        case KeepLatestStepStrategy(max_to_keep=keep, checkpoint_dir=where):
            numbers = keep, 0
        case KeepStepIntervalStrategy(keep_interval=every, checkpoint_dir=where):
            numbers = 0, every
        case _:
            raise TypeError(
                f"deletion_strategy is a {type(strategy).__name__}: KeepLatestStepStrategy and "
                "KeepStepIntervalStrategy are known here"
            )
    if str(where) and Path(where).absolute() != folder:
        raise ValueError(f"the strategy is for {where}, the checkpoints are in {folder}")
    return numbers


def copies_of(replica_count: int) -> int:
    """How many copies in the memory of others a backup group of so many workers means; 0 and 1: none.

    DLRover's groups are of workers next to one another; ours stand as far apart as they can, which buddies.py settles.
    Raises ValueError. Source: DL-60, docs/facts/dlrover.md 6.3
    """
    if not 0 <= replica_count <= MOST_COPIES + 1:
        raise ValueError(f"replica_count is {replica_count}: 0 to {MOST_COPIES + 1}")
    return max(replica_count - 1, 0)
