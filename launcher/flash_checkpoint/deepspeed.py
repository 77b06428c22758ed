"""DeepSpeed, which has to be installed.

from turnout.launcher.flash_checkpoint.deepspeed import DeepSpeedCheckpointer, StorageType
"""

from __future__ import annotations

from turnout.launcher.shell.saving.flash.choices import StorageType
from turnout.launcher.shell.saving.frameworks.deepspeed import DeepSpeedCheckpointer, FlashCheckpointEngine

__all__ = ["DeepSpeedCheckpointer", "FlashCheckpointEngine", "StorageType"]
