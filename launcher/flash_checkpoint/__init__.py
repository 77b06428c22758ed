"""Offers DLRover's flash checkpoint classes over our memory and storage: a script only changes its import line.

from turnout.launcher.flash_checkpoint import DdpCheckpointer, FsdpShardCheckpointer, StorageType
"""

from __future__ import annotations

from turnout.launcher.checkpoint.engine.storage_type import (
    KeepLatestStepStrategy,
    KeepStepIntervalStrategy,
    StorageType,
)
from turnout.launcher.flash_checkpoint.ddp_engine import DdpCheckpointer
from turnout.launcher.flash_checkpoint.fsdp_engine import FsdpShardCheckpointer

__all__ = [
    "DdpCheckpointer",
    "FsdpShardCheckpointer",
    "KeepLatestStepStrategy",
    "KeepStepIntervalStrategy",
    "StorageType",
]
