"""Defines what users of the flash-checkpoint classes choose: where a save goes, which files stay.

Source: DL-43, DL-50
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from turnout.launcher.checkpoint.format.manifest import Every, Latest
from turnout.launcher.coordinator_messages import MAX_REPLICAS


class StorageType(Enum):
    """Says whether a save goes only to memory, or also to storage."""

    MEMORY = 0  # to storage only if training resumes from this step after a failure
    DISK = 1  # also to storage, in the background


@dataclass(frozen=True, slots=True)
class KeepLatestStepStrategy:
    """Keeps the newest `max_to_keep` checkpoint files of the folder, 1 or more."""

    max_to_keep: int
    checkpoint_dir: str | Path = ""  # the checkpointer's folder, or ""

    def __post_init__(self) -> None:
        Latest(self.max_to_keep)


@dataclass(frozen=True, slots=True)
class KeepStepIntervalStrategy:
    """Keeps the checkpoint files of steps that are multiples of `keep_interval`, 1 or more, and the newest file."""

    keep_interval: int
    checkpoint_dir: str | Path = ""  # the checkpointer's folder, or ""

    def __post_init__(self) -> None:
        Every(self.keep_interval)


DeletionStrategy: TypeAlias = KeepLatestStepStrategy | KeepStepIntervalStrategy


def keep_and_every(strategy: object, folder: Path) -> tuple[int, int]:
    """Return the arguments `keep` and `every` of Checkpointer for a deletion strategy; (0, 0) for None.

    folder: of the checkpoints. Raises TypeError for an unknown strategy, and ValueError if it names another folder.
    """
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


def replicas_of(replica_count: int) -> int:
    """Convert DLRover's `replica_count` to the number of replicas: other workers whose memory keeps each shard too.

    DLRover's number is the size of a backup group, so 0 and 1 mean no replica. DLRover groups neighbouring workers;
    here replicas are placed as far apart as possible. Raises ValueError outside 0 to MAX_REPLICAS + 1. Source: DL-60,
    docs/facts/dlrover.md 6.3
    """
    if not 0 <= replica_count <= MAX_REPLICAS + 1:
        raise ValueError(f"replica_count is {replica_count}: 0 to {MAX_REPLICAS + 1}")
    return max(replica_count - 1, 0)
