"""For Accelerate: `from turnout.launcher.flash_checkpoint.accelerate import FlashState, StorageType`.

Needs accelerate.
"""

from __future__ import annotations

from turnout.launcher.checkpoint.adapters.accelerate import FlashState
from turnout.launcher.checkpoint.engine.storage_type import StorageType

__all__ = ["FlashState", "StorageType"]
