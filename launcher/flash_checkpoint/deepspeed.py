"""For DeepSpeed, which has to be installed.

from turnout.launcher.flash_checkpoint.deepspeed import DeepSpeedCheckpointer, StorageType
"""

from __future__ import annotations

from turnout.launcher.checkpoint.adapters.deepspeed import DeepSpeedCheckpointer, FlashCheckpointEngine
from turnout.launcher.checkpoint.engine.storage_type import StorageType

__all__ = ["DeepSpeedCheckpointer", "FlashCheckpointEngine", "StorageType"]
