"""The names of DLRover's flash checkpoint, over memory and storage of ours: only the import line of a script changes.

from turnout.launcher.flash_checkpoint import DdpCheckpointer, FsdpShardCheckpointer, StorageType
"""

from __future__ import annotations

from turnout.launcher.shell.saving.flash.choices import KeepLatestStepStrategy, KeepStepIntervalStrategy, StorageType
from turnout.launcher.shell.saving.flash.ddp import DdpCheckpointer
from turnout.launcher.shell.saving.flash.fsdp import FsdpShardCheckpointer

__all__ = [
    "DdpCheckpointer",
    "FsdpShardCheckpointer",
    "KeepLatestStepStrategy",
    "KeepStepIntervalStrategy",
    "StorageType",
]
