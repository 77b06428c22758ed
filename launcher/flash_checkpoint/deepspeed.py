"""DeepSpeed: `from launcher.flash_checkpoint.deepspeed import DeepSpeedCheckpointer, StorageType`. Needs deepspeed."""

from __future__ import annotations

from launcher.shell.saving.flash.choices import StorageType
from launcher.shell.saving.frameworks.deepspeed import DeepSpeedCheckpointer, FlashCheckpointEngine

__all__ = ["DeepSpeedCheckpointer", "FlashCheckpointEngine", "StorageType"]
